//! Bytes alive in each tier over time.

use std::io;

use plimsoll_core::control::Run;
use plimsoll_core::program::{Buffer, TaskId};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Seconds;

/// A buffer that comes to life, or is given back.
struct Change {
    at: Seconds,
    tier: Tier,
    bytes: i128,
}

/// Calls `visit` with each tier's bytes at the start and whenever they change, in order of time.
pub(super) fn each_change(
    run: &Run,
    mut visit: impl FnMut(Tier, Seconds, u64) -> io::Result<()>,
) -> io::Result<()> {
    let buffers: Vec<Buffer> = run
        .pieces
        .iter()
        .flat_map(|p| p.buffers())
        .copied()
        .collect();
    let tier_of = |buffer: &Buffer| run.machine.arenas[usize::from(buffer.arena.0)].tier;
    let mut alive = PerTier::<i128>::default();
    for buffer in buffers.iter().filter(|buffer| buffer.resident) {
        alive[tier_of(buffer)] += i128::from(buffer.bytes.0);
    }
    let bytes = |alive: i128| u64::try_from(alive).unwrap_or(0);
    for tier in Tier::ALL {
        visit(tier, Seconds::ZERO, bytes(alive[tier]))?;
    }
    let change = |at: Seconds, id: u32, sign: i128| {
        let buffer = &buffers[id as usize];
        let tier = tier_of(buffer);
        let bytes = sign * i128::from(buffer.bytes.0);
        Change { at, tier, bytes }
    };
    let mut changes: Vec<Change> = Vec::new();
    for piece in &run.pieces {
        for index in 0..piece.tasks().len() {
            let task = TaskId(piece.first_task().0 + index as u32);
            let Some(span) = run.trace.span(task) else {
                continue;
            };
            let takes = piece.takes_at(index).iter();
            changes.extend(takes.map(|id| change(span.start, id.0, 1)));
            let gives = piece.gives_at(index).iter();
            changes.extend(gives.map(|id| change(span.end, id.0, -1)));
        }
    }
    changes.sort_by(|a, b| a.at.0.total_cmp(&b.at.0).then(a.tier.cmp(&b.tier)));
    for same in changes.chunk_by(|a, b| a.at == b.at && a.tier == b.tier) {
        let Change { at, tier, .. } = same[0];
        let before = alive[tier];
        alive[tier] += same.iter().map(|change| change.bytes).sum::<i128>();
        if alive[tier] != before {
            visit(tier, at, bytes(alive[tier]))?;
        }
    }
    Ok(())
}
