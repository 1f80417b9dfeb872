//! Many rounds are predicted from a few: they are alike, and each begins as the one before ends.

use plimsoll_core::control::Run;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::schedule::{prompts_in_round, shortened};
use plimsoll_core::lower::{LowerError, arena_footprints, check_fits, check_kept, footprint};
use plimsoll_core::plan::Plan;
use plimsoll_core::summary::Summary;

use crate::simulate::{SimulateError, run_unverified};

/// Rounds that are simulated besides a last one that is not full: one that begins, one that stands for
/// the others, and one more, which a diagonal schedule admits beside it.
const ROUNDS: u64 = 3;

/// Whether one round of a plan can stand for the others. Of answers of one token a pipeline's first stages are rounds ahead of its last,
/// and the disk, which nobody waits for to have written the cache, is rounds behind.
pub fn rounds_are_alike(plan: &Plan) -> bool {
    let drifts = plan.policy.pipeline.stages > 1 || plan.policy.cache.disk > 0.0;
    !drifts || plan.workload.gen_len > 1
}

/// A plan for fewer prompts, of which so many rounds are missing.
struct Shortened {
    plan: Plan,
    missing: u64,
}

impl Shortened {
    /// Where there is enough to leave out.
    fn of(plan: &Plan) -> Option<Shortened> {
        if !rounds_are_alike(plan) {
            return None;
        }
        let all = plan.workload.num_prompts?;
        let is_full = all.is_multiple_of(prompts_in_round(&plan.policy));
        let stay = ROUNDS + u64::from(!is_full);
        let (workload, missing) = shortened(&plan.policy, &plan.workload, stay)?;
        Some(Shortened {
            plan: Plan {
                workload,
                ..plan.clone()
            },
            missing,
        })
    }

    /// Adds what the prompts and results that are left out take of the hosts.
    fn add_missing_texts(&self, whole: &Plan, summary: &mut Summary) -> Result<(), LowerError> {
        let (all, some) = (footprint(whole)?.host, footprint(&self.plan)?.host);
        summary.peak_bytes.host += all.saturating_sub(some);
        let arenas = whole.machine().arenas.into_iter();
        let more = arena_footprints(whole)?.into_iter();
        let less = arena_footprints(&self.plan)?.into_iter();
        for (arena, (all, some)) in arenas.zip(more.zip(less)) {
            if let Some(stage) = summary.stages.get_mut(usize::from(arena.gpu)) {
                stage.peak_bytes[arena.tier] += all.saturating_sub(some);
            }
        }
        Ok(())
    }
}

/// What a plan of many rounds amounts to, and the run of a few that says so; none where there are few.
pub(crate) fn predict_repeated(
    plan: &Plan,
    profile: &HardwareProfile,
) -> Result<Option<(Summary, Run)>, SimulateError> {
    let Some(shortened) = Shortened::of(plan) else {
        return Ok(None);
    };
    check_fits(plan)?;
    if check_kept(&shortened.plan).is_err() {
        return Ok(None);
    }
    let run = run_unverified(&shortened.plan, profile)?;
    let Some(mut summary) = Summary::of_repeated(&run, shortened.missing) else {
        return Ok(None);
    };
    shortened.add_missing_texts(plan, &mut summary)?;
    Ok(Some((summary, run)))
}
