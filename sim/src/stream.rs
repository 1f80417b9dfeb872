//! A plan's prediction while its pieces come and go: none is written before it is needed, or kept after.

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_core::control::{Controller, DriveError};
use plimsoll_core::executor::{Executor, Until};
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::Lowering;
use plimsoll_core::machine::Machine;
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{Program, TaskId};
use plimsoll_core::summary::Summary;
use plimsoll_core::tally::Tally;
use plimsoll_core::timing::{Part, Timing, last_of_passes};
use plimsoll_core::trace::Trace;
use plimsoll_core::units::Seconds;

use crate::cost::CostModel;
use crate::engine::Simulator;
use crate::reliance::Reliance;
use crate::simulate::{SimulateError, resting_on};

/// Pieces that are submitted ahead of the last that has ended, besides those in which a pipeline's first
/// stage may be ahead of its last. No task of a piece can begin before the piece two before it has ended,
/// as a rule: working copies are used in turn.
const AHEAD: u64 = 2;

/// What a plan's run amounts to, exactly as if all pieces had been submitted first; none where a task
/// came too late for that to be sure.
pub(crate) fn predict_streamed(
    plan: &Plan,
    profile: &HardwareProfile,
) -> Result<Option<Summary>, SimulateError> {
    let mut lowering = Lowering::new(plan)?;
    let machine = lowering.machine().clone();
    let cost = CostModel::new(profile, plan.dtype);
    let mut simulator = Simulator::new(&machine, cost.clone());
    let mut flow = Flow::new(&machine, Part::of(plan), cost);
    let stages = machine.num_gpus() as u64;
    let ahead = stages + lowering.passes().micro_batches().max(stages) + AHEAD;
    let drive = |error| SimulateError::Drive(DriveError::Execution(error));
    loop {
        while (flow.pieces.len() as u64) < ahead
            && let Some(piece) = lowering.next_pass()
        {
            let piece = Arc::new(piece);
            flow.submitted(&piece);
            simulator.submit(piece).map_err(drive)?;
        }
        if simulator.came_late() {
            return Ok(None);
        }
        let Some((piece, _)) = flow.pieces.pop_front() else {
            break;
        };
        for id in piece.first_task().0..piece.end_task().0 {
            let until = Until::Task(TaskId(id));
            simulator.wait(until).map_err(drive)?;
        }
        flow.ended(&piece, &mut simulator);
    }
    let timing = Timing::of_tally(plan, &flow.tally);
    let reliance = flow.reliance.timed(timing);
    Ok(Some(resting_on(
        flow.tally.summary(timing),
        &flow.cost,
        &reliance,
    )))
}

/// The pieces between their submission and their end, and what those before them amount to.
struct Flow {
    machine: Machine,
    cost: CostModel,
    /// Each with its first task on every resource that has one.
    pieces: VecDeque<(Arc<Program>, Vec<TaskId>)>,
    num_submitted: u64,
    num_ended: usize,
    /// The part that counts begins, and ends, after these.
    marks: Option<[Mark; 2]>,
    tally: Tally,
    reliance: Reliance,
}

/// The end of a pass.
#[derive(Debug, Clone)]
struct Mark {
    pass: u64,
    tasks: Vec<TaskId>,
}

impl Mark {
    fn new(pass: u64) -> Mark {
        Mark {
            pass,
            tasks: Vec::new(),
        }
    }

    /// When it was; none where it is yet to come.
    fn time(&self, trace: &Trace) -> Option<Seconds> {
        let ends = self
            .tasks
            .iter()
            .map(|id| trace.span(*id).map(|span| span.end.0));
        let last = ends.reduce(|a, b| Some(a?.max(b?)))?;
        last.map(Seconds)
    }
}

impl Flow {
    fn new(machine: &Machine, part: Part, cost: CostModel) -> Flow {
        Flow {
            machine: machine.clone(),
            cost,
            pieces: VecDeque::new(),
            num_submitted: 0,
            num_ended: 0,
            marks: match part {
                Part::Whole => None,
                Part::Passes { after, to } => Some([after, to].map(Mark::new)),
            },
            tally: Tally::new(machine),
            reliance: Reliance::default(),
        }
    }

