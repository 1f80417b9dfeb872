//! What tasks do, with their real shapes.

use std::ops::Range;

use serde::Serialize;

use crate::units::{Bytes, Flops};

/// `y[m, n] = x[m, k] * w[n, k]^T`, without `m`, which the operation states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gemm {
    /// Output features.
    pub n: u32,
    /// Input features.
    pub k: u32,
}

impl Gemm {
    /// Elements of its weights.
    pub fn weights(self) -> u64 {
        u64::from(self.n) * u64::from(self.k)
    }
}

/// Up to four matrix products that share `m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gemms {
    items: [Option<Gemm>; 4],
}

impl Gemms {
    /// Collects the products.
    ///
    /// # Panics
    /// With more than four.
    pub fn new(gemms: &[Gemm]) -> Gemms {
        let mut items = [None; 4];
        for (slot, gemm) in items.iter_mut().zip(gemms) {
            *slot = Some(*gemm);
        }
        assert!(
            gemms.len() <= items.len(),
            "a stage has at most four products"
        );
        Gemms { items }
    }

    /// Each product.
    pub fn iter(&self) -> impl Iterator<Item = Gemm> + '_ {
        self.items.iter().flatten().copied()
    }

    /// Which of a part of a layer share their input: queries, keys and values; a gate and what it gates.
    pub fn sharing(&self, stage: Stage) -> Range<usize> {
        match (stage, self.iter().count()) {
            (Stage::Project, count @ 2..) => 0..count,
            (Stage::Mlp, 3) => 0..2,
            (Stage::Finish, 4) => 1..3,
            _ => 0..0,
        }
    }

    /// Some of them, which share their input, as one.
    pub fn together(&self, some: &Range<usize>) -> Option<Gemm> {
        let some = self.iter().skip(some.start).take(some.len());
        some.reduce(|one, other| Gemm {
            n: one.n + other.n,
            ..one
        })
    }
}

/// Which part of a decoder a compute task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Normalisation and the query, key and value projections.
    Project,
    /// Output projection, residual, normalisation and the MLP.
    Finish,
    /// Output projection and residual: the first part of [`Stage::Finish`].
    Output,
    /// Normalisation, the MLP and its residual: the rest of it.
    Mlp,
    /// Final normalisation, the vocabulary projection and the choice of the next token.
    Head,
    /// Of a layer whose linear layers are split: the input of its projections, normalised.
    Normalise,
    /// Of such a layer: the attention's output as the input of its projection.
    Attended,
    /// The product of some rows of one linear layer: on the CPU the first, on the device the others.
    Part,
    /// Queries, keys and values of what parts gave: [`Stage::Project`] without its products.
    JoinProject,
    /// The residual of what parts gave, and the MLP's input: [`Stage::Output`] without its product.
    JoinOutput,
    /// The MLP's inner activations of what parts gave.
    JoinInner,
    /// The residual of what parts gave: the end of a layer.
    JoinMlp,
}

impl Stage {
    /// Parts of a layer whose products may have rates of their own.
    pub const RATED: [Stage; 2] = [Stage::Project, Stage::Finish];

    /// The part of a layer whose rates serve its products; none: those of any part.
    pub const fn rated_as(self) -> Option<Stage> {
        match self {
            Stage::Project => Some(Stage::Project),
            Stage::Finish | Stage::Output | Stage::Mlp => Some(Stage::Finish),
            _ => None,
        }
    }

    /// Whether it is of a layer whose linear layers are split.
    pub const fn is_of_split(self) -> bool {
        !matches!(
            self,
            Stage::Project | Stage::Finish | Stage::Output | Stage::Mlp | Stage::Head
        )
    }

    /// The name used in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Project => "project",
            Stage::Finish => "finish",
            Stage::Output => "output",
            Stage::Mlp => "mlp",
            Stage::Head => "head",
            Stage::Normalise => "normalise",
            Stage::Attended => "attended",
            Stage::Part => "part",
            Stage::JoinProject => "join_project",
            Stage::JoinOutput => "join_output",
            Stage::JoinInner => "join_inner",
            Stage::JoinMlp => "join_mlp",
        }
    }
}

/// Which part of an attention a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionPart {
    /// All of it.
    Whole,
    /// All of it but the copy of the cache that it reads, which was made before.
    Copied,
    /// Scores and weights over all keys, and which values are read.
    Scores,
    /// The product of the weights with the values that were picked.
    Values,
}

/// What a copy's end on the host lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostPages {
    /// Page-locked memory.
    Locked,
    /// Pageable memory.
    Pageable,
    /// Pageable memory, and copies pass through page-locked memory that is kept for the next one of that size.
    Relayed,
}

impl HostPages {
    /// Of a home that is page-locked, or is not.
    pub fn of(locked: bool) -> HostPages {
        match locked {
            true => HostPages::Locked,
            false => HostPages::Pageable,
        }
    }
}

