//! What is asked of the planner, and what it answers.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::LowerError;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Schedule;
use plimsoll_core::sparse::DENSE;
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use plimsoll_sim::SimulateError;
use thiserror::Error;

use super::{Advice, Infeasible};

/// What makes a plan better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// Generated tokens a second, prefill included (FlexGen section 6).
    #[default]
    Throughput,
    /// The time until the workload's prompts are answered; one prompt where they are endless.
    Latency,
}

impl Objective {
    /// Seconds a token, or seconds: less is better.
    pub(super) fn cost(self, latency: Seconds, tokens: f64) -> f64 {
        match self {
            Objective::Throughput => latency.0 / tokens,
            Objective::Latency => latency.0,
        }
    }
}

/// What is planned, and where.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The machine.
    pub profile: &'a HardwareProfile,
    /// The model.
    pub model: &'a ModelSpec,
    /// The type of its weights, its cache and its activations.
    pub dtype: Dtype,
}

/// What is asked of the planner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Prompts in, tokens out.
    pub workload: Workload,
    /// What makes a plan better.
    pub objective: Objective,
    /// The simulated time of the whole workload (of one block, where prompts are endless) must not
    /// be longer.
    pub max_latency_s: Option<Seconds>,
    /// What may be decided.
    pub allowed: Allowed,
}

/// What the search may choose from, besides sizes and where tensors live.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowed {
    /// What may be kept in 4 bits an element, where that is better.
    pub compression: Compression,
    /// The share of past tokens whose values a decode step reads; 1 is dense. It is not searched, since
    /// it changes what comes out.
    pub sparse_attention: f64,
    /// Whether decode attention over cache that is not on the device runs on the CPU; none: where that is
    /// better.
    pub cpu_attention: Option<bool>,
    /// The order of computation; none: zig-zag or diagonal, the better one.
    pub schedule: Option<Schedule>,
    /// Whether copies, disk and computation overlap.
    pub overlap: bool,
    /// Whose plans are looked for.
    pub strategy: Strategy,
}

/// Ways to place and compute a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// The better of both by simulation.
    Auto,
    /// Whole linear layers on the device, and what lives elsewhere moves.
    #[default]
    FlexGen,
    /// Linear layers that the CPU and the device compute together.
    HeteGen,
}

impl Default for Allowed {
    /// All that changes no token.
    fn default() -> Allowed {
        Allowed {
            compression: Compression::default(),
            sparse_attention: DENSE,
            cpu_attention: None,
            schedule: None,
            overlap: true,
            strategy: Strategy::default(),
        }
    }
}

/// What the search finds.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A plan that fits.
    Plan(Box<Planned>),
    /// No plan fits the machine.
    Infeasible(Box<Infeasible>),
    /// Plans fit, but none that was found is fast enough; this one is the fastest.
    TooSlow(Box<Planned>),
}

/// A plan with what the search knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The simulator's winner, with its prediction.
    pub plan: Plan,
    /// The time of the whole workload as judged: by its prediction, or by the simulation of a part.
    pub latency_s: Seconds,
    /// Generated tokens over that time.
    pub throughput_tok_s: f64,
    /// The best of another [`Kind`](super::Kind), as the winner; none where no other kind is allowed, or fits.
    pub runner_up: Option<Plan>,
    /// Shapes (GPU batch size, GPU batches, where attention runs) that were compared.
    pub considered: usize,
    /// The change of the machine that would help most, of those tried; none are for [very long answers](super::is_too_long_for_advice).
    pub advice: Option<Advice>,
    /// Why no plan with split linear layers was looked at, or fits, where one was allowed.
    pub not_split: Option<String>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The request means nothing for this model.
    #[error(transparent)]
    Request(#[from] LowerError),
    /// A plan of ours has no simulation.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// The linear program's solver failed.
    #[error("the linear program has no answer: {0}")]
    Solver(String),
}

impl PlanError {
    /// Whether a plan is too large to be simulated.
    pub(super) fn is_of_size(&self) -> bool {
        let too_much = |error: &LowerError| matches!(error, LowerError::TooMuch { .. });
        match self {
            PlanError::Request(error) | PlanError::Simulate(SimulateError::Lower(error)) => {
                too_much(error)
            }
            PlanError::Simulate(_) | PlanError::Solver(_) => false,
        }
    }
}
