//! Requests that come and go, computed for real: an iteration's mixed batch over a paged cache.

mod resident;

pub use resident::Resident;
