//! Copies of many sizes between a GPU and memory of the host that is not page-locked.

use plimsoll_core::control::Run;
use plimsoll_core::lower::{LowerError, footprint, pageable_homes};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{PageLocked, Policy};
use plimsoll_core::program::{Machine, Program, ResourceKind};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::workload::Workload;

use super::moves::{Moves, REGION, SIZES};
use super::{ProbeError, ProbeOptions, compute, run_program};

/// A region of each on each side, one behind the other.
const MOVERS: [ResourceKind; 2] = [ResourceKind::H2d, ResourceKind::D2h];

/// Copies each way, one by one, where the plan of a model would have its weights.
///
/// # Errors
/// Memory that cannot be had; a probe that fails.
pub fn pageable_copies(options: &ProbeOptions) -> Result<Run, ProbeError> {
    let mut plan = plan(options)?;
    let mut behind = footprint(&plan)?;
    let regions = Moves::room(&MOVERS, REGION, PerTier::default());
    plan.capacity_bytes.device += regions.device;
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
    let mut moves = Moves::new(Program::new(), &machine, (&MOVERS, false), (REGION, behind));
    let (repeats, turns) = if options.quick { (5, 1) } else { (7, 2) };
    moves.one_by_one(SIZES, repeats, turns);
    run_program(options, &plan, &machine, moves.program)
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
