//! The stages that are matrix products and what stands around them, and the embedding.

use std::ops::Range;

use plimsoll_core::model::{Norm, NormPosition, Positions, TensorRole};

use super::activations::Activations;
use super::error::at_least;
use super::parallel::Team;
use super::{BlockTensors, Decoder, DecoderError, NewCachePart, Padding, Split, SplitMut, TILE};
use crate::kernels::KernelError;
use crate::kernels::activation::{activate, activate_gate};
use crate::kernels::argmax::argmax;
use crate::kernels::draw::Sampling;
use crate::kernels::embed::{Table, embed};
use crate::kernels::linear::LinearWeight;
use crate::kernels::norm::{NormWeight, layer_norm, rms_norm};
use crate::kernels::residual;
use crate::kernels::simd::LANES;

/// Rows of a tile from which on a thread multiplies them as fast as 128.
const OWN_ROWS: usize = 64;

/// The tokens that a stage computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Sequences.
    pub sequences: usize,
    /// New tokens of each.
    pub query_len: usize,
    /// Position of the first new token of each in the cache.
    pub position: usize,
    /// Padding in front of each sequence, in tokens.
    pub padding: Padding<'a>,
}

/// How the next token of each sequence is chosen.
#[derive(Debug, Clone, Copy)]
pub enum Choice<'a> {
    /// The likeliest.
    Greedy,
    /// Drawn, by a number in 0..1 for each sequence.
    Drawn(&'a Sampling, &'a [f64]),
    /// These, a token for each sequence.
    Given(&'a [u32]),
}

/// What a head gives.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct HeadOutput {
    /// The next token of each sequence.
    pub tokens: Vec<u32>,
    /// `[sequence][vocab_size]`, where they were asked for.
    pub logits: Vec<f32>,
}

/// Converting and storing a key's or value's element takes as long as so many floating-point operations of a product.
const FLOPS_A_VALUE: u64 = 10;

/// New keys and values of a tile.
pub(super) type NewTile = (Range<usize>, [Activations; 2]);

impl Batch<'_> {
    pub(super) fn tokens(&self) -> usize {
        self.sequences * self.query_len
    }

    /// A token's position in its own text, which begins after the padding; that of padding is 0.
    fn place(&self, token: usize) -> usize {
        let (sequence, t) = (token / self.query_len, token % self.query_len);
        (self.position + t).saturating_sub(self.padding.of(sequence))
    }

    /// First tokens and counts of the tiles.
    pub(super) fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let tokens = self.tokens();
        let starts = (0..tokens).step_by(TILE);
        starts.map(move |start| start..tokens.min(start + TILE))
    }

    /// The same for so many threads: where there are [`OWN_ROWS`] for each, as many tiles for one as for the others, cut
    /// evenly.
    fn tiles_of(&self, threads: usize) -> Vec<Range<usize>> {
        let tokens = self.tokens();
        if threads < 2 || tokens < threads * OWN_ROWS {
            return self.tiles().collect();
        }
        let count = threads * tokens.div_ceil(threads * TILE);
        let bound = |i: usize| tokens.min((i * tokens / count).next_multiple_of(LANES));
        (0..count).map(|i| bound(i)..bound(i + 1)).collect()
    }
}

impl Batch<'_> {
    /// The positions, among the new ones, of tiles that follow on each other.
    fn new_positions(&self, tiles: &[NewTile]) -> Range<usize> {
        let (Some((first, _)), Some((last, _))) = (tiles.first(), tiles.last()) else {
            return 0..0;
        };
        let sequence = first.start / self.query_len;
        match last.end <= (sequence + 1) * self.query_len {
            true => first.start % self.query_len..last.end - sequence * self.query_len,
            false => 0..self.query_len,
        }
    }
}

