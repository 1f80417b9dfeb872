//! The thread of one resource.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use std::thread::JoinHandle;

use plimsoll_core::program::{Machine, Op, Program, ResourceKind, TaskId};
use plimsoll_core::trace::Span;

use super::CpuOptions;
use super::error::{CpuError, TaskError};
use super::scheduler::{Failure, Scheduler};
use crate::pin;
use crate::tiers::{TierError, sharpen_timers};

/// What tasks do.
pub(crate) trait Work: Send + Sync {
    /// Does a task of a piece, and says when it was due where its engine is held to a rate. A paced transfer ends early, with an
    /// error, once its turn `is_over`.
    fn run(
        &self,
        task: (&Program, usize),
        kind: ResourceKind,
        turn: Held<'_>,
    ) -> Result<Option<Instant>, TaskError>;
}

/// What a task that is held to a rate goes by.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    /// When its engine could begin it: an engine that is emulated may end a task late, because no core was free for it, and a real
    /// one would not have.
    pub since: Instant,
    /// Whether nobody wants it any more.
    pub is_over: &'a dyn Fn() -> bool,
}

/// A processor that was away for longer is not made up for.
const CATCHES_UP: Duration = Duration::from_millis(10);

/// A resource's thread, before it starts.
struct Worker {
    work: Arc<dyn Work>,
    scheduler: Arc<Scheduler>,
    resource: usize,
    kind: ResourceKind,
    /// Where it may run; anywhere, if there are none.
    cores: Vec<usize>,
}

/// Which threads have which cores.
#[derive(Debug)]
pub(crate) struct Cores {
    /// All there are; none: the system decides.
    all: Vec<usize>,
    /// How many of them are the accelerator's own.
    device: usize,
}

impl Cores {
    /// As options ask.
    pub fn of(options: &CpuOptions) -> Cores {
        let all = match options.pin_cores {
            true => pin::allowed_cores(),
            false => Vec::new(),
        };
        Cores {
            // A GPU needs none of them.
            device: match options.card {
                Some(_) => 0,
                None => options.device_threads.clamp(1, all.len().max(1)),
            },
            all,
        }
    }

    /// Those on which a resource's work may run; none: anywhere. Where the accelerator has all, the others share them with it.
    pub fn of_resource(&self, kind: ResourceKind) -> Vec<usize> {
        match kind {
            _ if self.all.len() <= self.device => Vec::new(),
            ResourceKind::Gpu => self.all[..self.device].to_vec(),
            // It gives way to all others, and long copies would hold up the CPU's products.
            ResourceKind::Pin => Vec::new(),
            _ => self.all[self.device..].to_vec(),
        }
    }
}

/// Starts a thread for each resource of a machine, but those that are streams of a GPU, a bit each.
pub(crate) fn start(
    machine: &Machine,
    (work, scheduler): (&Arc<dyn Work>, &Arc<Scheduler>),
    (cores, streams): (&Cores, u128),
    workers: &mut Vec<JoinHandle<()>>,
) -> Result<(), CpuError> {
    for (index, resource) in machine.resources.iter().enumerate() {
        if resource.kind == ResourceKind::Sync || streams >> index & 1 == 1 {
            continue;
        }
        let worker = Worker {
            work: Arc::clone(work),
            scheduler: Arc::clone(scheduler),
            resource: index,
            kind: resource.kind,
            cores: cores.of_resource(resource.kind),
        };
        let thread = std::thread::Builder::new().name(resource.kind.name().to_owned());
        let handle = thread.spawn(move || worker.run());
        workers.push(handle.map_err(CpuError::Thread)?);
    }
    Ok(())
}

impl Worker {
    /// Does the resource's tasks until all is over.
    fn run(self) {
        pin::pin_to(&self.cores);
        pin::share(match self.kind {
            ResourceKind::Pin => pin::Share::Patient,
            ResourceKind::Cpu => pin::Share::Second,
            _ => pin::Share::First,
        });
        sharpen_timers();
        let is_over = || self.scheduler.is_over();
        let mut ended = None;
        let mut due = None;
        while let Some(job) = self.scheduler.next(self.resource, ended.take()) {
            let task = (&*job.piece, job.index);
            let now = Instant::now();
            let could = due.filter(|_| !job.waited);
            let since = could.filter(|due| *due < now && now - *due < CATCHES_UP);
            let held = Held {
                since: since.unwrap_or(now),
                is_over: &is_over,
            };
            let run = AssertUnwindSafe(|| self.work.run(task, self.kind, held));
            let result = catch_unwind(run).unwrap_or_else(|panic| Err(panicked(&*panic)));
            let end = self.scheduler.now();
            match result {
                Ok(was_due) => {
                    due = was_due;
                    ended = Some((
                        job.id,
                        Span {
                            start: job.start,
                            end,
                        },
                    ))
                }
                Err(TaskError::Tier(TierError::Stopped)) => return self.scheduler.leave(),
                Err(error) => {
                    let failed = failure(task, job.id, self.kind, error);
                    return self.scheduler.fail(failed);
                }
            }
        }
    }
}

/// What is said of a task that could not be done.
pub(crate) fn failure(
    (piece, index): (&Program, usize),
    id: TaskId,
    kind: ResourceKind,
    error: TaskError,
) -> Failure {
    let task = &piece.tasks()[index];
    let what = match piece.op_of(task) {
        Op::Move { bytes, .. } => format!("move of {bytes}"),
        Op::MoveParts { parts, part, .. } => format!("move of {parts} parts of {part}"),
        Op::Gather { .. } => "gathering of values".to_owned(),
        Op::Embed { .. } => "embed".to_owned(),
        Op::Linear { stage, .. } => stage.name().to_owned(),
        Op::Attention { .. } => "attention".to_owned(),
        Op::Span(it) => format!("{} layers", it.layers),
        Op::Barrier => "barrier".to_owned(),
    };
    let cell = task.cell;
    Failure {
        task: id,
        what: format!(
            "{what} on {}, round {}, pass {}, block {}, batch {}",
            kind.name(),
            cell.round,
            cell.pass,
            cell.block,
            cell.batch
        ),
        source: match error {
            // What tiers and stages say themselves is what callers tell apart.
            TaskError::Tier(error) => Box::new(error),
            TaskError::Decoder(error) => Box::new(error),
            TaskError::Cuda(error) => Box::new(error),
            TaskError::Serving(error) => Box::new(error),
            error => Box::new(error),
        },
    }
}

pub(crate) fn panicked(panic: &(dyn Any + Send)) -> TaskError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    TaskError::Panic(text.unwrap_or_else(|| "no message".to_owned()))
}
