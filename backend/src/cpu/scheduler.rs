//! Which task runs next on which worker, and what has ended.
//!
//! Each resource keeps program order. A worker whose next task must wait sleeps on a condition of its
//! own and is woken only by the task that it waits for. A barrier takes no engine and has no worker:
//! whoever ends the last task that it waits for ends it as well.
//!
//! Where a GPU executes, some resources are its streams. A task there is first *issued*, behind those that it waits for on
//! other streams, which need be issued only; and it ends when the GPU says so. What waits for it on the host waits for
//! its end. Whoever issues waits for tasks of the host, and for the GPU only where it copies down to pageable memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_core::executor::{ExecutionError, NotSubmitted, Until};
use plimsoll_core::program::{Machine, Program, ResourceKind, TaskId};
use plimsoll_core::trace::{Span, Trace};
use plimsoll_core::units::Seconds;

use super::error::CpuError;
use crate::cuda::Moments;

/// How often whoever waits for the program looks whether the user interrupted.
const LOOK: Duration = Duration::from_millis(20);

const _: () = assert!(Machine::MAX_RESOURCES <= u128::BITS as usize);

/// A task whose turn it is.
#[derive(Debug)]
pub(crate) struct Job {
    pub piece: Arc<Program>,
    pub index: usize,
    pub id: TaskId,
    pub start: Seconds,
    /// Whether its worker had to wait for it.
    pub waited: bool,
    /// Of a task on a stream: what it waits for on others.
    pub behind: Vec<Arc<Moments>>,
}

/// How far a task is.
#[derive(Debug, Clone, Default)]
enum Progress {
    #[default]
    Waiting,
    /// Given to a stream, on which it ends at this moment.
    Issued(Arc<Moments>),
    Ended,
}

/// A task that could not be done.
#[derive(Debug)]
pub(crate) struct Failure {
    pub task: TaskId,
    pub what: String,
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// The tasks of one piece on one resource.
#[derive(Debug)]
struct Lane {
    piece: Arc<Program>,
    indices: Vec<u32>,
    next: usize,
}

impl Lane {
    fn index(&self) -> usize {
        self.indices[self.next] as usize
    }

    fn id(&self) -> TaskId {
        TaskId(self.piece.first_task().0 + self.indices[self.next])
    }
}

#[derive(Debug, Default)]
struct State {
    /// By task number, from the first that was not let go of on.
    progress: VecDeque<Progress>,
    /// Tasks that were let go of, since they had ended.
    forgotten: u32,
    /// By resource.
    lanes: Vec<VecDeque<Lane>>,
    /// Resources that are streams of a GPU, a bit each.
    streams: u128,
    /// By resource: what its next task waits for.
    awaited: Vec<Option<TaskId>>,
    /// By resource: whether its worker sleeps because nothing is left to do.
    idle: Vec<bool>,
    /// Spans that the trace does not have yet.
    spans: Vec<(TaskId, Span)>,
    watched: Option<TaskId>,
    unfinished: usize,
    running: usize,
    /// Whether the clock runs; until then nothing does.
    open: bool,
    interrupted: bool,
    failure: Option<Failure>,
}

/// Workers to wake once the lock is gone, one bit a resource.
#[derive(Default)]
struct Wake {
    workers: u128,
    watcher: bool,
}

/// What workers and the one who waits for them share.
#[derive(Debug)]
pub(crate) struct Scheduler {
    state: Mutex<State>,
    workers: Vec<Condvar>,
    watcher: Condvar,
    sync: Vec<bool>,
    /// Whether no task will begin any more. Changes under the lock.
    stopped: AtomicBool,
    interrupt: Arc<AtomicBool>,
    epoch: OnceLock<Instant>,
}

impl State {
    /// How far a task is; one that was let go of has ended.
    fn progress(&self, task: TaskId) -> &Progress {
        match task.0.checked_sub(self.forgotten) {
            Some(index) => self
                .progress
                .get(index as usize)
                .unwrap_or(&Progress::Waiting),
            None => &Progress::Ended,
        }
    }

    fn is_ended(&self, task: TaskId) -> bool {
        matches!(self.progress(task), Progress::Ended)
    }

    fn is_stream(&self, resource: usize) -> bool {
        self.streams >> resource & 1 == 1
    }

