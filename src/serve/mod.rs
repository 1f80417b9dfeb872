//! Serving at the upper floor: traces of requests, and what comes of replaying them.

pub mod execute;
pub mod gpus;
pub mod over_time;
pub mod replay;
pub mod sweep;
pub mod workload;
