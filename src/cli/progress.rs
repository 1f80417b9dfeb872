//! Progress of long work, on standard error: a bar where a person looks, else a line now and then.

use std::fmt;
use std::io::{IsTerminal, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use plimsoll_core::units::{Bytes, Seconds};

use super::output::complain;
use crate::report::plan::duration;

/// How often a bar is drawn anew while nothing is done.
const TICK: Duration = Duration::from_millis(500);

/// How often a line is written where nobody looks, as into a log.
const LINE: Duration = Duration::from_secs(30);

/// A bar that counts up. It vanishes when dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// How many steps there are to do.
    steps: AtomicU64,
    /// When the last line was written; none where the bar is seen.
    last_line: Mutex<Option<Instant>>,
    /// How fast steps are done, which the bar looks at as well.
    pace: Arc<Mutex<Pace>>,
}

/// When how many steps were done: first, which is where work begins that is counted, and last.
#[derive(Debug, Default)]
struct Pace {
    first: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
}

impl Pace {
    fn set(&mut self, done: u64, now: Instant) {
        self.first.get_or_insert((now, done));
        if self.last.is_none_or(|(_, before)| before != done) {
            self.last = Some((now, done));
        }
    }

    /// What the steps that are left take at the pace of all before: steps are not alike, so that the last ones alone
    /// tell little. None before one is done, and once the next has taken longer than all that are left were to.
    fn left(&self, steps: u64, now: Instant) -> Option<Duration> {
        let ((begun, first), (at, done)) = self.first.zip(self.last)?;
        let a_step =
            (at - begun).as_secs_f64() / done.checked_sub(first).filter(|it| *it > 0)? as f64;
        let left = a_step * steps.saturating_sub(done) as f64;
        let left = Duration::try_from_secs_f64(left).ok()?;
        left.checked_sub(now - at)
    }
}

impl Progress {
    /// A bar of `steps` steps; where standard error is no terminal, a line every half a minute.
    pub fn new(what: &str, steps: u64) -> Progress {
        // indicatif hides what it draws to a standard error that is no terminal.
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let pace = Arc::<Mutex<Pace>>::default();
        bar.set_style(steps_style(&pace));
        bar.set_message(what.to_owned());
        // The clock goes on while a step takes long.
        bar.enable_steady_tick(TICK);
        let last_line = (!stderr().is_terminal()).then(Instant::now);
        Progress {
            bar,
            steps: AtomicU64::new(steps),
            last_line: Mutex::new(last_line),
            pace,
        }
    }

    /// How many steps are done.
    pub fn set(&self, done: u64) {
        locked(&self.pace).set(done, Instant::now());
        self.bar.set_style(steps_style(&self.pace));
        self.bar.set_length(self.steps.load(Ordering::Relaxed));
        self.bar.set_position(done);
        self.log();
    }

    /// How many steps of how many are done.
    pub fn set_of(&self, done: u64, total: u64) {
        self.steps.store(total, Ordering::Relaxed);
        self.set(done);
    }

    /// How many bytes of how many there are, of what comes before the steps.
    pub fn bytes(&self, what: &str, done: Bytes, all: Bytes) {
        self.bar.set_style(bar_style("{msg} [{bar:40}] {elapsed}"));
        self.bar.set_message(format!("{what}, {done} of {all}"));
        self.bar.set_length(all.0);
        self.bar.set_position(done.0);
        self.log_with(&|after, message| format!("{message} after {} s", after.as_secs()));
    }

    /// What is being done.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.log();
    }

    /// What is begun, and how many steps are done before it.
    pub fn begin(&self, what: &str, done: u64) {
        self.bar.set_message(what.to_owned());
        self.set(done);
    }

    fn log(&self) {
        self.log_with(&|after, message| {
            let steps = (self.bar.position(), self.bar.length().unwrap_or(0));
            let left = locked(&self.pace).left(steps.1, Instant::now());
            line(message, steps, (after, left.unwrap_or_default()))
        });
    }

    /// Writes a line, of the time until now and the message, if it is time for one.
    fn log_with(&self, line: &dyn Fn(Duration, &str) -> String) {
        let mut last = locked(&self.last_line);
        if last.is_some_and(|last| last.elapsed() >= LINE) {
            *last = Some(Instant::now());
            complain(&line(self.bar.elapsed(), &self.bar.message()));
        }
    }
}

/// How steps are drawn, with the time that is left.
fn steps_style(pace: &Arc<Mutex<Pace>>) -> ProgressStyle {
    let seen = Arc::clone(pace);
    let left = move |state: &ProgressState, out: &mut dyn fmt::Write| {
        // A bar that is narrower is drawn none the less.
        let _ = match locked(&seen).left(state.len().unwrap_or(0), Instant::now()) {
            Some(left) => write!(out, "{:#}", HumanDuration(left)),
            None => out.write_str("-"),
        };
    };
    bar_style("{msg} [{bar:40}] {pos}/{len} {elapsed} ETA {left}").with_key("left", left)
}

fn bar_style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    style
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

fn locked<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a log is told. How long the rest takes is not known before a step is done.
fn line(what: &str, (done, steps): (u64, u64), (after, left): (Duration, Duration)) -> String {
    let left = match left.as_secs() {
        0 => String::new(),
        s => format!(", about {} left", duration(Seconds(s as f64))),
    };
    format!("{what}: {done}/{steps} after {} s{left}", after.as_secs())
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_told_the_time_that_is_left_once_that_is_known() {
        let said = |done, left| {
            let times = (Duration::from_secs(90), Duration::from_secs(left));
            line("12.5 tok/s, 100 tokens, passes", (done, 8), times)
        };
        let begun = "12.5 tok/s, 100 tokens, passes: 0/8 after 90 s";
        assert_eq!(said(0, 0), begun);
        let going = "12.5 tok/s, 100 tokens, passes: 2/8 after 90 s, about 270 s left";
        assert_eq!(said(2, 270), going);
        assert!(said(2, 900).ends_with("about 15.0 min left"));
    }

    #[test]
    fn what_is_left_goes_by_all_steps_and_runs_down() {
        let begun = Instant::now();
        let at = |s: u64| begun + Duration::from_secs(s);
        let mut pace = Pace::default();
        let left = |pace: &Pace, s| pace.left(100, at(s)).map(|left| left.as_secs());
        // Weights are loaded before there is a step to count.
        pace.set(0, at(60));
        assert_eq!(left(&pace, 65), None);
        pace.set(20, at(80));
        assert_eq!(left(&pace, 80), Some(80));
        // A step that takes long says nothing of the others, nor does a quick one.
        assert_eq!(left(&pace, 110), Some(50));
        pace.set(50, at(110));
        assert_eq!(left(&pace, 110), Some(50));
        pace.set(90, at(111));
        assert_eq!(left(&pace, 111), Some(5));
        assert_eq!(left(&pace, 200), None);
    }
}
