//! From measurements to a profile.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{
    Compute, CopyLink, Curve, DEVICE_THREADS_MAX, DeviceKind, DiskLink, GemmCurve, HardwareProfile,
    LinkPace, Links, Pace, Quantity, Source, SourceKind, Tiers, WeightRead,
};
use plimsoll_core::program::{Op, ResourceKind};
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};

use super::compute::Matrix;
use super::link_pace::LinkTimes;
use super::samples::{Handoffs, Timed, durations};
use super::stats::{median, spread, without_falls};
use super::{Measured, Moment, ProbeOptions, beside, compute, unpack};
use crate::cuda::launches::JOINED_ROWS;
use crate::tiers::total_memory;

pub(crate) const MEASURED: &str = "measured";
const COUNTED: &str = "counted";
const GAPS: &str = "gaps";

/// One part in so many of a GPU's memory is no plan's.
const SHARE_BESIDE_PLANS: u64 = 32;

/// Tasks that have at least one part in so many of the work of the largest of their size tell its rate.
const MOST_WORK: f64 = 4.0;

/// A rate by size, from several measurements of each.
pub(super) type Rates = BTreeMap<u64, Vec<f64>>;

pub(super) fn curve(rates: &Rates) -> Curve {
    let points = rates
        .iter()
        .map(|(size, r)| (*size as f64, median(r)))
        .collect();
    let spreads: Vec<f64> = rates.values().map(|r| spread(r)).collect();
    let curve = Curve::new(points, MEASURED, Some(median(&spreads)));
    curve.expect("medians of positive rates at ascending sizes")
}

fn quantity(values: &[f64], source: &str) -> Quantity<Seconds> {
    let middle = median(values);
    if middle <= 0.0 {
        // Two clocks may be apart by more than what lies between them.
        return Quantity::new(Seconds::ZERO, source);
    }
    Quantity::new(Seconds(middle), source).with_spread(spread(values))
}

/// The profile of everything measured.
pub(super) fn profile(options: &ProbeOptions, measured: &Measured) -> HardwareProfile {
    let what = command(options) + &pageable_memory(measured);
    let source = |from: String| Source {
        kind: SourceKind::Measured,
        from,
        date: options.date.clone(),
    };
    let gaps =
        "from a task to the next of the same engine, of copies and of the device; the same for all";
    let counted = "the system's own count of memory, of which a quarter is left to others, and of what is free where the disk tier's file goes";
    let sources = BTreeMap::from([
        (MEASURED.to_owned(), source(format!("{what}, this machine"))),
        (
            GAPS.to_owned(),
            source(format!("{what}, this machine: {gaps}")),
        ),
        (COUNTED.to_owned(), source(counted.into())),
    ]);
    let at_the_start = HardwareProfile {
        name: options.name.clone(),
        description: match &options.cpu.card {
            None => format!(
                "Emulated device on this machine's CPU: its own arena and {} of its own.",
                match options.cpu.device_threads {
                    1 => "a thread".to_owned(),
                    threads => format!("{threads} threads"),
                }
            ),
            Some(card) => format!("{} of this machine, its CPU and its disk.", card.name()),
        },
        kind: match options.cpu.card {
            None => DeviceKind::Emulated,
            Some(_) => DeviceKind::Gpu,
        },
        sources,
        tiers: tiers(options, measured),
        links: links(measured),
        cluster: None,
        compute: compute_rates(options, measured),
        contention: measured.losses.contention(MEASURED),
        residuals: None,
    };
    // Who plans does so at the pace that this machine has as a rule, whatever it was when the first of this was measured.
    at_the_start.at_pace(&measured.usual().relative_to(&measured.base))
}

/// How much memory pageable copies were measured in: less than a machine may have for it, where it had little.
fn pageable_memory(measured: &Measured) -> String {
    match measured.pageable.is_empty() {
        true => String::new(),
        false => format!(
            ", copies of pageable memory in {} of it",
            measured.pageable_bytes
        ),
    }
}

/// What measures the same again.
fn command(options: &ProbeOptions) -> String {
    let mut command = "plimsoll profile".to_owned();
    if options.cpu.card.is_some() {
        command += " --backend cuda";
    }
    if options.quick {
        command += " --quick";
    }
    command + &format!(" --device-threads {}", options.cpu.device_threads)
}

