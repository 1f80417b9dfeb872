//! How far predictions with a profile were from measured runs.

use serde::Serialize;

/// Quantiles of the errors of runs: of the logarithm of predicted over measured rate, above zero where the
/// prediction was too fast.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Residuals {
    /// The middle one: the bias.
    pub median_log_error: f64,
    /// The 5th percentile.
    pub p05_log_error: f64,
    /// The 95th percentile.
    pub p95_log_error: f64,
    /// Of how many runs, 2 or more: all runs of one configuration count as one.
    pub runs: u32,
    /// A key of [`HardwareProfile::sources`](super::HardwareProfile::sources).
    pub source: String,
    /// The machine that the runs were on, where this one has them of one that it extends.
    pub of: Option<String>,
}

impl Residuals {
    /// The fewest runs that have quantiles worth writing down.
    pub const RUNS_MIN: usize = 5;
}
