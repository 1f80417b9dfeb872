//! One square of FlexGen's figure 2: a block of the model on a GPU batch in a pass.

use crate::batch_shape::BatchShape;
use crate::placement::LayerPart;
use crate::program::{Cell, HostPages, Op};
use crate::tier::Tier;
use crate::units::Bytes;

/// A square with its shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    /// Which square.
    pub cell: Cell,
    /// What of the block it computes.
    pub part: LayerPart,
    /// Which visit of a block's part this is, counted over all passes.
    pub visit: u64,
    /// The batch's split over the tiers.
    pub shape: BatchShape,
    /// New tokens a sequence.
    pub query_len: u32,
    /// Tokens already in the cache.
    pub position: u32,
    /// Whether no pass of this round follows.
    pub last_pass: bool,
    /// Whether this batch is the first to use this visit's weights.
    pub first_batch: bool,
    /// Whether this batch is the last to use this visit's weights.
    pub last_batch: bool,
}

impl Unit {
    /// Whether the prompt is computed here.
    pub(super) fn is_prefill(&self) -> bool {
        self.position == 0
    }

    /// Whether the block's computation begins here.
    pub(super) fn begins_block(&self) -> bool {
        self.part != LayerPart::Mlp
    }

    /// Whether the block's computation ends here.
    pub(super) fn ends_block(&self) -> bool {
        self.part != LayerPart::Attention
    }

    /// Rows of matrices: new tokens of all sequences.
    pub(super) fn tokens(&self) -> u32 {
        self.shape.sequences * self.query_len
    }
}

/// The host's side of a copy: all is page-locked that is no home there.
pub(super) fn pages(locked: bool, home: Tier) -> HostPages {
    HostPages::of(locked || home != Tier::Host)
}

/// A move of all of a buffer to or from a slot, a prompt or results on the host, which are page-locked.
pub(super) fn move_whole(bytes: Bytes) -> Op {
    move_at(bytes, Bytes::ZERO, HostPages::Locked)
}

/// A move of `bytes` between equal places of two buffers.
pub(super) fn move_at(bytes: Bytes, place: Bytes, host: HostPages) -> Op {
    Op::Move {
        bytes,
        from: place,
        to: place,
        host,
    }
}
