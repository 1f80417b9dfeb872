//! An iteration layer by layer, with swaps beside.

use super::adaptive::{Adaptive, Observed};
use super::expansion::{slots, with_buffers};
use super::foreseen::Foreseen;
use super::moves::Event;
use super::table::{MappingTable, Place, Swaps};
use crate::executor::Times;
use crate::machine::{Machine, ResourceId, ResourceKind};
use crate::program::{BufferId, Cell, HostPages, NewTask, Op, Program, TaskId};
use crate::roster::Moved;
use crate::serve::shape::{Load, Shape};
use crate::trace::Trace;
use crate::units::{Bytes, Seconds};

/// The engines that it needs.
#[derive(Debug, Clone, Copy)]
pub struct Lanes {
    /// Computes.
    pub gpu: ResourceId,
    /// Brings layers back.
    pub h2d: ResourceId,
    /// Takes layers away.
    pub d2h: ResourceId,
}

impl Lanes {
    /// Those of a machine's first GPU.
    ///
    /// # Panics
    /// Where it has none.
    pub fn of(machine: &Machine) -> Lanes {
        Lanes::of_gpu(machine, 0)
    }

    /// Those of one of a machine's GPUs.
    ///
    /// # Panics
    /// Where it has none of that number.
    pub fn of_gpu(machine: &Machine, gpu: u8) -> Lanes {
        let lane = |kind| {
            machine
                .resource(kind, gpu)
                .expect("a machine with that GPU")
        };
        Lanes {
            gpu: lane(ResourceKind::Gpu),
            h2d: lane(ResourceKind::H2d),
            d2h: lane(ResourceKind::D2h),
        }
    }
}

impl Lanes {
    /// Which layers a piece's moves bring where.
    pub(in crate::serve) fn layers_moved(&self, piece: &Program) -> Vec<(TaskId, Moved)> {
        let ids = (piece.first_task().0..).map(TaskId);
        let moves = piece.tasks().iter().zip(ids).filter_map(|(task, id)| {
            let layer = task.cell.block.checked_sub(1)?;
            let moved = match task.resource {
                lane if lane == self.d2h => Moved::LayerOut(layer),
                lane if lane == self.h2d => Moved::LayerIn(layer),
                _ => return None,
            };
            Some((id, moved))
        });
        moves.collect()
    }
}

/// The iteration that is under way.
#[derive(Debug, Clone, Copy)]
pub struct Iteration<'a> {
    /// The model.
    pub shape: &'a Shape,
    /// What is computed.
    pub load: &'a Load,
    /// Its number.
    pub cell: Cell,
}

/// What comes next of it.
#[derive(Debug)]
pub enum Next {
    /// This piece.
    Submit(Box<Program>),
    /// Nothing, until a task has ended.
    Wait(TaskId),
    /// The iteration has ended.
    Ended,
}

/// What swapping amounts to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Swapped {
    /// Layers that went to the host.
    pub layers_out: u64,
    /// Layers that came back.
    pub layers_back: u64,
    /// Bytes that both moved.
    pub bytes: u64,
    /// Time in which a layer waited for its cache.
    pub stalled: Seconds,
    /// When expansion changed, and to which, from the first on.
    pub expansions: Vec<(Seconds, f64)>,
}

impl Swapped {
    /// Counts what begins to move.
    fn note(&mut self, swaps: Swaps, bytes_each: Bytes) {
        let [out, back] = [swaps.out, swaps.back].map(|layer| u64::from(layer.is_some()));
        self.layers_out += out;
        self.layers_back += back;
        self.bytes += (out + back) * bytes_each.0;
    }
}

/// A cache whose layers take turns on the GPU.
#[derive(Debug)]
pub struct Pie {
    lanes: Lanes,
    kv_bytes: Bytes,
    layers: u16,
    layer_token_bytes: Bytes,
    table: MappingTable,
    adaptive: Option<Adaptive>,
    /// The next to be computed.
    layer: u16,
    computing: Option<TaskId>,
    /// Whether its cache is there, and what moves beside it was decided.
    begun: bool,
    /// The layer after it, submitted so that the GPU need not wait for a decision.
    ahead: Option<TaskId>,
    out: Option<(u16, TaskId)>,
    back: Option<(u16, TaskId)>,
    /// Where it is known how long tasks take, nobody has to be asked when they end.
    foreseen: Option<Foreseen>,
    /// Since when the next layer waits for its cache.
    waits_since: Option<Seconds>,
    observed: Observed,
    swapped: Swapped,
}

