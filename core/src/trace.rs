//! What an executor gives back: when each task ran.

use std::collections::VecDeque;

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

/// One span a task, by [`TaskId`], over all pieces submitted so far but those that were let go of.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// A task that has not ended has no number as its end.
    spans: VecDeque<Span>,
    /// The number of the first.
    first: u32,
}

const NOT_ENDED: Span = Span {
    start: Seconds(f64::NAN),
    end: Seconds(f64::NAN),
};

impl Trace {
    /// Room for tasks up to `end`.
    pub fn extend_to(&mut self, end: TaskId) {
        let all = end.0.saturating_sub(self.first);
        self.spans.resize(all as usize, NOT_ENDED);
    }

    /// Lets go of the spans of tasks before `end`, which are not asked for any more.
    pub fn forget_to(&mut self, end: TaskId) {
        let gone = end.0.saturating_sub(self.first);
        let gone = self.spans.len().min(gone as usize);
        self.spans.drain(..gone);
        self.first += gone as u32;
    }

    /// Records that a task ran.
    ///
    /// # Panics
    /// Where the task was not announced by [`Trace::extend_to`], or was let go of.
    #[inline]
    pub fn record(&mut self, task: TaskId, span: Span) {
        self.spans[(task.0 - self.first) as usize] = span;
    }

    /// When a task ran, if it has ended and was not let go of.
    #[inline]
    pub fn span(&self, task: TaskId) -> Option<Span> {
        let index = task.0.checked_sub(self.first)?;
        let span = self.spans.get(index as usize)?;
        (!span.end.0.is_nan()).then_some(*span)
    }

    /// The spans of all of them that have ended, with their numbers.
    pub fn spans(&self) -> impl Iterator<Item = (TaskId, Span)> + '_ {
        let ended = self
            .spans
            .iter()
            .zip(self.first..)
            .filter(|(s, _)| !s.end.0.is_nan());
        ended.map(|(span, id)| (TaskId(id), *span))
    }

    /// When the last of them ended.
    pub fn makespan(&self) -> Seconds {
        self.spans()
            .fold(Seconds::ZERO, |latest, (_, span)| latest.max(span.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_of_leaves_the_others_their_numbers() {
        let span = |at: f64| Span {
            start: Seconds(at),
            end: Seconds(at + 1.0),
        };
        let mut trace = Trace::default();
        trace.extend_to(TaskId(4));
        for task in 0..3 {
            trace.record(TaskId(task), span(f64::from(task)));
        }
        trace.forget_to(TaskId(2));
        trace.extend_to(TaskId(6));
        trace.record(TaskId(5), span(5.0));
        assert_eq!(trace.span(TaskId(1)), None);
        let kept: Vec<_> = trace.spans().collect();
        assert_eq!(kept, [(TaskId(2), span(2.0)), (TaskId(5), span(5.0))]);
        assert_eq!(trace.makespan(), Seconds(6.0));
    }
}
