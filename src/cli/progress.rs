//! Progress of long work, on standard error: a bar where a person looks, else a line now and then.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::output::complain;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
            let (what, elapsed) = (self.bar.message(), self.bar.elapsed().as_secs());
            let (done, steps) = (self.bar.position(), self.bar.length().unwrap_or(0));
            complain(&format!("{what}: {done}/{steps} after {elapsed} s"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
