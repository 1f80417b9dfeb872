//! Traces of requests: read, generated, described.

mod describe;
mod generate;
mod lengths;
mod read;
mod write;

pub use describe::Description;
pub use generate::{Arrivals, GenerateError, Generator, exact_trace};
pub use lengths::Lengths;
pub use read::{TimeUnit, TraceRead, read_trace};
pub use write::{trace_csv, trace_jsonl};
