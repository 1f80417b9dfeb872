//! Texts of different lengths in one batch: the shorter ones have padding in front (left padding), which
//! is computed like all tokens and which nobody sees.
//!
//! A row of the cache is attended to from its text's first token on, as if there were nothing before, so
//! a text gives the same bits alone and beside longer ones.

use std::ops::Range;

use plimsoll_core::model::ModelSpec;
use plimsoll_core::sparse;

/// Tokens of padding in front of each sequence of a batch; none in front of those that are not listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Padding<'a>(pub &'a [u32]);

impl Padding<'_> {
    /// The padding of a sequence.
    pub(super) fn of(&self, sequence: usize) -> usize {
        self.0.get(sequence).copied().unwrap_or(0) as usize
    }

    /// Cuts rows of the cache, `kv_heads` a sequence, into runs of the same padding.
    pub(super) fn runs(
        &self,
        rows: Range<usize>,
        kv_heads: usize,
    ) -> impl Iterator<Item = (Range<usize>, usize)> {
        let mut start = rows.start;
        std::iter::from_fn(move || {
            let padding = self.of(start / kv_heads);
            let differs = |row: &usize| self.of(row / kv_heads) != padding;
            let end = (start..rows.end).find(differs).unwrap_or(rows.end);
            let run = start..end;
            start = end;
            (!run.is_empty()).then_some((run, padding))
        })
    }
}

/// What a decode step sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sight<'a> {
    /// Positions of the cache up to the newest token, padding among them.
    pub context_len: usize,
    /// The share of past tokens whose values are read; see [`plimsoll_core::sparse`].
    pub share: f64,
    /// Padding in front of each sequence of the batch.
    pub padding: Padding<'a>,
}

impl Sight<'_> {
    /// Positions of a row with so much padding, and how many values of what the model sees of its past it
    /// reads; none: all.
    pub(super) fn after(&self, padding: usize, model: &ModelSpec) -> (usize, Option<usize>) {
        let context_len = self.context_len - padding;
        let past = model.past_seen(context_len as u32 - 1);
        let picks = sparse::picks(self.share, past);
        (context_len, picks.map(|picks| picks as usize))
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::model::registry;

    use super::*;

    #[test]
    fn rows_of_neighbours_with_equal_padding_are_one_run() {
        let padding = Padding(&[3, 3, 0]);
        let runs: Vec<_> = padding.runs(1..9, 2).collect();
        assert_eq!(runs, [(1..4, 3), (4..9, 0)]);
        assert_eq!(padding.runs(4..4, 2).count(), 0);
        assert_eq!(Padding::default().runs(0..6, 2).count(), 1);
    }

    #[test]
    fn a_padded_row_picks_what_it_would_alone() {
        let sight = Sight {
            context_len: 31,
            share: 0.5,
            padding: Padding(&[20, 0]),
        };
        let mut model = registry::find("opt-125m").expect("registered");
        assert_eq!(sight.after(20, &model), (11, Some(5)));
        assert_eq!(sight.after(0, &model), (31, Some(15)));
        let dense = Sight {
            share: 1.0,
            ..sight
        };
        assert_eq!(dense.after(20, &model), (11, None));
        model.sliding_window = Some(9);
        assert_eq!(sight.after(0, &model), (31, Some(4)));
    }
}
