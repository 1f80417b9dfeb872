//! The stages that are products and what stands around them, and the embedding.

use plimsoll_core::model::{NormPosition, Positions, TensorRole};
use plimsoll_core::tier::Tier;

use super::ground::Ground;
use super::issue::Work;
use super::linear::Rows;
use super::supported::held;
use crate::cpu::error::TaskError;
use crate::cuda::launches::{self, Append, Embed, HeldAs, Rotary, activate_gate};

impl<G: Ground> Work<'_, G> {
    /// Writes the embeddings of the batch's tokens to its activations.
    pub(super) fn embed(&self, position: u32) -> Result<(), TaskError> {
        let model = self.turn.model();
        let beside = &self.device.beside;
        let ids = self.turn.ids()?;
        self.put_places(position)?;
        let table = self.need(TensorRole::TokenEmbedding)?;
        let learned = self.tensor(TensorRole::PositionEmbedding)?;
        let projects = self.tensor(TensorRole::ProjectIn)?.is_some();
        let offset = match model.positions {
            Positions::Learned { offset } => offset as usize,
            Positions::Rotary { .. } | Positions::Alibi => 0,
        };
        let of = |y: u64, first: usize, count: usize| Embed {
            dtype: self.turn.dtype(),
            packed: table.packed,
            tokens: ids + 4 * first as u64,
            positions: beside.at.places + 4 * first as u64,
            table: table.address,
            learned: learned.filter(|_| !projects).map_or(0, |t| t.address),
            y,
            count,
            width: table.spec.cols as usize,
            rows: table.spec.rows as usize,
            places: learned.map_or(0, |t| t.spec.rows as usize),
            offset,
        };
        let pieces = self.hidden(position)?;
        if !projects {
            for piece in &pieces {
                let embed = of(piece.address, piece.first, piece.tokens);
                self.launch(&launches::embed(&embed)?)?;
            }
            return Ok(());
        }
        let [narrow, wide] = beside.at.embedded;
        let m = self.tokens(position);
        self.launch(&launches::embed(&of(narrow, 0, m))?)?;
        let rows = Rows {
            x: narrow,
            y: wide,
            m,
            wide: false,
        };
        self.linear(rows, TensorRole::ProjectIn, None)?;
        let row = (self.width() * self.element()) as u64;
        for piece in &pieces {
            let from = wide + row * piece.first as u64;
            self.copy(piece.address, from, piece.tokens * self.width())?;
        }
        let Some(learned) = learned else {
            return Ok(());
        };
        // Positions are looked up as tokens are, from the row that the first one has.
        let positions = Embed {
            tokens: beside.at.places,
            table: learned.address + row * offset as u64,
            learned: 0,
            width: self.width(),
            rows: (learned.spec.rows as usize).saturating_sub(offset),
            ..of(wide, 0, m)
        };
        self.launch(&launches::embed(&positions)?)?;
        self.add(&pieces, wide, None)
    }

    /// Normalises, and projects to queries, keys and values. Queries go to some place, if there is one for them.
    pub(super) fn to_heads(
        &self,
        queries: Option<u64>,
        position: u32,
    ) -> Result<[u64; 3], TaskError> {
        use TensorRole::{
            AttnNormBias, AttnNormWeight, KBias, KWeight, QBias, QWeight, VBias, VWeight,
        };
        let m = self.tokens(position);
        let model = self.turn.model();
        let (q_size, kv_size) = (model.q_size() as usize, model.kv_size() as usize);
        let x = self.room(m * self.width())?;
        let before = model.norm_position == NormPosition::Before;
        let norm = before.then_some([AttnNormWeight, AttnNormBias]);
        self.gathered(&self.hidden(position)?, x, norm)?;
        let q = queries.map_or_else(|| self.room(m * q_size), Ok)?;
        let [k, v] = [self.room(m * kv_size)?, self.room(m * kv_size)?];
        let each = [
            (q, QWeight, QBias),
            (k, KWeight, KBias),
            (v, VWeight, VBias),
        ];
        self.linears((x, m), &each)?;
        Ok([q, k, v])
    }

    /// Normalises heads of queries and keys, and turns them by their positions, where the model does.
    pub(super) fn normalise_and_turn(
        &self,
        [q, k]: [u64; 2],
        position: u32,
    ) -> Result<(), TaskError> {
        if self.turn.model().qk_norm {
            let count = self.tokens(position);
            self.normalise_heads(q, count, TensorRole::QNormWeight)?;
            self.normalise_heads(k, count, TensorRole::KNormWeight)?;
        }
        let Some(tables) = self.device.beside.rotary else {
            return Ok(());
        };
        self.put_places(position)?;
        let model = self.turn.model();
        let heads = [model.num_attention_heads, model.num_key_value_heads];
        for (elements, heads) in [q, k].into_iter().zip(heads) {
            let rotary = Rotary {
                dtype: self.turn.dtype(),
                elements,
                positions: self.device.beside.at.places,
                cosines: tables.cosines,
                sines: tables.sines,
                count: self.tokens(position),
                heads: heads as usize,
                head_dim: model.head_dim as usize,
                pairs: tables.pairs,
                adjacent: tables.adjacent,
            };
            self.launch(&launches::rotary(&rotary)?)?;
        }
        Ok(())
    }
}

