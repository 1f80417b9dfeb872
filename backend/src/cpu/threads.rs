//! The threads that do a program's tasks, and what is known of them.

use std::sync::Arc;
use std::thread::JoinHandle;

use plimsoll_core::executor::{ExecutionError, Until};
use plimsoll_core::program::{Machine, Program};
use plimsoll_core::trace::Trace;
use plimsoll_core::units::Seconds;

use super::CpuOptions;
use super::error::CpuError;
use super::scheduler::Scheduler;
use super::worker::{self, Cores, Work};
use crate::cuda::CudaError;
use crate::cuda::executor::{self, Issue};

/// Who does the tasks of a machine's resources.
pub(crate) struct Doers<'a> {
    /// The threads that the host has for them.
    pub host: Arc<dyn Work>,
    /// The streams of a GPU, where the device is one.
    pub streams: Option<Arc<dyn Issue>>,
    /// Where the host's may run.
    pub cores: &'a Cores,
}

/// A machine's threads, the scheduler that hands them tasks, and the trace of those that ended. Joined when dropped.
pub(crate) struct Threads {
    scheduler: Arc<Scheduler>,
    /// The resources that are streams of a GPU, a bit each.
    streams: u128,
    handles: Vec<JoinHandle<()>>,
    trace: Trace,
}

impl Threads {
    /// None of them runs yet.
    pub fn new(machine: &Machine, options: &CpuOptions) -> Threads {
        let interrupt = Arc::clone(&options.interrupt);
        let streams = options.card.as_ref();
        let streams = streams.map_or(0, |_| executor::streams_of(machine));
        Threads {
            scheduler: Arc::new(Scheduler::new(machine, interrupt, streams)),
            streams,
            handles: Vec::new(),
            trace: Trace::default(),
        }
    }

    /// Starts one for each resource, and two for one that is a GPU's stream.
    pub fn start(&mut self, machine: &Machine, doers: &Doers<'_>) -> Result<(), CpuError> {
        if let Some(issue) = &doers.streams {
            executor::start(machine, (issue, &self.scheduler), &mut self.handles)?;
        }
        let host = (&doers.host, &self.scheduler);
        worker::start(
            machine,
            host,
            (doers.cores, self.streams),
            &mut self.handles,
        )
    }

    /// What hands out tasks.
    pub fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    /// For threads that have no resource, and are joined with the others.
    pub fn handles(&mut self) -> &mut Vec<JoinHandle<()>> {
        &mut self.handles
    }

    /// Takes a piece whose buffers are there.
    pub fn submit(&mut self, piece: &Arc<Program>) {
        self.trace.extend_to(piece.end_task());
        self.scheduler.submit(piece);
    }

    /// Waits; the first time `start_clock` is called before, which a GPU's clock needs.
    pub fn wait(
        &mut self,
        until: Until,
        start_clock: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Seconds, ExecutionError> {
        if !self.scheduler.is_open() {
            let started = start_clock();
            started.map_err(|error| ExecutionError::Executor(Box::new(error)))?;
        }
        self.scheduler.wait(until, &mut self.trace)
    }

    /// Lets go of a piece.
    pub fn forget(&mut self, piece: &Program) {
        self.scheduler.forget(piece, &mut self.trace);
    }

    /// What has ended.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Ends all of them: nobody touches memory from here on.
    pub fn join(&mut self) {
        self.scheduler.close();
        for thread in self.handles.drain(..) {
            // A worker catches its tasks' panics; one of its own has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}
