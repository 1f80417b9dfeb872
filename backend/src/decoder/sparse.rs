//! Sparse attention whose values are elsewhere: scored, collected and weighed in three steps. What lies
//! between them is [`Picked`](plimsoll_core::sparse::Picked).

use plimsoll_core::sparse::Picked;

use super::attend::SCRATCH;
use super::cache::CachePart;
use super::error::at_least;
use super::{Decoder, DecoderError, Sight, SplitMut};
use crate::kernels::attention::{AttentionSpec, Picks, score, weigh};

impl Decoder {
    /// The attention of rows of so many positions that pick so many; none: all that they see.
    fn sparse_spec(&self, (context_len, picks): (usize, Option<usize>)) -> AttentionSpec {
        let past = self.model.past_seen(context_len as u32 - 1) as usize;
        AttentionSpec {
            picks: Some(picks.unwrap_or(past)),
            ..self.row_spec(1, context_len)
        }
    }

    /// Bytes of the queries of these rows.
    fn query_bytes(&self, picked: &Picked) -> usize {
        self.query_elements(picked) * self.dtype.size_bytes() as usize
    }

    fn query_elements(&self, picked: &Picked) -> usize {
        picked.rows as usize * self.group() * self.head_dim()
    }

    /// Scores all keys of the parts' rows. `mid` has their queries, `[row][group * head_dim]`; behind
    /// them go the positions that are picked, and weights. A row that has padding picks fewer than there
    /// is room for; its first position fills the rest.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn score_step(
        &self,
        mid: &mut [u8],
        parts: &[CachePart<'_>],
        (sight, picked): (Sight<'_>, &Picked),
    ) -> Result<(), DecoderError> {
        let [queries, positions, weights] = self.sections(mid, picked)?;
        let elements = self.query_elements(picked);
        let mut split = SplitMut::default();
        split.push(queries, elements, self.dtype)?;
        let mut q = vec![0.0; elements];
        split.load(0..elements, &mut q);
        let [position_bytes, weight_bytes] = row_bytes(picked);
        let first_row = parts.first().map_or(0, |part| part.rows.start);
        let mut picks = Picks::default();
        for part in parts {
            for (run, padding) in sight.padding.runs(part.rows.clone(), self.kv_heads()) {
                let spec = self.sparse_spec(sight.after(padding, &self.model));
                let part = part.starting_at(padding, self.head_bytes());
                let segment = part.segment(first_row, self.stored);
                let rows = run.start - first_row..run.end - first_row;
                SCRATCH.with_borrow_mut(|scratch| {
                    score(&q, &segment, &spec, rows.clone(), scratch, &mut picks)
                })?;
                for row in rows {
                    let (own, row_weights) = picks.of(&spec, row);
                    let own = own.iter().copied().chain(std::iter::repeat(0));
                    let into = &mut positions[row * position_bytes..][..position_bytes];
                    for (into, position) in words_mut(into).zip(own) {
                        *into = (position + padding as u32).to_le_bytes();
                    }
                    let into = &mut weights[row * weight_bytes..][..weight_bytes];
                    for (into, weight) in words_mut(into).zip(row_weights) {
                        *into = weight.to_le_bytes();
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds up the values that were picked, which lie in turn at the parts' first positions, and the
    /// newest; the result takes the place of the queries in `mid`.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn weigh_step(
        &self,
        mid: &mut [u8],
        parts: &[CachePart<'_>],
        (sight, picked): (Sight<'_>, &Picked),
    ) -> Result<(), DecoderError> {
        let [queries, _, weights] = self.sections(mid, picked)?;
        let elements = self.query_elements(picked);
        let mut out = vec![0.0; elements];
        let [_, weight_bytes] = row_bytes(picked);
        let first_row = parts.first().map_or(0, |part| part.rows.start);
        let mut picks = Picks::default();
        for part in parts {
            for (run, padding) in sight.padding.runs(part.rows.clone(), self.kv_heads()) {
                let (_, own) = sight.after(padding, &self.model);
                let spec = self.sparse_spec((sight.context_len, own));
                picks.resize(&spec, picked.rows as usize);
                let rows = run.start - first_row..run.end - first_row;
                for row in rows.clone() {
                    let from = &mut weights[row * weight_bytes..][..weight_bytes];
                    for (into, from) in picks
                        .weights_mut(&spec, row)
                        .iter_mut()
                        .zip(words_mut(from))
                    {
                        *into = f32::from_le_bytes(*from);
                    }
                }
                let segment = part.segment(first_row, self.stored);
                SCRATCH.with_borrow_mut(|scratch| {
                    weigh(&picks, &segment, &spec, rows, scratch, &mut out)
                })?;
            }
        }
        let mut split = SplitMut::default();
        split.push(queries, elements, self.dtype)?;
        split.store(0..elements, &out);
        Ok(())
    }

    /// Queries, positions and weights of the rows.
    fn sections<'m>(
        &self,
        mid: &'m mut [u8],
        picked: &Picked,
    ) -> Result<[&'m mut [u8]; 3], DecoderError> {
        let queries = self.query_bytes(picked);
        let positions = picked.positions_bytes().0 as usize;
        let weights = picked.weights_bytes().0 as usize;
        let needed = queries + positions + weights;
        at_least(
            "queries, positions and weights, in bytes",
            needed,
            mid.len(),
        )?;
        let (queries, rest) = mid.split_at_mut(queries);
        let (positions, rest) = rest.split_at_mut(positions);
        Ok([queries, positions, &mut rest[..weights]])
    }

    /// Collects the values that the parts' rows have picked: `mid` has their positions, `[row][pick]`;
    /// behind them go the values of each part in turn, as stored, `[pick][row][head]`.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn gather_values(
        &self,
        mid: &mut [u8],
        parts: &[CachePart<'_>],
        picked: &Picked,
    ) -> Result<(), DecoderError> {
        let head_bytes = self.head_bytes();
        let picks = picked.picks as usize;
        let positions = picked.positions_bytes().0 as usize;
        let needed = positions + picked.rows as usize * picks * head_bytes;
        at_least("positions and values, in bytes", needed, mid.len())?;
        let (positions, mut values) = mid.split_at_mut(positions);
        let mut positions = words_mut(positions).map(|w| u32::from_le_bytes(*w) as usize);
        for part in parts {
            let count = part.rows.len();
            let (of_part, rest) = values.split_at_mut(picks * count * head_bytes);
            for row in 0..count {
                for pick in 0..picks {
                    let position = positions.next().unwrap_or(0);
                    let at = (pick * count + row) * head_bytes;
                    let value = part.value(position, row, head_bytes)?;
                    of_part[at..at + head_bytes].copy_from_slice(value);
                }
            }
            values = rest;
        }
        Ok(())
    }
}

/// Bytes of a row's positions and of its weights.
fn row_bytes(picked: &Picked) -> [usize; 2] {
    let one = Picked { rows: 1, ..*picked };
    [one.positions_bytes(), one.weights_bytes()].map(|bytes| bytes.0 as usize)
}

fn words_mut(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8; 4]> {
    bytes.as_chunks_mut().0.iter_mut()
}
