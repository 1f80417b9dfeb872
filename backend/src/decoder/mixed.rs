//! Sequences at different places in one pass: prompts beside sequences that get their next token, as iteration-level
//! scheduling puts them together (Orca's selective batching).
//!
//! All that is a matrix product is of all tokens together; attention is each sequence's own, over its pages of the
//! cache.

use std::ops::Range;

use super::cache::{CachePart, NewCachePart};
use super::error::at_least;
use super::stages::{Batch, Choice};
use super::{BlockTensors, Decoder, DecoderError, Padding, Sight, Split, SplitMut};

/// What is computed of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Tokens that the cache has of it.
    pub cached: usize,
    /// Tokens behind them that are computed.
    pub tokens: usize,
}

/// A batch of sequences at different places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixed {
    places: Vec<Place>,
    /// Of each token, how far it is behind the one that is furthest on.
    behind: Vec<u32>,
    furthest: usize,
}

/// A sequence's pages of a layer's cache in the order of positions, each of the same number of them:
/// `[position][K|V][head]`.
type Pages<'a> = Vec<&'a [u8]>;

/// A sequence's pages of a layer's cache, to read and append to.
pub type PagesMut<'a> = Vec<&'a mut [u8]>;

impl Mixed {
    /// A batch of these.
    pub fn new(places: Vec<Place>) -> Mixed {
        let ends = places.iter().map(|place| place.cached + place.tokens);
        let furthest = ends.max().unwrap_or(0).saturating_sub(1);
        let positions = places
            .iter()
            .flat_map(|place| place.cached..place.cached + place.tokens);
        Mixed {
            behind: positions.map(|at| (furthest - at) as u32).collect(),
            furthest,
            places,
        }
    }

    /// Each token as a sequence of its own, padded in front to the one that is furthest on: all that a stage needs to
    /// know which does not look at the cache.
    pub fn tokens(&self) -> Batch<'_> {
        Batch {
            sequences: self.behind.len(),
            query_len: 1,
            position: self.furthest,
            padding: Padding(&self.behind),
        }
    }

    /// The last token of each sequence, likewise: what the head is for.
    pub fn sequences(&self) -> Batch<'_> {
        Batch {
            sequences: self.places.len(),
            padding: Padding::default(),
            ..self.tokens()
        }
    }

    /// Where each sequence's tokens lie among all.
    pub fn ranges(&self) -> impl Iterator<Item = (Place, Range<usize>)> + '_ {
        self.places.iter().scan(0, |start, place| {
            let range = *start..*start + place.tokens;
            *start = range.end;
            Some((*place, range))
        })
    }
}

impl Decoder {
    /// Bytes of keys and values of a token in a layer.
    pub fn token_bytes(&self) -> usize {
        2 * self.kv_heads() * self.head_bytes()
    }

    /// Bytes of a mixed batch's activations.
    pub fn mixed_hidden_bytes(&self, mixed: &Mixed) -> usize {
        mixed.behind.len() * self.hidden_size() * self.dtype.size_bytes() as usize
    }

    /// Bytes of a mixed batch's queries.
    pub fn mixed_query_bytes(&self, mixed: &Mixed) -> usize {
        mixed.behind.len() * self.q_size() * self.dtype.size_bytes() as usize
    }

    /// Writes the embeddings of the tokens to `hidden`.
    ///
    /// # Errors
    /// As [`Decoder::embed`].
    pub fn embed_mixed(
        &self,
        block: &BlockTensors<'_>,
        mixed: &Mixed,
        ids: &[u32],
        hidden: &mut [u8],
    ) -> Result<(), DecoderError> {
        self.embed(
            block,
            mixed.tokens(),
            ids,
            &mut self.written(mixed, hidden)?,
        )
    }

    /// A layer of a mixed batch. New keys and values go behind what each sequence's pages have; `queries` is room for
    /// them.
    ///
    /// # Errors
    /// Where operands do not fit each other: a sequence without a place for each of its tokens is one.
    pub fn layer_mixed(
        &self,
        block: &BlockTensors<'_>,
        mixed: &Mixed,
        (hidden, queries): (&mut [u8], &mut [u8]),
        caches: &mut [PagesMut<'_>],
    ) -> Result<(), DecoderError> {
        let elements = mixed.behind.len() * self.q_size();
        let mut given = Split::default();
        given.push(hidden, mixed.behind.len() * self.hidden_size(), self.dtype)?;
        let mut out = SplitMut::default();
        out.push(queries, elements, self.dtype)?;
        self.project_mixed(block, mixed, &given, &mut out, caches)?;
        let pages = caches
            .iter()
            .map(|pages| pages.iter().map(|page| &**page).collect());
        self.attend_mixed(mixed, queries, &pages.collect::<Vec<Pages<'_>>>())?;
        let mut attended = Split::default();
        attended.push(queries, elements, self.dtype)?;
        let mut hidden = self.written(mixed, hidden)?;
        self.output(block, mixed.tokens(), &attended, &mut hidden)?;
        self.mlp(block, mixed.tokens(), &mut hidden)
    }

    /// The next token of each sequence.
    ///
    /// # Errors
    /// As [`Decoder::head`].
    pub fn head_mixed(
        &self,
        block: &BlockTensors<'_>,
        mixed: &Mixed,
        hidden: &[u8],
        choice: Choice<'_>,
    ) -> Result<Vec<u32>, DecoderError> {
        let row = self.hidden_size() * self.dtype.size_bytes() as usize;
        at_least(
            "the activations, in bytes",
            self.mixed_hidden_bytes(mixed),
            hidden.len(),
        )?;
        let mut last = Split::default();
        for (_, range) in mixed.ranges() {
            let bytes = &hidden[(range.end - 1) * row..range.end * row];
            last.push(bytes, self.hidden_size(), self.dtype)?;
        }
        let head = self.head(block, mixed.sequences(), &last, (choice, false))?;
        Ok(head.tokens)
    }

    /// Where activations are written.
    fn written<'h>(
        &self,
        mixed: &Mixed,
        hidden: &'h mut [u8],
    ) -> Result<SplitMut<'h>, DecoderError> {
        let mut split = SplitMut::default();
        split.push(hidden, mixed.behind.len() * self.hidden_size(), self.dtype)?;
        Ok(split)
    }

