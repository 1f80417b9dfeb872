//! The outer level: GPU batch size, number of GPU batches, where attention runs, what is compressed.
//!
//! Row by row is not enumerated unless asked for: it is the zig-zag with one GPU batch a block.

use plimsoll_core::compression::Compression;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::policy::{Granularity, PageLocked, Policy, Schedule};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use plimsoll_sim::closed_form::{ClosedForm, ClosedForms, Linear};

use super::bound::Bound;
use super::kind::has_usual_batches;
use super::room::{Room, less_locked};
use super::{Allowed, Objective, PlanError, lp};
use crate::parallel::on_all_processors;

/// GPU batches a block, thinned: a device with room for a sequence or two takes many to read weights seldom.
const BATCHES: [u32; 21] = [
    1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64, 80, 96,
];

/// By what factor more GPU batches a block than are usual must be better by the closed form, which knows nothing of what each
/// of them takes beside its work: fewer have what is about as good, and the simulator decides the rest.
const WORTH_MORE_BATCHES: f64 = 0.98;

/// How much of what a diagonal plan hides behind its busiest resource it may not hide after all: passes that admit GPU batches and
/// passes that do not are bound by different ones, of which the closed form knows the mean. By how much differs, so its best
/// proposals are those that are best if it hides all, and those that are if it hides so much less.
const UNHIDDEN: f64 = 0.7;

/// Shapes that are placed between two looks at which can still be among the best.
pub(super) const AT_ONCE: usize = 32;

/// What is not to be divided: the tier that all of it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Undivided {
    pub cache: Option<Tier>,
    pub activations: Option<Tier>,
}

/// A point of the outer level with its closed form.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Shares are not decided.
    pub policy: Policy,
    pub form: ClosedForm,
    /// The same with less page-locked, where not all may be.
    pub less_locked: Vec<Shape>,
    pub undivided: Undivided,
}

impl Shape {
    /// The shape of a policy.
    pub(super) fn new(forms: &ClosedForms, policy: Policy, room: &Room) -> Shape {
        let form = forms.form(&policy);
        let may_be_over = form.page_locked().highest() > room[Bound::PageLocked];
        let less = less_locked(policy).filter(|_| may_be_over);
        Shape {
            less_locked: less
                .map(|policy| Shape::settled(policy, &forms.form(&policy)))
                .collect(),
            ..Shape::settled(policy, &form)
        }
    }

    /// That of a policy of which it is decided what is page-locked.
    pub(super) fn settled(policy: Policy, form: &ClosedForm) -> Shape {
        Shape {
            policy,
            form: form.clone(),
            less_locked: Vec::new(),
            undivided: Undivided::default(),
        }
    }

    /// The same with something undivided.
    pub(super) fn undivided(&self, undivided: Undivided) -> Shape {
        let less = self.less_locked.iter();
        Shape {
            undivided,
            less_locked: less.map(|shape| shape.undivided(undivided)).collect(),
            ..self.clone()
        }
    }

    /// The same with all of the cache on the device, unless that is surely too much or it is said where it is; it is nothing to a CPU that
    /// attends then.
    pub(super) fn with_cache_on_device(&self, room: &Room) -> Option<Shape> {
        let device = &self.form.memory().device;
        let PerTier {
            device: staying,
            host,
            disk,
        } = device.cache;
        let least = device.lowest() - staying.min(host).min(disk) + staying;
        let may_fit = least <= room[Tier::Device];
        let cache = Some(Tier::Device);
        let is_open = self.undivided.cache.is_none();
        (may_fit && is_open && !self.policy.cpu_attention).then(|| {
            self.undivided(Undivided {
                cache,
                ..self.undivided
            })
        })
    }