    /// Whether a task need not be waited for any more: a stream waits for another's by itself.
    fn has_passed(&self, task: TaskId, on_stream: bool) -> bool {
        match self.progress(task) {
            Progress::Waiting => false,
            Progress::Issued(_) => on_stream,
            Progress::Ended => true,
        }
    }

    /// One past the last task that was submitted.
    fn end(&self) -> TaskId {
        TaskId(self.forgotten + self.progress.len() as u32)
    }

    /// Moves what has ended to the trace.
    fn write_down(&mut self, trace: &mut Trace) {
        for (task, span) in self.spans.drain(..) {
            trace.record(task, span);
        }
    }

    /// Whether there is nothing to wait for any more.
    fn has_come(&self, until: Until, now: Seconds) -> Result<bool, NotSubmitted> {
        match until {
            Until::Task(task) if task >= self.end() => Err(NotSubmitted { task }),
            Until::Task(task) => Ok(self.is_ended(task)),
            // A time that is none is no wait.
            Until::Time(time) => Ok(time.0.is_nan() || time <= now),
            Until::Idle => Ok(self.unfinished == 0),
        }
    }

    /// What the next task of a resource still waits for: none where it may run; and none where there
    /// is no task.
    fn hindrance(&self, resource: usize) -> Option<TaskId> {
        let lane = self.lanes[resource].front()?;
        let deps = lane.piece.deps_at(lane.index());
        // The latest is the likeliest to be missing.
        let on_stream = self.is_stream(resource);
        let waits = |dep: &TaskId| !self.has_passed(*dep, on_stream);
        deps.iter().rev().copied().find(waits)
    }

    /// What the next task of a stream waits for on other streams: of each the last.
    fn behind(&self, resource: usize) -> Vec<Arc<Moments>> {
        let mut latest: Vec<(TaskId, &Arc<Moments>)> = Vec::new();
        let lane = self.lanes[resource].front();
        let lane = lane.filter(|_| self.is_stream(resource));
        for dep in lane.into_iter().flat_map(|l| l.piece.deps_at(l.index())) {
            let Progress::Issued(moments) = self.progress(*dep) else {
                continue;
            };
            let known = latest.iter_mut().find(|(_, m)| m.stream == moments.stream);
            match known {
                Some(known) if known.0 < *dep => *known = (*dep, moments),
                Some(_) => {}
                None if moments.stream != resource => latest.push((*dep, moments)),
                None => {}
            }
        }
        latest.into_iter().map(|(_, m)| Arc::clone(m)).collect()
    }

    fn pop(&mut self, resource: usize) {
        if let Some(lane) = self.lanes[resource].front_mut() {
            lane.next += 1;
            if lane.next == lane.indices.len() {
                self.lanes[resource].pop_front();
            }
        }
    }
}

impl Wake {
    fn send(&mut self, scheduler: &Scheduler) {
        let woken = std::mem::take(self);
        for (worker, condition) in scheduler.workers.iter().enumerate() {
            if woken.workers >> worker & 1 == 1 {
                condition.notify_one();
            }
        }
        if woken.watcher {
            scheduler.watcher.notify_all();
        }
    }
}

impl Scheduler {
    /// Of a machine, some of whose resources are streams of a GPU, a bit each.
    pub(crate) fn new(machine: &Machine, interrupt: Arc<AtomicBool>, streams: u128) -> Scheduler {
        let resources = machine.resources.len();
        Scheduler {
            state: Mutex::new(State {
                lanes: (0..resources).map(|_| VecDeque::new()).collect(),
                streams,
                awaited: vec![None; resources],
                idle: vec![false; resources],
                ..State::default()
            }),
            workers: (0..resources).map(|_| Condvar::new()).collect(),
            watcher: Condvar::new(),
            sync: machine
                .resources
                .iter()
                .enumerate()
                .map(|(index, r)| r.kind == ResourceKind::Sync && streams >> index & 1 == 0)
                .collect(),
            stopped: AtomicBool::new(false),
            interrupt,
            epoch: OnceLock::new(),
        }
    }

    /// Starts the clock and all that was submitted, unless it runs.
    fn open(&self, state: &mut State) {
        if !state.open {
            state.open = true;
            self.epoch.get_or_init(Instant::now);
            self.meet(state, &mut Wake::default());
            self.workers.iter().for_each(Condvar::notify_all);
        }
    }

