//! The upper rooms of Plimsoll: the command line and what it reads, writes and reports.

pub mod alpha;
pub mod baseline;
pub mod calibrate;
pub mod cli;
pub mod compare;
pub mod experiment;
pub mod files;
pub mod flexgen;
pub mod memory;
pub mod padding;
mod parallel;
pub mod pareto;
pub mod perplexity;
pub mod planner;
pub mod published;
pub mod report;
pub mod residuals;
pub mod serve;
pub mod stats;
pub mod trace_file;
pub mod validate;
