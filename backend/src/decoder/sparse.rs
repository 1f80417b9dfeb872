//! Sparse attention whose values are elsewhere: scored, collected and weighed in three steps. What lies
//! between them is [`Picked`](plimsoll_core::sparse::Picked).

use plimsoll_core::sparse::Picked;

use super::cache::CachePart;
use super::error::at_least;
use super::{Decoder, DecoderError, SplitMut};
use crate::kernels::attention::{AttentionScratch, AttentionSpec, Picks, score, weigh};

impl Decoder {
    fn sparse_spec(&self, context_len: usize, picked: &Picked) -> AttentionSpec {
        AttentionSpec {
            picks: Some(picked.picks as usize),
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
    /// them go the positions that are picked, and weights.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn score_step(
        &self,
        mid: &mut [u8],
        parts: &[CachePart<'_>],
        (context_len, picked): (usize, &Picked),
        scratch: &mut AttentionScratch,
    ) -> Result<(), DecoderError> {
        let [queries, positions, weights] = self.sections(mid, picked)?;
        let elements = self.query_elements(picked);
        let mut split = SplitMut::default();
        split.push(queries, elements, self.dtype)?;
        let mut q = vec![0.0; elements];
        split.load(0..elements, &mut q);
        let spec = self.sparse_spec(context_len, picked);
        let first_row = parts.first().map_or(0, |part| part.rows.start);
        let mut picks = Picks::default();
        for part in parts {
            let segment = part.segment(first_row, self.stored);
            let rows = segment.row_start..segment.row_end;
            score(&q, &segment, &spec, rows, scratch, &mut picks)?;
        }
        for (into, position) in words_mut(positions).zip(&picks.positions) {
            *into = position.to_le_bytes();
        }
        for (into, weight) in words_mut(weights).zip(&picks.weights) {
            *into = weight.to_le_bytes();
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
        (context_len, picked): (usize, &Picked),
        scratch: &mut AttentionScratch,
    ) -> Result<(), DecoderError> {
        let [queries, positions, weights] = self.sections(mid, picked)?;
        let picks = Picks {
            positions: words_mut(positions)
                .map(|w| u32::from_le_bytes(*w))
                .collect(),
            weights: words_mut(weights).map(|w| f32::from_le_bytes(*w)).collect(),
        };
        let elements = self.query_elements(picked);
        let mut out = vec![0.0; elements];
        let spec = self.sparse_spec(context_len, picked);
        let first_row = parts.first().map_or(0, |part| part.rows.start);
        for part in parts {
            let segment = part.segment(first_row, self.stored);
            let rows = segment.row_start..segment.row_end;
            weigh(&picks, &segment, &spec, rows, scratch, &mut out)?;
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

fn words_mut(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8; 4]> {
    bytes.as_chunks_mut().0.iter_mut()
}
