//! Requests that come and go, computed for real: an iteration's mixed batch over a paged cache.

mod cache;
mod engine;
mod error;
mod executor;
pub(crate) mod resident;
pub(crate) mod tables;
pub(crate) mod texts;
mod traffic;

pub use error::ServingError;
pub use executor::{ROUNDED, Served, ServingExecutor};
pub use resident::Resident;
