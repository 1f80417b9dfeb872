//! Sets of a model's layers: a bit each.

/// Some of a model's layers, which are computed in turn, without end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerSet {
    words: Vec<u64>,
    count: u16,
}

const BITS: u16 = u64::BITS as u16;

impl LayerSet {
    /// None of so many layers.
    pub fn none(layers: u16) -> LayerSet {
        LayerSet {
            words: vec![0; usize::from(layers.div_ceil(BITS))],
            count: 0,
        }
    }

    /// Those of so many layers of which a condition holds.
    pub fn those(layers: u16, holds: impl Fn(u16) -> bool) -> LayerSet {
        let mut set = LayerSet::none(layers);
        (0..layers).filter(|layer| holds(*layer)).for_each(|layer| {
            set.set(layer, true);
        });
        set
    }

    /// Puts one in, or takes it out.
    #[inline]
    pub fn set(&mut self, layer: u16, is_in: bool) {
        let word = &mut self.words[usize::from(layer / BITS)];
        let bit = 1 << (layer % BITS);
        if (*word & bit != 0) == is_in {
            return;
        }
        *word ^= bit;
        match is_in {
            true => self.count += 1,
            false => self.count -= 1,
        }
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Whether another set has one of them too.
    pub fn meets(&self, other: &LayerSet) -> bool {
        let mut words = self.words.iter().zip(&other.words);
        words.any(|(a, b)| a & b != 0)
    }

    /// The first that is computed when `layer` is next, which may be itself.
    #[inline]
    pub fn first_from(&self, layer: u16) -> Option<u16> {
        let (word, all) = (usize::from(layer / BITS), u64::MAX);
        let later = self.first_in(word, all << (layer % BITS));
        later.or_else(|| self.first_in(0, all))
    }

    /// The last that is computed before `layer` is computed again; itself only where no other is in.
    #[inline]
    pub fn last_before(&self, layer: u16) -> Option<u16> {
        let (word, all) = (usize::from(layer / BITS), u64::MAX);
        let earlier = self.last_in(word, !(all << (layer % BITS)));
        earlier.or_else(|| self.last_in(self.words.len() - 1, all))
    }

    /// The lowest bit from a word on, of which only those of the mask count.
    #[inline]
    fn first_in(&self, from: usize, mask: u64) -> Option<u16> {
        let words = self.words.iter().enumerate().skip(from);
        let mut masked = words.map(|(at, word)| (at, if at == from { word & mask } else { *word }));
        let (at, word) = masked.find(|(_, word)| *word != 0)?;
        Some(at as u16 * BITS + word.trailing_zeros() as u16)
    }

    /// The highest bit up to a word, of which only those of the mask count.
    #[inline]
    fn last_in(&self, to: usize, mask: u64) -> Option<u16> {
        let words = self.words[..=to].iter().enumerate().rev();
        let mut masked = words.map(|(at, word)| (at, if at == to { word & mask } else { *word }));
        let (at, word) = masked.find(|(_, word)| *word != 0)?;
        Some(at as u16 * BITS + (BITS - 1 - word.leading_zeros() as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_first_and_last_is_that_of_a_loop_over_all_layers() {
        for layers in [1, 9, 63, 64, 65, 128, 200] {
            for step in [1, 3, 7, 63, 64, 90] {
                let set = LayerSet::those(layers, |layer| layer % step == step / 2);
                let all: Vec<u16> = (0..layers).filter(|l| l % step == step / 2).collect();
                assert_eq!(usize::from(set.count()), all.len());
                for from in 0..layers {
                    let turn = |layer: &u16| (layer + layers - from) % layers;
                    let first = all.iter().copied().min_by_key(turn);
                    assert_eq!(set.first_from(from), first, "{layers} {step} {from}");
                    let others = all.iter().copied().filter(|layer| *layer != from);
                    let last = others.max_by_key(turn);
                    let last = last.or(first);
                    assert_eq!(set.last_before(from), last, "{layers} {step} {from}");
                }
            }
        }
    }

    #[test]
    fn putting_in_twice_counts_once() {
        let mut set = LayerSet::none(70);
        let other = LayerSet::those(70, |layer| layer == 69);
        [69, 69, 3].iter().for_each(|layer| set.set(*layer, true));
        assert_eq!((set.count(), set.meets(&other)), (2, true));
        [69, 69].iter().for_each(|layer| set.set(*layer, false));
        assert_eq!((set.count(), set.meets(&other)), (1, false));
    }
}
