//! Blocks that move less than those that the closed form calls fastest.
//!
//! The closed form thinks that all but the busiest resource is hidden. So it fills the device with weights and moves the cache, which
//! then holds up weights, though with short answers there is little of it; and it takes all the disk that hides, for gains below what
//! any prediction is sure of.

use plimsoll_core::policy::Policy;

use super::kind;
use super::room::Room;
use super::search::CLOSED_FORM_OFF;
use super::space::{self, Proposal, Shape};
use super::{Objective, lp};

/// How many of each kind and way to page-lock are judged.
pub(super) const JUDGED: usize = 8;

/// Proposals with all of the cache on the device, where some known ones have it elsewhere, and with nothing on disk, where some use
/// that: so many of each kind, as `key` has it.
pub(super) fn moving_less<K: PartialEq>(
    shapes: &[Shape],
    known: &[Vec<Proposal>],
    key: impl Fn(&Policy) -> K,
    (room, objective, count): (&Room, Objective, usize),
) -> Vec<Vec<Proposal>> {
    let shapes: Vec<&Shape> = shapes.iter().collect();
    let known: Vec<&Proposal> = known.iter().flatten().collect();
    let scores = known.iter().map(|proposal| proposal.score);
    let most = scores.fold(f64::INFINITY, f64::min) * CLOSED_FORM_OFF;
    let ways = ways(&shapes, &known, room).into_iter();
    let scanned = ways.flat_map(|(shapes, room)| {
        let found = space::scan_each(&shapes, &key, (&room, objective, count));
        found.unwrap_or_default()
    });
    let mut found: Vec<Vec<Proposal>> = scanned.collect();
    for best in &mut found {
        best.retain(|proposal| proposal.score <= most);
    }
    found
}

/// What the linear programs propose for each shape, and, of those of a single GPU, for each way to move less.
pub(super) fn placed(shapes: &[&Shape], room: &Room, objective: Objective) -> Vec<Proposal> {
    let placed = |shapes: Vec<&Shape>, room: &Room| -> Vec<Proposal> {
        let placed = space::place_all(shapes, room, objective).into_iter();
        // What the solver cannot place is left to the other shapes.
        placed.flatten().flatten().collect()
    };
    let mut found = placed(shapes.to_vec(), room);
    if shapes.iter().all(|shape| shape.policy.pipeline.stages == 1) {
        let ways = ways(shapes, &found.iter().collect::<Vec<_>>(), room);
        for (shapes, room) in ways {
            let more = placed(shapes.iter().collect(), &room).into_iter();
            let more: Vec<Proposal> = more
                .filter(|proposal| found.iter().all(|known| known.policy != proposal.policy))
                .collect();
            found.extend(more);
        }
    }
    found
}

/// Shapes whose blocks move less, and the room that they have, where some known proposals move more: the cache, or to and from disk.
fn ways(shapes: &[&Shape], known: &[&Proposal], room: &Room) -> Vec<(Vec<Shape>, Room)> {
    let any = |of: fn(&Proposal) -> bool| known.iter().any(|proposal| of(proposal));
    let usual = || {
        let is_usual = |it: &&&Shape| kind::has_usual_batches(&it.policy);
        shapes.iter().filter(is_usual)
    };
    let mut ways: Vec<(Vec<Shape>, Room)> = Vec::new();
    if any(|proposal| proposal.policy.cache.device < 1.0) {
        let staying = usual().filter_map(|it| it.with_cache_on_device(room));
        ways.push((staying.collect(), *room));
    }
    if any(|proposal| lp::uses_disk(&proposal.policy)) {
        let room = room.without_disk();
        let within = usual().filter(|it| space::may_spare_disk(&it.form, &room));
        ways.push((within.map(|it| (*it).clone()).collect(), room));
    }
    ways
}
