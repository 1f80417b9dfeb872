//! One case: its plan, its prediction, and the runs that it has so far.

use plimsoll_backend::digest::digest;
use plimsoll_backend::probe::Moment;
use plimsoll_core::control::Run;
use plimsoll_core::hardware::{HardwareProfile, Slowness};
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;
use plimsoll_sim::{prediction, simulate};

use super::bench::TimedRun;
use super::{Case, CaseRow, Why};
use crate::planner;

/// A case with its prediction and its runs so far.
#[derive(Debug)]
pub struct Trial<'a> {
    /// What it is.
    pub case: &'a Case,
    /// What is run.
    pub plan: Plan,
    /// Latency in modelled time at the pace at which the profile was measured, in seconds.
    pub as_profiled_s: f64,
    /// What is predicted at that pace.
    pub prediction: Summary,
    /// In the order in which they ended.
    pub runs: Vec<TimedRun>,
    pub(super) failed: bool,
    compared: Option<Compared>,
}

/// The run that is compared, and with what.
#[derive(Debug)]
struct Compared {
    /// Its number.
    run: usize,
    /// At the pace that the machine had.
    predicted: Run,
    row: CaseRow,
}

impl<'a> Trial<'a> {
    /// Plans and predicts.
    pub(super) fn new(case: &'a Case, profile: &HardwareProfile) -> Result<Trial<'a>, Why> {
        let machine = machine_of(case, profile, None);
        let plan = match case.policy {
            Some(policy) => case.plan(policy).on(&machine),
            None => planned(case, &machine)?,
        };
        let run = simulate(&plan, &machine)?;
        Ok(Trial {
            case,
            as_profiled_s: run.trace.makespan().0,
            prediction: prediction(&plan, &machine, &run),
            plan,
            runs: Vec::new(),
            failed: false,
            compared: None,
        })
    }

    /// What tells its plan from others, on whatever machine.
    pub fn plan_digest(&self) -> String {
        let Plan {
            model,
            dtype,
            workload,
            policy,
            ..
        } = &self.plan;
        let text = serde_json::to_vec(&(model, dtype, workload, policy));
        digest([text.expect("plans are JSON")])
    }

    /// Takes one more run. Of all so far, the median latency is compared, and of an even number what the lower of the middle two
    /// did meanwhile; it is predicted at the median of their paces, since a single one is known less well.
    pub(super) fn take(&mut self, run: TimedRun, profile: &HardwareProfile) -> Result<(), Why> {
        self.runs.push(run);
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        let latency_s = |run: &usize| self.runs[*run].latency_s();
        order.sort_by(|a, b| latency_s(a).total_cmp(&latency_s(b)));
        let middle = order[(order.len() - 1) / 2];
        let moments: Vec<Moment> = self.runs.iter().map(|run| run.moment).collect();
        let slowness = Moment::middle(&moments).slowness(profile);
        let machine = machine_of(self.case, profile, slowness.as_ref());
        let predicted = simulate(&self.plan, &machine)?;
        self.compared = Some(Compared {
            row: CaseRow::of(self, &predicted, &self.runs[middle], slowness.as_ref()),
            run: middle,
            predicted,
        });
        Ok(())
    }

    /// The case in numbers; none before a run has ended.
    pub fn row(&self) -> Option<&CaseRow> {
        self.compared.as_ref().map(|compared| &compared.row)
    }

    /// The run that the row is about, as predicted and as measured.
    pub fn pair(&self) -> Option<(&Run, &Run)> {
        let compared = self.compared.as_ref()?;
        Some((&compared.predicted, &self.runs[compared.run].run))
    }
}

/// The machine of a case at a pace, as the simulator knows it.
fn machine_of(
    case: &Case,
    profile: &HardwareProfile,
    slowness: Option<&Slowness>,
) -> HardwareProfile {
    case.limits
        .hold(&profile.at_pace(slowness.unwrap_or(&Slowness::NONE)))
}

fn planned(case: &Case, machine: &HardwareProfile) -> Result<Plan, Why> {
    let request = planner::Request {
        workload: case.workload,
        objective: planner::Objective::Throughput,
        max_latency_s: None,
        allowed: planner::Allowed::default(),
    };
    match planner::search(machine, &case.model, case.dtype, &request)? {
        planner::Answer::Plan(found) | planner::Answer::TooSlow(found) => Ok(found.plan),
        planner::Answer::Infeasible(why) => Err(Why::Infeasible(why)),
    }
}
