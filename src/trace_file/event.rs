//! The events of a Chrome trace, and the array they stand in.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

/// What an event is.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) enum Phase {
    /// Something with a beginning and a duration.
    #[serde(rename = "X")]
    Complete,
    /// A value from now on.
    #[serde(rename = "C")]
    Counter,
    /// A name.
    #[serde(rename = "M")]
    Metadata,
}

/// One event. Times are in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Event<'a, A> {
    pub ph: Phase,
    pub pid: u32,
    pub tid: u32,
    pub name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cat: Option<&'a str>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "nanoseconds"
    )]
    pub ts: Option<f64>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "nanoseconds"
    )]
    pub dur: Option<f64>,
    pub args: A,
}

/// A process's or a track's name.
#[derive(Debug, Serialize)]
pub(super) struct Name<'a> {
    pub name: &'a str,
}

/// A tier's occupancy.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    pub alive_bytes: u64,
}

/// What a task is.
#[derive(Debug, Serialize)]
pub(super) struct TaskArgs<'a> {
    pub task: u32,
    pub op: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    pub round: u32,
    pub pass: u16,
    pub block: u16,
    pub batch: u16,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "nanoseconds"
    )]
    pub other_dur_us: Option<f64>,
}

/// Microseconds with three digits: no executor's clock tells more.
fn nanoseconds<S: Serializer>(micros: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    let micros = micros.unwrap_or(0.0);
    serializer.serialize_f64((micros * 1e3).round() / 1e3)
}

/// The open array of events.
pub(super) struct Events<'a> {
    out: &'a mut dyn Write,
    empty: bool,
}

impl<'a> Events<'a> {
    pub fn begin(out: &'a mut dyn Write) -> io::Result<Events<'a>> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        Ok(Events { out, empty: true })
    }

    pub fn write<A: Serialize>(&mut self, event: &Event<'_, A>) -> io::Result<()> {
        let separator: &[u8] = if self.empty { b"\n" } else { b",\n" };
        self.empty = false;
        self.out.write_all(separator)?;
        serde_json::to_writer(&mut *self.out, event).map_err(io::Error::from)
    }

    pub fn end(self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")
    }
}
