//! Two threads a stream: one gives it its tasks, the other learns when they ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_core::program::{Machine, Program, ResourceKind, TaskId};
use plimsoll_core::trace::Span;
use plimsoll_core::units::Seconds;

use super::issue::{CHOICE, ZERO};
use crate::cpu::error::{CpuError, TaskError};
use crate::cpu::scheduler::{Job, Scheduler};
use crate::cpu::worker::{failure, panicked};
use crate::cuda::{Card, CudaError, Moments};

/// Tasks that a stream was given and that have not ended, at most.
const AHEAD: usize = 256;

/// How long an elapsed time may be before its begin is set anew: a driver tells it in f32 milliseconds, which at this
/// length are told apart to less than a microsecond.
const LONG_MS: f32 = 8_000.0;

/// The resources that are streams, a bit each.
pub(crate) fn streams_of(machine: &Machine) -> u128 {
    let resources = machine.resources.iter().enumerate();
    let streams = resources.filter(|(_, resource)| resource.kind.is_stream());
    streams.fold(0, |bits, (index, _)| bits | 1 << index)
}

/// Events that so many streams need, with those that are no task's.
pub(super) fn events(streams: u128) -> usize {
    CHOICE + 1 + 2 * AHEAD * streams.count_ones() as usize
}

/// Who knows what tasks are on a card.
pub(crate) trait Issue: Send + Sync {
    /// Which.
    fn card(&self) -> &dyn Card;
    /// Gives a stream a task's commands.
    fn issue(&self, stream: usize, task: (&Program, usize)) -> Result<(), TaskError>;
    /// A task's commands have been done.
    fn ended(&self, task: (&Program, usize)) -> Result<(), TaskError>;
}

/// A task that was given to its stream.
struct Issued {
    id: TaskId,
    piece: Arc<Program>,
    index: usize,
    moments: Arc<Moments>,
}

/// Starts the threads of all streams.
pub(crate) fn start(
    machine: &Machine,
    (tasks, scheduler): (&Arc<dyn Issue>, &Arc<Scheduler>),
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), CpuError> {
    let streams = streams_of(machine);
    let mut first_event = CHOICE + 1;
    for (index, resource) in machine.resources.iter().enumerate() {
        if streams >> index & 1 == 0 {
            continue;
        }
        let (sender, receiver) = sync_channel(AHEAD);
        let lane = Lane {
            tasks: Arc::clone(tasks),
            scheduler: Arc::clone(scheduler),
            kind: resource.kind,
            resource: index,
        };
        let moments = (0..AHEAD).map(|number| {
            let begin = first_event + 2 * number;
            let end = begin + 1;
            Arc::new(Moments {
                stream: index,
                begin,
                end,
            })
        });
        let moments: Vec<Arc<Moments>> = moments.collect();
        first_event += 2 * AHEAD;
        let (issuer, reaper) = (lane.clone(), lane);
        let named = |end: &str| {
            let name = format!("{}-{end}", resource.kind.name());
            std::thread::Builder::new().name(name)
        };
        let issues = named("in").spawn(move || issuer.issue_all(&moments, &sender));
        threads.push(issues.map_err(CpuError::Thread)?);
        let ends = named("out").spawn(move || reaper.end_all(&receiver));
        threads.push(ends.map_err(CpuError::Thread)?);
    }
    Ok(())
}

/// A stream, for either of its threads.
#[derive(Clone)]
struct Lane {
    tasks: Arc<dyn Issue>,
    scheduler: Arc<Scheduler>,
    kind: ResourceKind,
    resource: usize,
}

