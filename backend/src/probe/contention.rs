//! Who slows whom, from the same tasks run with overlap and without.
//!
//! Tasks that take `alone` by themselves and lasted `wall` beside others lost `wall - alone`, which is the
//! sum over their neighbours of `delay[j] * worked[j]`: what they did of their own work while engine j was busy,
//! in seconds alone. Beside a GPU, and of one, a pair has two delays: one while the GPU reads weights that no cache holds, one while it
//! computes. Least squares over all that an engine did, with no negative delays, gives each
//! pair's; [`rate_of`] it is what a profile states. The simulator slows tasks by the same rule. All of that is measured in
//! some rounds, and a pair's median counts: what a shared machine's neighbours do in one round is nobody's loss.

use std::collections::BTreeMap;

use plimsoll_core::hardware::contention::{delay_of, rate_of};
use plimsoll_core::hardware::{Contention, Quantity, WeightRead};
use plimsoll_core::program::{Op, ResourceKind};
use plimsoll_core::units::Bytes;

mod plans;

pub(super) use plans::plans;

use super::samples::Timed;
use super::stats::median;

const ENGINES: usize = ResourceKind::CONTENDED.len();

/// Rounds of measurement: of plans, which come out between 0.6 and 1 from one round to the next where a core is shared.
pub(super) const ROUNDS: usize = 7;

/// Of moves, which come out alike: each counts for several of the others.
pub(super) const ROUNDS_OF_MOVES: usize = 3;

/// The least share of its pace that an engine is said to keep.
const SHARE_MIN: f64 = 0.1;

/// From this share on, a pair does not disturb each other.
const SHARE_UNDISTURBED: f64 = 0.995;

/// Tasks of an engine are looked at for so long at a time: threads that share a core have it in turns of some milliseconds, so that of
/// short tasks most lose nothing and one loses all.
const STRETCH_S: f64 = 20e-3;

/// In so many parts at least, which tell neighbours apart, where an engine has less to do.
const STRETCHES: f64 = 16.0;

/// A pair says something only where it ran together for so long.
const BESIDE_MIN_S: f64 = 20e-3;

/// So much work together without any loss is assumed of every pair (a ridge), so that a few odd tasks do
/// not make a large loss.
const RIDGE_S: f64 = 10e-3;

/// A GPU and its links do several times as much in a second, by a clock that no other process holds up.
const GPU_SOONER: f64 = 5.0;

/// Some engines, a bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Set(u8);

impl Set {
    fn of(engine: ResourceKind) -> Set {
        Set(1 << engine as u8)
    }

    fn engines(self) -> impl Iterator<Item = usize> {
        (0..ENGINES).filter(move |index| self.0 >> index & 1 == 1)
    }
}

/// What operations must have in common to take as long alone. Where bytes lie makes no difference to how long a move takes.
fn kind_of(op: &Op) -> String {
    let mut op = *op;
    if let Op::Move { from, to, .. } = &mut op {
        (*from, *to) = (Bytes::ZERO, Bytes::ZERO);
    }
    format!("{op:?}")
}

/// What some tasks in a row lost, and beside whom.
#[derive(Debug, Clone, Default)]
struct Loss {
    wall: f64,
    alone: f64,
    /// How long which engines were busy meanwhile; time beside nobody is left out.
    beside: Vec<Beside>,
}

/// Which engines were busy for so long while a task ran.
#[derive(Debug, Clone, Copy)]
struct Beside {
    victim: ResourceKind,
    engines: Set,
    seconds: f64,
    /// For how much of that the GPU, the victim or one of them, read weights that no cache holds.
    reading_s: f64,
}

/// Delays beside each engine, and then beside each while the GPU of the two reads weights.
type Delays = [f64; 2 * ENGINES];

/// How the weights of a plan are read.
#[derive(Debug)]
pub(super) struct Weights {
    pub read: WeightRead,
    /// Bytes of all.
    pub all: f64,
}

impl Weights {
    /// For which share of its time alone a task of a GPU reads weights, as the simulator has it (`CostModel::reading_share`).
    fn reading_share(&self, task: &Timed, alone: &Alone) -> f64 {
        let key = (task.kind, kind_of(&task.op));
        match (task.kind, task.op, alone.get(&key)) {
            (ResourceKind::Gpu, Op::Linear { gemms, .. }, Some(seconds)) => {
                let elements: u64 = gemms.iter().map(|gemm| gemm.weights()).sum();
                let bytes = (elements * self.read.dtype.size_bytes()) as f64;
                self.read.share((bytes, self.all), *seconds)
            }
            _ => 0.0,
        }
    }
}