/// Bytes of weights a second in the best matrix product of few tokens.
fn best_weight_rate(measured: &Measured) -> f64 {
    let rates = measured.compute.iter().filter_map(|(dtype, task)| {
        let (_, m, flops) = compute::linear_key(task)?;
        let bytes = flops / 2.0 / f64::from(m) * dtype.size_bytes() as f64;
        Some(bytes / task.seconds())
    });
    rates.fold(1e6, f64::max)
}

fn tiers(options: &ProbeOptions, measured: &Measured) -> Tiers {
    // 4 GiB where the system does not say.
    let memory = total_memory().map_or(4 << 30, |bytes| bytes.0);
    let card = options.cpu.card.as_ref();
    let [host_capacity, host_reserved] = host_memory(memory, card.is_some());
    let bytes = |count: u64| Quantity::new(Bytes(count), COUNTED);
    let rate = |rate: f64| Quantity::new(BytesPerSecond(rate), MEASURED);
    let host_reads = &measured.host_reads;
    Tiers {
        page_lockable_bytes: None,
        host_shared: None,
        // Where none is a GPU, a quarter of memory plays the device; a plan may state less.
        device_capacity_bytes: bytes(card.map_or(memory / 4, |card| card.memory()[1] as u64)),
        host_capacity_bytes: bytes(host_capacity),
        disk_capacity_bytes: bytes(measured.disk_free.0),
        // What was taken before (the driver's context), and a share for kernels and what lies beside a plan's arena.
        device_reserved_bytes: bytes(card.map_or(0, |card| {
            let [free, all] = card.memory().map(|bytes| bytes as u64);
            all - free + all / SHARE_BESIDE_PLANS
        })),
        host_reserved_bytes: bytes(host_reserved),
        device_bandwidth: rate(best_weight_rate(measured)),
        host_bandwidth: rate(median(host_reads)).with_spread(spread(host_reads)),
    }
}

/// Of so many bytes, what is the host's and what of that is reserved. A quarter is left to others; without a GPU another is the device's.
fn host_memory(all: u64, has_gpu: bool) -> [u64; 2] {
    match has_gpu {
        true => [all, all / 4],
        false => [all / 2, 0],
    }
}

fn links(measured: &Measured) -> Links {
    let rates = |tasks: &[Timed], kind: ResourceKind| -> Rates {
        let by_size = durations(tasks, |task| match task.op {
            Op::Move { bytes, .. } if task.kind == kind => Some(bytes.0),
            _ => None,
        });
        let rate = |size: u64, times: Vec<f64>| times.iter().map(|t| size as f64 / t).collect();
        by_size
            .into_iter()
            .map(|(size, times)| (size, rate(size, times)))
            .collect()
    };
    let moved = |kind| rates(&measured.moves, kind);
    let pageable = |kind| rates(&measured.pageable, kind);
    let copy = |kind| CopyLink {
        latency: quantity(&measured.gaps, GAPS),
        page_locked: curve(&moved(kind)),
        pageable: (!measured.pageable.is_empty()).then(|| curve(&pageable(kind))),
        // The executor leaves that to the driver.
        relayed: None,
        pace: link_pace(measured, usize::from(kind == ResourceKind::D2h)),
    };
    let disk = |kind| DiskLink {
        latency: quantity(&measured.gaps, GAPS),
        rate: curve(&moved(kind)),
        nominal: None,
    };
    Links {
        h2d: copy(ResourceKind::H2d),
        d2h: copy(ResourceKind::D2h),
        disk_read: disk(ResourceKind::DiskRead),
        disk_write: disk(ResourceKind::DiskWrite),
        page_lock: Some(curve(&moved(ResourceKind::Pin))),
        staged_ahead: staged_ahead(&measured.staged),
        disk_read_pace: disk_read_pace(measured),
        peers: Vec::new(),
    }
}

/// At the pace that the reader's rates are for.
fn disk_read_pace(measured: &Measured) -> Option<Quantity<Seconds>> {
    pace_of(measured, |moment| moment.disk_read_s)
}

/// The same of a GPU's link, to it or from it.
fn link_pace(measured: &Measured, way: usize) -> Option<LinkPace> {
    let of =
        |part: fn(&LinkTimes) -> f64| pace_of(measured, |moment| Some(part(&moment.links_s?[way])));
    Some(LinkPace {
        page_locked: of(|times| times.page_locked)?,
        pageable: of(|times| times.pageable)?,
    })
}