impl Pie {
    /// With a number of layers off the GPU that stays, buffers counted.
    pub fn fixed(lanes: Lanes, kv_bytes: Bytes, shape: &Shape, off: u16) -> Pie {
        let layers = shape.layers;
        Pie {
            lanes,
            kv_bytes,
            layers,
            layer_token_bytes: shape.layer_bytes_per_token(),
            table: MappingTable::new(layers, slots(layers, off)),
            adaptive: None,
            layer: 0,
            computing: None,
            begun: false,
            ahead: None,
            out: None,
            back: None,
            foreseen: None,
            waits_since: None,
            observed: Observed::default(),
            swapped: Swapped {
                expansions: vec![(Seconds::ZERO, expansion_of(layers, off))],
                ..Swapped::default()
            },
        }
    }

    /// With a number of layers off the GPU that is found while requests are served; none at first.
    pub fn adaptive(lanes: Lanes, kv_bytes: Bytes, shape: &Shape, adaptive: Adaptive) -> Pie {
        Pie {
            adaptive: Some(adaptive),
            ..Pie::fixed(lanes, kv_bytes, shape, 0)
        }
    }

    /// The same where tasks take times that are known, unless computing and moving change each other's.
    pub fn foreseeing(mut self, times: Box<dyn Times>) -> Pie {
        self.foreseen = Foreseen::new(times, self.lanes);
        self
    }

    /// Layers whose cache the GPU has room for.
    pub fn slots(&self) -> u16 {
        self.table.slots()
    }

    /// Layers off the GPU as last decided, buffers counted.
    pub fn off(&self) -> u16 {
        match self.layers - self.table.slots() {
            0 => 0,
            fewer => fewer + 2,
        }
    }

    /// The cache over the GPU's part of it as last decided, buffers counted.
    pub fn expansion(&self) -> f64 {
        expansion_of(self.layers, self.off())
    }

    /// How long layers waited for their caches in the iteration at hand.
    pub fn stalled(&self) -> Seconds {
        Seconds(self.observed.stalled)
    }

    /// What swapping amounts to so far.
    pub fn swapped(&self) -> &Swapped {
        &self.swapped
    }

    /// Tokens that fit into a layer's cache, of which the GPU has room for so many.
    fn tokens(&self, slots: u16) -> u64 {
        self.kv_bytes.0 / u64::from(slots) / self.layer_token_bytes.0
    }

    /// Tokens that the cache has room for.
    pub fn capacity_tokens(&self) -> u64 {
        self.tokens(self.table.slots())
    }

    /// Goes on with an iteration.
    pub fn next(
        &mut self,
        it: Iteration<'_>,
        (now, trace): (Seconds, &Trace),
        first: TaskId,
    ) -> Next {
        loop {
            if let Some(task) = self.computing.filter(|_| self.begun) {
                if trace.span(task).is_none() {
                    return Next::Wait(task);
                }
                self.begun = false;
                self.computing = self.ahead.take();
                self.layer += 1;
                if self.layer == self.layers {
                    self.layer = 0;
                    return Next::Ended;
                }
            }
            let mut piece = Program::numbered(first, BufferId(0));
            self.swap(&mut piece, it.cell);
            if self.table.place(self.layer) == Place::Gpu {
                self.begin(&mut piece, it, now);
            } else {
                self.waits_since.get_or_insert(now);
            }
            if !piece.tasks().is_empty() {
                return Next::Submit(Box::new(piece));
            }
            if !self.begun {
                let coming = self.back.or(self.out);
                let coming = coming.expect("what is not there comes, or waits for room");
                return Next::Wait(coming.1);
            }
        }
    }

    /// What moves from when a layer begins, or waits.
    fn swap(&mut self, piece: &mut Program, cell: Cell) {
        let swaps = self.table.swaps(self.layer);
        let bytes = self.layer_bytes();
        self.swapped.note(swaps, bytes);
        self.observed.note(swaps, self.layer);
        if let Some(layer) = swaps.out {
            let task = self.moves(piece, cell, (layer, self.lanes.d2h));
            self.out = Some((layer, task));
        }
        if let Some(layer) = swaps.back {
            let task = self.moves(piece, cell, (layer, self.lanes.h2d));
            self.back = Some((layer, task));
        }
    }