    /// [`Decoder::project`] of a mixed batch: queries, `[token][heads * head_dim]`, and new keys and values behind what
    /// each sequence's pages have.
    ///
    /// # Errors
    /// Where operands do not fit each other: a sequence without a place for each of its tokens is one.
    fn project_mixed(
        &self,
        block: &BlockTensors<'_>,
        mixed: &Mixed,
        hidden: &Split<'_>,
        queries: &mut SplitMut<'_>,
        caches: &mut [PagesMut<'_>],
    ) -> Result<(), DecoderError> {
        let batch = mixed.tokens();
        let mut records = self.records(mixed, caches)?;
        self.check_projected(batch, queries, &records)?;
        self.project_tiles(block, batch, (hidden, queries), |tiles| {
            for (tile, new) in tiles {
                let records = &mut records[tile.clone()];
                self.append(batch, &[(tile, new)], records)?;
            }
            Ok(())
        })
    }

    /// Where each token's keys and values go.
    fn records<'c>(
        &self,
        mixed: &Mixed,
        caches: &'c mut [PagesMut<'_>],
    ) -> Result<Vec<NewCachePart<'c>>, DecoderError> {
        let (bytes, kv_heads) = (self.token_bytes(), self.kv_heads());
        let mut records = Vec::with_capacity(mixed.behind.len());
        at_least("sequences' pages", mixed.places.len(), caches.len())?;
        for ((place, range), pages) in mixed.ranges().zip(caches) {
            let all = pages
                .iter_mut()
                .flat_map(|page| page.chunks_exact_mut(bytes));
            let new = all.skip(place.cached).take(place.tokens).zip(range.clone());
            records.extend(new.map(|(record, token)| NewCachePart {
                rows: token * kv_heads..(token + 1) * kv_heads,
                record_bytes: bytes,
                first: 0,
                bytes: record,
                before: Vec::new(),
            }));
            at_least("places of a sequence's tokens", range.end, records.len())?;
        }
        Ok(records)
    }

    /// The attention of a mixed batch: `queries`, stored as the model's type, are replaced by the result. Pages hold the
    /// new tokens.
    ///
    /// # Errors
    /// Where operands do not fit each other.
    fn attend_mixed(
        &self,
        mixed: &Mixed,
        queries: &mut [u8],
        caches: &[Pages<'_>],
    ) -> Result<(), DecoderError> {
        let width = self.q_size();
        let token = width * self.dtype.size_bytes() as usize;
        at_least("the queries", mixed.behind.len() * token, queries.len())?;
        at_least("sequences' pages", mixed.places.len(), caches.len())?;
        let parts = caches.iter().map(|pages| CachePart {
            rows: 0..self.kv_heads(),
            record_bytes: self.token_bytes(),
            pages: pages.clone(),
        });
        let mut steps = Vec::new();
        for ((place, range), part) in mixed.ranges().zip(parts) {
            let bytes = range.start * token..range.end * token;
            if place.tokens == 1 {
                steps.push((place.cached + 1, bytes, part));
                continue;
            }
            let batch = Batch {
                sequences: 1,
                query_len: place.tokens,
                position: place.cached,
                padding: Padding::default(),
            };
            let mut own = SplitMut::default();
            own.push(&mut queries[bytes], place.tokens * width, self.dtype)?;
            self.attend_prompt(batch, &mut own, &[part])?;
        }
        self.attend_steps(width, queries, &steps)
    }

    /// Attention of sequences that get their next token, some on each thread.
    fn attend_steps(
        &self,
        width: usize,
        queries: &mut [u8],
        steps: &[(usize, Range<usize>, CachePart<'_>)],
    ) -> Result<(), DecoderError> {
        let contexts: usize = steps.iter().map(|(context, ..)| context).sum();
        let given = &*queries;
        let attended = self
            .team
            .share((steps.len(), (4 * width * contexts) as u64), |some| {
                let each = steps[some].iter().map(|(context_len, bytes, part)| {
                    let (mut split, mut q) = (Split::default(), vec![0.0; width]);
                    split.push(&given[bytes.clone()], width, self.dtype)?;
                    split.load(0..width, &mut q);
                    let sight = Sight {
                        context_len: *context_len,
                        share: 1.0,
                        padding: Padding::default(),
                    };
                    let rows = (0, 0..self.kv_heads());
                    self.attend_rows(&q, std::slice::from_ref(part), rows, sight)
                });
                each.collect::<Result<Vec<_>, _>>()
            })?;
        let attended = attended.into_iter().flat_map(|(_, each)| each);
        for ((_, bytes, _), out) in steps.iter().zip(attended) {
            let mut own = SplitMut::default();
            own.push(&mut queries[bytes.clone()], width, self.dtype)?;
            own.store(0..width, &out);
        }
        Ok(())
    }
}