/// Parts of a buffer at a constant distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strided {
    /// Where the first begins.
    pub start: Bytes,
    /// From one's begin to the next's.
    pub stride: Bytes,
}

impl Strided {
    /// From the first's begin to the last's end, of so many parts.
    pub fn span(self, parts: u32, part: Bytes) -> Bytes {
        match parts {
            0 => Bytes::ZERO,
            _ => self.stride * u64::from(parts - 1) + part,
        }
    }
}

/// What a task does, with its real shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Moves bytes from the first argument to the second; the resource says over which link.
    Move {
        /// How many.
        bytes: Bytes,
        /// From where in the source.
        from: Bytes,
        /// To where in the destination.
        to: Bytes,
        /// What its end on the host lies in.
        host: HostPages,
    },
    /// Moves equal parts from the first argument to the second: keys, or values, of many positions.
    MoveParts {
        /// How many.
        parts: u32,
        /// Bytes of each.
        part: Bytes,
        /// Where they are in the source.
        from: Strided,
        /// Where they go in the destination.
        to: Strided,
        /// What its end on the host lies in.
        host: HostPages,
    },
    /// Collects the values that rows of the cache have picked, from where the cache is.
    Gather {
        /// Rows of the cache.
        rows: u32,
        /// Values of each.
        picks: u32,
        /// Bytes of a value as stored.
        head: Bytes,
    },
    /// Gathers embeddings.
    Embed {
        /// Tokens gathered.
        tokens: u32,
        /// Elements each.
        hidden_size: u32,
        /// Sequence position of the first token of each sequence.
        position: u32,
    },
    /// Matrix products with what stands around them.
    Linear {
        /// Which part of the decoder.
        stage: Stage,
        /// Tokens.
        m: u32,
        /// The products.
        gemms: Gemms,
        /// Cache position of the first new token of each sequence.
        position: u32,
        /// Whether the GPU batch before used the same weights, so that caches may still hold some.
        reused: bool,
        /// Whether the weights are in 4 bits.
        compressed: bool,
        /// New keys and values that are packed into 4 bits after; 0 where the cache is not.
        packed_elements: u64,
    },
    /// Causal attention of the newest tokens over the cache.
    Attention {
        /// Which part of it.
        part: AttentionPart,
        /// Rows of cache read: sequences times key/value heads.
        rows: u32,
        /// Query heads a row.
        group: u32,
        /// Elements a head.
        head_dim: u32,
        /// New tokens a sequence.
        query_len: u32,
        /// Tokens up to the newest, itself among them.
        context_len: u32,
        /// Tokens that a query sees at most, whose keys are read: all, unless a window slides.
        seen_len: u32,
        /// Tokens whose values are read: as many, unless attention is sparse.
        value_len: u32,
        /// Bytes a cache element, unpacked.
        element_bytes: u32,
        /// Whether the cache is unpacked from 4 bits first.
        compressed: bool,
    },
    /// Layers in a row over sequences that are at different places: an iteration of a serving system, or a part of it.
    Span(Span),
    /// Waits for all that came before.
    Barrier,
}

/// Layers in a row over a mixed batch: prompts that are computed whole beside sequences that get their next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// How many layers.
    pub layers: u16,
    /// The products of each.
    pub gemms: Gemms,
    /// Whether the weights are in 4 bits.
    pub compressed: bool,
    /// Whether the embedding stands in front.
    pub embeds: bool,
    /// The vocabulary projection, where the head stands behind.
    pub head: Option<Gemm>,
    /// Sequences, each of which gets a token.
    pub sequences: u32,
    /// Tokens computed.
    pub tokens: u32,
    /// Of them, tokens of prompts.
    pub prompt_tokens: u32,
    /// Pairs of such a token and one that it sees, itself among them.
    pub prompt_pairs: u64,
    /// Tokens whose keys and values the other sequences read.
    pub context_tokens: u64,
    /// Width of all queries of a token, in elements.
    pub q_size: u32,
    /// Width of all keys of a token, in elements.
    pub kv_size: u32,
    /// Bytes of an element.
    pub element_bytes: u32,
}

impl Span {
    /// Elements of all weights of its products.
    pub fn weights(&self) -> u64 {
        let of_layer: u64 = self.gemms.iter().map(Gemm::weights).sum();
        of_layer * u64::from(self.layers) + self.head_weights()
    }

    /// Those of the head.
    pub fn head_weights(&self) -> u64 {
        self.head.map_or(0, Gemm::weights)
    }

    /// Keys and values that sequences past their prompt read in a layer.
    pub fn cache_bytes(&self) -> Bytes {
        let elements = 2 * self.context_tokens * u64::from(self.kv_size);
        Bytes(elements * u64::from(self.element_bytes))
    }

    /// Operations of prompts' attention in a layer: scores and their product with the values, two a multiply-add.
    pub fn prompt_flops(&self) -> Flops {
        Flops(4.0 * self.prompt_pairs as f64 * f64::from(self.q_size))
    }
}

