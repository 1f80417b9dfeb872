//! Runs as Chrome trace files, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//!
//! A process a run, or of several GPUs one each, a track a resource, an event a task, a counter a tier. Written event by event:
//! a run of a large model has a million of them.

mod event;
mod memory;
mod words;

use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::{Compression, write::GzEncoder};
use plimsoll_core::control::Run;
use plimsoll_core::program::{Content, Program, TaskId};
use plimsoll_core::trace::Span;
use plimsoll_core::units::Seconds;

use event::{Event, Events, Memory, Name, Phase, TaskArgs};
use words::{op_in_words, task_name};

use crate::files::write_atomically;

/// One run and what its process is called.
#[derive(Debug, Clone, Copy)]
pub struct Process<'a> {
    /// Shown above its tracks.
    pub name: &'a str,
    /// What ran.
    pub run: &'a Run,
}

/// Writes a trace's file whole through `fill`, in gzip where its name ends in `.gz`: Perfetto opens it as it is.
///
/// # Errors
/// As [`write_atomically`].
pub fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write_atomically(path, |out| {
        if path.extension().is_none_or(|it| it != "gz") {
            return fill(out);
        }
        // An event is many small writes, and packing begins anew with each.
        let mut packed = BufWriter::new(GzEncoder::new(out, Compression::fast()));
        fill(&mut packed)?;
        packed.into_inner()?.finish().map(drop)
    })
}

/// Writes one run.
///
/// # Errors
/// Where `out` takes no more.
pub fn write_run(out: &mut dyn Write, process: Process<'_>) -> io::Result<()> {
    let mut events = Events::begin(out)?;
    write_process(&mut events, 1, process, None)?;
    events.end()
}

/// Writes a prediction and the measurement of the same program, one above the other. Events of one
/// task share `args.task`, and each states the other's duration.
///
/// # Errors
/// Where the runs are not of the same program, or `out` takes no more.
pub fn write_side_by_side(
    out: &mut dyn Write,
    predicted: Process<'_>,
    measured: Process<'_>,
) -> io::Result<()> {
    let count = |run: &Run| run.tasks().count();
    let (a, b) = (count(predicted.run), count(measured.run));
    if a != b {
        let line = format!("{a} tasks were predicted and {b} measured: not the same program");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, line));
    }
    let mut events = Events::begin(out)?;
    write_process(&mut events, 1, predicted, Some(measured.run))?;
    let gpus = predicted.run.machine.num_gpus() as u32;
    write_process(&mut events, 1 + gpus, measured, Some(predicted.run))?;
    events.end()
}

fn write_process(
    events: &mut Events<'_>,
    first_pid: u32,
    process: Process<'_>,
    other: Option<&Run>,
) -> io::Result<()> {
    write_names(events, first_pid, process)?;
    let run = process.run;
    let last_block = run.tasks().map(|(_, _, _, cell)| cell.block).max();
    let buffers = run.pieces.iter().flat_map(|piece| piece.buffers());
    let view = View {
        first_pid,
        run,
        other,
        last_block: last_block.unwrap_or(0),
        contents: buffers.map(|buffer| buffer.content).collect(),
    };
    for piece in &run.pieces {
        for index in 0..piece.tasks().len() {
            view.write_task(events, piece, index)?;
        }
    }
    memory::each_change(run, |arena, at, alive| {
        events.write(&Event {
            ph: Phase::Counter,
            pid: first_pid + u32::from(arena.gpu),
            tid: 0,
            name: arena.tier.name(),
            cat: None,
            ts: Some(at.0 * MICROSECONDS),
            dur: None,
            args: Memory { alive_bytes: alive },
        })
    })
}

const MICROSECONDS: f64 = 1e6;

fn write_names(events: &mut Events<'_>, first_pid: u32, process: Process<'_>) -> io::Result<()> {
    let mut name = |gpu: usize, tid: usize, what: &str, name: &str| {
        events.write(&Event {
            ph: Phase::Metadata,
            pid: first_pid + gpu as u32,
            tid: tid as u32,
            name: what,
            cat: None,
            ts: None,
            dur: None,
            args: Name { name },
        })
    };
    let machine = &process.run.machine;
    for gpu in 0..machine.num_gpus() {
        let title = match machine.num_gpus() {
            1 => process.name.to_owned(),
            _ => format!("{}, GPU {gpu}", process.name),
        };
        name(gpu, 0, "process_name", &title)?;
    }
    for (index, resource) in machine.resources.iter().enumerate() {
        let gpu = usize::from(resource.gpu);
        name(gpu, index + 1, "thread_name", resource.kind.name())?;
    }
    Ok(())
}

/// A run as a process of the file, or one a GPU.
struct View<'a> {
    first_pid: u32,
    run: &'a Run,
    other: Option<&'a Run>,
    last_block: u16,
    /// By buffer number, over all pieces.
    contents: Vec<Content>,
}

impl View<'_> {
    fn write_task(&self, events: &mut Events<'_>, piece: &Program, index: usize) -> io::Result<()> {
        let id = TaskId(piece.first_task().0 + index as u32);
        let Some(span) = self.run.trace.span(id) else {
            return Ok(());
        };
        let task = &piece.tasks()[index];
        let op = piece.op_of(task);
        let source = piece.args_at(index).first();
        let content = source.and_then(|arg| self.contents.get(arg.buffer.0 as usize).copied());
        let resource = &self.run.machine.resources[task.resource.0 as usize];
        // Whoever reads the file takes what begins before another ended, by a rounded digit, for nested.
        let ticks = |seconds: Seconds| (seconds.0 * MICROSECONDS * 1e3).round();
        let micros = |span: Span| (ticks(span.end) - ticks(span.start)) / 1e3;
        events.write(&Event {
            ph: Phase::Complete,
            pid: self.first_pid + u32::from(resource.gpu),
            tid: u32::from(task.resource.0) + 1,
            name: &task_name(op, content, task.cell, self.last_block),
            cat: Some(resource.kind.name()),
            ts: Some(ticks(span.start) / 1e3),
            dur: Some(micros(span)),
            args: TaskArgs {
                task: id.0,
                op: &op_in_words(op),
                bytes: op.moved_bytes().map(|bytes| bytes.0),
                round: task.cell.round,
                pass: task.cell.pass,
                block: task.cell.block,
                batch: task.cell.batch,
                other_dur_us: self.other.and_then(|run| run.trace.span(id)).map(micros),
            },
        })
    }
}

#[cfg(test)]
mod tests;
