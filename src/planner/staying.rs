//! Blocks whose cache stays on the device.
//!
//! The closed form thinks that moving the cache is hidden and fills the device with weights; but the cache moves in between weights, which
//! it then holds up, and with short answers there is little of it.

use super::kind::{self, Kind};
use super::space::{self, Proposal, Shape};
use super::{CLOSED_FORM_OFF, Objective, Search};

/// How many of each kind and way to page-lock are judged.
pub(super) const JUDGED: usize = 8;

impl Search<'_> {
    /// Such proposals, where some known ones have the cache elsewhere.
    pub(super) fn with_cache_on_device(
        &self,
        shapes: &[Shape],
        known: &[Vec<Proposal>],
        (objective, count): (Objective, usize),
    ) -> Vec<Vec<Proposal>> {
        let room = self.maker.room();
        let known = || known.iter().flatten();
        let is_single = self.open.iter().all(|choice| choice.pipeline.stages == 1);
        let moves = known().any(|proposal| proposal.policy.cache.device < 1.0);
        if !moves || !is_single {
            return Vec::new();
        }
        let least = known()
            .map(|proposal| proposal.score)
            .fold(f64::INFINITY, f64::min);
        let usual = shapes
            .iter()
            .filter(|it| kind::has_usual_batches(&it.policy));
        let staying: Vec<Shape> = usual
            .filter_map(|it| it.with_cache_on_device(room))
            .collect();
        let found = space::scan_each(&staying, Kind::of, (room, objective, count));
        let mut found = found.unwrap_or_default();
        for best in &mut found {
            best.retain(|proposal| proposal.score <= least * CLOSED_FORM_OFF);
        }
        found
    }
}
