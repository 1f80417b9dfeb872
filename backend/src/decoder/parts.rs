//! A layer in parts: linear layers whose outputs the CPU and the device compute together, and what joins them.
//!
//! What a part reads and gives is f32, `[token][column]` and `[token][row]`. Every row's sum is the one that it is
//! in the whole layer, and biases are added where parts are joined, so nothing is another bit.

use plimsoll_core::model::TensorRole;
use plimsoll_core::split::Module;

use super::activations::Activations;
use super::error::at_least;
use super::{Batch, BlockTensors, Decoder, DecoderError, NewCachePart, Split, SplitMut};
use crate::kernels::Matrix;
use crate::kernels::linear::LinearWeight;

/// A module's outputs, each part `[token][row]`: rows of one come after those of the one before.
#[derive(Debug, Clone, Default)]
pub struct Parted<'a>(pub Vec<&'a [f32]>);

/// Some rows of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// Their weights, `[rows][columns]`.
    pub weight: Matrix<'a>,
    /// How many.
    pub rows: usize,
    /// Inputs of each.
    pub columns: usize,
}

/// What joins a step, and the input of the next one that it makes.
#[derive(Debug)]
pub struct Joined<'a, 'b> {
    /// The block that the step is of.
    pub block: &'a BlockTensors<'b>,
    /// Its tokens.
    pub batch: Batch<'a>,
}

