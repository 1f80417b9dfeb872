//! The nouns of Plimsoll: units, hardware profiles, models, workloads, policies, plans, programs
//! and traces; `lower` turns a plan into a program, `verify` checks it, an `Executor` interprets it.
//!
//! This crate knows no files, clocks or threads.

pub mod batch_shape;
pub mod compression;
pub mod control;
pub mod executor;
pub mod extrapolation;
pub mod flow;
pub mod hardware;
pub mod interval;
pub mod lower;
pub mod machine;
pub mod model;
mod nearest;
pub mod overdraw;
pub mod pipeline;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod program;
pub mod roster;
pub mod serve;
pub mod sparse;
pub mod split;
pub mod summary;
pub mod tally;
pub mod term;
pub mod tier;
pub mod timing;
pub mod trace;
pub mod traffic;
pub mod units;
pub mod verify;
pub mod workload;

pub use nearest::{did_you_mean, is_slip_of};
pub use plimsoll_formats::Dtype;