/// What only some moments know.
fn pace_of(
    measured: &Measured,
    part: impl Fn(&Moment) -> Option<f64>,
) -> Option<Quantity<Seconds>> {
    let moments: Vec<f64> = measured.moments.iter().filter_map(&part).collect();
    let usual = Quantity::new(Seconds(part(&measured.usual())?), MEASURED);
    // Of a single moment there is no spread.
    Some(match moments.len() {
        1 => usual,
        _ => usual.with_spread(spread(&moments)),
    })
}

/// None without a GPU, of which no driver has any.
fn staged_ahead(staged: &[f64]) -> Option<Quantity<Bytes>> {
    (!staged.is_empty()).then(|| {
        let bytes = median(staged).max(0.0).round();
        let quantity = Quantity::new(Bytes(bytes as u64), MEASURED);
        match bytes > 0.0 {
            true => quantity.with_spread(spread(staged)),
            false => quantity,
        }
    })
}

/// What is left of attention's rate where key heads have several query heads, over how many; types and contexts are compared each with
/// itself.
fn left_where_shared(tasks: &[(Dtype, Timed)], on: ResourceKind) -> Option<Curve> {
    let mut rates = BTreeMap::<(u32, Dtype, u64), Vec<f64>>::new();
    for (dtype, task) in tasks {
        if let (Op::Attention { group, .. }, Some(bytes)) =
            (&task.op, compute::decode_cache_bytes(task, on))
        {
            let of = rates.entry((*group, *dtype, bytes)).or_default();
            of.push(bytes as f64 / task.seconds());
        }
    }
    let mut left = BTreeMap::<u32, Vec<f64>>::new();
    for ((group, dtype, bytes), of) in &rates {
        if let Some(alone) = rates.get(&(1, *dtype, *bytes)) {
            left.entry(*group)
                .or_default()
                .push(median(of) / median(alone));
        }
    }
    let points = left
        .iter()
        .map(|(group, left)| (f64::from(*group), median(left)));
    Curve::new(points.collect(), MEASURED, None).ok()
}

fn compute_rates(options: &ProbeOptions, measured: &Measured) -> Compute {
    let mut prefill = BTreeMap::<u64, Vec<(f64, f64)>>::new();
    let mut decode = Rates::new();
    let mut cpu = Rates::new();
    // Their caches are larger than those of the models before.
    let alone = |(_, task): &&(Dtype, Timed)| matches!(task.op, Op::Attention { group: 1, .. });
    let larger = measured.shared.iter().filter(alone);
    for (_, task) in measured.compute.iter().chain(larger) {
        let time = task.seconds();
        if let Some((context, flops)) = compute::prefill_attention(task) {
            let of_context = prefill.entry(u64::from(context)).or_default();
            of_context.push((flops, flops / time));
        }
        for (kind, rates) in [
            (ResourceKind::Gpu, &mut decode),
            (ResourceKind::Cpu, &mut cpu),
        ] {
            if let Some(bytes) = compute::decode_cache_bytes(task, kind) {
                rates.entry(bytes).or_default().push(bytes as f64 / time);
            }
        }
    }
    let launch = quantity(&measured.gaps, GAPS);
    let groups = |packs: bool| {
        let of = |(_, task): &&(Dtype, Timed)| (task.op.newly_packed_elements() > 0) == packs;
        let tasks: Vec<_> = measured.packed_caches.iter().filter(of).copied().collect();
        unpack::rate(&measured.compute, &tasks)
    };
    let emulated = options.cpu.card.is_none();
    let joined_rows = (!emulated).then_some(JOINED_ROWS as u32);
    let (handoff, stream_handoff) = handoffs(&measured.handoffs, emulated);
    let threads = u32::try_from(options.cpu.device_threads).unwrap_or(DEVICE_THREADS_MAX);
    Compute {
        device_threads: emulated.then(|| Quantity::new(threads, MEASURED)),
        launch: launch.clone(),
        cpu_copy_share: None,
        handoff: Some(handoff),
        stream_handoff,
        barrier: quantity(&measured.barriers, MEASURED),
        pace: emulated.then(|| pace(measured)),
        gemm: gemm_curves(options, measured),
        products: measured.products.clone(),
        joined_rows: joined_rows.map(|rows| Quantity::new(rows, MEASURED)),
        beside_products: beside::curves(
            &measured.layer_parts,
            (&measured.products, joined_rows.unwrap_or(0)),
        ),
        attention_prefill: curve(&of_most_work(prefill)),
        attention_decode: curve(&match emulated {
            true => thin(decode),
            false => not_held_up(thin(decode)),
        }),
        attention_decode_shared: left_where_shared(&measured.shared, ResourceKind::Gpu),
        cpu_launch: launch,
        // A small cache may have lain in the processor's own.
        cpu_attention: curve(&thin(cpu)).capped(median(&measured.host_reads)),
        cpu_attention_shared: left_where_shared(&measured.shared, ResourceKind::Cpu),
        cpu_attention_prefill: None,
        part_launch: None,
        embed: (!emulated).then(|| embed(measured)),
        sequence: None,
        sequence_layer: None,
        cpu_gemm: cpu_gemm_curves(options, measured),
        unpack: groups(false),
        pack: groups(true),
        weight_read: weight_reads(&measured.weight_reads),
    }
}

