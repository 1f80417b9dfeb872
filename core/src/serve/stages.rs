//! Where a model's layers are computed: on one GPU, or stage by stage on several.

use super::pie::{Iteration, Lanes};
use super::shape::Shape;
use crate::machine::{Machine, ResourceId, ResourceKind};
use crate::program::{Cell, HostPages, NewTask, Op, Program, TaskId};
use crate::roster::Moved;
use crate::units::Bytes;

/// A GPU with the layers that it has.
#[derive(Debug, Clone, Copy)]
struct Stage {
    lanes: Lanes,
    /// On which it sends to the next, and the last to the first; none where it is alone.
    link: Option<ResourceId>,
    first: u16,
    layers: u16,
}

/// Parts of a model in their order, each on a GPU of its own; each GPU has the cache of its own layers.
#[derive(Debug, Clone)]
pub struct Stages(Vec<Stage>);

impl Stages {
    /// Some layers in a row, the `first` of them this, on a machine's first GPU.
    ///
    /// # Panics
    /// Where the machine has no GPU.
    pub fn alone(machine: &Machine, first: u16, layers: u16) -> Stages {
        Stages(vec![Stage {
            lanes: Lanes::of(machine),
            link: None,
            first,
            layers,
        }])
    }

    /// A stage a GPU, with so many layers each.
    ///
    /// # Panics
    /// Where the machine has fewer GPUs than there are stages.
    pub fn of(machine: &Machine, layers: &[u32]) -> Stages {
        let mut first = 0;
        let each = (0..).zip(layers).map(|(gpu, layers)| {
            let stage = Stage {
                lanes: Lanes::of_gpu(machine, gpu),
                link: machine.resource(ResourceKind::PeerLink, gpu),
                first,
                layers: *layers as u16,
            };
            first += stage.layers;
            stage
        });
        Stages(each.collect())
    }

    /// Adds an iteration to a piece, stage by stage: what moves of the caches of its layers, its layers, and what it hands
    /// over. The last task's end is the iteration's. Returns the moves' tasks.
    pub(super) fn write(
        &self,
        piece: &mut Program,
        it: &Iteration<'_>,
        moves: &[(Bytes, Moved)],
    ) -> Vec<(TaskId, Moved)> {
        let mut all = Vec::new();
        let mut arrived = None;
        for (index, stage) in self.0.iter().enumerate() {
            let moved = stage.moves(piece, it, moves);
            let mut deps: Vec<TaskId> = moved.iter().map(|(task, _)| *task).collect();
            deps.extend(arrived);
            let op = it.shape.span(it.load, stage.first, stage.layers);
            let computed = push(piece, it.cell, (op, stage.lanes.gpu), &deps);
            let last = index + 1 == self.0.len();
            let bytes = match last {
                true => it.shape.chosen_bytes(it.load),
                false => it.shape.hidden_bytes(it.load),
            };
            arrived = stage
                .link
                .map(|link| push(piece, it.cell, (whole(bytes), link), &[computed]));
            all.extend(moved);
        }
        all
    }
}

impl Stage {
    /// What of the caches that move is of its layers.
    fn moves(
        &self,
        piece: &mut Program,
        it: &Iteration<'_>,
        moves: &[(Bytes, Moved)],
    ) -> Vec<(TaskId, Moved)> {
        let mut moved: Vec<(TaskId, Moved)> = Vec::new();
        for (bytes, what) in moves {
            let lane = match what {
                Moved::Out(..) | Moved::LayerOut(_) => self.lanes.d2h,
                Moved::In(_) | Moved::LayerIn(_) => self.lanes.h2d,
            };
            // Who comes back with an iteration that sends others away may get their room.
            let left = moved.iter().filter(|(_, before)| what.follows(*before));
            let left: Vec<TaskId> = left.map(|(task, _)| *task).collect();
            let task = push(
                piece,
                it.cell,
                (whole(self.share(it.shape, *bytes)), lane),
                &left,
            );
            moved.push((task, *what));
        }
        moved
    }

    /// Its part of what all layers have.
    fn share(&self, shape: &Shape, of_all: Bytes) -> Bytes {
        Bytes(of_all.0 / u64::from(shape.layers) * u64::from(self.layers))
    }
}

fn whole(bytes: Bytes) -> Op {
    Op::Move {
        bytes,
        from: Bytes::ZERO,
        to: Bytes::ZERO,
        host: HostPages::Locked,
    }
}

fn push(
    piece: &mut Program,
    cell: Cell,
    (op, resource): (Op, ResourceId),
    deps: &[TaskId],
) -> TaskId {
    let op = piece.op(op);
    piece.push(NewTask {
        op,
        resource,
        cell,
        deps,
        args: &[],
        takes: &[],
        gives: &[],
    })
}