impl Decoder {
    /// Does all tiles of a batch, each with its piece of `out`, where a token has `width` elements. Where there are
    /// tokens enough, each thread has a tile by itself, and they meet once; else all share a tile. `then` is called with
    /// what came of some, in order.
    pub(super) fn each_tile<T: Send>(
        &self,
        batch: Batch<'_>,
        (out, width): (&mut SplitMut<'_>, usize),
        work: impl Fn(&Team, Range<usize>, &mut SplitMut<'_>) -> Result<T, DecoderError> + Sync,
        mut then: impl FnMut(Vec<(Range<usize>, T)>) -> Result<(), DecoderError>,
    ) -> Result<(), DecoderError> {
        let threads = self.team.threads();
        let tiles = batch.tiles_of(threads);
        let mut pieces = out.cut(tiles.iter().map(|tile| tile.len() * width));
        let mut tiles: Vec<_> = tiles.into_iter().zip(&mut pieces).collect();
        let alone = self.team.alone();
        for round in tiles.chunks_mut(threads) {
            let whole = round.len() == threads;
            let round = round.iter_mut().map(|(tile, piece)| (tile.clone(), piece));
            let done = match whole {
                true => self
                    .team
                    .each(round, |tile, piece| work(&alone, tile, piece))?,
                false => round
                    .map(|(tile, piece)| Ok((tile.clone(), work(&self.team, tile, piece)?)))
                    .collect::<Result<_, DecoderError>>()?,
            };
            then(done)?;
        }
        Ok(())
    }

    pub(super) fn normalised(
        &self,
        x: &[f32],
        norm: NormWeight<'_>,
    ) -> Result<Activations, DecoderError> {
        let mut y = Activations::of(x.len());
        match self.model.norm {
            Norm::LayerNorm => layer_norm(x, norm, &mut y),
            Norm::RmsNorm => rms_norm(x, norm, &mut y),
        }?;
        Ok(y)
    }

    /// Writes the embeddings of `ids`, `[sequence][position]`, to `hidden`.
    ///
    /// # Errors
    /// Where operands do not fit each other, or an id is not in the vocabulary.
    pub fn embed(
        &self,
        block: &BlockTensors<'_>,
        batch: Batch<'_>,
        ids: &[u32],
        hidden: &mut SplitMut<'_>,
    ) -> Result<(), DecoderError> {
        let width = self.hidden_size();
        at_least("token ids", batch.tokens(), ids.len())?;
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        let table = Table {
            matrix: block.get(TensorRole::TokenEmbedding)?,
            width: self.model.embedding_size as usize,
        };
        let looked_up = |team: &Team, tile: Range<usize>, hidden: &mut SplitMut<'_>| {
            let m = tile.len();
            let zeros = vec![0; m];
            let mut x = Activations::of(m * table.width);
            embed(&ids[tile.clone()], &zeros, table, None, &mut x)?;
            if let Some(weight) = block.optional(TensorRole::ProjectIn)? {
                x = team.linear(m, &x, LinearWeight { weight, bias: None })?;
            }
            if let Positions::Learned { offset } = self.model.positions {
                let places = tile.map(|token| batch.place(token) as u32 + offset);
                let places: Vec<u32> = places.collect();
                let matrix = block.get(TensorRole::PositionEmbedding)?;
                let mut rows = Activations::of(m * width);
                embed(&places, &zeros, Table { matrix, width }, None, &mut rows)?;
                residual::add(&mut x, &rows)?;
            }
            hidden.store(0..x.len(), &x);
            Ok(())
        };
        self.each_tile(batch, (hidden, width), looked_up, |_| Ok(()))
    }

    /// Normalises, projects to queries, `[sequence][token][heads * head_dim]`, and appends keys and
    /// values to the parts of the cache. Queries and keys are turned where positions are rotary.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn project(
        &self,
        block: &BlockTensors<'_>,
        batch: Batch<'_>,
        hidden: &Split<'_>,
        queries: &mut SplitMut<'_>,
        parts: &mut [NewCachePart<'_>],
    ) -> Result<(), DecoderError> {
        self.check_projected(batch, queries, parts)?;
        self.project_tiles(block, batch, (hidden, queries), |tiles| {
            self.append(batch, &tiles, parts)
        })
    }

    /// Queries, keys and values, tile by tile: queries where they go, the others to `append`.
    pub(super) fn project_tiles(
        &self,
        block: &BlockTensors<'_>,
        batch: Batch<'_>,
        (hidden, queries): (&Split<'_>, &mut SplitMut<'_>),
        append: impl FnMut(Vec<NewTile>) -> Result<(), DecoderError>,
    ) -> Result<(), DecoderError> {
        use TensorRole::{KBias, KWeight, QBias, QWeight, VBias, VWeight};
        let width = self.hidden_size();
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        let weights = [
            block.linear(QWeight, QBias)?,
            block.linear(KWeight, KBias)?,
            block.linear(VWeight, VBias)?,
        ];
        let project = |team: &Team, tile: Range<usize>, queries: &mut SplitMut<'_>| {
            let mut x = Activations::of(tile.len() * width);
            hidden.load(tile.start * width..tile.end * width, &mut x);
            let x = self.attention_input(block, x)?;
            let [mut q, mut k, v] = team.linears(tile.len(), &x, weights)?;
            self.normalise_and_turn((block, batch), tile, [&mut q, &mut k])?;
            queries.store(0..q.len(), &q);
            Ok([k, v])
        };
        self.each_tile(batch, (queries, self.q_size()), project, append)
    }

