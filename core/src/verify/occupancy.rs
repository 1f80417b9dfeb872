//! Which buffer was the last to lie at each place of an arena.

use std::collections::BTreeMap;

use crate::program::{Buffer, BufferId};

/// Non-overlapping regions by where they end, with their start and occupant.
#[derive(Debug, Clone, Default)]
pub(super) struct Occupancy {
    by_end: BTreeMap<u64, (u64, BufferId)>,
}

impl Occupancy {
    /// Records `buffer` where its place is exactly that of the one before, which it returns: slots
    /// are used in turn, so this is how nearly all buffers come.
    pub(super) fn replace(&mut self, id: BufferId, buffer: &Buffer) -> Option<BufferId> {
        let start = buffer.offset.0;
        let (from, occupant) = self.by_end.get_mut(&(start + buffer.bytes.0))?;
        (*from == start).then(|| std::mem::replace(occupant, id))
    }

    /// Those that last lay where `buffer` would.
    pub(super) fn overlapping(&self, buffer: &Buffer) -> impl Iterator<Item = BufferId> + '_ {
        let start = buffer.offset.0;
        let end = start + buffer.bytes.0;
        self.by_end
            .range(start + 1..)
            .take_while(move |(_, (from, _))| *from < end)
            .map(|(_, (_, id))| *id)
    }

    /// Records `buffer` in its place; what it covers in part keeps its other part.
    pub(super) fn insert(&mut self, id: BufferId, buffer: &Buffer) {
        let start = buffer.offset.0;
        let end = start + buffer.bytes.0;
        if start == end {
            return;
        }
        let covered: Vec<(u64, u64, BufferId)> = self
            .by_end
            .range(start + 1..)
            .take_while(|(_, (from, _))| *from < end)
            .map(|(to, (from, id))| (*from, *to, *id))
            .collect();
        for (from, to, old) in covered {
            self.by_end.remove(&to);
            if from < start {
                self.by_end.insert(start, (from, old));
            }
            if to > end {
                self.by_end.insert(to, (end, old));
            }
        }
        self.by_end.insert(end, (start, id));
    }
}
