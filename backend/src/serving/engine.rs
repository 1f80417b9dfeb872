//! What a serving task does: an iteration's layers, or a move between the tiers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use plimsoll_core::model::ModelSpec;
use plimsoll_core::program::{Op, Program, ResourceKind, Span, TaskId};
use plimsoll_core::roster::{Member, Moved, Roster};
use plimsoll_core::tier::Tier;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Bytes;

use super::cache::PagedCache;
use super::error::ServingError;
use super::resident::Resident;
use super::texts::Texts;
use crate::cpu::Throttles;
use crate::cpu::error::TaskError;
use crate::cpu::scheduler::Scheduler;
use crate::cpu::worker::{Held, Work};
use crate::decoder::{Choice, Decoder, Mixed, Place};
use crate::tiers::Pace;

/// Everything that tasks need.
#[derive(Debug)]
pub(super) struct Engine {
    pub model: ModelSpec,
    pub decoder: Decoder,
    pub weights: Resident,
    pub cache: PagedCache,
    pub throttles: Throttles,
    /// What others carry over the links, by this clock.
    pub traffic: Background,
    pub clock: Arc<Scheduler>,
    pub texts: Arc<Texts>,
    /// The iteration that is computed.
    pub flow: Mutex<Flow>,
}

/// An iteration between two of its layers.
#[derive(Debug, Default)]
pub(super) struct Flow {
    mixed: Option<Mixed>,
    next_layer: usize,
    /// As words, so that elements of any type are aligned.
    hidden: Vec<u64>,
    queries: Vec<u64>,
}

impl Work for Engine {
    fn run(
        &self,
        (piece, index): (&Program, usize),
        kind: ResourceKind,
        held: Held<'_>,
    ) -> Result<Option<Instant>, TaskError> {
        let roster = piece.roster().ok_or(ServingError::NoRoster)?;
        let op = piece.op_of(&piece.tasks()[index]);
        match op {
            Op::Span(span) => self.span(span, roster)?,
            Op::Move { bytes, .. } => {
                let id = TaskId(piece.first_task().0 + index as u32);
                let pace = self.throttles.of(kind, op).map(|rate| {
                    let pace = Pace::begin(rate, held.is_over);
                    pace.beside(&self.traffic, kind, self.clock.now())
                });
                let moved = roster.moves.iter().find(|(task, _)| *task == id);
                self.make_move((moved.map(|(_, moved)| *moved), *bytes), pace.as_ref())?;
                if let Some(pace) = pace {
                    pace.end(*bytes).map_err(ServingError::from)?;
                }
            }
            Op::Barrier => {}
            _ => return Err(TaskError::NotExecuted("operations of a static plan")),
        }
        Ok(None)
    }
}

impl Engine {
    fn make_move(
        &self,
        (moved, bytes): (Option<Moved>, Bytes),
        pace: Option<&Pace<'_>>,
    ) -> Result<(), ServingError> {
        let cache = &self.cache;
        match moved {
            Some(Moved::Out(request, tokens)) => cache.move_out(request, tokens as usize, pace),
            Some(Moved::In(request)) => cache.move_in(request, pace),
            Some(Moved::LayerOut(layer)) => {
                cache.move_layer(layer.into(), (Tier::Host, bytes), pace)
            }
            Some(Moved::LayerIn(layer)) => {
                cache.move_layer(layer.into(), (Tier::Device, bytes), pace)
            }
            None => Ok(()),
        }
    }

    /// Computes layers in a row.
    fn span(&self, span: &Span, roster: &Arc<Roster>) -> Result<(), ServingError> {
        let mut flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        let flow = &mut *flow;
        if span.embeds {
            self.begin(flow, &roster.members)?;
        }
        let mixed = flow.mixed.as_ref().ok_or(ServingError::NoRoster)?;
        let hidden = bytemuck::cast_slice_mut(&mut flow.hidden);
        let queries = bytemuck::cast_slice_mut(&mut flow.queries);
        for _ in 0..span.layers {
            let layer = flow.next_layer;
            let block = self.weights.block(layer + 1);
            let requests = roster.members.iter().map(|member| member.request);
            self.cache.with_layer(layer, requests, |pages| {
                self.decoder
                    .layer_mixed(&block, mixed, (&mut *hidden, &mut *queries), pages)
            })?;
            flow.next_layer += 1;
        }
        if span.head.is_some() {
            let block = self
                .weights
                .block(self.model.num_hidden_layers as usize + 1);
            let chosen = self
                .decoder
                .head_mixed(&block, mixed, hidden, Choice::Greedy)?;
            let requests = roster.members.iter().map(|member| member.request);
            self.texts.go_on(requests.zip(chosen));
        }
        Ok(())
    }

    /// Begins an iteration: room for its tokens, and their embeddings.
    fn begin(&self, flow: &mut Flow, members: &[Member]) -> Result<(), ServingError> {
        let mut ids = Vec::new();
        for member in members {
            self.texts.add_new(member, &mut ids)?;
            let tokens = member.cached + member.tokens;
            self.cache.grow(member.request, tokens as usize)?;
        }
        let places = members.iter().map(|member| Place {
            cached: member.cached as usize,
            tokens: member.tokens as usize,
        });
        let mixed = Mixed::new(places.collect());
        let room = |bytes: usize| vec![0; bytes.div_ceil(8)];
        flow.hidden = room(self.decoder.mixed_hidden_bytes(&mixed));
        flow.queries = room(self.decoder.mixed_query_bytes(&mixed));
        let hidden = bytemuck::cast_slice_mut(&mut flow.hidden);
        self.decoder
            .embed_mixed(&self.weights.block(0), &mixed, &ids, hidden)?;
        flow.mixed = Some(mixed);
        flow.next_layer = 0;
        Ok(())
    }
}

impl From<ServingError> for TaskError {
    fn from(error: ServingError) -> TaskError {
        match error {
            // What tells a stop from a failure.
            ServingError::Tier(error) => TaskError::Tier(error),
            other => TaskError::Serving(other),
        }
    }
}
