//! What 4-bit groups add to a task: the same task with them and without.

use std::collections::{BTreeMap, HashMap};

use plimsoll_core::Dtype;
use plimsoll_core::program::Op;

use super::samples::Timed;
use super::stats::{median, spread};

/// Less than this share of a task is not told from nothing; unpacking in registers may cost nothing,
/// or less than the memory that it spares.
const NOTHING: f64 = 0.02;

/// What a task takes longer than the same without groups.
struct Extra {
    seconds: f64,
    /// What is not told from nothing.
    least: f64,
    /// How much longer the other may take from one time to the next.
    noise: f64,
}

/// Elements a second that are unpacked or packed, by elements, of `packed` tasks beside the median of
/// the same tasks among `plain`. Sizes whose tasks differ no more than the same task does from one time to the next tell nothing,
/// where others do.
pub(super) fn rates(
    plain: &[(Dtype, Timed)],
    packed: &[(Dtype, Timed)],
) -> BTreeMap<u64, Vec<f64>> {
    let mut known = HashMap::<(Dtype, Op), Vec<f64>>::new();
    for (dtype, task) in plain {
        let times = known.entry((*dtype, task.op)).or_default();
        times.push(task.seconds());
    }
    let mut extras = BTreeMap::<u64, Vec<Extra>>::new();
    for (dtype, task) in packed {
        let elements = task.op.packed_elements();
        if let Some(times) = known.get(&(*dtype, whole(task.op)))
            && elements > 0
        {
            let alone = median(times);
            extras.entry(elements).or_default().push(Extra {
                seconds: task.seconds() - alone,
                least: NOTHING * alone,
                noise: spread(times) * alone,
            });
        }
    }
    if extras.values().any(|of_size| tells(of_size)) {
        extras.retain(|_, of_size| tells(of_size));
    }
    let rates = |(elements, of_size): (u64, Vec<Extra>)| {
        let rate = |extra: &Extra| elements as f64 / extra.seconds.max(extra.least);
        (elements, of_size.iter().map(rate).collect())
    };
    extras.into_iter().map(rates).collect()
}

/// Whether a size's tasks say what unpacking takes.
fn tells(of_size: &[Extra]) -> bool {
    let middle = |of: fn(&Extra) -> f64| median(&of_size.iter().map(of).collect::<Vec<_>>());
    middle(|extra| extra.seconds) > middle(|extra| extra.noise.max(extra.least))
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
    use plimsoll_core::program::{AttentionPart, ResourceKind};
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

    #[test]
    fn the_difference_of_the_same_task_counts() {
        let plain = [
            attention(8, false, 2.0),
            attention(9, false, 4.0),
            attention(11, false, 3.0),
            attention(11, false, 4.0),
            attention(11, false, 5.0),
        ];
        let packed = [
            attention(8, true, 2.5),
            attention(9, true, 3.0),
            attention(10, true, 3.0),
            attention(11, true, 4.5),
        ];
        let told = rates(&plain, &packed);
        assert_eq!(told[&800], [1600.0]);
        // The second took less, nobody ran the third without, and the last took longer by less than it varies.
        assert_eq!(told.len(), 1, "{told:?}");
        // Where none tells, it costs as good as nothing.
        let nothing = rates(&plain, &packed[1..2]);
        assert_eq!(nothing[&900], [900.0 / (4.0 * NOTHING)]);
    }
}