/// Losses by round and victim.
#[derive(Debug)]
pub(super) struct Losses {
    on_card: bool,
    rounds: [BTreeMap<ResourceKind, Vec<Loss>>; ROUNDS],
}

impl Losses {
    /// None yet, of an emulated device or of a GPU.
    pub(super) fn new(on_card: bool) -> Losses {
        Losses {
            on_card,
            rounds: Default::default(),
        }
    }

    /// Takes in a run of some round with overlap, and what its tasks take without it; with how its weights are read, if no cache
    /// holds them.
    pub(super) fn add(
        &mut self,
        round: usize,
        (overlapped, serial): (&[Timed], &[Timed]),
        weights: Option<&Weights>,
    ) {
        let alone = alone(serial);
        let reading = |task: &Timed| weights.map_or(0.0, |it| it.reading_share(task, &alone));
        let overlapped: Vec<(&Timed, f64)> = overlapped
            .iter()
            .map(|task| (task, reading(task)))
            .collect();
        for engine in ResourceKind::CONTENDED {
            let tasks = overlapped.iter().filter(|(task, _)| task.kind == engine);
            let losses = tasks.filter_map(|(task, reading)| {
                Some(Loss {
                    wall: task.span.duration().0,
                    alone: alone.get(&(engine, kind_of(&task.op)))? * task.pace,
                    beside: beside((task, *reading), &overlapped),
                })
            });
            let mut losses: Vec<Loss> = losses.collect();
            // A GPU's streams have no turns.
            if !self.on_card {
                losses = stretches(losses);
            }
            if !losses.is_empty() {
                self.rounds[round].entry(engine).or_default().extend(losses);
            }
        }
    }

    /// The same of moves, whose round counts for several of the others.
    pub(super) fn add_moves(&mut self, round: usize, overlapped: &[Timed], serial: &[Timed]) {
        for round in (round..ROUNDS).step_by(ROUNDS_OF_MOVES) {
            self.add(round, (overlapped, serial), None);
        }
    }

    /// The pairs that disturbed each other, in the middle of the rounds in which they ran together long enough.
    pub(super) fn contention(&self, source: &str) -> Vec<Contention> {
        let sooner = if self.on_card { GPU_SOONER } else { 1.0 };
        let mut rates = BTreeMap::<(ResourceKind, ResourceKind), [Vec<f64>; 2]>::new();
        for (victim, losses) in self.rounds.iter().flatten() {
            let delays = fit(losses, RIDGE_S / sooner);
            let together = together(losses);
            for beside in ResourceKind::CONTENDED {
                let of_pair = rates.entry((*victim, beside)).or_default();
                for (way, rates) in of_pair.iter_mut().enumerate() {
                    let place = way * ENGINES + beside as usize;
                    if together[place] > BESIDE_MIN_S / sooner {
                        rates.push(rate_of(delays[place]));
                    }
                }
            }
        }
        let pairs = rates.into_iter().filter_map(|((victim, beside), rates)| {
            let [computing, reading] = rates.map(|of| (!of.is_empty()).then(|| median(&of)));
            let disturbs = |rate: Option<f64>| rate.is_some_and(|rate| rate < SHARE_UNDISTURBED);
            if !disturbs(computing) && !disturbs(reading) {
                return None;
            }
            let quantity = |rate| Quantity::new(rate, source);
            let pair = Contention {
                victim,
                beside,
                // Where the GPU only read, that stands for both.
                rate: quantity(computing.or(reading)?),
                while_reading: computing.and(reading).map(quantity),
            };
            Some(pair)
        });
        pairs.collect()
    }
}

/// How long victims ran beside each engine, by the places of [`Delays`].
fn together(losses: &[Loss]) -> Delays {
    let mut together = [0.0; 2 * ENGINES];
    for beside in losses.iter().flat_map(|loss| &loss.beside) {
        beside.each(|place, seconds| together[place] += seconds);
    }
    together
}

impl Beside {
    /// Calls with each place of [`Delays`] that it is about, and for how many of its seconds.
    fn each(&self, mut each: impl FnMut(usize, f64)) {
        for engine in self.engines.engines() {
            let gpu = ResourceKind::Gpu;
            let has_gpu = self.victim == gpu || engine == gpu as usize;
            let reading_s = if has_gpu { self.reading_s } else { 0.0 };
            each(engine, self.seconds - reading_s);
            each(ENGINES + engine, reading_s);
        }
    }