    /// Computes the layer whose turn it is, unless that was submitted ahead, and then the next one if its cache is there or
    /// on its way.
    fn begin(&mut self, piece: &mut Program, it: Iteration<'_>, now: Seconds) {
        if let Some(since) = self.waits_since.take() {
            self.observed.stalled += (now - since).0;
        }
        self.begun = true;
        if self.computing.is_none() {
            self.computing = Some(self.computes(piece, it, (self.layer, None)));
        }
        let next = self.layer + 1;
        if next == self.layers {
            return;
        }
        let coming = self.back.filter(|(layer, _)| *layer == next);
        if coming.is_some() || self.table.place(next) == Place::Gpu {
            let behind = coming.map(|(_, task)| task);
            self.ahead = Some(self.computes(piece, it, (next, behind)));
        }
    }

    /// A layer's computation, behind its cache's move where that is under way.
    fn computes(
        &self,
        piece: &mut Program,
        it: Iteration<'_>,
        (layer, behind): (u16, Option<TaskId>),
    ) -> TaskId {
        let op = it.shape.span(it.load, layer, 1);
        let at = (self.lanes.gpu, self.at(it.cell, layer));
        push(piece, op, at, behind.as_slice())
    }

    fn at(&self, cell: Cell, layer: u16) -> Cell {
        Cell {
            block: layer + 1,
            ..cell
        }
    }

    fn moves(
        &mut self,
        piece: &mut Program,
        cell: Cell,
        (layer, lane): (u16, ResourceId),
    ) -> TaskId {
        push(piece, self.layer_moved(), (lane, self.at(cell, layer)), &[])
    }

    fn layer_bytes(&self) -> Bytes {
        Bytes(self.kv_bytes.0 / u64::from(self.table.slots()))
    }

    /// A layer's cache on its way.
    fn layer_moved(&self) -> Op {
        Op::Move {
            bytes: self.layer_bytes(),
            from: Bytes::ZERO,
            to: Bytes::ZERO,
            host: HostPages::Locked,
        }
    }

    /// When an iteration ends that begins now, where that is known: all that happens in it has then happened here. Nothing
    /// is to be submitted of it.
    pub fn foresee(&mut self, it: Iteration<'_>, now: Seconds) -> Option<Seconds> {
        let (slots, bytes) = (self.table.slots(), self.layer_bytes());
        let moved = self.layer_moved();
        let foreseen = self.foreseen.as_mut()?;
        let pace = foreseen.pace(slots, &moved);
        let computed = foreseen.computed(it, self.layers);
        let (swapped, observed) = (&mut self.swapped, &mut self.observed);
        let (table, moves) = (&mut self.table, &mut foreseen.moves);
        let (mut now, mut behind) = (now.0, false);
        for layer in 0..self.layers {
            let began = moves.reach((&mut *table, layer), now, &pace, &mut |event| {
                if let Event::Began(swaps) = event {
                    swapped.note(swaps, bytes);
                    observed.note(swaps, layer);
                }
            });
            observed.stalled += began - now;
            let handed = if behind && began > now {
                foreseen.handoff
            } else {
                0.0
            };
            behind = moves.layers().back == Some(layer + 1);
            now = began + handed + computed.of(layer);
        }
        // What has arrived counts when the iteration is looked at.
        moves.land(table, now, &pace, &mut |_| {});
        Some(Seconds(now))
    }

    /// Notes which layers have arrived. To be told with every decision, since spans of what has ended are let go of.
    pub fn land(&mut self, trace: &Trace) {
        let ended = |(_, task): &mut (u16, TaskId)| trace.span(*task).is_some();
        if let Some((layer, _)) = self.out.take_if(ended) {
            self.table.gone(layer);
        }
        if let Some((layer, _)) = self.back.take_if(ended) {
            self.table.come(layer);
        }
    }

    /// An iteration has ended, which took so long for its load; `wanted` says whether requests wait for
    /// room. Gives the tokens that there is room for from now on, where they change.
    pub fn ended(&mut self, now: Seconds, it: (f64, &Load), wanted: bool) -> Option<u64> {
        let observed = Observed {
            seconds: it.0,
            tokens: it.1.sequences,
            prompts: it.1.prompt_tokens > 0,
            wanted,
            ..std::mem::take(&mut self.observed)
        };
        self.swapped.stalled += Seconds(observed.stalled);
        let settled = self.table.is_settled();
        let event = self.adaptive.as_mut()?.see(observed, settled);
        let (before, off) = (self.table.slots(), self.adaptive.as_ref()?.off());
        let wanted = slots(self.layers, off);
        if event.is_some() {
            self.table.resize(wanted);
            self.swapped.expansions.push((now, self.expansion()));
            // Caches that get smaller are no longer filled at once; larger ones are not until all are.
            return (wanted > before).then(|| self.tokens(wanted));
        }
        settled.then(|| self.tokens(wanted))
    }
}

