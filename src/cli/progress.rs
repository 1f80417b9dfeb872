//! Progress of long work, on standard error: a bar where a person looks, else a line now and then.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_core::units::Seconds;

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
    /// When the last line was written; none where the bar is seen.
    last_line: Mutex<Option<Instant>>,
}

impl Progress {
    /// A bar of `steps` steps; where standard error is no terminal, a line every half a minute.
    pub fn new(what: &str, steps: u64) -> Progress {
        // indicatif hides what it draws to a standard error that is no terminal.
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let template = "{msg} [{bar:40}] {pos}/{len} {elapsed} ETA {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        // The clock goes on while a step takes long.
        bar.enable_steady_tick(TICK);
        let last_line = (!stderr().is_terminal()).then(Instant::now);
        Progress {
            bar,
            last_line: Mutex::new(last_line),
        }
    }

    /// How many steps are done.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
        self.log();
    }

    /// How many steps of how many are done.
    pub fn set_of(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.set(done);
    }

    /// What is being done.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.log();
    }

    fn log(&self) {
        let mut last = self
            .last_line
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() >= LINE) {
            *last = Some(Instant::now());
            let steps = (self.bar.position(), self.bar.length().unwrap_or(0));
            let times = (self.bar.elapsed(), self.bar.eta());
            complain(&line(&self.bar.message(), steps, times));
        }
    }
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

    /// The estimate of a bar that nobody sees.
    #[test]
    fn what_is_left_is_known_without_a_terminal() {
        let progress = Progress::new("passes", 1000);
        let until = Instant::now() + Duration::from_secs(20);
        let mut done = 0;
        while progress.bar.eta().is_zero() {
            assert!(Instant::now() < until, "no estimate after {done} steps");
            std::thread::sleep(Duration::from_millis(50));
            done += 1;
            progress.set(done);
        }
    }
}
