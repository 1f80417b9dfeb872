//! Sets of lanes: a bit each.

use plimsoll_core::machine::Machine;

/// Some of a machine's lanes. One GPU's are all in the first word, and the others cost it next to nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LaneSet([u64; WORDS]);

const BITS: usize = u64::BITS as usize;
const WORDS: usize = Machine::MAX_RESOURCES.div_ceil(BITS);

impl LaneSet {
    #[inline]
    pub(crate) fn insert(&mut self, lane: usize) {
        self.0[lane / BITS] |= 1 << (lane % BITS);
    }

    #[inline]
    pub(crate) fn remove(&mut self, lane: usize) {
        self.0[lane / BITS] &= !(1 << (lane % BITS));
    }

    #[inline]
    pub(crate) fn contains(self, lane: usize) -> bool {
        self.0[lane / BITS] >> (lane % BITS) & 1 == 1
    }

    /// Those that are in both.
    #[inline]
    pub(crate) fn and(self, other: LaneSet) -> LaneSet {
        LaneSet(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Each, in order.
    #[inline]
    pub(crate) fn for_each(self, mut each: impl FnMut(usize)) {
        for (word, mut bits) in self.0.into_iter().enumerate() {
            while bits != 0 {
                each(word * BITS + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_every_word_are_told_apart() {
        let mut set = LaneSet::default();
        let last = Machine::MAX_RESOURCES - 1;
        for lane in [5, 0, last, 70] {
            set.insert(lane);
        }
        set.remove(5);
        let lanes = |set: LaneSet| {
            let mut lanes = Vec::new();
            set.for_each(|lane| lanes.push(lane));
            lanes
        };
        assert_eq!(lanes(set), [0, 70, last]);
        let mut other = LaneSet::default();
        other.insert(70);
        other.insert(6);
        assert_eq!(lanes(set.and(other)), [70]);
    }
}
