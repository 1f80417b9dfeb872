//! What a prediction asked of a profile that nobody measured.

use serde::{Deserialize, Serialize};

use crate::interval::Range;

/// What the sizes of a curve count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeUnit {
    /// Bytes of a copy, a request, or a cache that is read.
    Bytes,
    /// Rows of a matrix product: M.
    Tokens,
    /// Tokens that attention sees.
    ContextTokens,
    /// Elements that are unpacked, or of a weight.
    Elements,
}

/// A curve that was asked for sizes outside its points, where it goes on as a constant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extrapolation {
    /// Its key in the profile, without its unit (`links.h2d.page_locked`).
    pub curve: String,
    /// What its sizes count.
    pub unit: SizeUnit,
    /// The sizes that were asked for and lie outside.
    pub asked: Range,
    /// From its first point to its last.
    pub known: Range,
    /// Share of the time that a resource was busy at the rates of these sizes, as
    /// [`BusyFraction`](crate::summary::BusyFraction) counts.
    pub busy_fraction: f64,
}

impl Extrapolation {
    /// Whether there is one rate for all sizes: a constant, not a curve.
    pub fn is_constant(&self) -> bool {
        self.known.low == self.known.high
    }
}
