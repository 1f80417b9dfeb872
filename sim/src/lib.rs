//! Predicts: what each task costs, and when each would run.

mod background;
pub mod closed_form;
mod contention;
pub mod cost;
mod engine;
mod host_memory;
mod lanes;
mod reliance;
mod relying;
mod repeat;
mod simulate;
mod stream;

pub use cost::CostModel;
pub use engine::Simulator;
pub use relying::Relying;
pub use repeat::rounds_are_alike;
pub use simulate::{SimulateError, predict, prediction, simulate, time};
