//! Many small copies as few.

use crate::cuda::CopyRows;
use crate::cuda::card::PITCH_MOST;

/// Bytes that go from one address to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub to: u64,
    pub from: u64,
    pub bytes: usize,
}

/// The same as copies: parts that go on where the one before ends are one part, and parts of a size that lie equally far apart on
/// both sides are rows of one copy, where both sides are of one `region`: what lies between regions of page-locked memory is not
/// locked, and no copy may reach over it.
pub(super) fn joined<R: PartialEq>(
    parts: impl IntoIterator<Item = Part>,
    region: impl Fn(u64) -> R,
) -> Vec<CopyRows> {
    let mut whole: Vec<Part> = Vec::new();
    for part in parts {
        match whole.last_mut() {
            Some(last) if goes_on(last, &part) => last.bytes += part.bytes,
            _ => whole.push(part),
        }
    }
    let mut copies: Vec<CopyRows> = Vec::new();
    for part in whole {
        let last = copies.last_mut().filter(|last| {
            region(last.to) == region(part.to) && region(last.from) == region(part.from)
        });
        if !last.is_some_and(|last| takes(last, &part)) {
            copies.push(CopyRows::of(part.to, part.from, part.bytes));
        }
    }
    copies
}

fn goes_on(last: &Part, next: &Part) -> bool {
    let bytes = last.bytes as u64;
    next.to == last.to + bytes && next.from == last.from + bytes
}

/// Has a copy one row more, if this is it.
fn takes(copy: &mut CopyRows, part: &Part) -> bool {
    let pitch = |next: u64, first: u64| {
        let apart = usize::try_from(next.checked_sub(first)?).ok()?;
        let each = apart / copy.rows;
        let fits = apart.is_multiple_of(copy.rows) && (copy.bytes..=PITCH_MOST).contains(&each);
        fits.then_some(each)
    };
    let [Some(to), Some(from)] = [pitch(part.to, copy.to), pitch(part.from, copy.from)] else {
        return false;
    };
    let same = copy.rows == 1 || (to, from) == (copy.to_pitch, copy.from_pitch);
    if part.bytes != copy.bytes || !same {
        return false;
    }
    (copy.to_pitch, copy.from_pitch) = (to, from);
    copy.rows += 1;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All in one region.
    fn one(_: u64) {}

    fn part(to: u64, from: u64, bytes: usize) -> Part {
        Part { to, from, bytes }
    }

    #[test]
    fn neighbours_are_one_copy_and_equal_steps_are_rows() {
        let neighbours = (0..4).map(|i| part(100 + 8 * i, 500 + 8 * i, 8));
        assert_eq!(joined(neighbours, one), [CopyRows::of(100, 500, 32)]);
        let rows = (0..3).map(|i| part(100 + 8 * i, 500 + 50 * i, 8));
        let expected = CopyRows {
            rows: 3,
            to_pitch: 8,
            from_pitch: 50,
            ..CopyRows::of(100, 500, 8)
        };
        // What does not go on equally begins anew, also where it lies before.
        let others = [part(124, 700, 8), part(10, 20, 8), part(18, 28, 4)];
        let expected = [
            expected,
            CopyRows::of(124, 700, 8),
            CopyRows::of(10, 20, 12),
        ];
        assert_eq!(joined(rows.chain(others), one), expected);
    }

    #[test]
    fn no_copy_reaches_from_one_region_to_another() {
        let parts = (0..4).map(|i| part(100 + 8 * i, 500 + 50 * i, 8));
        let copies = joined(parts, |address| address >= 600);
        let rows: Vec<usize> = copies.iter().map(|copy| copy.rows).collect();
        assert_eq!(rows, [2, 2]);
    }

    #[test]
    fn every_byte_goes_where_it_should() {
        let mut state = 1_u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let froms: Vec<u64> = (0..8).map(|_| next(20)).collect();
            let parts = froms
                .iter()
                .zip(0..)
                .map(|(from, to)| part(4 * to, 4 * from, 4));
            let mut found = [0; 8];
            for copy in joined(parts, one) {
                for row in 0..copy.rows {
                    let to = copy.to as usize + row * copy.to_pitch;
                    let from = copy.from as usize + row * copy.from_pitch;
                    (0..copy.bytes / 4).for_each(|i| found[to / 4 + i] = (from / 4 + i) as u64);
                }
            }
            assert_eq!(found.to_vec(), froms);
        }
    }
}
