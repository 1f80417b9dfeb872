//! Vector clocks: which tasks are known to have ended before another starts.

use crate::program::{ResourceId, TaskId};

/// A task's place: its resource, and its number among that resource's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    resource: u8,
    index: u32,
}

impl Position {
    /// Counts this task, and so all before it on its resource.
    pub(super) fn include_in(self, counts: &mut [u32]) {
        let count = &mut counts[self.resource as usize];
        *count = (*count).max(self.index + 1);
    }
}

/// For each resource, how many of its tasks are known to have ended.
#[derive(Debug, Default)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    /// Whether the task there has ended.
    pub(super) fn includes(&self, at: Position) -> bool {
        self.0[at.resource as usize] > at.index
    }

    /// Counts the task there, and so all before it on its resource.
    pub(super) fn include(&mut self, at: Position) {
        at.include_in(&mut self.0);
    }

    /// Whether all that `other` counts has ended.
    pub(super) fn covers(&self, other: &[u32]) -> bool {
        self.0
            .iter()
            .zip(other)
            .all(|(mine, theirs)| mine >= theirs)
    }

    /// Counts these, and no others.
    fn reset(&mut self, counts: &[u32]) {
        self.0.clear();
        self.0.extend_from_slice(counts);
    }

    fn merge(&mut self, other: &[u32]) {
        for (mine, theirs) in self.0.iter_mut().zip(other) {
            *mine = (*mine).max(*theirs);
        }
    }
}

/// Clocks side by side, each only as long as the machine has resources.
#[derive(Debug)]
pub(super) struct Packed {
    width: usize,
    counts: Vec<u32>,
}

impl Packed {
    pub(super) fn new(num_resources: usize) -> Packed {
        Packed {
            width: num_resources.max(1),
            counts: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.counts.len() / self.width
    }

    /// Appends a clock.
    pub(super) fn push(&mut self, clock: &Clock) {
        self.counts.extend_from_slice(&clock.0);
    }

    /// Appends clocks that count nothing, up to `len`.
    pub(super) fn extend_to(&mut self, len: usize) {
        self.counts.resize(len * self.width, 0);
    }

    /// Takes the first ones out.
    fn drop_first(&mut self, clocks: usize) {
        self.counts.drain(..clocks * self.width);
    }

    /// The counts of one.
    pub(super) fn get(&self, index: usize) -> &[u32] {
        &self.counts[index * self.width..][..self.width]
    }

    /// The counts of one, to change them.
    pub(super) fn get_mut(&mut self, index: usize) -> &mut [u32] {
        &mut self.counts[index * self.width..][..self.width]
    }
}

/// The clock of every task that was not let go of: what has ended when it ends.
#[derive(Debug)]
pub(super) struct Clocks {
    ends: Packed,
    /// Tasks that were let go of.
    forgotten: u32,
    /// How many of them each resource had: they have ended before whatever comes.
    base: Vec<u32>,
    last: Vec<Option<TaskId>>,
    counts: Vec<u32>,
}

impl Clocks {
    pub(super) fn new(num_resources: usize) -> Clocks {
        Clocks {
            ends: Packed::new(num_resources),
            forgotten: 0,
            base: vec![0; num_resources],
            last: vec![None; num_resources],
            counts: vec![0; num_resources],
        }
    }

    /// The next task's number.
    pub(super) fn end(&self) -> TaskId {
        TaskId(self.forgotten + self.ends.len() as u32)
    }

    /// Lets go of the next tasks, on these resources, all of which have ended.
    pub(super) fn forget(&mut self, resources: impl ExactSizeIterator<Item = ResourceId>) {
        self.ends.drop_first(resources.len());
        self.forgotten += resources.len() as u32;
        for resource in resources {
            self.base[resource.0 as usize] += 1;
        }
    }

    /// Adds the next task. Writes what has ended before it starts to `before`, and returns its position.
    pub(super) fn advance(
        &mut self,
        resource: ResourceId,
        deps: &[TaskId],
        before: &mut Clock,
    ) -> Position {
        let r = resource.0 as usize;
        before.reset(&self.base);
        for dep in deps.iter().copied().chain(self.last[r]) {
            if let Some(known) = dep.0.checked_sub(self.forgotten) {
                before.merge(self.ends.get(known as usize));
            }
        }
        let at = Position {
            resource: resource.0,
            index: self.counts[r],
        };
        self.counts[r] += 1;
        self.last[r] = Some(self.end());
        self.ends.push(before);
        let end = self.ends.len() - 1;
        at.include_in(self.ends.get_mut(end));
        at
    }
}
