//! What 4-bit groups add to a task: the same task with them and without.

use std::collections::{BTreeMap, HashMap};

use plimsoll_core::Dtype;
use plimsoll_core::hardware::Curve;
use plimsoll_core::program::{Op, ResourceKind};

use super::assemble::MEASURED;
use super::samples::Timed;
use super::stats::{median, spread};

/// Less than this share of a task is not told from nothing; unpacking in registers may cost nothing,
/// or less than the memory that it spares.
const NOTHING: f64 = 0.02;

/// What tasks of a size take longer than the same without groups.
#[derive(Debug, Clone, Copy)]
struct Extra {
    elements: f64,
    /// In the middle of them.
    seconds: f64,
    /// What is not told from nothing: how much the same task differs from one time to the next, and a share of it at least.
    noise: f64,
}

/// Elements a second that are unpacked or packed, over elements, by `packed` tasks of the device beside the median of the same tasks
/// among `plain`: a fixed time and a rate. Single differences say little of small sizes, so all sizes tell of these two, each by
/// how sure it is. None where no task is there with groups and without.
pub(super) fn rate(plain: &[(Dtype, Timed)], packed: &[(Dtype, Timed)]) -> Option<Curve> {
    let extras = extras(plain, packed);
    let (first, last) = (extras.first()?.elements, extras.last()?.elements);
    let (fixed, each) = line(&extras);
    let sizes = (0..).map(|power| first * 4_f64.powi(power));
    let sizes = sizes.take_while(|size| *size < last).chain([last]);
    let fitted = |elements: f64| fixed + each * elements;
    let points = sizes.map(|elements| (elements, elements / fitted(elements)));
    // Twice the middle deviation is as wide as the middle half, of those that tell.
    let off = extras.iter().filter(|it| fitted(it.elements) > it.noise);
    let off = off.map(|it| (it.seconds / fitted(it.elements) - 1.0).abs());
    let off: Vec<f64> = off.collect();
    let spread = (!off.is_empty()).then(|| 2.0 * median(&off));
    let curve = Curve::new(points.collect(), MEASURED, spread);
    Some(curve.expect("positive rates at ascending sizes"))
}

/// By size, ascending.
fn extras(plain: &[(Dtype, Timed)], packed: &[(Dtype, Timed)]) -> Vec<Extra> {
    let mut known = HashMap::<(Dtype, Op), Vec<f64>>::new();
    let on_device = |(_, task): &&(Dtype, Timed)| task.kind == ResourceKind::Gpu;
    for (dtype, task) in plain.iter().filter(on_device) {
        let times = known.entry((*dtype, task.op)).or_default();
        times.push(task.seconds());
    }
    let mut by_size = BTreeMap::<u64, Vec<(f64, f64)>>::new();
    for (dtype, task) in packed.iter().filter(on_device) {
        let elements = task.op.packed_elements();
        if let Some(times) = known.get(&(*dtype, whole(task.op)))
            && elements > 0
        {
            let alone = median(times);
            let noise = alone * spread(times).max(NOTHING);
            let of_size = by_size.entry(elements).or_default();
            of_size.push((task.seconds() - alone, noise));
        }
    }
    let of_size = |(elements, of_size): (u64, Vec<(f64, f64)>)| {
        let middle =
            |of: fn(&(f64, f64)) -> f64| median(&of_size.iter().map(of).collect::<Vec<_>>());
        Extra {
            elements: elements as f64,
            seconds: middle(|it| it.0),
            noise: middle(|it| it.1),
        }
    };
    by_size.into_iter().map(of_size).collect()
}