/// What an embedding takes beside reading and writing its rows.
fn embed(measured: &Measured) -> Quantity<Seconds> {
    let rate = best_weight_rate(measured);
    let times = measured.compute.iter().filter_map(|(dtype, task)| {
        let Op::Embed {
            tokens,
            hidden_size,
            ..
        } = task.op
        else {
            return None;
        };
        let elements = u64::from(tokens) * u64::from(hidden_size);
        let bytes = (2 * elements * dtype.size_bytes()) as f64;
        Some(task.seconds() - bytes / rate)
    });
    quantity(&times.collect::<Vec<f64>>(), MEASURED)
}

/// From an engine to another, and from a stream to another where the device has such.
fn handoffs(found: &Handoffs, emulated: bool) -> (Quantity<Seconds>, Option<Quantity<Seconds>>) {
    let Handoffs {
        on_card: _,
        between_streams,
        from_streams,
        to_streams,
        others,
    } = found;
    let to_or_from_host = [&from_streams[..], to_streams, others].concat();
    if emulated || between_streams.is_empty() || to_or_from_host.is_empty() {
        let all = [&between_streams[..], &to_or_from_host].concat();
        return (quantity(&all, MEASURED), None);
    }
    let between_streams = quantity(between_streams, MEASURED);
    let corrected = both_ways(from_streams, to_streams);
    let handoff = quantity(&[&corrected[..], others].concat(), MEASURED);
    (handoff, Some(between_streams))
}

/// The middle of hand-offs from a GPU's streams and of those to them: by how much the two clocks are apart is in both, with either
/// sign.
fn both_ways(from_streams: &[f64], to_streams: &[f64]) -> Vec<f64> {
    if from_streams.is_empty() || to_streams.is_empty() {
        return [from_streams, to_streams].concat();
    }
    let apart = (median(from_streams) - median(to_streams)) / 2.0;
    let corrected = from_streams.iter().map(|seconds| seconds - apart);
    let back = to_streams.iter().map(|seconds| seconds + apart);
    corrected.chain(back).collect()
}

/// Bytes of weights that products of one row read a second, by type and by the bytes of all.
pub(super) fn weight_reads(reads: &[(Dtype, Bytes, Timed)]) -> Vec<WeightRead> {
    let mut by_type = BTreeMap::<Dtype, Rates>::new();
    for (dtype, all, task) in reads {
        let Op::Linear { gemms, .. } = task.op else {
            continue;
        };
        let elements: u64 = gemms.iter().map(|g| u64::from(g.n) * u64::from(g.k)).sum();
        let bytes = (elements * dtype.size_bytes()) as f64;
        let rates = by_type.entry(*dtype).or_default().entry(all.0).or_default();
        rates.push(bytes / task.seconds());
    }
    let of = |(dtype, rates)| WeightRead {
        dtype,
        rate: curve(&rates),
    };
    by_type.into_iter().map(of).collect()
}

/// The reference work at the pace that all rates are for; the spread is that of the moments.
fn pace(measured: &Measured) -> Pace {
    let usual = measured.usual();
    let of = |part: fn(&Moment) -> f64| {
        let moments: Vec<f64> = measured.moments.iter().map(part).collect();
        Quantity::new(Seconds(part(&usual)), MEASURED).with_spread(spread(&moments))
    };
    Pace {
        few_tokens: of(|m| m.few_tokens_s),
        many_tokens: of(|m| m.many_tokens_s),
        copy: of(|m| m.copy_s),
    }
}