impl Op {
    /// Bytes that a move brings from one tier to another; none for other operations.
    pub fn moved_bytes(&self) -> Option<Bytes> {
        match *self {
            Op::Move { bytes, .. } => Some(bytes),
            Op::MoveParts { parts, part, .. } => Some(part * u64::from(parts)),
            _ => None,
        }
    }

    /// Keys and values of a row, in tokens, that an attention reads; none for other operations.
    fn tokens_read(&self) -> Option<(u32, u32)> {
        match *self {
            Op::Attention {
                part,
                seen_len,
                value_len,
                ..
            } => Some(match part {
                AttentionPart::Whole | AttentionPart::Copied => (seen_len, value_len),
                AttentionPart::Scores => (seen_len, 0),
                AttentionPart::Values => (0, value_len),
            }),
            _ => None,
        }
    }

    /// Elements of keys and values that an attention reads; none for other operations.
    fn cache_elements(&self) -> Option<u64> {
        let (keys, values) = self.tokens_read()?;
        match *self {
            Op::Attention { rows, head_dim, .. } => {
                let tokens = u64::from(keys) + u64::from(values);
                Some(u64::from(rows) * tokens * u64::from(head_dim))
            }
            _ => None,
        }
    }

    /// Bytes of keys and values that an attention reads, unpacked; none for other operations.
    pub fn cache_bytes(&self) -> Option<Bytes> {
        match *self {
            Op::Attention { element_bytes, .. } => {
                Some(Bytes(self.cache_elements()? * u64::from(element_bytes)))
            }
            _ => None,
        }
    }

    /// Elements that are unpacked from 4 bits, or packed into them; none where nothing is compressed.
    pub fn packed_elements(&self) -> u64 {
        match *self {
            Op::Linear {
                gemms,
                compressed,
                packed_elements,
                ..
            } => {
                let weights = gemms.iter().map(Gemm::weights);
                packed_elements + if compressed { weights.sum() } else { 0 }
            }
            Op::Attention {
                compressed: true, ..
            } => self.cache_elements().unwrap_or(0),
            Op::Span(ref it) if it.compressed => it.weights(),
            _ => 0,
        }
    }

    /// Of these, new elements of a cache, which are packed.
    pub fn newly_packed_elements(&self) -> u64 {
        match *self {
            Op::Linear {
                packed_elements, ..
            } => packed_elements,
            _ => 0,
        }
    }

    /// What a move's end on the host lies in; none for other operations.
    pub fn host_pages(&self) -> Option<HostPages> {
        match *self {
            Op::Move { host, .. } | Op::MoveParts { host, .. } => Some(host),
            _ => None,
        }
    }

    /// Bytes of a move whose end on the host is not page-locked. None for other operations.
    pub fn pageable_bytes(&self) -> Option<Bytes> {
        let bytes = self.moved_bytes();
        bytes.filter(|_| self.host_pages() != Some(HostPages::Locked))
    }

    /// Operations of an attention's scores and of their product with the values, two a multiply-add.
    /// None for other operations.
    pub fn attention_flops(&self) -> Option<Flops> {
        let (keys, values) = self.tokens_read()?;
        match *self {
            Op::Attention {
                rows,
                group,
                head_dim,
                query_len,
                context_len,
                ..
            } => {
                let past = f64::from(context_len.saturating_sub(query_len));
                let queries = f64::from(query_len);
                // All queries together, each of which sees the tokens up to itself, at most so many.
                let seen = |most: u32| {
                    let most = f64::from(most);
                    let growing = (most - past).clamp(0.0, queries);
                    growing * (past + (growing + 1.0) / 2.0) + (queries - growing) * most
                };
                let heads = f64::from(rows) * f64::from(group);
                let seen = seen(keys) + seen(values);
                Some(Flops(2.0 * heads * f64::from(head_dim) * seen))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a layer with a gate, 4 wide and 10 in its middle, and keys a quarter of queries; and of one without.
    #[test]
    fn products_that_share_their_input_are_one() {
        let (output, up, down) = ([4, 4], [10, 4], [4, 10]);
        for (stage, all, joined) in [
            (Stage::Project, vec![[4, 4], [1, 4], [1, 4]], Some([6, 4])),
            (Stage::Finish, vec![output, up, up, down], Some([20, 4])),
            (Stage::Finish, vec![output, up, down], None),
            (Stage::Mlp, vec![up, up, down], Some([20, 4])),
            (Stage::Mlp, vec![up, down], None),
            (Stage::Output, vec![output], None),
            (Stage::Head, vec![[9, 4]], None),
        ] {
            let all: Vec<Gemm> = all.into_iter().map(|[n, k]| Gemm { n, k }).collect();
            let gemms = Gemms::new(&all);
            let one = gemms.together(&gemms.sharing(stage));
            assert_eq!(one.map(|it| [it.n, it.k]), joined, "{stage:?}");
        }
    }
}