impl Work<'_> {
    /// Normalises, projects to queries, keys and values, and appends these two to the cache.
    pub(super) fn project(&self, position: u32) -> Result<(), TaskError> {
        // Where attention takes all queries from one place, they are made there.
        let queries = match self.mid(Tier::Host)? {
            Some(_) => None,
            None => self.mid(Tier::Device)?,
        };
        let new = self.to_heads(queries, position)?;
        self.projected(new, position)
    }

    /// Brings queries, keys and values to where they belong.
    pub(super) fn projected(&self, [q, k, v]: [u64; 3], position: u32) -> Result<(), TaskError> {
        self.normalise_and_turn([q, k], position)?;
        self.store_queries(q, position)?;
        self.append([k, v], position)
    }

    /// Brings queries to where attention finds them: the device's rows, then those that the CPU attends to.
    fn store_queries(&self, q: u64, position: u32) -> Result<(), TaskError> {
        let own = self.turn.mid_elements(self.turn.batch(position));
        if let Some(to) = self.mid(Tier::Device)?.filter(|to| *to != q) {
            self.copy(to, q, own)?;
        }
        if let Some(to) = self.mid(Tier::Host)? {
            let others = self.turn.rows_off_device() * self.turn.engine.row_elements();
            let own = if self.mid(Tier::Device)?.is_some() {
                own
            } else {
                0
            };
            self.copy(to, q + (own * self.element()) as u64, others)?;
        }
        Ok(())
    }

    /// Appends keys and values to the parts of the cache that are here, and behind the queries of rows that the CPU
    /// attends to.
    fn append(&self, new: [u64; 2], position: u32) -> Result<(), TaskError> {
        for tier in Tier::ALL {
            let pages = self.turn.cache(tier);
            let Some((newest, start)) = pages.last() else {
                continue;
            };
            let page = self.turn.operands.address(*newest)?;
            let rows = self.turn.rows_in(tier);
            let record = self.turn.record_bytes(tier);
            let first = position as usize - *start as usize;
            let kept = held(self.turn.engine.plan.policy.compression);
            self.append_to(new, (page, record, kept), rows, (first, position))?;
        }
        if let Some(mid) = self.mid(Tier::Host)? {
            let others = self.turn.rows_off_device();
            let first_row = self.turn.rows_in(Tier::Host).start;
            let queries = others * self.turn.engine.row_elements() * self.element();
            let record = self.turn.new_record_bytes();
            let to = (mid + queries as u64, record, HeldAs::Whole);
            self.append_to(new, to, first_row..first_row + others, (0, position))?;
        }
        Ok(())
    }

    fn append_to(
        &self,
        [keys, values]: [u64; 2],
        (page, record_bytes, held): (u64, usize, HeldAs),
        rows: std::ops::Range<usize>,
        (start, position): (usize, u32),
    ) -> Result<(), TaskError> {
        let model = self.turn.model();
        let append = Append {
            dtype: self.turn.dtype(),
            held,
            keys,
            values,
            page,
            row_start: rows.start,
            rows: rows.len(),
            kv_heads: model.num_key_value_heads as usize,
            head_dim: model.head_dim as usize,
            query_len: self.turn.batch(position).query_len,
            start,
            record_bytes,
        };
        self.launch(&append.launch()?)
    }

    /// Projects attention's output and adds it to the activations.
    pub(super) fn output(&self, position: u32) -> Result<(), TaskError> {
        self.output_of(self.attended(position)?, position)
    }

    /// Attention's results in one place.
    fn attended(&self, position: u32) -> Result<u64, TaskError> {
        let parts = self.attended_parts(position)?;
        if let [(all, _)] = parts[..] {
            return Ok(all);
        }
        let elements = parts.iter().map(|(_, elements)| elements).sum();
        let all = self.room(elements)?;
        let mut into = all;
        for (from, elements) in parts {
            self.copy(into, from, elements)?;
            into += (elements * self.element()) as u64;
        }
        Ok(all)
    }

    /// Where attention's results are, and how many elements: the device's rows, then those that the CPU attended to.
    pub(super) fn attended_parts(&self, position: u32) -> Result<Vec<(u64, usize)>, TaskError> {
        let own = self.turn.mid_elements(self.turn.batch(position));
        let others = self.turn.rows_off_device() * self.turn.engine.row_elements();
        let mut parts = Vec::new();
        for (tier, elements) in [(Tier::Device, own), (Tier::Host, others)] {
            if let Some(address) = self.mid(tier)? {
                parts.push((address, elements));
            }
        }
        match parts.is_empty() {
            true => Err(TaskError::NoOperand("a buffer of attention's results")),
            false => Ok(parts),
        }
    }
}

