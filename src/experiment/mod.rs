//! Experiments: a folder of definitions (TOML), published numbers (CSV) beside them, and results that
//! can be made again.

mod ablation;
mod against_flexgen;
mod at_once_file;
mod check;
mod dataflow;
mod dataflow_file;
mod definition;
mod gains;
mod iteration;
mod markdown;
mod offline;
mod online;
mod pipelined;
mod predictors;
mod results;
mod schedules;
mod serving;
mod serving_file;
mod sizes;
mod slo;
mod split;
mod split_file;
mod study;

pub use against_flexgen::{AgainstFlexGen, FlexGenCase};
pub use check::first_difference;
pub use dataflow::{Attention, Dataflow, Measured, PublishedDataflow};
pub use definition::{Definition, Kind, Use, read_folder};
pub use gains::{GainCase, Gains, OverRates};
pub use iteration::{Iterations, Utilization};
pub use markdown::results_text;
pub use offline::{AtOnce, Offline, OfflineCase, S3System};
pub use pipelined::{Pipelined, PipelinedCase};
pub use predictors::{Classifying, Predictors};
pub use results::{Outcome, Row, RunTable, Score, make, score_of};
pub use schedules::Schedules;
pub use serving::{LinePicture, ServingRow, ServingTable};
pub use sizes::{Sizes, SizesCase};
pub use slo::InTime;
pub use split::{Batches, Breakdowns, Gain, Parts, Percentage, Scene, WITHOUT, Without};
pub use study::Study;