    /// Whether the clock runs.
    pub(crate) fn is_open(&self) -> bool {
        self.lock().open
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A worker that panics has its panic caught; the state is changed in whole steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Seconds {
        let since = self.epoch.get().map(Instant::elapsed);
        Seconds(since.unwrap_or_default().as_secs_f64())
    }

    /// Takes a piece.
    pub(crate) fn submit(&self, piece: &Arc<Program>) {
        let mut indices: Vec<Vec<u32>> = vec![Vec::new(); self.workers.len()];
        for (index, task) in piece.tasks().iter().enumerate() {
            indices[task.resource.0 as usize].push(index as u32);
        }
        let mut wake = Wake::default();
        let mut state = self.lock();
        let all = piece.end_task().0 - state.forgotten;
        state.progress.resize(all as usize, Progress::Waiting);
        state.unfinished += piece.tasks().len();
        for (resource, indices) in indices.into_iter().enumerate() {
            if indices.is_empty() {
                continue;
            }
            state.lanes[resource].push_back(Lane {
                piece: Arc::clone(piece),
                indices,
                next: 0,
            });
            if std::mem::take(&mut state.idle[resource]) {
                wake.workers |= 1 << resource;
            }
        }
        if state.open {
            self.meet(&mut state, &mut wake);
        }
        drop(state);
        wake.send(self);
    }

    /// Records an end, and the barriers that it completes.
    fn end(&self, state: &mut State, (task, span): (TaskId, Span), wake: &mut Wake) {
        let index = task.0 - state.forgotten;
        state.progress[index as usize] = Progress::Ended;
        state.spans.push((task, span));
        state.unfinished -= 1;
        wake.watcher |= state.unfinished == 0 || state.watched == Some(task);
        if self.wake_waiting(state, task, wake) {
            self.meet(state, wake);
        }
    }

    /// Wakes who waits for a task. Returns whether a barrier does.
    fn wake_waiting(&self, state: &mut State, task: TaskId, wake: &mut Wake) -> bool {
        let mut meets = false;
        for (resource, awaited) in state.awaited.iter_mut().enumerate() {
            if *awaited == Some(task) {
                *awaited = None;
                if self.sync[resource] {
                    meets = true;
                } else {
                    wake.workers |= 1 << resource;
                }
            }
        }
        meets
    }

    /// Says that a task was given to its stream.
    pub(crate) fn issued(&self, task: TaskId, moments: Arc<Moments>) {
        let mut wake = Wake::default();
        let mut state = self.lock();
        let index = task.0 - state.forgotten;
        state.progress[index as usize] = Progress::Issued(moments);
        self.wake_waiting(&mut state, task, &mut wake);
        drop(state);
        wake.send(self);
    }

    /// Ends a task that was issued.
    pub(crate) fn end_issued(&self, ended: (TaskId, Span)) {
        let mut wake = Wake::default();
        let mut state = self.lock();
        state.running -= 1;
        self.end(&mut state, ended, &mut wake);
        drop(state);
        wake.send(self);
    }

    /// Ends all barriers that wait for nothing any more.
    fn meet(&self, state: &mut State, wake: &mut Wake) {
        for resource in (0..self.sync.len()).filter(|r| self.sync[*r]) {
            while let Some(id) = state.lanes[resource].front().map(Lane::id) {
                state.awaited[resource] = state.hindrance(resource);
                if state.awaited[resource].is_some() {
                    break;
                }
                state.pop(resource);
                let now = self.now();
                let span = Span {
                    start: now,
                    end: now,
                };
                self.end(state, (id, span), wake);
            }
        }
    }

    /// Ends a worker's task, if it had one, and gives it the next, or none when all is over.
    pub(crate) fn next(&self, resource: usize, ended: Option<(TaskId, Span)>) -> Option<Job> {
        let mut wake = Wake::default();
        let mut state = self.lock();
        if let Some(ended) = ended {
            state.running -= 1;
            self.end(&mut state, ended, &mut wake);
        }
        let mut waited = false;
        loop {
            self.obey(&mut state);
            if self.is_stopped() {
                return None;
            }
            state.awaited[resource] = state.hindrance(resource);
            let next = state.lanes[resource].front().filter(|_| state.open);
            if let (None, Some(lane)) = (state.awaited[resource], next) {
                let job = Job {
                    piece: Arc::clone(&lane.piece),
                    index: lane.index(),
                    id: lane.id(),
                    start: self.now(),
                    waited,
                    behind: state.behind(resource),
                };
                state.pop(resource);
                state.running += 1;
                drop(state);
                wake.send(self);
                return Some(job);
            }
            state.idle[resource] = next.is_none();
            wake.send(self);
            waited = true;
            let woken = self.workers[resource].wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends everything because a task failed.
    pub(crate) fn fail(&self, failure: Failure) {
        let mut state = self.lock();
        state.running -= 1;
        state.failure.get_or_insert(failure);
        self.stop();
    }

    /// Ends a worker's task half done, since all is over.
    pub(crate) fn leave(&self) {
        let mut state = self.lock();
        state.running -= 1;
        self.obey(&mut state);
        self.watcher.notify_all();
    }

    /// Ends everything.
    pub(crate) fn close(&self) {
        let _state = self.lock();
        self.stop();
    }

    /// Ends everything if the user asked for it.
    fn obey(&self, state: &mut State) {
        if self.interrupt.load(Ordering::Relaxed) && !self.is_stopped() {
            state.interrupted = true;
            self.stop();
        }
    }

    /// The caller has the lock, so that nobody falls asleep after this has woken all.
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.workers.iter().for_each(Condvar::notify_all);
        self.watcher.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether what a task still does is for nothing.
    pub(crate) fn is_over(&self) -> bool {
        self.is_stopped() || self.interrupt.load(Ordering::Relaxed)
    }

    /// An error where nothing can be submitted or waited for any more.
    pub(crate) fn check(&self) -> Result<(), ExecutionError> {
        self.ensure_goes_on(&mut self.lock())
    }

    fn ensure_goes_on(&self, state: &mut State) -> Result<(), ExecutionError> {
        if let Some(Failure { task, what, source }) = state.failure.take() {
            return Err(ExecutionError::Task { task, what, source });
        }
        if state.interrupted {
            return Err(ExecutionError::Interrupted);
        }
        match self.is_stopped() {
            true => Err(ExecutionError::Executor(Box::new(CpuError::Stopped))),
            false => Ok(()),
        }
    }

    /// Waits; moves what has ended to the trace.
    pub(crate) fn wait(&self, until: Until, trace: &mut Trace) -> Result<Seconds, ExecutionError> {
        let mut state = self.lock();
        self.open(&mut state);
        state.watched = match until {
            Until::Task(task) => Some(task),
            Until::Time(_) | Until::Idle => None,
        };
        let result = loop {
            if let Err(error) = self.ensure_goes_on(&mut state) {
                break Err(error);
            }
            let now = self.now();
            match state.has_come(until, now) {
                Ok(true) => break Ok(now),
                Ok(false) => {}
                Err(error) => break Err(error.into()),
            }
            self.obey(&mut state);
            if state.interrupted {
                break Err(ExecutionError::Interrupted);
            }
            let nap = match until {
                Until::Time(time) => nap_before(time - now),
                Until::Task(_) | Until::Idle => LOOK,
            };
            let woken = self.watcher.wait_timeout(state, nap);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.write_down(trace);
        result
    }

    /// Lets go of the first piece that it still has, all tasks of which have ended, and of their spans.
    pub(crate) fn forget(&self, piece: &Program, trace: &mut Trace) {
        let mut state = self.lock();
        state.write_down(trace);
        state.progress.drain(..piece.tasks().len());
        state.forgotten += piece.tasks().len() as u32;
        trace.forget_to(piece.end_task());
    }

    /// Tasks that were not let go of.
    pub(crate) fn num_known(&self) -> usize {
        self.lock().progress.len()
    }

    /// Waits until no task runs: none is left, or none will be begun.
    pub(crate) fn quiet(&self) {
        let mut state = self.lock();
        while state.running > 0 || state.open && state.unfinished > 0 && !self.is_stopped() {
            let woken = self.watcher.wait_timeout(state, LOOK);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How long to sleep before a time: not so long that an interruption goes unseen.
fn nap_before(left: Seconds) -> Duration {
    Duration::try_from_secs_f64(left.0).map_or(LOOK, |left| left.min(LOOK))
}
