//! Serving: requests that come over time, scheduled iteration by iteration.
//!
//! [`Scheduler`] is a [`Controller`](crate::control::Controller): simulator and executors interpret its pieces alike.
//! A [`KvManager`] says who has room.

mod calendar;
mod distribution;
mod in_flight;
mod log;
mod manager;
mod metrics;
pub mod pie;
pub mod predict;
mod request;
mod running;
mod scheduler;
mod sequence;
mod shape;
mod stages;

pub use distribution::Distribution;
pub use in_flight::InFlight;
pub use log::IterationRow;
pub use manager::{BLOCK_TOKENS, KvManager, Orca, Preemption, Reserve, S3, Vllm};
pub use metrics::{LayersSummary, Ledger, ServeSummary};
pub use request::Request;
pub use running::Running;
pub use scheduler::{Limits, Refusal, Scheduler};
pub use sequence::{Sequence, State};
pub use shape::{Load, Shape};
pub use stages::Stages;
