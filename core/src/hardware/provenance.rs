//! Where a number comes from.

use serde::{Deserialize, Serialize};

/// How the house came to know a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Timed by our own probes on the machine itself.
    Measured,
    /// Stated by the vendor.
    Datasheet,
    /// Chosen so that a model agrees with measured results.
    Fitted,
    /// Printed by someone else, for this machine or for one that `from` names.
    Published,
}

impl SourceKind {
    /// The name as written in a profile.
    pub const fn name(self) -> &'static str {
        match self {
            SourceKind::Measured => "measured",
            SourceKind::Datasheet => "datasheet",
            SourceKind::Fitted => "fitted",
            SourceKind::Published => "published",
        }
    }
}

/// One origin of numbers, declared once in a profile and named by each number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// How the number came to be known.
    pub kind: SourceKind,
    /// The document, the run or the fit; says plainly when it describes another machine.
    pub from: String,
    /// When it was published or measured, as precisely as known (`2019-03`).
    pub date: String,
}

/// A number and where it comes from. The unit is that of `T`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantity<T> {
    /// The number.
    pub value: T,
    /// A key of [`HardwareProfile::sources`](super::HardwareProfile::sources).
    pub source: String,
    /// Relative spread of repeats, (p75 - p25) / median; none where nobody repeated.
    pub spread: Option<f64>,
}

impl<T> Quantity<T> {
    /// A number from the named source, spread unknown.
    pub fn new(value: T, source: impl Into<String>) -> Quantity<T> {
        Quantity {
            value,
            source: source.into(),
            spread: None,
        }
    }

    /// The same number with its relative spread of repeats.
    pub fn with_spread(mut self, spread: f64) -> Quantity<T> {
        self.spread = Some(spread);
        self
    }
}
