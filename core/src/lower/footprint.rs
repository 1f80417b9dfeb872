//! What a plan needs of each arena, from few of its rounds.

use std::ops::Range;

use super::schedule::{self, Passes};
use super::stages::{Layouts, arena_of};
use super::{LowerError, check};
use crate::machine::Machine;
use crate::placement::PAGE_BYTES;
use crate::plan::Plan;
use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// What each tier must hold for a plan, homes and slots together: of several GPUs and hosts, the fullest.
///
/// # Errors
/// A workload or policy that means nothing.
pub fn footprint(plan: &Plan) -> Result<PerTier<Bytes>, LowerError> {
    let mut most = PerTier::<Bytes>::default();
    for (arena, bytes) in plan.machine().arenas.iter().zip(arena_footprints(plan)?) {
        most[arena.tier] = most[arena.tier].max(bytes);
    }
    Ok(most)
}

impl Plan {
    /// The same where each tier is as large as it needs.
    ///
    /// # Errors
    /// A workload or policy that means nothing.
    pub fn with_room(mut self) -> Result<Plan, LowerError> {
        self.capacity_bytes = footprint(&self)?;
        Ok(self)
    }
}

/// What each arena of a plan's machine must hold, by [`ArenaId`](crate::machine::ArenaId).
///
/// # Errors
/// A workload or policy that means nothing.
pub fn arena_footprints(plan: &Plan) -> Result<Vec<Bytes>, LowerError> {
    Ok(laid_out(plan)?.ends)
}

/// Where in each arena of a plan's machine, by [`ArenaId`](crate::machine::ArenaId), homes lie that it does not page-lock: ranges
/// that ascend and have nothing in common.
///
/// # Errors
/// A workload or policy that means nothing.
pub fn pageable_homes(plan: &Plan) -> Result<Vec<Vec<Range<Bytes>>>, LowerError> {
    Ok(pageable(plan, &laid_out(plan)?))
}

fn pageable(plan: &Plan, laid: &Layouts) -> Vec<Vec<Range<Bytes>>> {
    let machine = plan.machine();
    let mut homes = vec![Vec::new(); machine.arenas.len()];
    for (gpu, layout) in laid.stages.iter().enumerate() {
        let arena = arena_of(&machine, Tier::Host, gpu);
        homes[arena].extend(layout.pageable(plan.policy.page_locked));
    }
    homes
}

/// What a plan page-locks of host memory: of several hosts, the most.
///
/// # Errors
/// A workload or policy that means nothing.
pub fn page_locked_bytes(plan: &Plan) -> Result<Bytes, LowerError> {
    let laid = laid_out(plan)?;
    let sizes = laid.ends.iter().zip(pageable(plan, &laid));
    let arenas = plan.machine().arenas.into_iter().zip(sizes);
    let on_host = arenas.filter(|(arena, _)| arena.tier == Tier::Host);
    let locked = on_host.map(|(_, (bytes, pageable))| {
        let pageable: Bytes = pageable.iter().map(|home| home.end - home.start).sum();
        *bytes - pageable
    });
    Ok(locked.max().unwrap_or_default())
}

/// A plan's stages, with prompts and results at the ends of their arenas.
fn laid_out(plan: &Plan) -> Result<Layouts, LowerError> {
    check(plan)?;
    let (policy, workload) = (&plan.policy, &plan.workload);
    let machine = plan.machine();
    // There may be millions of rounds, all of them alike.
    let stay = schedule::rounds_to_lay_out(policy);
    let (some, missing) = schedule::shortened(policy, workload, stay).unwrap_or((*workload, 0));
    let passes = Passes::new(policy, &some);
    let mut laid = Layouts::new(plan, &machine, &passes);
    let size = u64::from(policy.gpu_batch_size);
    let left_out = missing * (schedule::prompts_in_round(policy) / size);
    let [prompts, results] = text_arenas(&machine);
    let batches = passes.rounds().iter().flat_map(|r| &r.batches);
    for (batch, count) in batches
        .map(|batch| (*batch, 1))
        .chain([(policy.gpu_batch_size, left_out)])
    {
        let (prompt, generated) = text_bytes(plan, batch);
        laid.ends[prompts] += prompt * count;
        laid.ends[results] += generated * count;
    }
    Ok(laid)
}

/// The arenas that prompts and results are in: the first stage's host and the last one's.
pub(super) fn text_arenas(machine: &Machine) -> [usize; 2] {
    [0, machine.num_gpus() - 1].map(|gpu| arena_of(machine, Tier::Host, gpu))
}

/// Room for the prompts and results of a GPU batch.
pub(super) fn text_bytes(plan: &Plan, sequences: u32) -> (Bytes, Bytes) {
    let ids = |len: u32| Bytes(u64::from(sequences) * u64::from(len) * 4).align_up(PAGE_BYTES);
    (ids(plan.workload.prompt_len), ids(plan.workload.gen_len))
}

#[cfg(test)]
mod tests;