    /// The shape of a policy, unless what does not depend on shares is too much.
    pub(super) fn that_may_fit(forms: &ClosedForms, policy: Policy, room: &Room) -> Option<Shape> {
        let shape = Shape::new(forms, policy, room);
        let within = |(row, most): (&Linear, f64)| row.lowest() <= most;
        let may_fit = |shape: &Shape| room.rows(&shape.form).into_iter().all(within);
        let fits = may_fit(&shape) || shape.less_locked.iter().any(may_fit);
        fits.then_some(shape)
    }
}

/// A shape with the shares that the linear program chose.
#[derive(Debug, Clone)]
pub(super) struct Proposal {
    pub policy: Policy,
    pub form: ClosedForm,
    pub undivided: Undivided,
    /// What the closed form expects: seconds a token, or seconds.
    pub score: f64,
    /// The same if it hid less ([`UNHIDDEN`]).
    pub hiding_less: f64,
}

/// A policy of one sequence with everything on the device, the rest as the planner likes it.
pub(super) fn blank() -> Policy {
    let device = PerTier {
        device: 1.0,
        host: 0.0,
        disk: 0.0,
    };
    Policy {
        gpu_batch_size: 1,
        num_gpu_batches: 1,
        weights: device,
        cache: device,
        activations: device,
        granularity: Granularity::Spread,
        schedule: Schedule::ZigZag,
        overlap: true,
        barrier: false,
        half_layers: false,
        cache_workspace: false,
        stored_scores: false,
        relayed_weights: false,
        cpu_attention: false,
        page_locked: PageLocked::ALL,
        compression: Compression::default(),
        sparse_attention: DENSE,
        split: None,
        pipeline: Pipeline::default(),
    }
}

/// Where attention runs, what is compressed and the schedule: what goes together. The share of values
/// that attention reads and the pipeline are the same in all.
pub(super) fn choices(allowed: &Allowed, pipeline: Pipeline) -> Vec<Policy> {
    let attention = allowed
        .cpu_attention
        .map_or(vec![false, true], |on| vec![on]);
    let both = vec![Schedule::ZigZag, Schedule::Diagonal];
    let schedules = allowed.schedule.map_or(both, |schedule| vec![schedule]);
    let mut choices = Vec::new();
    for compression in allowed.compression.choices() {
        for cpu_attention in attention.iter().copied() {
            let policy = Policy {
                cpu_attention,
                compression,
                sparse_attention: allowed.sparse_attention,
                overlap: allowed.overlap,
                pipeline,
                ..blank()
            };
            let policies = schedules
                .iter()
                .map(|&schedule| Policy { schedule, ..policy });
            choices.extend(policies.filter(|p| p.validate().is_ok()));
        }
    }
    choices
}

/// Where what must be on the device takes more of it, choices that need less are searched as well.
const TIGHT: f64 = 0.5;

/// What is found under lists of choices, in turn. Those of a later list stand for those of the first, in their order: each is searched if
/// it needs less of the device, and either nothing fits under the lists before, or one sequence with all else elsewhere takes most of
/// the device under the one that it stands for.
pub(super) fn in_turn<T>(
    lists: &[Vec<Policy>],
    (forms, room): (&ClosedForms, &Room),
    mut find: impl FnMut(&[Policy]) -> Result<T, PlanError>,
    fits: impl Fn(&T) -> bool,
) -> Result<Vec<T>, PlanError> {
    let of_one = |choice: &Policy| forms.form(choice).memory().device.lowest();
    let mut found: Vec<T> = Vec::new();
    for choices in lists {
        let is_answered = found.iter().any(&fits);
        let is_wanted = |(choice, first): &(&Policy, &Policy)| {
            let is_tight = of_one(first) > TIGHT * room[Tier::Device];
            of_one(choice) < of_one(first) && (is_tight || !is_answered)
        };
        let first = found.is_empty();
        let pairs = choices.iter().zip(&lists[0]);
        let wanted = pairs.filter(|pair| first || is_wanted(pair));
        let wanted: Vec<Policy> = wanted.map(|(choice, _)| *choice).collect();
        if wanted.is_empty() {
            continue;
        }
        match find(&wanted) {
            // What fits is an answer.
            Err(PlanError::Solver(_)) if is_answered => {}
            found_here => found.push(found_here?),
        }
    }
    Ok(found)
}