impl<G: Ground> Work<'_, G> {
    /// Projects attention's output, which is at `x`, and adds it to the activations.
    pub(super) fn output_of(&self, x: u64, position: u32) -> Result<(), TaskError> {
        use TensorRole::{AttnNormBias, AttnNormWeight, OBias, OWeight};
        let m = self.tokens(position);
        let model = self.turn.model();
        let y = self.room(m * self.width())?;
        let wide = false;
        self.linear(Rows { x, y, m, wide }, OWeight, Some(OBias))?;
        let after = model.norm_position == NormPosition::After;
        let norm = after.then_some([AttnNormWeight, AttnNormBias]);
        self.add(&self.hidden(position)?, y, norm)
    }

    /// Computes the MLP and adds it to the activations.
    pub(super) fn mlp(&self, position: u32) -> Result<(), TaskError> {
        use TensorRole::{
            DownBias, DownWeight, GateBias, GateWeight, MlpNormBias, MlpNormWeight, UpBias,
            UpWeight,
        };
        let m = self.tokens(position);
        let model = self.turn.model();
        let activation = self.turn.activation();
        let inner = model.intermediate_size as usize;
        let pieces = self.hidden(position)?;
        let x = self.room(m * self.width())?;
        let roles = [MlpNormWeight, MlpNormBias];
        let before = model.norm_position == NormPosition::Before;
        self.gathered(&pieces, x, before.then_some(roles))?;
        let up = self.room(m * inner)?;
        let mut y = up;
        if model.gated_mlp {
            let gate = self.room(m * inner)?;
            let both = [(gate, GateWeight, GateBias), (up, UpWeight, UpBias)];
            self.linears((x, m), &both)?;
            let elements = self.elements(gate, up, [m, inner]);
            self.launch(&activate_gate(&elements, activation)?)?;
            y = gate;
        } else {
            self.linears((x, m), &[(up, UpWeight, UpBias)])?;
            self.activate((up, 0), [m, inner], Some(activation))?;
        }
        // What was normalised is not needed any more.
        let down = Rows {
            x: y,
            y: x,
            m,
            wide: false,
        };
        self.linear(down, DownWeight, Some(DownBias))?;
        self.add(&pieces, x, (!before).then_some(roles))
    }
}
