//! Bytes alive in each memory over time.

use std::io;

use plimsoll_core::control::Run;
use plimsoll_core::machine::Arena;
use plimsoll_core::program::{Buffer, TaskId};
use plimsoll_core::units::Seconds;

/// A buffer that comes to life, or is given back.
struct Change {
    at: Seconds,
    arena: usize,
    bytes: i128,
}

/// Calls `visit` with each arena's bytes at the start and whenever they change, in order of time.
pub(super) fn each_change(
    run: &Run,
    mut visit: impl FnMut(&Arena, Seconds, u64) -> io::Result<()>,
) -> io::Result<()> {
    let buffers: Vec<Buffer> = run
        .pieces
        .iter()
        .flat_map(|p| p.buffers())
        .copied()
        .collect();
    let arenas = &run.machine.arenas;
    let arena_of = |buffer: &Buffer| usize::from(buffer.arena.0);
    let mut alive = vec![0_i128; arenas.len()];
    for buffer in buffers.iter().filter(|buffer| buffer.resident) {
        alive[arena_of(buffer)] += i128::from(buffer.bytes.0);
    }
    let bytes = |alive: i128| u64::try_from(alive).unwrap_or(0);
    for (arena, alive) in arenas.iter().zip(&alive) {
        visit(arena, Seconds::ZERO, bytes(*alive))?;
    }
    let change = |at: Seconds, id: u32, sign: i128| {
        let buffer = &buffers[id as usize];
        let bytes = sign * i128::from(buffer.bytes.0);
        Change {
            at,
            arena: arena_of(buffer),
            bytes,
        }
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
    changes.sort_by(|a, b| a.at.0.total_cmp(&b.at.0).then(a.arena.cmp(&b.arena)));
    for same in changes.chunk_by(|a, b| a.at == b.at && a.arena == b.arena) {
        let Change { at, arena, .. } = same[0];
        let before = alive[arena];
        alive[arena] += same.iter().map(|change| change.bytes).sum::<i128>();
        if alive[arena] != before {
            visit(&arenas[arena], at, bytes(alive[arena]))?;
        }
    }
    Ok(())
}