    /// Seconds lost to each of own work, with these delays.
    fn delay(&self, delays: &Delays) -> f64 {
        let mut delayed_s = 0.0;
        self.each(|place, seconds| delayed_s += delays[place] * seconds);
        delayed_s / self.seconds.max(f64::MIN_POSITIVE)
    }
}

impl Loss {
    /// What the task did of its own work beside each engine, in seconds alone, with these delays.
    fn worked(&self, delays: &Delays) -> Delays {
        let mut worked = [0.0; 2 * ENGINES];
        for beside in &self.beside {
            let rate = rate_of(beside.delay(delays));
            beside.each(|place, seconds| worked[place] += seconds * rate);
        }
        worked
    }
}

/// Seconds by engine and kind of task.
type Alone = BTreeMap<(ResourceKind, String), f64>;

/// What each kind of task takes with nothing beside it.
fn alone(serial: &[Timed]) -> Alone {
    let mut times = BTreeMap::<_, Vec<f64>>::new();
    for task in serial {
        let kind = (task.kind, kind_of(&task.op));
        times.entry(kind).or_default().push(task.seconds());
    }
    let medians = times
        .into_iter()
        .map(|(kind, times)| (kind, median(&times)));
    medians.collect()
}

/// The same losses, those of some tasks in a row together.
fn stretches(losses: Vec<Loss>) -> Vec<Loss> {
    let all: f64 = losses.iter().map(|loss| loss.wall).sum();
    let long_enough = STRETCH_S.min(all / STRETCHES);
    let (mut found, mut stretch) = (Vec::new(), Loss::default());
    for loss in losses {
        stretch.wall += loss.wall;
        stretch.alone += loss.alone;
        stretch.beside.extend(loss.beside);
        if stretch.wall >= long_enough {
            found.push(std::mem::take(&mut stretch));
        }
    }
    found.extend(Some(stretch).filter(|left| left.alone > 0.0));
    found
}

/// How long which other engines were busy while a task ran, which read weights for a share of its time, as each of all did.
fn beside((task, reading): (&Timed, f64), all: &[(&Timed, f64)]) -> Vec<Beside> {
    let (start, end) = (task.span.start.0, task.span.end.0);
    // An engine runs one task at a time, so each edge of a span turns its engine on or off.
    let mut edges = Vec::new();
    for (other, reading) in all.iter().filter(|(other, _)| other.kind != task.kind) {
        let (from, to) = (other.span.start.0.max(start), other.span.end.0.min(end));
        if other.kind.is_contended() && from < to {
            let engine = Set::of(other.kind);
            edges.extend([(from, engine, *reading), (to, engine, -reading)]);
        }
    }
    edges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut beside = BTreeMap::<Set, Beside>::new();
    let (mut busy, mut reading, mut since) = (Set::default(), reading, start);
    for (time, engine, more) in edges {
        if busy != Set::default() && time > since {
            let beside = beside.entry(busy).or_insert(Beside {
                victim: task.kind,
                engines: busy,
                seconds: 0.0,
                reading_s: 0.0,
            });
            beside.seconds += time - since;
            beside.reading_s += (time - since) * reading;
        }
        (busy, reading, since) = (Set(busy.0 ^ engine.0), reading + more, time);
    }
    beside.into_values().collect()
}

/// The delays beside each engine, by non-negative least squares. How much of its work a task did beside
/// an engine depends on the delays, so both are brought closer in turn.
fn fit(losses: &[Loss], ridge_s: f64) -> Delays {
    const ROUNDS: usize = 200;
    let mut delays = [0.0; 2 * ENGINES];
    for _ in 0..ROUNDS {
        let (squares, with_loss) = sums(losses, &delays);
        for j in 0..delays.len() {
            let others: f64 = (0..delays.len())
                .filter(|i| *i != j)
                .map(|i| squares[j][i] * delays[i])
                .sum();
            let delay = (with_loss[j] - others) / (squares[j][j] + ridge_s);
            delays[j] = delay.clamp(0.0, delay_of(SHARE_MIN));
        }
    }
    delays
}

/// The sums of least squares: work beside two engines, and work beside an engine with the loss. Each task
/// weighs as one over its own time, so that long tasks do not drown short ones.
fn sums(losses: &[Loss], delays: &Delays) -> ([Delays; 2 * ENGINES], Delays) {
    let mut squares = [[0.0; 2 * ENGINES]; 2 * ENGINES];
    let mut with_loss = [0.0; 2 * ENGINES];
    for loss in losses {
        let weight = 1.0 / loss.alone.max(1e-6);
        let worked = loss.worked(delays);
        for j in 0..worked.len() {
            with_loss[j] += weight * worked[j] * (loss.wall - loss.alone);
            for i in 0..worked.len() {
                squares[j][i] += weight * worked[j] * worked[i];
            }
        }
    }
    (squares, with_loss)
}