/// Of rates by size, each with its work, those of the tasks that have most to do: small ones are of launches, and of a device
/// that is not full.
fn of_most_work(rates: BTreeMap<u64, Vec<(f64, f64)>>) -> Rates {
    let of_size = |(size, rates): (u64, Vec<(f64, f64)>)| {
        let most = rates
            .iter()
            .fold(0.0, |most, (work, _)| f64::max(most, *work));
        let large = rates.iter().filter(|(work, _)| *work >= most / MOST_WORK);
        (size, large.map(|(_, rate)| *rate).collect())
    };
    rates.into_iter().map(of_size).collect()
}

/// Puts neighbouring sizes together, so that each point of a curve stands on several measurements.
fn thin(rates: Rates) -> Rates {
    let mut thinned = BTreeMap::<u64, (Vec<u64>, Vec<f64>)>::new();
    for (size, values) in rates {
        // Three points an octave.
        let bin = (3.0 * (size as f64).log2()).round() as u64;
        let (sizes, all) = thinned.entry(bin).or_default();
        sizes.push(size);
        all.extend(values);
    }
    thinned
        .into_values()
        .map(|(sizes, all)| (sizes[sizes.len() / 2], all))
        .collect()
}

/// Rates of a GPU by bytes, of which more take no less time: what took more was held up by the host, which had not given the next
/// kernel yet. (The least of noisy times is rather too little than too much.)
fn not_held_up(rates: Rates) -> Rates {
    let mut least_s = f64::INFINITY;
    let of_size = |(size, mut rates): (u64, Vec<f64>)| {
        let middle_s = size as f64 / median(&rates);
        least_s = least_s.min(middle_s);
        rates
            .iter_mut()
            .for_each(|rate| *rate *= middle_s / least_s);
        (size, rates)
    };
    rates.into_iter().rev().map(of_size).collect()
}

fn gemm_curves(options: &ProbeOptions, measured: &Measured) -> Vec<GemmCurve> {
    let emulated = options.cpu.card.is_none();
    let of = |tasks: &[(Dtype, Timed)], packed: bool| -> Vec<GemmCurve> {
        let dtypes = options.dtypes.iter();
        let of = |dtype: &Dtype| curves_of(*dtype, tasks, packed, emulated);
        dtypes.flat_map(of).collect()
    };
    let mut curves = of(&measured.compute, false);
    curves.extend(of(&measured.packed_weights, true));
    curves
}

/// The CPU's, which computes them as they are stored; none on a GPU's host, which has no parts of linear layers yet.
fn cpu_gemm_curves(options: &ProbeOptions, measured: &Measured) -> Vec<GemmCurve> {
    let dtypes = options.dtypes.iter();
    let of = |dtype: &Dtype| curves_of(*dtype, &measured.cpu_products, false, true);
    dtypes.flat_map(of).collect()
}

/// One curve over M for each size of matrix; those of a processor without what a wrong moment makes of them.
fn curves_of(
    dtype: Dtype,
    tasks: &[(Dtype, Timed)],
    packed: bool,
    on_processor: bool,
) -> Vec<GemmCurve> {
    let tasks: Vec<&Timed> = tasks
        .iter()
        .filter(|(d, _)| *d == dtype)
        .map(|(_, t)| t)
        .collect();
    let matrices: BTreeSet<Matrix> = tasks
        .iter()
        .filter_map(|t| compute::linear_key(t))
        .map(|(matrix, ..)| matrix)
        .collect();
    let of_matrix = |matrix: Matrix| {
        let mut rates = Rates::new();
        for task in &tasks {
            match compute::linear_key(task) {
                Some((own, m, flops)) if own == matrix => {
                    let rate = flops / task.seconds();
                    rates.entry(u64::from(m)).or_default().push(rate);
                }
                _ => {}
            }
        }
        if on_processor {
            mend_wrong_moments(&mut rates);
        }
        let side = (matrix.elements as f64).sqrt().round() as u32;
        GemmCurve {
            dtype,
            n: Some(side),
            k: Some(side),
            // What is split is one linear layer, whichever it is.
            stage: matrix.stage.rated_as(),
            reused: matrix.reused,
            packed,
            rate: curve(&rates),
        }
    };
    matrices.into_iter().map(of_matrix).collect()
}

/// More rows take less time by so much at most: kernels are not alike for all rows.
const LESS_WITH_MORE: f64 = 0.25;