fn expansion_of(layers: u16, off: u16) -> f64 {
    match off {
        0 => 1.0,
        off => with_buffers(layers, off),
    }
}

fn push(
    piece: &mut Program,
    op: Op,
    (resource, cell): (ResourceId, Cell),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::model::registry;
    use crate::tier::PerTier;
    use crate::trace::Span;

    /// An iteration of swapped layers, and what was submitted of it.
    struct Steps {
        pie: Pie,
        shape: Shape,
        trace: Trace,
        pieces: Vec<Program>,
    }

    impl Steps {
        fn new(off: u16) -> Steps {
            let model = registry::find("opt-125m").expect("registered");
            let shape = Shape::of(&model, Dtype::F16);
            let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(0)));
            let pie = Pie::fixed(Lanes::of(&machine), Bytes(1 << 30), &shape, off);
            Steps {
                pie,
                shape,
                trace: Trace::default(),
                pieces: Vec::new(),
            }
        }

        /// Asks until there is nothing to submit; what is waited for then, or none at the end.
        fn go_on(&mut self, now: f64) -> Option<TaskId> {
            self.pie.land(&self.trace);
            loop {
                let first = self.pieces.last().map_or(TaskId(0), Program::end_task);
                let iteration = Iteration {
                    shape: &self.shape,
                    load: &Load::default(),
                    cell: Cell::default(),
                };
                let at = (Seconds(now), &self.trace);
                match self.pie.next(iteration, at, first) {
                    Next::Submit(piece) => {
                        self.trace.extend_to(piece.end_task());
                        self.pieces.push(*piece);
                    }
                    Next::Wait(task) => return Some(task),
                    Next::Ended => return None,
                }
            }
        }

        fn end(&mut self, task: TaskId, at: f64) {
            let [start, end] = [at, at].map(Seconds);
            self.trace.record(task, Span { start, end });
        }

        /// A layer's computation, and what it waits for.
        fn computation(&self, layer: u16) -> Option<(TaskId, Vec<TaskId>)> {
            let gpu = self.pie.lanes.gpu;
            self.pieces.iter().find_map(|piece| {
                let mut tasks = piece.numbered_tasks().zip(0..);
                let of_layer = |task: &crate::program::Task| {
                    task.resource == gpu && task.cell.block == layer + 1
                };
                let ((id, _), index) = tasks.find(|((_, task), _)| of_layer(task))?;
                Some((id, piece.deps_at(index).to_vec()))
            })
        }
    }

    #[test]
    fn each_layer_is_submitted_while_the_one_before_is_computed() {
        let mut it = Steps::new(0);
        for layer in 0..12 {
            let own = it.go_on(f64::from(layer)).expect("layers are left");
            assert_eq!(Some(own), it.computation(layer).map(|(id, _)| id));
            // Within the iteration, and one ahead.
            assert_eq!(it.computation(layer + 1).is_some(), layer < 11);
            assert_eq!(it.computation(layer + 2), None);
            it.end(own, f64::from(layer));
        }
        assert_eq!(it.go_on(12.0), None);
    }

    #[test]
    fn a_layer_waits_for_its_own_move_and_the_wait_is_counted() {
        // Of twelve, six are off the GPU and have eight slots: layers 8 to 11 begin on the host.
        let mut it = Steps::new(6);
        for layer in 0..7 {
            let own = it.go_on(f64::from(layer)).expect("it goes on");
            assert_eq!(it.computation(layer), Some((own, Vec::new())));
            it.end(own, f64::from(layer));
            // One that leaves is gone at once, and none comes.
            let out = it.pie.out.map(|(_, task)| task);
            if let Some(out) = out {
                it.end(out, f64::from(layer));
            }
        }
        let seventh = it.go_on(7.0).expect("it goes on");
        let (eighth, behind) = it.computation(8).expect("its cache is on its way");
        let (moved, back) = it.pie.back.expect("it comes");
        assert_eq!((moved, &behind[..]), (8, &[back][..]));
        it.end(seventh, 8.0);
        assert_eq!(it.go_on(8.0), Some(back));
        // Both have ended when the controller looks again.
        it.end(back, 9.5);
        it.end(eighth, 9.75);
        it.go_on(10.0);
        assert_eq!(it.pie.stalled(), Seconds(2.0));
        assert_eq!(it.pie.layer, 9);
    }
}