#[cfg(test)]
mod tests {
    use plimsoll_core::Dtype;
    use plimsoll_core::lower::Lowering;
    use plimsoll_core::plan::Plan;
    use plimsoll_core::program::HostPages;

    use super::*;
    use crate::probe::compute;

    /// So long beside engines, of a victim whose GPU, if it has to do with one, reads for a share of that.
    fn beside_of(
        (victim, reading): (ResourceKind, f64),
        (engines, seconds): (&[ResourceKind], f64),
    ) -> Beside {
        let set = engines.iter().fold(0, |set, e| set | Set::of(*e).0);
        Beside {
            victim,
            engines: Set(set),
            seconds,
            reading_s: reading * seconds,
        }
    }

    /// A task of so much work that ran beside these, one after the other.
    fn observed(
        of: (ResourceKind, f64),
        (alone, beside): (f64, &[(&[ResourceKind], f64)]),
        delays: &Delays,
    ) -> Loss {
        let beside = beside.iter().map(|it| beside_of(of, *it));
        let mut loss = Loss {
            wall: 0.0,
            alone,
            beside: beside.collect(),
        };
        let worked = loss.worked(delays);
        let lost: f64 = worked.iter().zip(delays).map(|(w, d)| w * d).sum();
        loss.wall = alone + lost;
        loss
    }

    /// The operations of a plan by engine, as they are told apart.
    fn operations(plan: &Plan) -> Vec<(ResourceKind, String)> {
        let mut lowering = Lowering::new(plan).expect("fits");
        let machine = plan.machine();
        let mut all = Vec::new();
        while let Some(piece) = lowering.next_pass() {
            for task in piece.tasks() {
                let kind = machine.resources[usize::from(task.resource.0)].kind;
                let op = piece.ops()[task.op.0 as usize];
                all.extend(kind.is_contended().then(|| (kind, kind_of(&op))));
            }
        }
        all
    }

    #[test]
    fn what_runs_beside_others_is_timed_alone_on_every_engine() {
        let (mut engines, [_, shape, wide]) = (Vec::new(), compute::SHAPES);
        for [overlapped, serial] in plans(Dtype::F32, shape, Some(wide)).expect("plans") {
            let (beside, alone) = (operations(&overlapped), operations(&serial));
            let unmatched = beside.iter().filter(|op| !alone.contains(op));
            assert_eq!(
                unmatched.collect::<Vec<_>>(),
                [] as [&(ResourceKind, String); 0]
            );
            engines.extend(beside.into_iter().map(|(engine, _)| engine));
        }
        // None of these plans splits layers, which is what has rows copied to page-locked memory.
        let used = ResourceKind::CONTENDED
            .iter()
            .filter(|engine| **engine != ResourceKind::Pin);
        assert!(used.into_iter().all(|engine| engines.contains(engine)));
    }

    /// Where a move went to is not asked: a disk is written on and on.
    #[test]
    fn moves_of_as_many_bytes_are_compared() {
        use plimsoll_core::trace::Span;
        use plimsoll_core::units::Seconds;
        let task = |kind, (bytes, at): (u64, u64), (start, end): (f64, f64)| Timed {
            kind,
            op: Op::Move {
                bytes: Bytes(bytes),
                from: Bytes(at),
                to: Bytes(2 * at),
                host: HostPages::Locked,
            },
            span: Span {
                start: Seconds(start),
                end: Seconds(end),
            },
            pace: 1.0,
        };
        let (read, write) = (ResourceKind::DiskRead, ResourceKind::DiskWrite);
        let alone = [
            task(read, (64, 0), (0.0, 1.0)),
            task(write, (64, 0), (1.0, 2.0)),
        ];
        let beside = [
            task(read, (64, 64), (0.0, 2.0)),
            task(write, (64, 128), (0.0, 2.0)),
        ];
        let mut losses = Losses::new(false);
        losses.add(0, (&beside, &alone), None);
        // As many bytes that are another's, or other bytes, tell nothing.
        losses.add(1, (&beside, &alone[..1]), None);
        losses.add(2, (&[task(read, (65, 64), (0.0, 2.0))], &alone), None);
        let victims = losses.rounds.each_ref().map(BTreeMap::len);
        assert_eq!(victims[..3], [2, 1, 0]);
        let found = losses.contention("test");
        let rates = found.iter().map(|pair| pair.rate.value);
        assert!(
            rates.clone().all(|rate| (rate - 0.5).abs() < 0.01),
            "{found:?}"
        );
        assert_eq!(rates.count(), 2);
        // Milliseconds together are long enough on a GPU, and nowhere else.
        let short = |task: &Timed| {
            let part = |at: Seconds| Seconds(at.0 * 2.5e-3);
            let span = Span {
                start: part(task.span.start),
                end: part(task.span.end),
            };
            Timed { span, ..*task }
        };
        let found = [false, true].map(|on_card| {
            let mut losses = Losses::new(on_card);
            losses.add(
                0,
                (&beside.each_ref().map(short), &alone.each_ref().map(short)),
                None,
            );
            losses.contention("test").len()
        });
        assert_eq!(found, [0, 2]);
    }