    fn submitted(&mut self, piece: &Arc<Program>) {
        for mark in self.marks.iter_mut().flatten() {
            // Only plans of one stage have marks, and there a piece is a pass.
            if mark.pass == self.num_submitted {
                mark.tasks = last_of_passes(piece).collect();
            }
        }
        self.num_submitted += 1;
        let first = first_of_lanes(piece, self.machine.resources.len());
        self.pieces.push_back((Arc::clone(piece), first));
    }

    fn ended(&mut self, piece: &Program, simulator: &mut Simulator) {
        let part = self.part(simulator.trace());
        self.tally.see(piece, simulator.trace(), part);
        let run = (&self.machine, simulator.trace());
        self.reliance.see(piece, run, part, &self.cost);
        self.tally.settle(self.begun_since(simulator));
        simulator.forget(self.num_ended);
        self.num_ended += 1;
    }

    /// What counts of a piece that has ended, as far as is known now. A mark that is yet to come is later than
    /// all that has ended.
    fn part(&self, trace: &Trace) -> (Seconds, Seconds) {
        let never = Seconds(f64::INFINITY);
        match &self.marks {
            None => (Seconds::ZERO, never),
            Some(marks) => {
                let [from, to] = [0, 1].map(|mark: usize| marks[mark].time(trace));
                (from.unwrap_or(never), to.unwrap_or(never))
            }
        }
    }

    /// No task of the pieces that have not ended began before this time.
    fn begun_since(&self, simulator: &Simulator) -> Seconds {
        let trace = simulator.trace();
        let mut since = simulator.running_since();
        for id in self.pieces.iter().flat_map(|(_, first)| first) {
            if let Some(span) = trace.span(*id) {
                since = Seconds(since.0.min(span.start.0));
            }
        }
        since
    }
}

/// The first task of a piece on each resource that has one.
fn first_of_lanes(piece: &Program, lanes: usize) -> Vec<TaskId> {
    let mut first = vec![None; lanes];
    for (task, id) in piece.tasks().iter().zip(piece.first_task().0..) {
        first[usize::from(task.resource.0)].get_or_insert(TaskId(id));
    }
    first.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::model::registry;
    use plimsoll_core::pipeline::Pipeline;
    use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Provenance};
    use plimsoll_core::policy::{Policy, Schedule};
    use plimsoll_core::tier::PerTier;
    use plimsoll_core::units::Bytes;
    use plimsoll_core::workload::Workload;

    use super::*;

    fn streams(policy: Policy) -> bool {
        let plan = Plan {
            schema_version: PLAN_SCHEMA_VERSION,
            model: registry::find("opt-1.3b").expect("registered"),
            dtype: Dtype::F16,
            workload: Workload {
                prompt_len: 64,
                gen_len: 8,
                num_prompts: None,
            },
            policy,
            capacity_bytes: PerTier::from_fn(|_| Bytes(1 << 50)),
            prediction: None,
            provenance: Provenance {
                hardware: "t4x4".into(),
                chosen_by: ChosenBy::Given,
                plimsoll_version: "0".into(),
            },
        };
        let profile = embedded::profile("t4x4").expect("embedded");
        predict_streamed(&plan, &profile).expect("fits").is_some()
    }

    #[test]
    fn the_usual_plans_need_no_whole_run() {
        let percent = [20.0, 80.0, 0.0, 100.0, 0.0, 100.0];
        let base = Policy::from_percent(4, 3, percent).expect("a policy");
        for schedule in [Schedule::ZigZag, Schedule::Row, Schedule::Diagonal] {
            for cpu_attention in [false, true] {
                let policy = Policy {
                    schedule,
                    cpu_attention,
                    barrier: false,
                    ..base
                };
                assert!(streams(policy), "{policy:?}");
            }
        }
        for (stages, micro_batches) in [(2, 1), (4, 4)] {
            let pipeline = Pipeline {
                stages,
                micro_batches,
                ..Pipeline::default()
            };
            assert!(streams(Policy { pipeline, ..base }), "{pipeline:?}");
        }
    }
}