impl Decoder {
    /// Writes the input of a layer's projections to `into`, `[token][hidden_size]`.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn normalise(
        &self,
        Joined { block, batch }: Joined<'_, '_>,
        hidden: &Split<'_>,
        into: &mut [f32],
    ) -> Result<(), DecoderError> {
        let width = self.hidden_size();
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        at_least("room for an input", batch.tokens() * width, into.len())?;
        for tile in batch.tiles() {
            let rows = tile.start * width..tile.end * width;
            let mut x = Activations::of(rows.len());
            hidden.load(rows.clone(), &mut x);
            into[rows].copy_from_slice(&self.attention_input(block, x)?);
        }
        Ok(())
    }

    /// Writes attention's output to `into` as f32, `[token][heads * head_dim]`.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn attended(
        &self,
        batch: Batch<'_>,
        attended: &Split<'_>,
        into: &mut [f32],
    ) -> Result<(), DecoderError> {
        let all = batch.tokens() * self.group() * self.kv_heads() * self.head_dim();
        at_least("attention's output", all, attended.len())?;
        at_least("room for an input", all, into.len())?;
        attended.load(0..all, &mut into[..all]);
        Ok(())
    }

    /// Computes some rows of a linear layer for `m` tokens, on all threads or on the calling one.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn part(
        &self,
        (m, x): (usize, &[f32]),
        product: Product<'_>,
        (into, with_all): (&mut [f32], bool),
    ) -> Result<(), DecoderError> {
        let Product {
            weight,
            rows,
            columns,
        } = product;
        at_least("the input of a part", m * columns, x.len())?;
        at_least("room for a part's outputs", m * rows, into.len())?;
        let weight = LinearWeight { weight, bias: None };
        let alone = self.team.alone();
        let team = if with_all { &self.team } else { &alone };
        for (x, into) in x[..m * columns]
            .chunks(super::TILE * columns)
            .zip(into[..m * rows].chunks_mut(super::TILE * rows))
        {
            let [y] = team.linears(x.len() / columns, x, [weight])?;
            into.copy_from_slice(&y);
        }
        Ok(())
    }

    /// Puts queries, keys and values of what parts gave where they go.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn join_project(
        &self,
        Joined { block, batch }: Joined<'_, '_>,
        parted: [Parted<'_>; 3],
        (queries, parts): (&mut SplitMut<'_>, &mut [NewCachePart<'_>]),
    ) -> Result<(), DecoderError> {
        self.check_projected(batch, queries, parts)?;
        let modules = [Module::Q, Module::K, Module::V];
        for tile in batch.tiles() {
            let mut projected = [const { Activations::none() }; 3];
            for ((module, parted), all) in modules.iter().zip(&parted).zip(&mut projected) {
                *all = parted.join((tile.clone(), batch.tokens()), (block, module.bias()))?;
            }
            let [mut q, mut k, v] = projected;
            self.normalise_and_turn((block, batch), tile.clone(), [&mut q, &mut k])?;
            queries.store(tile.start * self.q_size()..tile.end * self.q_size(), &q);
            self.append(batch, &[(tile, [k, v])], parts)?;
        }
        Ok(())
    }

    /// Adds attention's projected output to the activations and writes the MLP's input to `into`.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn join_output(
        &self,
        Joined { block, batch }: Joined<'_, '_>,
        parted: Parted<'_>,
        (hidden, into): (&mut SplitMut<'_>, &mut [f32]),
    ) -> Result<(), DecoderError> {
        let width = self.hidden_size();
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        at_least("room for an input", batch.tokens() * width, into.len())?;
        for tile in batch.tiles() {
            let o = parted.join((tile.clone(), batch.tokens()), (block, TensorRole::OBias))?;
            let rows = tile.start * width..tile.end * width;
            let mut x = Activations::of(rows.len());
            hidden.load(rows.clone(), &mut x);
            hidden.store(rows.clone(), &self.attention_end(block, x, &o)?);
            // As the MLP reads them: rounded to their type.
            let mut x = Activations::of(rows.len());
            hidden.load(rows.clone(), &mut x);
            into[rows].copy_from_slice(&self.mlp_input(block, &x)?);
        }
        Ok(())
    }

    /// Writes the MLP's inner activations to `into`.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn join_inner(
        &self,
        Joined { block, batch }: Joined<'_, '_>,
        (up, gate): (Parted<'_>, Parted<'_>),
        into: &mut [f32],
    ) -> Result<(), DecoderError> {
        let width = self.model.intermediate_size as usize;
        at_least("room for an input", batch.tokens() * width, into.len())?;
        for tile in batch.tiles() {
            let all = up.join((tile.clone(), batch.tokens()), (block, TensorRole::UpBias))?;
            let gate = match self.model.gated_mlp {
                true => Some(gate.join(
                    (tile.clone(), batch.tokens()),
                    (block, TensorRole::GateBias),
                )?),
                false => None,
            };
            let inner = self.inner(all, gate)?;
            into[tile.start * width..tile.end * width].copy_from_slice(&inner);
        }
        Ok(())
    }

    /// Adds what the MLP gave to the activations.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    pub fn join_mlp(
        &self,
        Joined { block, batch }: Joined<'_, '_>,
        parted: Parted<'_>,
        hidden: &mut SplitMut<'_>,
    ) -> Result<(), DecoderError> {
        let width = self.hidden_size();
        at_least("the activations", batch.tokens() * width, hidden.len())?;
        for tile in batch.tiles() {
            let y = parted.join(
                (tile.clone(), batch.tokens()),
                (block, TensorRole::DownBias),
            )?;
            let rows = tile.start * width..tile.end * width;
            let mut x = Activations::of(rows.len());
            hidden.load(rows.clone(), &mut x);
            hidden.store(rows, &self.mlp_end(block, x, &y)?);
        }
        Ok(())
    }
}

impl Parted<'_> {
    /// All outputs of some of so many tokens, `[token][row]`, with their bias.
    fn join(
        &self,
        (tokens, all_tokens): (std::ops::Range<usize>, usize),
        (block, bias): (&BlockTensors<'_>, TensorRole),
    ) -> Result<Activations, DecoderError> {
        let bias = block.vector(bias)?.map(|bias| bias.to_vec());
        let mut all = Vec::new();
        for token in tokens {
            let begin = all.len();
            for outputs in &self.0 {
                let rows = outputs.len() / all_tokens;
                all.extend_from_slice(&outputs[token * rows..(token + 1) * rows]);
            }
            if let Some(bias) = &bias {
                at_least("outputs for a bias", bias.len(), all.len() - begin)?;
                all[begin..].iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
        Ok(all.into())
    }
}
