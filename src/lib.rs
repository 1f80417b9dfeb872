//! The upper rooms of Plimsoll: the command line and what it reads, writes and reports.

pub mod cli;
pub mod files;
pub mod planner;
pub mod report;
pub mod trace_file;
pub mod validate;
