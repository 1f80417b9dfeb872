//! A run that is looked at after each piece: which answers have ended, and how fast it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_backend::cpu::{CpuExecutor, Outlet};
use plimsoll_core::control::DriveError;
use plimsoll_core::flow::Flow;
use plimsoll_core::lower::schedule::Passes;
use plimsoll_core::program::Program;
use plimsoll_core::summary::Summary;
use plimsoll_core::units::Seconds;

use super::super::Progress;
use super::answers::Answers;
use crate::report::three_digits;

/// A run as it goes on.
pub(super) struct Watched<'a, 'p, 's> {
    pub executor: &'a mut CpuExecutor<'s>,
    /// Whether pieces and their spans are kept: a trace is asked for.
    pub keeps: bool,
    pub outlets: &'a [Outlet],
    pub answers: &'a mut Answers<'p>,
    /// Set where answers cannot be written: what comes then would be lost.
    pub interrupt: &'a AtomicBool,
    pub progress: &'a Progress,
    pub passes: &'a Passes,
    /// Passes that have ended.
    pub ended: u64,
    /// Tokens that came out of them.
    pub tokens: u64,
}

impl Watched<'_, '_, '_> {
    /// Runs all of it; what has ended is let go of, or handed back where it is to be kept.
    pub fn follow(
        &mut self,
        mut flow: Flow<'_>,
    ) -> Result<(Summary, Vec<Arc<Program>>), DriveError> {
        let mut pieces = Vec::new();
        while let Some(ended) = flow.next(self.executor)? {
            self.look(ended.at);
            if self.keeps {
                pieces.push(ended.piece);
            } else {
                flow.forget(&ended.piece, self.executor);
            }
        }
        Ok((flow.summary().0, pieces))
    }

    fn look(&mut self, now: Seconds) {
        let turns = self.passes.turns(self.ended);
        self.tokens += turns
            .iter()
            .map(|turn| u64::from(turn.sequences))
            .sum::<u64>();
        self.ended += u64::from(!turns.is_empty());
        self.progress.set(self.ended);
        self.progress.say(&speed(self.tokens, now));
        let (executor, outlets) = (&*self.executor, self.outlets);
        self.answers
            .take(|prompt| executor.so_far(&outlets[prompt]));
        if let Some(next) = outlets.get(self.answers.written()) {
            self.executor.forget_before(next);
        }
        if self.answers.has_failed() && self.ended < self.passes.count() {
            self.interrupt.store(true, Ordering::Relaxed);
        }
    }
}

/// What the progress says.
fn speed(tokens: u64, after: Seconds) -> String {
    let rate = tokens as f64 / after.0.max(f64::MIN_POSITIVE);
    format!("{} tok/s, {tokens} tokens, passes", three_digits(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_tokens_over_time() {
        assert_eq!(speed(100, Seconds(8.0)), "12.5 tok/s, 100 tokens, passes");
        assert_eq!(speed(0, Seconds(0.0)), "0 tok/s, 0 tokens, passes");
    }
}
