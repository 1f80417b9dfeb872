//! Progress of long work, on standard error and only where a person looks.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a bar is drawn anew while nothing is done.
const TICK: Duration = Duration::from_millis(500);

/// A bar that counts up. It vanishes when dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `steps` steps; silent where standard error is no terminal.
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
        Progress { bar }
    }

    /// How many steps are done.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// How many steps of how many are done.
    pub fn set_of(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// What is being done.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
