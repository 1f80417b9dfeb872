//! Copies of many sizes between a GPU and memory of the host that is not page-locked.

use plimsoll_core::control::Run;
use plimsoll_core::lower::{LowerError, footprint, pageable_homes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{Machine, Program, ResourceKind};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::workload::Workload;

use super::moves::{Moves, REGION, SIZES};
use super::samples::Timed;
use super::{ProbeError, ProbeOptions, compute, run_program};

/// A region of each on each side, one behind the other.
const MOVERS: [ResourceKind; 2] = [ResourceKind::H2d, ResourceKind::D2h];

/// A copy that is several times what drivers stage ahead, and one from page-locked memory that takes longer than that.
const STAGED: u64 = 4 << 20;
const BEFORE: u64 = 32 << 20;

/// Copies each way, one by one, where the plan of a model would have its weights; then some to the device for what its driver does
/// before their turn comes.
///
/// # Errors
/// Memory that cannot be had; a probe that fails.
pub fn pageable_copies(options: &ProbeOptions) -> Result<Run, ProbeError> {
    let mut plan = plan(options)?;
    let mut behind = footprint(&plan)?;
    let small = PerTier::from_fn(|_| REGION);
    let regions = Moves::room(&MOVERS, small, PerTier::default());
    // And for the page-locked copies.
    plan.capacity_bytes.device += regions.device + REGION;
    let behind_all = footprint(&plan)?.host;
    plan.capacity_bytes.host = behind_all + REGION;
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
    let mut moves = Moves::new(Program::new(), &machine, small).with((&MOVERS, false), behind);
    // In many turns: neighbours, and the processor's clock, change from one moment to the next.
    let turns = if options.quick { 5 } else { 10 };
    moves.one_by_one(SIZES, 3, turns);
    behind.host = behind_all;
    behind.device += regions.device;
    let mut moves = moves.with((&MOVERS[..1], true), behind);
    for _ in 0..2 * turns {
        moves.in_turn(&[(2, BEFORE), (0, STAGED), (0, STAGED)]);
    }
    run_program(options, &plan, &machine, moves.program)
}

/// Bytes of copies from pageable memory to a device that were staged when their turn came: a copy behind one from page-locked memory,
/// beside one behind its like. Takes these from the end of the copies' tasks, and leaves those that were one by one.
pub(super) fn take_staged(tasks: &mut Vec<Timed>) -> Vec<f64> {
    let first = tasks
        .iter()
        .position(|task| task.op.pageable_bytes().is_none());
    let rest = tasks.split_off(first.unwrap_or(tasks.len()));
    let of = |three: &[Timed; 3]| {
        let [_, behind_locked, behind_other] = three.map(|task| task.seconds());
        STAGED as f64 * (1.0 - behind_locked / behind_other)
    };
    rest.as_chunks().0.iter().map(of).collect()
}

/// A model with weights for all regions on the host, nothing of them page-locked.
fn plan(options: &ProbeOptions) -> Result<Plan, LowerError> {
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
    let model = compute::model(compute::of_bytes(REGION * 3, dtype));
    compute::with_room((model, dtype), workload, policy)
}

#[cfg(test)]
mod tests {
    use plimsoll_core::program::Op;
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
                page_locked,
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
        let alone = [copy(16 << 10, false, 1e-5), copy(STAGED, false, 4e-4)];
        let three = |behind_locked| {
            [
                copy(BEFORE, true, 1e-3),
                copy(STAGED, false, behind_locked),
                copy(STAGED, false, 4e-4),
            ]
        };
        let mut tasks = [&alone[..], &three(3e-4), &three(2e-4)].concat();
        let staged = take_staged(&mut tasks);
        assert_eq!(tasks.len(), alone.len());
        let expected = [0.25, 0.5].map(|share| share * STAGED as f64);
        let off = staged.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(staged.len() == 2 && off.fold(0.0, f64::max) < 1.0);
        assert!(take_staged(&mut tasks).is_empty() && tasks.len() == alone.len());
    }
}
