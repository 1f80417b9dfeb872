//! What an executor gives back: when each task ran.

use crate::program::TaskId;
use crate::units::Seconds;

/// When a task ran, on the executor's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Span {
    /// When its resource began it.
    pub start: Seconds,
    /// When its result was there.
    pub end: Seconds,
}

impl Span {
    /// How long it took.
    pub fn duration(&self) -> Seconds {
        self.end - self.start
    }
}

/// One span a task, by [`TaskId`], over all pieces submitted so far.
///
/// Tasks that have not ended yet have no span.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    spans: Vec<Option<Span>>,
}

impl Trace {
    /// Room for tasks up to `end`.
    pub fn extend_to(&mut self, end: TaskId) {
        self.spans.resize(end.0 as usize, None);
    }

    /// Records that a task ran.
    ///
    /// # Panics
    /// Where the task was not announced by [`Trace::extend_to`].
    pub fn record(&mut self, task: TaskId, span: Span) {
        self.spans[task.0 as usize] = Some(span);
    }

    /// When a task ran, if it has ended.
    pub fn span(&self, task: TaskId) -> Option<Span> {
        self.spans.get(task.0 as usize).copied().flatten()
    }

    /// All spans by task number.
    pub fn spans(&self) -> &[Option<Span>] {
        &self.spans
    }

    /// When the last task ended.
    pub fn makespan(&self) -> Seconds {
        self.spans
            .iter()
            .flatten()
            .fold(Seconds::ZERO, |latest, span| latest.max(span.end))
    }
}
