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

    /// How much of it lies between two times.
    pub fn within(&self, from: Seconds, to: Seconds) -> Seconds {
        Seconds((self.end.0.min(to.0) - self.start.0.max(from.0)).max(0.0))
    }
}

/// One span a task, by [`TaskId`], over all pieces submitted so far.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// A task that has not ended has no number as its end.
    spans: Vec<Span>,
}

const NOT_ENDED: Span = Span {
    start: Seconds(f64::NAN),
    end: Seconds(f64::NAN),
};

impl Trace {
    /// Room for tasks up to `end`.
    pub fn extend_to(&mut self, end: TaskId) {
        self.spans.resize(end.0 as usize, NOT_ENDED);
    }

    /// Records that a task ran.
    ///
    /// # Panics
    /// Where the task was not announced by [`Trace::extend_to`].
    #[inline]
    pub fn record(&mut self, task: TaskId, span: Span) {
        self.spans[task.0 as usize] = span;
    }

    /// When a task ran, if it has ended.
    #[inline]
    pub fn span(&self, task: TaskId) -> Option<Span> {
        let span = self.spans.get(task.0 as usize)?;
        (!span.end.0.is_nan()).then_some(*span)
    }

    /// The spans of all tasks that have ended, with their numbers.
    pub fn spans(&self) -> impl Iterator<Item = (TaskId, Span)> + '_ {
        let ended = self
            .spans
            .iter()
            .enumerate()
            .filter(|(_, s)| !s.end.0.is_nan());
        ended.map(|(index, span)| (TaskId(index as u32), *span))
    }

    /// When the last task ended.
    pub fn makespan(&self) -> Seconds {
        self.spans()
            .fold(Seconds::ZERO, |latest, (_, span)| latest.max(span.end))
    }
}
