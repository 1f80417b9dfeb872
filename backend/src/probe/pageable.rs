//! Copies of many sizes between a GPU and memory of the host that is not page-locked.

use std::ops::Range;

use plimsoll_core::control::Run;
use plimsoll_core::lower::{LowerError, footprint, pageable_homes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{Machine, Program, ResourceKind};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

use super::contention::ROUNDS_OF_MOVES;
use super::moves::{Moves, REGION, SIZES};
use super::samples::Timed;
use super::{ProbeError, ProbeOptions, compute, run_program};
use crate::tiers::available_memory;

/// A region of each on each side, one behind the other.
const MOVERS: [ResourceKind; 2] = [ResourceKind::H2d, ResourceKind::D2h];

/// A copy that is several times what drivers stage ahead, and one from page-locked memory that takes longer than that.
const STAGED: u64 = 4 << 20;
const BEFORE: u64 = 32 << 20;

/// A region of the host that hardly any processor's cache holds, as a plan's cache is: a copy from there, or to there, is one by the
/// processor. And how much memory has to be free for all of them: that from which page-locked copies come is as large.
const COLD: Bytes = Bytes(1 << 30);
const COLD_ROOM: Bytes = Bytes(8 << 30);

/// Copies beside each other, and how many bytes each way in all: some milliseconds.
const BESIDE: u64 = 4 << 20;
const BESIDE_ALL: [u64; 2] = [1 << 30, 128 << 20];

/// A program of copies, and which of its tasks are what.
pub struct PageableCopies {
    plan: Plan,
    machine: Machine,
    program: Program,
    /// Copies each way by themselves.
    pub(super) one_by_one: Range<usize>,
    /// In rounds: weights from page-locked memory and a cache to pageable one, as plans have them; by themselves and beside each other.
    pub(super) rounds: Vec<[Range<usize>; 2]>,
    /// What tells how much is staged ahead.
    pub(super) staged: Range<usize>,
    /// Memory of the host that copies come from, and go to.
    pub(super) of_host: Bytes,
}

impl PageableCopies {
    /// Copies each way, one by one, where the plan of a model would have its weights; then down beside up; then some to the device for
    /// what its driver does before their turn comes.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(options: &ProbeOptions) -> Result<PageableCopies, ProbeError> {
        let of_host = match available_memory() {
            Some(free) if free >= COLD_ROOM => COLD,
            _ => REGION,
        };
        let mut plan = plan(options, of_host)?;
        let mut behind = footprint(&plan)?;
        let sizes = PerTier {
            host: of_host,
            ..PerTier::from_fn(|_| REGION)
        };
        let regions = Moves::room(&MOVERS, sizes, PerTier::default());
        // And for the page-locked copies.
        plan.capacity_bytes.device += regions.device + REGION;
        let behind_all = footprint(&plan)?.host;
        plan.capacity_bytes.host = behind_all + of_host;
        let machine = Machine::single_gpu(plan.capacity_bytes);
        let host = machine
            .arena(Tier::Host, 0)
            .map(|arena| usize::from(arena.0));
        let homes = host.and_then(|arena| pageable_homes(&plan).ok()?.into_iter().nth(arena));
        let homes = homes.and_then(|homes| homes.into_iter().next());
        let homes = homes.expect("the plan's weights are on the host, and pageable");
        assert!(
            homes.end - homes.start >= regions.host,
            "weights fill the regions"
        );
        behind.host = homes.start;
        let moves = Moves::new(Program::new(), &machine, sizes).with((&MOVERS, false), behind);
        behind.host = behind_all;
        behind.device += regions.device;
        let mut moves = moves.with((&MOVERS[..1], true), behind);
        let [up, down, locked] = [0, 1, 2];
        // In many turns: neighbours, and the processor's clock, change from one moment to the next.
        let turns = if options.quick { 5 } else { 10 };
        moves.one_by_one_of(&[up, down], (SIZES, 3, turns));
        let one_by_one = 0..moves.program.tasks().len();
        let rounds = (0..ROUNDS_OF_MOVES).map(|_| {
            let begin = moves.program.tasks().len();
            moves.one_by_one_of(&[locked, down], (&[BESIDE], 16, 1));
            let alone = moves.program.tasks().len();
            moves.together([locked, down], BESIDE, BESIDE_ALL);
            [begin..alone, alone..moves.program.tasks().len()]
        });
        let rounds: Vec<_> = rounds.collect();
        let begin = moves.program.tasks().len();
        for _ in 0..2 * turns {
            moves.in_turn(&[(locked, BEFORE), (up, STAGED), (up, STAGED)]);
        }
        Ok(PageableCopies {
            plan,
            machine,
            staged: begin..moves.program.tasks().len(),
            program: moves.program,
            one_by_one,
            rounds,
            of_host,
        })
    }

    /// Runs them.
    ///
    /// # Errors
    /// Memory that cannot be had; a copy that fails.
    pub fn run(&self, options: &ProbeOptions) -> Result<Run, ProbeError> {
        run_program(options, &self.plan, &self.machine, self.program.clone())
    }
}