/// The choices and, for where these need too much of the device, the same with attention and MLP as steps of their own, as
/// FlexGen's are: the weights of half a layer at a time.
pub(super) fn also_in_halves(choices: Vec<Policy>) -> Vec<Vec<Policy>> {
    let halved = |choice: &Policy| Policy {
        half_layers: true,
        barrier: choice.overlap,
        ..*choice
    };
    let halves = choices.iter().map(halved).collect();
    vec![choices, halves]
}

/// Shapes that may fit.
pub(super) fn shapes(
    forms: &ClosedForms,
    choices: &[Policy],
    workload: &Workload,
    room: &Room,
) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (gpu_batch_size, num_gpu_batches) in pairs(workload) {
        let before = shapes.len();
        let of_size = |choice: &Policy| Policy {
            gpu_batch_size,
            num_gpu_batches,
            ..*choice
        };
        let policies: Vec<Policy> = choices.iter().map(of_size).collect();
        let meant = policies
            .iter()
            .filter(|policy| is_meant(policy, workload, choices));
        let mut tried = 0;
        for policy in meant {
            tried += 1;
            shapes.extend(Shape::that_may_fit(forms, *policy, room));
        }
        let none_fits = tried > 0 && shapes.len() == before;
        if none_fits && num_gpu_batches == 1 && workload.num_prompts.is_none() {
            // Larger GPU batches take more.
            break;
        }
    }
    shapes
}

/// Whether a policy is not better called by another name that is among the choices.
pub(super) fn is_meant(policy: &Policy, workload: &Workload, choices: &[Policy]) -> bool {
    let is_open = |schedule| choices.iter().any(|choice| choice.schedule == schedule);
    match policy.schedule {
        Schedule::Row => policy.num_gpu_batches == 1,
        Schedule::ZigZag => true,
        Schedule::Diagonal => overlaps(policy, workload) || !is_open(Schedule::ZigZag),
    }
}

/// Whether a diagonal schedule is anything but a slow start: several GPU batches at a time, and more
/// prompts than one block.
fn overlaps(policy: &Policy, workload: &Workload) -> bool {
    let more = |prompts| prompts > policy.block_size();
    policy.num_gpu_batches > 1 && workload.gen_len > 1 && workload.num_prompts.is_none_or(more)
}

/// GPU batch sizes: all that a small device has room for, then multiples of 4, sparser as they grow.
fn sizes() -> impl Iterator<Item = u32> {
    let steps = (12..=64)
        .step_by(4)
        .chain((80..=256).step_by(16))
        .chain((320..=1024).step_by(64));
    (1..=8)
        .chain([10])
        .chain(steps)
        .chain([1536, 2048, 3072, 4096])
}

/// The ways to make a block of so many sequences of full GPU batches, at most so many.
pub(super) fn pairs_of_block(sequences: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let batches = BATCHES
        .into_iter()
        .take_while(move |batches| *batches <= most);
    let whole = batches.filter(move |batches| sequences.is_multiple_of(*batches));
    whole.map(move |batches| (sequences / batches, batches))
}

