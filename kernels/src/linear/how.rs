//! The ways through a product, and from how many rows of input on each is taken.

use crate::simd::InstructionSet;

/// Fewer rows would leave much of the vectors of [`Way::Panels`] unused.
pub const PANEL_ROWS_MIN: usize = 12;

/// A way to compute a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Dot products of input and weight as they lie, a row or two of input at a time; where it is one, the rows of weight of a tile
    /// are streams of their own.
    Dots,
    /// Input is packed, and each weight row is read from end to end before the next; where it is not f32 it is widened
    /// on the way. Where few rows are one tile, narrow weights stream to it as to [`Way::Dots`].
    Tile,
    /// Input is packed in panels, in whose vectors its rows lie side by side, and meets elements of the weight, which is
    /// read as it lies, or some rows at a time widened where it is not f32. For [`PANEL_ROWS_MIN`] rows or more.
    Panels,
}

/// From how many rows of input on (of those that one pass over the weight serves) a way is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ways {
    /// Fewer rows have [`Way::Dots`].
    pub tile_from: usize,
    /// From here on, and from `tile_from`, [`Way::Panels`], where there are rows enough for it.
    pub panels_from: usize,
}

impl Ways {
    /// What suits most processors: of a product that nobody measured.
    pub const BUILT_IN: Ways = Ways {
        tile_from: 3,
        panels_from: 32,
    };

    /// The way of so many rows.
    pub fn of(&self, rows: usize) -> Way {
        match rows {
            _ if rows < self.tile_from => Way::Dots,
            PANEL_ROWS_MIN.. if rows >= self.panels_from => Way::Panels,
            _ => Way::Tile,
        }
    }
}

/// How a linear layer is computed; its result does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// With which instructions (plain where the processor lacks them).
    pub set: InstructionSet,
    /// Which way, by rows.
    pub ways: Ways,
}

impl How {
    /// With the best instructions that there are.
    pub fn best(ways: Ways) -> How {
        let set = InstructionSet::best();
        How { set, ways }
    }
}
