//! Slots of one size that are used in turn.

use std::collections::VecDeque;

use crate::program::TaskId;
use crate::units::Bytes;

/// Tasks after which a place is free again: the parts of a slot may have givers of their own.
pub(super) type Released = [Option<TaskId>; 2];

/// A few slots. The one that was released first is taken first.
#[derive(Debug)]
pub(super) struct Ring {
    free: VecDeque<Lease>,
}

/// A slot in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    /// Its first byte.
    pub offset: Bytes,
    /// What must end before it is written.
    pub free_after: Released,
}

impl Ring {
    /// Slots at these offsets.
    pub(super) fn new(offsets: Vec<Bytes>) -> Ring {
        let free = offsets.into_iter().map(|offset| Lease {
            offset,
            free_after: [None; 2],
        });
        Ring {
            free: free.collect(),
        }
    }

    /// A slot whose last giver is known.
    ///
    /// # Panics
    /// Where all are in use: the lowering has fewer slots than its look-ahead needs, which no plan
    /// can bring about.
    pub(super) fn lease(&mut self) -> Lease {
        self.free
            .pop_front()
            .expect("a slot is free: rings are as long as the look-ahead")
    }

    /// Says after which tasks the slot is free.
    pub(super) fn release(&mut self, lease: Lease, after: Released) {
        self.free.push_back(Lease {
            free_after: after,
            ..lease
        });
    }
}