/// Has more rows take no less time, but by what kernels may differ. Each number of rows is measured in a run of its own, at the
/// pace of its moment, and a moment that was wrong would otherwise tell a rate that no product has. A GPU is timed by its own
/// clock.
fn mend_wrong_moments(rates: &mut Rates) {
    let seconds = |(rows, rates): (&u64, &Vec<f64>)| *rows as f64 / median(rates);
    let measured: Vec<f64> = rates.iter().map(seconds).collect();
    let mended = without_falls(&measured, LESS_WITH_MORE);
    for ((_, rates), (was, is)) in rates.iter_mut().zip(measured.iter().zip(mended)) {
        if *was != is {
            rates.iter_mut().for_each(|rate| *rate *= was / is);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::program::{Gemm, Stage};

    /// A product with weights of a million elements that took so long.
    fn read(seconds: f64) -> Timed {
        let gemms = [Gemm { n: 1000, k: 600 }, Gemm { n: 400, k: 1000 }];
        let of = (ResourceKind::Gpu, Stage::Finish);
        Timed::linear(of, (1, &gemms), (seconds, 2.0))
    }

    #[test]
    fn a_quarter_of_memory_is_left_to_others() {
        let usable = |has_gpu| {
            let [capacity, reserved] = host_memory(128, has_gpu);
            capacity - reserved
        };
        // An emulated device has a quarter, a GPU its own.
        assert_eq!([false, true].map(usable), [64, 96]);
    }

    #[test]
    fn more_bytes_take_no_less_time() {
        let rates = Rates::from([(10, vec![2.0]), (20, vec![5.0, 4.0, 10.0]), (40, vec![8.0])]);
        // 5, 4 and 5 seconds: the first is what the second took.
        let expected = Rates::from([(10, vec![2.5]), (20, vec![5.0, 4.0, 10.0]), (40, vec![8.0])]);
        assert_eq!(not_held_up(rates), expected);
    }

    #[test]
    fn how_far_two_clocks_are_apart_is_in_no_hand_off() {
        // Twenty microseconds either way; the host's clock is thirty late.
        let seen = |us: &[f64]| us.iter().map(|us| us * 1e-6).collect();
        let found = Handoffs {
            on_card: true,
            between_streams: seen(&[2.0, 3.0, 4.0]),
            from_streams: seen(&[49.0, 50.0, 51.0]),
            to_streams: seen(&[-11.0, -10.0, -9.0, -10.0]),
            others: Vec::new(),
        };
        let (handoff, between) = handoffs(&found, false);
        assert!((handoff.value.0 - 20e-6).abs() < 1e-9, "{handoff:?}");
        assert!((between.expect("streams").value.0 - 3e-6).abs() < 1e-9);
    }

    #[test]
    fn a_wrong_moment_makes_no_rate_that_no_product_has() {
        // Rows by seconds: 1, 2, 2, 2, 4; and of the fourth three runs in a third of the time.
        let rates = |rows: u64, seconds: &[f64]| {
            let rates = seconds.iter().map(|s| rows as f64 / s).collect();
            (rows, rates)
        };
        let mut all = Rates::from([
            rates(1, &[1.0]),
            rates(3, &[2.0]),
            rates(4, &[2.0]),
            rates(6, &[0.6, 0.5, 0.4]),
            rates(8, &[4.0]),
        ]);
        mend_wrong_moments(&mut all);
        let seconds = |rows: u64| rows as f64 / median(&all[&rows]);
        assert_eq!([1, 3, 4, 6, 8].map(seconds), [1.0, 2.0, 2.0, 2.0, 4.0]);
        // What they are apart by stays.
        assert!((spread(&all[&6]) - spread(&[10.0, 12.0, 15.0])).abs() < 1e-9);
    }

    #[test]
    fn weights_are_read_at_the_rate_of_their_own_type() {
        let [small, large] = [Bytes(50), Bytes(800)];
        let reads = weight_reads(&[
            (Dtype::F16, large, read(4e-3)),
            (Dtype::F32, large, read(4e-3)),
            (Dtype::F16, small, read(2e-3)),
            (Dtype::F16, large, read(16e-3)),
            (Dtype::F16, large, read(8e-3)),
        ]);
        // At the base's pace each took half of its time.
        let points: Vec<_> = reads.iter().map(|r| (r.dtype, r.rate.points())).collect();
        let f16: &[(f64, f64)] = &[(50.0, 2e9), (800.0, 0.5e9)];
        assert_eq!(
            points,
            [(Dtype::F32, &[(800.0, 2e9)][..]), (Dtype::F16, f16)]
        );
    }
}