    #[test]
    fn a_round_that_was_disturbed_from_outside_does_not_count() {
        use ResourceKind::{Gpu, H2d};
        let mut rounds = Losses::new(false);
        for (round, rate) in [0.7, 0.2, 0.68].into_iter().enumerate() {
            let mut truth = [0.0; 2 * ENGINES];
            truth[H2d as usize] = delay_of(rate);
            let losses = (0..200).map(|i| {
                let beside: (&[ResourceKind], f64) = (&[H2d], f64::from(i % 5) * 10e-3);
                observed((Gpu, 0.0), (0.1, &[beside]), &truth)
            });
            rounds.rounds[round].insert(Gpu, losses.collect());
        }
        let found = rounds.contention("test");
        assert_eq!(
            (found.len(), found[0].victim, found[0].beside),
            (1, Gpu, H2d)
        );
        assert!((found[0].rate.value - 0.68).abs() < 0.01);
    }

    /// Copies that share a core with others in turns: most lose nothing, and each twentieth what all of the others' turn takes.
    #[test]
    fn turns_of_a_shared_core_leave_half_of_a_pace() {
        use ResourceKind::D2h;
        let copy = |seconds| Loss {
            wall: seconds,
            alone: 0.2e-3,
            beside: vec![beside_of((ResourceKind::H2d, 0.0), (&[D2h], seconds))],
        };
        let turn = (0..400).map(|i| copy(if i % 20 == 0 { 4.2e-3 } else { 0.2e-3 }));
        let turns: Vec<Loss> = turn.collect();
        let kept = |losses: &[Loss]| rate_of(fit(losses, 1e-3)[D2h as usize]);
        let (one_by_one, together) = (kept(&turns), kept(&stretches(turns.clone())));
        assert!(one_by_one < 0.3, "{one_by_one}");
        assert!((together - 0.5).abs() < 0.03, "{together}");
        // What has little to do is in parts all the same, and nothing of it is lost.
        let parts = stretches(turns[..32].to_vec());
        assert!(parts.len() >= 2 && parts.len() < 32, "{}", parts.len());
        let wall = |losses: &[Loss]| losses.iter().map(|loss| loss.wall).sum::<f64>();
        assert!((wall(&parts) / wall(&turns[..32]) - 1.0).abs() < 1e-9);
        assert_eq!(stretches(Vec::new()).len(), 0);
    }

    #[test]
    fn known_delays_are_found_again_beside_two_at_once() {
        use ResourceKind::{DiskRead, H2d};
        let mut truth = [0.0; 2 * ENGINES];
        truth[H2d as usize] = delay_of(0.7);
        truth[DiskRead as usize] = delay_of(0.4);
        truth[ENGINES + H2d as usize] = delay_of(0.5);
        truth[ENGINES + DiskRead as usize] = delay_of(0.3);
        let losses: Vec<Loss> = (1..2310)
            .map(|i| {
                let [one, other, both] = [7, 5, 3].map(|n| f64::from(i % n) * 10e-3);
                let beside: [(&[ResourceKind], f64); 3] = [
                    (&[H2d], one),
                    (&[DiskRead], other),
                    (&[H2d, DiskRead], both),
                ];
                // While it computes, reads, and does either for half of the time.
                let reading = f64::from(i % 11 % 3) / 2.0;
                observed((ResourceKind::Gpu, reading), (0.15, &beside), &truth)
            })
            .collect();
        for (found, truth) in fit(&losses, RIDGE_S / 10.0)
            .into_iter()
            .map(rate_of)
            .zip(truth.map(rate_of))
        {
            assert!((found - truth).abs() < 0.01, "{found}, not {truth}");
        }
    }
}
