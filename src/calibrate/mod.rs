//! Predictions beside runs that somebody measured: how far off they are, and constants fitted to them.

mod constants;
mod fit;
mod machines;
mod metric;
mod runs;
mod score;

pub use constants::{CONSTANTS, Constant, source_of_fit};
pub use fit::{Fit, FitOptions, FittedConstant, SAYS_NOTHING, fit, sizes};
pub use machines::Machines;
pub use metric::Metric;
pub use runs::{Measured, RecordedRun, read_runs};
pub use score::{RunRow, RunScore, rate_error, score_runs, within};