/// Bytes of copies from pageable memory to a device that were staged when their turn came: a copy behind one from page-locked memory,
/// beside one behind its like.
pub(super) fn staged(tasks: &[Timed]) -> Vec<f64> {
    let of = |three: &[Timed; 3]| {
        let [_, behind_locked, behind_other] = three.map(|task| task.seconds());
        STAGED as f64 * (1.0 - behind_locked / behind_other)
    };
    tasks.as_chunks().0.iter().map(of).collect()
}

/// A model with weights for all regions on the host, nothing of them page-locked.
fn plan(options: &ProbeOptions, region: Bytes) -> Result<Plan, LowerError> {
    let dtype = options.dtypes[0];
    let policy = Policy {
        page_locked: PageLocked::NONE,
        ..Policy::from_percent(1, 1, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0])?.in_whole_layers()
    };
    let workload = Workload {
        prompt_len: 1,
        gen_len: 1,
        num_prompts: None,
    };
    // That many bytes are about as many only.
    let model = compute::model(compute::of_bytes(region * 2 + REGION, dtype));
    Plan::given(model, dtype, workload, policy).with_room()
}

#[cfg(test)]
mod tests {
    use plimsoll_core::program::{HostPages, Op};
    use plimsoll_core::trace::Span;
    use plimsoll_core::units::{Bytes, Seconds};

    use super::*;

    fn copy(bytes: u64, page_locked: bool, seconds: f64) -> Timed {
        Timed {
            kind: ResourceKind::H2d,
            op: Op::Move {
                bytes: Bytes(bytes),
                from: Bytes(0),
                to: Bytes(0),
                host: HostPages::of(page_locked),
            },
            span: Span {
                start: Seconds::ZERO,
                end: Seconds(seconds),
            },
            pace: 1.0,
        }
    }

    #[test]
    fn what_was_staged_is_what_a_copy_takes_less_behind_another_link_user() {
        let three = |behind_locked| {
            [
                copy(BEFORE, true, 1e-3),
                copy(STAGED, false, behind_locked),
                copy(STAGED, false, 4e-4),
            ]
        };
        let staged = staged(&[three(3e-4), three(2e-4)].concat());
        let expected = [0.25, 0.5].map(|share| share * STAGED as f64);
        let off = staged.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(staged.len() == 2 && off.fold(0.0, f64::max) < 1.0);
        assert!(super::staged(&[]).is_empty());
    }

    /// Weights come down from page-locked memory while a cache goes up to pageable one, and both by themselves.
    #[test]
    fn copies_beside_each_other_are_those_of_plans() {
        let options = ProbeOptions {
            cpu: crate::cpu::CpuOptions::new("."),
            quick: true,
            dtypes: vec![plimsoll_core::Dtype::F16],
            models: Vec::new(),
            name: "a test".to_owned(),
            date: "2026-11-27".to_owned(),
        };
        let copies = PageableCopies::new(&options).expect("a program");
        // By engine, how many bytes of copies of the size that is looked at, and whether any is otherwise locked than a plan's.
        let of = |part: &Range<usize>, kind: ResourceKind, page_locked: bool| {
            let resource = copies.machine.resource(kind, 0).expect("a link");
            let tasks = copies.program.tasks()[part.clone()].iter();
            let tasks = tasks.filter(|task| task.resource == resource);
            let sizes = tasks.filter_map(|task| match copies.program.op_of(task) {
                op @ Op::Move { bytes, .. } if bytes.0 == BESIDE => {
                    let is_locked = op.pageable_bytes().is_none();
                    Some((is_locked == page_locked, bytes.0))
                }
                _ => None,
            });
            sizes.fold((true, 0), |all, it| (all.0 && it.0, all.1 + it.1))
        };
        assert_eq!(copies.rounds.len(), ROUNDS_OF_MOVES);
        for [alone, together] in &copies.rounds {
            for (kind, locked, all) in [
                (ResourceKind::H2d, true, BESIDE_ALL[0]),
                (ResourceKind::D2h, false, BESIDE_ALL[1]),
            ] {
                assert_eq!(of(alone, kind, locked), (true, 16 * BESIDE));
                assert_eq!(of(together, kind, locked), (true, all));
            }
        }
        assert_eq!(copies.staged.len() % 3, 0);
        assert_eq!(copies.staged.end, copies.program.tasks().len());
    }
}
