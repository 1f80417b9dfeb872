//! Controllers decide what to submit next, seeing the clock and the trace so far.
//!
//! A static plan is the controller that submits everything at once. Controllers that react
//! (iteration-level serving, cache managers) use the same three decisions.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::executor::{ExecutionError, Executor, Until};
use crate::program::{Cell, Machine, Op, Program, TaskId};
use crate::trace::Trace;
use crate::units::Seconds;
use crate::verify::{Verifier, VerifyError};

/// What a controller wants.
#[derive(Debug)]
pub enum Decision {
    /// Hand this piece over.
    Submit(Box<Program>),
    /// Ask again when this has happened.
    Wait(Until),
    /// Nothing more will come.
    Done,
}

/// Decides what runs next.
pub trait Controller {
    /// The machine that its pieces are written for.
    fn machine(&self) -> &Machine;

    /// The next decision, at a time, knowing what has ended.
    fn decide(&mut self, now: Seconds, trace: &Trace) -> Decision;
}

/// What was submitted and when it ran.
#[derive(Debug, Clone)]
pub struct Run {
    /// The machine it was written for.
    pub machine: Machine,
    /// All pieces in order.
    pub pieces: Vec<Arc<Program>>,
    /// When each task ran.
    pub trace: Trace,
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The controller wrote a program that is not right; nothing of that piece ran.
    #[error("the program is not valid: {0}")]
    Invalid(#[from] VerifyError),
    /// The executor stopped.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
}

/// Runs a controller's decisions on an executor: each piece is verified, then submitted.
///
/// # Errors
/// A piece that fails verification, or a task that fails.
pub fn drive(
    controller: &mut dyn Controller,
    executor: &mut dyn Executor,
) -> Result<Run, DriveError> {
    let mut verifier = Verifier::new(controller.machine());
    let pieces = submit_all(controller, executor, &mut |piece| verifier.check(piece))?;
    verifier.finish()?;
    ended(controller, executor, pieces)
}

/// [`drive`] without verification, which takes as long as simulating does: for ranking programs of
/// our own lowering, the best of which is driven again. An executor that moves real bytes gets
/// verified programs only.
///
/// # Errors
/// A task that fails.
pub fn drive_unverified(
    controller: &mut dyn Controller,
    executor: &mut dyn Executor,
) -> Result<Run, DriveError> {
    let pieces = submit_all(controller, executor, &mut |_| Ok(()))?;
    ended(controller, executor, pieces)
}

/// Follows the controller until it has nothing more to submit.
fn submit_all(
    controller: &mut dyn Controller,
    executor: &mut dyn Executor,
    check: &mut dyn FnMut(&Program) -> Result<(), VerifyError>,
) -> Result<Vec<Arc<Program>>, DriveError> {
    let mut pieces = Vec::new();
    let mut now = Seconds::ZERO;
    loop {
        match controller.decide(now, executor.trace()) {
            Decision::Submit(piece) => {
                check(&piece)?;
                let piece = Arc::new(*piece);
                pieces.push(Arc::clone(&piece));
                executor.submit(piece)?;
            }
            Decision::Wait(until) => now = executor.wait(until)?,
            Decision::Done => return Ok(pieces),
        }
    }
}

/// [`drive`] for as long as there are requests: pieces are let go of once they have ended, so that what is known does
/// not grow with them. The controller sees each task's end at the decision after it, and not later. Nothing is
/// verified. Returns the clock at the end.
///
/// # Errors
/// A task that fails.
pub fn follow(
    controller: &mut dyn Controller,
    executor: &mut dyn Executor,
) -> Result<Seconds, DriveError> {
    let mut pieces: VecDeque<Arc<Program>> = VecDeque::new();
    let mut now = Seconds::ZERO;
    loop {
        match controller.decide(now, executor.trace()) {
            Decision::Submit(piece) => {
                let piece = Arc::new(*piece);
                pieces.push_back(Arc::clone(&piece));
                executor.submit(piece)?;
            }
            Decision::Wait(until) => {
                // All before the first is let go of: that may bring ends that the controller has not seen.
                let ended = pieces.iter().take_while(|piece| has_ended(piece, executor));
                let ended = ended.count();
                for piece in pieces.drain(..ended) {
                    executor.forget(&piece);
                }
                now = executor.wait(until)?;
            }
            Decision::Done => return Ok(executor.wait(Until::Idle)?),
        }
    }
}

fn has_ended(piece: &Program, executor: &dyn Executor) -> bool {
    let mut tasks = piece.first_task().0..piece.end_task().0;
    tasks.all(|task| executor.trace().span(TaskId(task)).is_some())
}

fn ended(
    controller: &dyn Controller,
    executor: &mut dyn Executor,
    pieces: Vec<Arc<Program>>,
) -> Result<Run, DriveError> {
    executor.wait(Until::Idle)?;
    Ok(Run {
        machine: controller.machine().clone(),
        pieces,
        trace: executor.trace().clone(),
    })
}

impl Run {
    /// Every task with its operation, resource number and cell, in program order.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &Op, usize, Cell)> + '_ {
        self.pieces.iter().flat_map(|piece| {
            piece
                .numbered_tasks()
                .map(move |(id, task)| (id, piece.op_of(task), task.resource.0 as usize, task.cell))
        })
    }
}