    /// What attention's projections read of activations.
    pub(super) fn attention_input(
        &self,
        block: &BlockTensors<'_>,
        x: Activations,
    ) -> Result<Activations, DecoderError> {
        use TensorRole::{AttnNormBias, AttnNormWeight};
        if self.model.norm_position == NormPosition::After {
            return Ok(x);
        }
        let norm = block.norm(AttnNormWeight, AttnNormBias, self.model.norm_eps)?;
        self.normalised(&x, norm)
    }

    /// Checks where queries, keys and values go.
    pub(super) fn check_projected(
        &self,
        batch: Batch<'_>,
        queries: &SplitMut<'_>,
        parts: &[NewCachePart<'_>],
    ) -> Result<(), DecoderError> {
        let q_size = self.q_size();
        at_least("room for queries", batch.tokens() * q_size, queries.len())?;
        for part in parts {
            part.check(batch.query_len, self.head_bytes())?;
        }
        Ok(())
    }

    /// Normalises the heads of queries and keys of a tile where the model does, and turns them where positions are rotary.
    pub(super) fn normalise_and_turn(
        &self,
        (block, batch): (&BlockTensors<'_>, Batch<'_>),
        tile: Range<usize>,
        mut queries_and_keys: [&mut Activations; 2],
    ) -> Result<(), DecoderError> {
        if self.model.qk_norm {
            let roles = [TensorRole::QNormWeight, TensorRole::KNormWeight];
            for (heads, weight) in queries_and_keys.iter_mut().zip(roles) {
                let norm = block.unbiased_norm(weight, self.model.norm_eps)?;
                let mut normal = Activations::of(heads.len());
                rms_norm(heads, norm, &mut normal)?;
                **heads = normal;
            }
        }
        if let Some(rotary) = &self.rotary {
            let turns = rotary.turns(tile.map(|token| batch.place(token)));
            for rows in queries_and_keys {
                turns.apply(rows, self.head_dim())?;
            }
        }
        Ok(())
    }

    /// Puts keys and values of tiles, which follow on each other, where they go: each thread those of some positions.
    pub(super) fn append(
        &self,
        batch: Batch<'_>,
        tiles: &[NewTile],
        parts: &mut [NewCachePart<'_>],
    ) -> Result<(), DecoderError> {
        let elements: usize = tiles.iter().map(|(_, [k, v])| k.len() + v.len()).sum();
        let new = batch.new_positions(tiles);
        let parts_of = self.team.parts(new.len(), elements as u64 * FLOPS_A_VALUE);
        let ranges: Vec<_> = parts_of
            .map(|range| new.start + range.start..new.start + range.end)
            .collect();
        let mut own: Vec<_> = ranges.iter().map(|_| Vec::new()).collect();
        for part in parts {
            for (own, piece) in own.iter_mut().zip(part.cut(&ranges)) {
                own.push(piece);
            }
        }
        self.team
            .each(ranges.into_iter().zip(own), |range, mut own| {
                for tile in tiles {
                    self.append_tile(batch, (tile, &range), &mut own)?;
                }
                Ok(())
            })?;
        Ok(())
    }

    /// Puts keys and values of a tile's tokens at some positions of the new ones where they go, in pieces of these
    /// positions.
    fn append_tile(
        &self,
        batch: Batch<'_>,
        ((tile, [k, v]), positions): (&NewTile, &Range<usize>),
        pieces: &mut [NewCachePart<'_>],
    ) -> Result<(), DecoderError> {
        let (head_dim, kv_heads) = (self.head_dim(), self.kv_heads());
        let kv_size = kv_heads * head_dim;
        let heads = k.chunks_exact(kv_size).zip(v.chunks_exact(kv_size));
        for (token, new) in tile.clone().zip(heads) {
            let (sequence, t) = (token / batch.query_len, token % batch.query_len);
            if positions.contains(&t) {
                let place = (sequence * kv_heads, t - positions.start);
                for piece in pieces.iter_mut() {
                    piece.put(place, new, (head_dim, self.stored))?;
                }
            }
        }
        Ok(())
    }

    /// Projects attention's output and adds it to the activations.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn output(
        &self,
        block: &BlockTensors<'_>,
        batch: Batch<'_>,
        attended: &Split<'_>,
        hidden: &mut SplitMut<'_>,
    ) -> Result<(), DecoderError> {
        use TensorRole::{OBias, OWeight};
        let width = self.hidden_size();
        let q_size = self.q_size();
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        at_least(
            "attention's output",
            batch.tokens() * q_size,
            attended.len(),
        )?;
        let weight = block.linear(OWeight, OBias)?;
        let project = |team: &Team, tile: Range<usize>, hidden: &mut SplitMut<'_>| {
            let mut x = Activations::of(tile.len() * width);
            hidden.load(0..x.len(), &mut x);
            let mut a = Activations::of(tile.len() * q_size);
            attended.load(tile.start * q_size..tile.end * q_size, &mut a);
            let o = team.linear(tile.len(), &a, weight)?;
            hidden.store(0..x.len(), &self.attention_end(block, x, &o)?);
            Ok(())
        };
        self.each_tile(batch, (hidden, width), project, |_| Ok(()))
    }

    /// Adds what attention gave to activations.
    pub(super) fn attention_end(
        &self,
        block: &BlockTensors<'_>,
        mut x: Activations,
        o: &[f32],
    ) -> Result<Activations, DecoderError> {
        use TensorRole::{AttnNormBias, AttnNormWeight};
        residual::add(&mut x, o)?;
        if self.model.norm_position == NormPosition::Before {
            return Ok(x);
        }
        let norm = block.norm(AttnNormWeight, AttnNormBias, self.model.norm_eps)?;
        self.normalised(&x, norm)
    }

    /// Computes the MLP and adds it to the activations. What [`Decoder::output`] left has been rounded to their
    /// type, so that tokens do not depend on where it lay in between.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn mlp(
        &self,
        block: &BlockTensors<'_>,
        batch: Batch<'_>,
        hidden: &mut SplitMut<'_>,
    ) -> Result<(), DecoderError> {
        let width = self.hidden_size();
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        let compute = |team: &Team, tile: Range<usize>, hidden: &mut SplitMut<'_>| {
            let mut x = Activations::of(tile.len() * width);
            hidden.load(0..x.len(), &mut x);
            let y = self.mlp_of(team, block, tile.len(), &self.mlp_input(block, &x)?)?;
            hidden.store(0..x.len(), &self.mlp_end(block, x, &y)?);
            Ok(())
        };
        self.each_tile(batch, (hidden, width), compute, |_| Ok(()))
    }

    /// What the MLP reads of activations.
    pub(super) fn mlp_input(
        &self,
        block: &BlockTensors<'_>,
        x: &[f32],
    ) -> Result<Activations, DecoderError> {
        use TensorRole::{MlpNormBias, MlpNormWeight};
        if self.model.norm_position == NormPosition::After {
            return Ok(Activations::copied(x));
        }
        let norm = block.norm(MlpNormWeight, MlpNormBias, self.model.norm_eps)?;
        self.normalised(x, norm)
    }

    /// Adds what the MLP gave to activations.
    pub(super) fn mlp_end(
        &self,
        block: &BlockTensors<'_>,
        mut x: Activations,
        y: &[f32],
    ) -> Result<Activations, DecoderError> {
        use TensorRole::{MlpNormBias, MlpNormWeight};
        residual::add(&mut x, y)?;
        if self.model.norm_position == NormPosition::Before {
            return Ok(x);
        }
        let norm = block.norm(MlpNormWeight, MlpNormBias, self.model.norm_eps)?;
        self.normalised(&x, norm)
    }

    /// The MLP of `m` rows: `down(act(up(x)))`, or where it is gated `down(act(gate(x)) * up(x))`.
    fn mlp_of(
        &self,
        team: &Team,
        block: &BlockTensors<'_>,
        m: usize,
        x: &[f32],
    ) -> Result<Activations, DecoderError> {
        use TensorRole::{DownBias, DownWeight, GateBias, GateWeight, UpBias, UpWeight};
        let up = block.linear(UpWeight, UpBias)?;
        let inner = if self.model.gated_mlp {
            let weights = [up, block.linear(GateWeight, GateBias)?];
            let [up, gate] = team.linears(m, x, weights)?;
            self.inner(up, Some(gate))?
        } else {
            self.inner(team.linear(m, x, up)?, None)?
        };
        team.linear(m, &inner, block.linear(DownWeight, DownBias)?)
    }

    /// The MLP's inner activations.
    pub(super) fn inner(
        &self,
        mut up: Activations,
        gate: Option<Activations>,
    ) -> Result<Activations, DecoderError> {
        match gate {
            Some(mut gate) => {
                activate_gate(self.activation(), &mut gate, &up)?;
                Ok(gate)
            }
            None => {
                activate(self.activation(), &mut up);
                Ok(up)
            }
        }
    }

    /// The next token of each sequence, by its last token's activations.
    ///
    /// # Errors
    /// Where operands do not fit each other, or a logit is no number.
    pub fn head(
        &self,
        block: &BlockTensors<'_>,
        batch: Batch<'_>,
        hidden: &Split<'_>,
        (choice, with_logits): (Choice<'_>, bool),
    ) -> Result<HeadOutput, DecoderError> {
        use TensorRole::{FinalNormBias, FinalNormWeight, LmHead, LmHeadBias, ProjectOut};
        let width = self.hidden_size();
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        let mut output = HeadOutput::default();
        for start in (0..batch.sequences).step_by(TILE) {
            let m = TILE.min(batch.sequences - start);
            let mut x = Activations::of(m * width);
            for (sequence, x) in (start..).zip(x.chunks_exact_mut(width)) {
                let last = (sequence + 1) * batch.query_len - 1;
                hidden.load(last * width..(last + 1) * width, x);
            }
            if self.model.final_norm {
                let epsilon = self.model.norm_eps;
                let norm = block.norm(FinalNormWeight, FinalNormBias, epsilon)?;
                x = self.normalised(&x, norm)?;
            }
            if let Some(weight) = block.optional(ProjectOut)? {
                x = self
                    .team
                    .linear(m, &x, LinearWeight { weight, bias: None })?;
            }
            let logits = self.team.linear(m, &x, block.linear(LmHead, LmHeadBias)?)?;
            output.tokens.extend(self.choose(choice, start, &logits)?);
            if with_logits {
                output.logits.extend_from_slice(&logits);
            }
        }
        Ok(output)
    }

    /// The next tokens of sequences from `first` on, by their logits, `[sequence][vocabulary]`.
    pub(crate) fn choose(
        &self,
        choice: Choice<'_>,
        first: usize,
        logits: &[f32],
    ) -> Result<Vec<u32>, DecoderError> {
        let vocabulary = self.model.vocab_size as usize;
        // However they are chosen: who looks at the logits is told as well where one is no number.
        let likeliest = argmax(logits, vocabulary).map_err(|error| match error {
            KernelError::NotANumber { row, column } => DecoderError::NotANumber {
                sequence: first + row,
                token: column,
                dtype: self.dtype,
            },
            error => error.into(),
        })?;
        let rows = logits.chunks_exact(vocabulary);
        let end = first + rows.len();
        match choice {
            Choice::Greedy => Ok(likeliest),
            Choice::Drawn(sampling, uniforms) => {
                at_least("random numbers", end, uniforms.len())?;
                let drawn = rows.zip(&uniforms[first..]);
                let drawn = drawn.map(|(logits, uniform)| sampling.draw(logits, *uniform));
                Ok(drawn.collect::<Result<_, _>>()?)
            }
            Choice::Given(tokens) => {
                at_least("given tokens", end, tokens.len())?;
                Ok(tokens[first..end].to_vec())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_core::compression::Compression;
    use plimsoll_core::{Dtype, model::registry};

    use super::*;

    #[test]
    fn tiles_cover_all_tokens_and_are_as_many_for_one_thread_as_for_another() {
        for threads in 1..5 {
            for tokens in [1, 63, 127, 128, 129, 257, 300, 1000] {
                let batch = Batch {
                    sequences: 1,
                    query_len: tokens,
                    position: 0,
                    padding: Padding(&[0]),
                };
                let tiles = batch.tiles_of(threads);
                let ends: Vec<usize> = tiles.iter().map(|tile| tile.end).collect();
                let starts: Vec<usize> = tiles.iter().map(|tile| tile.start).collect();
                assert_eq!((starts[0], ends[ends.len() - 1]), (0, tokens));
                assert_eq!(starts[1..], ends[..ends.len() - 1]);
                assert!(tiles.iter().all(|tile| (1..=TILE).contains(&tile.len())));
                if threads > 1 && tokens >= threads * OWN_ROWS {
                    assert_eq!(tiles.len() % threads, 0, "{threads}, {tokens}");
                    // Ends are rounded to whole vectors.
                    let least = OWN_ROWS - LANES + 1;
                    assert!(tiles.iter().all(|tile| tile.len() >= least), "{tiles:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_is_said_by_its_place_in_the_batch() {
        let model = registry::find("opt-125m").expect("registered");
        let decoder = Decoder::new(&model, Dtype::F16, Compression::default(), 1).expect("OPT");
        let vocabulary = model.vocab_size as usize;
        let mut logits = vec![0.0; 2 * vocabulary];
        logits[vocabulary + 3] = f32::NAN;
        let error = decoder.choose(Choice::Greedy, TILE, &logits);
        let said = error.expect_err("a NaN").to_string();
        let expected = format!("logit 3 of sequence {} of the batch", TILE + 1);
        assert!(said.starts_with(&expected), "{said}");
    }
}