impl Lane {
    /// Gives the stream its tasks until all is over.
    fn issue_all(self, moments: &[Arc<Moments>], ended: &SyncSender<Issued>) {
        for moments in moments.iter().cycle() {
            // Its events are those of a task long ago, which somebody may still wait for. Who waited here with a task in hand would hold the
            // events of those before it, which others may wait for.
            while Arc::strong_count(moments) > 1 {
                if self.scheduler.is_over() {
                    break;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            let Some(job) = self.scheduler.next(self.resource, None) else {
                return;
            };
            let issue = AssertUnwindSafe(|| self.issue(&job, moments));
            let issued = catch_unwind(issue).unwrap_or_else(|panic| Err(panicked(&*panic)));
            if let Err(error) = issued {
                let task = (&*job.piece, job.index);
                return self.scheduler.fail(failure(task, job.id, self.kind, error));
            }
            self.scheduler.issued(job.id, Arc::clone(moments));
            let issued = Issued {
                id: job.id,
                piece: job.piece,
                index: job.index,
                moments: Arc::clone(moments),
            };
            if ended.send(issued).is_err() {
                return;
            }
        }
    }

    /// Gives the stream a task: behind what it waits for, between its events.
    fn issue(&self, job: &Job, moments: &Moments) -> Result<(), TaskError> {
        let card = self.tasks.card();
        for earlier in &job.behind {
            card.wait_for(self.resource, earlier.end)?;
        }
        card.record(self.resource, moments.begin)?;
        let task = (&*job.piece, job.index);
        self.tasks.issue(self.resource, task)?;
        card.record(self.resource, moments.end)?;
        // A copy up may read pageable memory when it is issued, behind whatever its stream waits for: what comes down to there has to be there
        // by then. (Drivers so far return no sooner.)
        let (piece, index) = task;
        let op = piece.op_of(&piece.tasks()[index]);
        if self.kind == ResourceKind::D2h && op.pageable_bytes().is_some() {
            card.await_event(moments.end)?;
        }
        Ok(())
    }

    /// Ends the stream's tasks as they end, until no more come.
    fn end_all(self, issued: &Receiver<Issued>) {
        let mut clock = Clock::new();
        // All of them, even when all is over: until then their memory is in use.
        for task in issued {
            let end = AssertUnwindSafe(|| self.end(&task, &mut clock));
            match catch_unwind(end).unwrap_or_else(|panic| Err(panicked(&*panic))) {
                Ok(span) => self.scheduler.end_issued((task.id, span)),
                Err(error) => {
                    let of = (&*task.piece, task.index);
                    self.scheduler.fail(failure(of, task.id, self.kind, error));
                }
            }
        }
    }

    fn end(&self, task: &Issued, clock: &mut Clock) -> Result<Span, TaskError> {
        let card = self.tasks.card();
        card.await_event(task.moments.end)?;
        let span = clock.span(card, &task.moments)?;
        self.tasks.ended((&task.piece, task.index))?;
        Ok(span)
    }
}

/// The GPU's clock, from the zero of the run on.
struct Clock {
    /// What times are told from: an event, which nobody uses again while this is its owner.
    since: Option<Arc<Moments>>,
    at: f64,
    /// Tasks since then.
    age: usize,
}

impl Clock {
    fn new() -> Clock {
        Clock {
            since: None,
            at: 0.0,
            age: 0,
        }
    }

    fn span(&mut self, card: &dyn Card, moments: &Arc<Moments>) -> Result<Span, CudaError> {
        let since = self.since.as_ref().map_or(ZERO, |moments| moments.end);
        let elapsed = |event| card.elapsed_ms(since, event);
        let (begin, end) = (elapsed(moments.begin)?, elapsed(moments.end)?);
        let at = |ms: f32| Seconds(self.at + f64::from(ms) / 1e3);
        let span = Span {
            start: at(begin),
            end: at(end),
        };
        self.age += 1;
        // Whoever gives the stream its tasks waits for the one that is told from, once all others are in use.
        let kept_long = self.since.is_some() && self.age >= AHEAD / 2;
        if end > LONG_MS || kept_long {
            self.since = Some(Arc::clone(moments));
            self.at = span.end.0;
            self.age = 0;
        }
        Ok(span)
    }
}
