//! Which number of a run was measured.

use serde::{Serialize, Serializer};

/// Which number of a run was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Generated tokens over the whole time.
    Throughput,
    /// The whole time.
    Latency,
    /// Tokens after the first of each sequence over the time of decode.
    DecodeThroughput,
    /// None: it did not fit. What is predicted beside it is the throughput.
    OutOfMemory,
}

impl Metric {
    /// The name in tables, and of the column in files of runs.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Throughput => "throughput_tok_s",
            Metric::Latency => "latency_s",
            Metric::DecodeThroughput => "decode_throughput_tok_s",
            Metric::OutOfMemory => "out_of_memory",
        }
    }

    /// What it is counted in.
    pub const fn unit(self) -> &'static str {
        match self {
            Metric::Latency => "s",
            Metric::Throughput | Metric::DecodeThroughput | Metric::OutOfMemory => "tok/s",
        }
    }

    /// Whether the lower number is the better one: a latency is one over a rate.
    pub const fn is_lower_better(self) -> bool {
        match self {
            Metric::Latency => true,
            Metric::Throughput | Metric::DecodeThroughput | Metric::OutOfMemory => false,
        }
    }

    /// Of what is known of a whole run, that of this metric; none of decode alone.
    pub fn of_whole_run<T>(self, latency: T, throughput: T) -> Option<T> {
        match self {
            Metric::Latency => Some(latency),
            Metric::Throughput | Metric::OutOfMemory => Some(throughput),
            Metric::DecodeThroughput => None,
        }
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
