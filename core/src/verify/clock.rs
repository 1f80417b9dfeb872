//! Vector clocks: which tasks are known to have ended before another starts.

use crate::program::{Machine, ResourceId, TaskId};

/// A task's place: its resource, and its number among that resource's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    resource: u8,
    index: u32,
}

/// For each resource, how many of its tasks are known to have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Clock([u32; Machine::MAX_RESOURCES]);

impl Clock {
    /// Whether the task there has ended.
    pub(super) fn includes(&self, at: Position) -> bool {
        self.0[at.resource as usize] > at.index
    }

    /// Counts the task there, and so all before it on its resource.
    pub(super) fn include(&mut self, at: Position) {
        let count = &mut self.0[at.resource as usize];
        *count = (*count).max(at.index + 1);
    }

    /// Whether all that `other` counts has ended.
    pub(super) fn covers(&self, other: &Clock) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine >= theirs)
    }

    fn merge(&mut self, other: &Clock) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}

/// The clock of every task so far: what has ended when it ends.
#[derive(Debug)]
pub(super) struct Clocks {
    ends: Vec<Clock>,
    last: Vec<Option<TaskId>>,
    counts: Vec<u32>,
}

impl Clocks {
    pub(super) fn new(num_resources: usize) -> Clocks {
        assert!(num_resources <= Machine::MAX_RESOURCES);
        Clocks {
            ends: Vec::new(),
            last: vec![None; num_resources],
            counts: vec![0; num_resources],
        }
    }

    /// The next task's number.
    pub(super) fn end(&self) -> TaskId {
        TaskId(self.ends.len() as u32)
    }

    /// Adds the next task. Returns what has ended before it starts, and its position.
    pub(super) fn advance(&mut self, resource: ResourceId, deps: &[TaskId]) -> (Clock, Position) {
        let r = resource.0 as usize;
        let mut before = Clock::default();
        for dep in deps.iter().copied().chain(self.last[r]) {
            before.merge(&self.ends[dep.0 as usize]);
        }
        let at = Position {
            resource: resource.0,
            index: self.counts[r],
        };
        self.counts[r] += 1;
        self.last[r] = Some(self.end());
        let mut end = before;
        end.include(at);
        self.ends.push(end);
        (before, at)
    }
}
