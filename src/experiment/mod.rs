//! Experiments: a folder of definitions (TOML), published numbers (CSV) beside them, and results that
//! can be made again.

mod ablation;
mod check;
mod definition;
mod iteration;
mod markdown;
mod results;
mod schedules;
mod serving;
mod serving_file;
mod split;

pub use ablation::AblationRow;
pub use check::first_difference;
pub use definition::{Definition, Kind, Use, read_folder};
pub use iteration::Iterations;
pub use markdown::results_text;
pub use results::{Outcome, Row, Score, Table, make, score_of};
pub use schedules::{Schedules, SchedulesRow};
pub use serving::{GainCase, Gains, Offline, OfflineCase, ServingRow, ServingTable};
pub use split::{
    Batches, BatchesRow, BreakdownRow, Breakdowns, Gain, GainRow, Parts, PartsRow, Percentage,
    Scene, WITHOUT, Without,
};