/// The fixed time and the time of an element, none of them negative, from which the sizes are least far off in all, each in terms of
/// its noise: least absolute deviations, which a few wrong moments do not move. An element takes some time at least, since sizes
/// that were not measured may be much larger: so much that none of these would have shown it.
fn line(extras: &[Extra]) -> (f64, f64) {
    let off = |(fixed, each): (f64, f64)| -> f64 {
        let off = |it: &Extra| (it.seconds - fixed - each * it.elements).abs() / it.noise;
        extras.iter().map(off).sum()
    };
    // The best line goes through two sizes, or through one and has no fixed time, or nothing but that.
    let through_one = extras
        .iter()
        .flat_map(|it| [(it.seconds, 0.0), (0.0, it.seconds / it.elements)]);
    let through_two = extras.iter().enumerate().flat_map(|(index, one)| {
        extras[index + 1..].iter().map(move |other| {
            let each = (other.seconds - one.seconds) / (other.elements - one.elements);
            (one.seconds - each * one.elements, each)
        })
    });
    let lines = through_one.chain(through_two).chain([(0.0, 0.0)]);
    let lines = lines.filter(|(fixed, each)| *fixed >= 0.0 && *each >= 0.0);
    let best = lines.min_by(|a, b| off(*a).total_cmp(&off(*b)));
    let (fixed, each) = best.unwrap_or_default();
    let unseen = extras.iter().map(|it| it.noise / 2.0 / it.elements);
    (fixed, each.max(unseen.fold(f64::INFINITY, f64::min)))
}

/// The same work without compression.
fn whole(mut op: Op) -> Op {
    match &mut op {
        Op::Linear {
            compressed,
            packed_elements,
            ..
        } => (*compressed, *packed_elements) = (false, 0),
        Op::Attention { compressed, .. } => *compressed = false,
        Op::Move { .. }
        | Op::MoveParts { .. }
        | Op::Gather { .. }
        | Op::Embed { .. }
        | Op::Span(_)
        | Op::Barrier => {}
    }
    op
}

#[cfg(test)]
mod tests {
    use plimsoll_core::program::AttentionPart;
    use plimsoll_core::trace::Span;
    use plimsoll_core::units::Seconds;

    use super::*;

    fn attention(context_len: u32, compressed: bool, seconds: f64) -> (Dtype, Timed) {
        let task = Timed {
            kind: ResourceKind::Gpu,
            op: Op::Attention {
                part: AttentionPart::Whole,
                rows: 5,
                group: 1,
                head_dim: 10,
                query_len: 1,
                context_len,
                seen_len: context_len,
                value_len: context_len,
                element_bytes: 2,
                compressed,
            },
            span: Span {
                start: Seconds(1.0),
                end: Seconds(1.0 + seconds),
            },
            pace: 1.0,
        };
        (Dtype::F16, task)
    }

    /// Each as long as the same task and so much more.
    fn with_extra(of: impl Fn(f64) -> f64) -> Vec<(Dtype, Timed)> {
        let contexts = [8, 16, 64, 256];
        let task = |context: u32| attention(context, true, 2.0 + of(100.0 * f64::from(context)));
        contexts.map(task).to_vec()
    }

    #[test]
    fn a_fixed_time_and_a_rate_are_found_in_spite_of_a_wrong_moment() {
        let plain = [8, 16, 64, 256].map(|context| attention(context, false, 2.0));
        let mut packed = with_extra(|elements| 0.5 + elements / 1e4);
        // Nobody ran this one without.
        packed.push(attention(10, true, 99.0));
        let found = rate(&plain, &packed).expect("four sizes");
        for elements in [800.0, 3200.0, 12_800.0, 25_600.0] {
            let expected = elements / (0.5 + elements / 1e4);
            assert!(
                (found.at(elements) / expected - 1.0).abs() < 1e-9,
                "{elements}"
            );
        }
        packed[1] = attention(16, true, 7.0);
        let again = rate(&plain, &packed).expect("four sizes").at(3200.0);
        assert!((again / found.at(3200.0) - 1.0).abs() < 1e-9, "{again}");
        assert!(rate(&plain, &[]).is_none());
    }

    /// Unpacking in registers takes no time, and the memory that it spares takes less.
    #[test]
    fn what_takes_no_longer_costs_next_to_nothing() {
        let plain = [8, 16, 64, 256].map(|context| attention(context, false, 2.0));
        let found = rate(&plain, &with_extra(|_| -0.1)).expect("four sizes");
        let seconds = 25_600.0 / found.at(25_600.0);
        assert!((seconds - NOTHING).abs() < 1e-12, "{seconds}");
        assert_eq!(found.spread, None, "nothing tells");
        // The CPU's own tasks are no device's.
        let on_cpu = |(dtype, task): (Dtype, Timed)| {
            let kind = ResourceKind::Cpu;
            (dtype, Timed { kind, ..task })
        };
        assert!(rate(&plain.map(on_cpu), &with_extra(|_| 1.0)).is_none());
    }
}