/// (GPU batch size, number of GPU batches), sizes ascending.
fn pairs(workload: &Workload) -> Vec<(u32, u32)> {
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    let prompts = workload.num_prompts.unwrap_or(u64::MAX);
    for size in sizes().filter(|size| u64::from(*size) <= prompts) {
        let most = prompts.div_ceil(u64::from(size));
        pairs.extend(
            BATCHES
                .iter()
                .filter(|b| u64::from(**b) <= most)
                .map(|b| (size, *b)),
        );
    }
    if workload.num_prompts.is_some() {
        // Blocks that leave no part of the last round empty.
        for rounds in 1..=4 {
            for batches in BATCHES {
                let size = prompts.div_ceil(u64::from(batches) * rounds);
                if u64::from(batches) <= prompts && size <= 4096 {
                    pairs.push((size as u32, batches));
                }
            }
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// What the linear programs propose, best first by one measure.
#[derive(Debug)]
struct Best {
    by: fn(&Proposal) -> f64,
    /// How many of each way to page-lock.
    count: usize,
    proposals: Vec<Proposal>,
}

impl Best {
    fn new(by: fn(&Proposal) -> f64, count: usize) -> Best {
        Best {
            by,
            count,
            proposals: Vec::new(),
        }
    }

    /// That of the first.
    fn first(&self) -> f64 {
        self.proposals.first().map_or(f64::INFINITY, self.by)
    }

    /// That beyond which no way to page-lock with `count` proposals keeps another; infinite while no way has so many. Ways with
    /// fewer do not keep the scan going, since some never fill.
    fn worst_of_many(&self) -> f64 {
        let best = &self.proposals;
        let way_of = |index: usize| best[index].policy.page_locked;
        let is_last = |index: &usize| {
            let alike = (0..=*index).filter(|before| way_of(*before) == way_of(*index));
            alike.count() == self.count
        };
        (0..best.len())
            .rev()
            .find(is_last)
            .map_or(f64::INFINITY, |last| (self.by)(&best[last]))
    }

    /// Keeps the best of each way to page-lock in order, so many.
    fn insert(&mut self, proposal: Proposal) {
        let (by, best) = (self.by, &mut self.proposals);
        let way = proposal.policy.page_locked;
        let at = best.partition_point(|p| by(p) <= by(&proposal));
        best.insert(at, proposal);
        let alike = best.iter().filter(|p| p.policy.page_locked == way);
        if alike.count() > self.count
            && let Some(last) = best.iter().rposition(|p| p.policy.page_locked == way)
        {
            best.remove(last);
        }
    }
}

/// The `count` best proposals of the linear programs of each way to page-lock, best first. What the solver cannot place is left to the other shapes.
///
/// # Errors
/// The solver's, where it has no answer for any shape.
pub(super) fn scan(
    shapes: &[&Shape],
    machine: (&Room, Objective),
    count: usize,
) -> Result<Vec<Proposal>, PlanError> {
    let mut best = [Best::new(|p| p.score, count)];
    scan_for(&mut best, shapes, machine)?;
    let [best] = best;
    Ok(best.proposals)
}

/// The same by several measures, of which none says less than what the closed form expects.
fn scan_for(
    bests: &mut [Best],
    shapes: &[&Shape],
    (room, objective): (&Room, Objective),
) -> Result<(), PlanError> {
    let bound =
        |shape: &Shape| objective.cost(lowest_latency_s(&shape.form, room), shape.form.tokens());
    let mut order: Vec<(f64, &Shape)> = shapes.iter().map(|s| (bound(s), *s)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut failed, mut is_answered) = (None, false);
    for some in order.chunks(AT_ONCE) {
        let enough = bests.iter().map(Best::worst_of_many).fold(0.0, f64::max);
        let some = &some[..some.partition_point(|(bound, _)| *bound < enough)];
        let shapes = some.iter().map(|(_, shape)| *shape).collect();
        for placed in place_all(shapes, room, objective) {
            match placed {
                Ok(proposals) => {
                    is_answered = true;
                    for best in bests.iter_mut() {
                        proposals.iter().for_each(|p| best.insert(p.clone()));
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        if some.len() < AT_ONCE {
            break;
        }
    }
    match failed {
        Some(error) if !is_answered => Err(error),
        _ => Ok(()),
    }
}

/// Shapes by what their policies have in common, in the order of the first of each.
pub(super) fn grouped<K: PartialEq>(
    shapes: &[Shape],
    key: impl Fn(&Policy) -> K,
) -> Vec<Vec<&Shape>> {
    let mut groups: Vec<(K, Vec<&Shape>)> = Vec::new();
    for shape in shapes {
        let key = key(&shape.policy);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(shape),
            None => groups.push((key, vec![shape])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// [`scan`] of each group of shapes, and of those in it that have more GPU batches a block than are usual by themselves, where these
/// are worth it. Of diagonal plans also those that are best where less is hidden.
///
/// # Errors
/// The solver's, where it has no answer for any of them.
pub(super) fn scan_each<K: PartialEq>(
    shapes: &[Shape],
    key: impl Fn(&Policy) -> K,
    (room, objective, count): (&Room, Objective, usize),
) -> Result<Vec<Vec<Proposal>>, PlanError> {
    let mut found: Vec<Vec<Proposal>> = Vec::new();
    let mut failed = None;
    for group in grouped(shapes, key) {
        let diagonal = |shape: &&Shape| shape.policy.schedule == Schedule::Diagonal;
        let is_diagonal = group.iter().any(diagonal);
        // What the solver cannot place of some is left to the others.
        let mut scanned = |shapes: Vec<&Shape>| {
            let mut bests = vec![Best::new(|p| p.score, count)];
            bests.extend(is_diagonal.then(|| Best::new(|p| p.hiding_less, count)));
            let done = scan_for(&mut bests, &shapes, (room, objective));
            failed = done.err().or(failed.take());
            bests
        };
        let is_usual = |shape: &&Shape| has_usual_batches(&shape.policy);
        let (usual, more) = group.into_iter().partition(is_usual);
        let both = scanned(usual).into_iter().zip(scanned(more));
        for (usual, more) in both {
            let is_worth_it = more.first() < usual.first() * WORTH_MORE_BATCHES;
            let lists = std::iter::once(usual).chain(is_worth_it.then_some(more));
            for mut list in lists.map(|best| best.proposals) {
                // By both measures.
                let known = |p: &Proposal| found.iter().flatten().any(|f| f.policy == p.policy);
                list.retain(|proposal| !known(proposal));
                found.push(list);
            }
        }
    }
    match failed {
        Some(error) if found.iter().all(Vec::is_empty) => Err(error),
        _ => Ok(found),
    }
}

/// What the linear programs propose for each shape, in the order of the shapes: best first, and nothing where there is no room.
pub(super) fn place_all(
    shapes: Vec<&Shape>,
    room: &Room,
    objective: Objective,
) -> Vec<Result<Vec<Proposal>, PlanError>> {
    on_all_processors(shapes, &|shape| {
        let placed = lp::place_each(shape, room)?.into_iter();
        let proposed = placed.map(|(policy, shape)| {
            let form = shape.form.clone();
            let expected = form.evaluate(&policy);
            let unhidden = form.hidden_s(&expected) * UNHIDDEN;
            let cost = |latency| objective.cost(latency, form.tokens());
            Proposal {
                score: cost(expected.latency_s),
                hiding_less: cost(expected.latency_s + unhidden),
                undivided: shape.undivided,
                policy,
                form,
            }
        });
        let mut proposed: Vec<Proposal> = proposed.collect();
        proposed.sort_by(|a, b| a.score.total_cmp(&b.score));
        Ok(proposed)
    })
}

/// No placement is faster: each term at its least, and weights that neither the device nor the host
/// can hold read from disk in each pass.
pub(super) fn lowest_latency_s(form: &ClosedForm, room: &Room) -> Seconds {
    let disk = least_disk_share(&form.memory().device, &form.memory().host, room);
    let reads = |terms: [(_, &Linear); 6]| {
        let on_disk = |row: &Linear| row.constant + row.weights.disk * disk;
        terms
            .into_iter()
            .map(|(_, row)| on_disk(row))
            .fold(0.0, f64::max)
    };
    let streamed =
        reads(form.prefill().terms()) + reads(form.decode().terms()) * form.decode_passes();
    form.lowest_latency_s()
        .max(Seconds(streamed * form.rounds()))
}

/// Whether weights may all be elsewhere than on disk.
pub(super) fn may_spare_disk(form: &ClosedForm, room: &Room) -> bool {
    let memory = form.memory();
    least_disk_share(&memory.device, &memory.host, room) <= 0.0
}

/// The share of weights that must be on disk whatever else is where. Memory rows count from all
/// weights on the device.
fn least_disk_share(device: &Linear, host: &Linear, room: &Room) -> f64 {
    let on_device = -device.weights.host.min(device.weights.disk);
    let on_host = host.weights.host;
    if on_device <= 0.0 || on_host <= 0.0 {
        return 0.0;
    }
    let share = |row: &Linear, room: f64, whole: f64| (room - row.lowest()).max(0.0) / whole;
    (1.0 - share(device, room[Tier::Device], on_device) - share(host, room[Tier::Host], on_host))
        .max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::Dtype;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::model::registry;
    use plimsoll_core::units::Bytes;

    /// Which lists are searched, of a model in so many bytes of a T4, where the first finds something and the second fails.
    fn searched(model: &str, gb: f64) -> Vec<bool> {
        let t4 = embedded::profile("t4").unwrap();
        let t4 = t4.with_capacities(Some(Bytes((gb * 1e9) as u64)), None, None);
        let workload = Workload {
            prompt_len: 512,
            gen_len: 32,
            num_prompts: Some(1),
        };
        let model = registry::find(model).unwrap();
        let forms = ClosedForms::new(
            &t4,
            (&model, &Pipeline::default()),
            Dtype::F16,
            workload,
            (&Compression::ALL, DENSE),
        );
        let lists = also_in_halves(choices(&Allowed::default(), Pipeline::default()));
        let room = Room::of(&t4);
        let mut asked = Vec::new();
        let find = |choices: &[Policy]| {
            let halves = choices[0].half_layers;
            asked.push(halves);
            match halves {
                true => Err(PlanError::Solver("a test".to_owned())),
                false => Ok(()),
            }
        };
        let found = in_turn(&lists, (&forms.unwrap(), &room), find, |()| true);
        assert_eq!(found.unwrap().len(), 1);
        asked
    }

    #[test]
    fn a_scan_ends_at_the_worst_of_ways_that_are_full() {
        let t4 = embedded::profile("t4").unwrap();
        let workload = Workload {
            prompt_len: 512,
            gen_len: 32,
            num_prompts: None,
        };
        let model = registry::find("opt-30b").unwrap();
        let forms = ClosedForms::new(
            &t4,
            (&model, &Pipeline::default()),
            Dtype::F16,
            workload,
            (&[Compression::default()], DENSE),
        )
        .unwrap();
        let form = forms.form(&blank());
        let mut best = Best::new(|p| p.score, 2);
        let mut add = |score: f64, page_locked: PageLocked| {
            let policy = Policy {
                page_locked,
                ..blank()
            };
            best.insert(Proposal {
                policy,
                form: form.clone(),
                undivided: Undivided::default(),
                score,
                hiding_less: score,
            });
            best.worst_of_many()
        };
        assert_eq!(add(1.0, PageLocked::ALL), f64::INFINITY);
        assert_eq!(add(5.0, PageLocked::NONE), f64::INFINITY);
        assert_eq!(add(3.0, PageLocked::ALL), 3.0);
        // Better ones displace those of their own way alone.
        assert_eq!(add(2.0, PageLocked::ALL), 2.0);
        assert_eq!(add(6.0, PageLocked::NONE), 6.0);
        assert_eq!(best.proposals.len(), 4);
    }

    #[test]
    fn half_layers_are_searched_where_whole_ones_take_most_of_the_device() {
        assert_eq!(searched("opt-30b", 16.0), [false]);
        // What they find is not needed.
        assert_eq!(searched("opt-30b", 4.0), [false, true]);
        // Its embedding takes more than a layer, and is one piece.
        assert_eq!(searched("bloom-176b", 16.0), [false]);
    }
}
