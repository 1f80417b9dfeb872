//! Requests that come and go, on a GPU: iterations of a mixed batch over a paged cache on the card, and caches that go to
//! page-locked memory of the host and come back.
//!
//! Tasks are given to streams as a plan's are. Tables are written for one span of layers at a time, once the device has those of
//! the span before: whoever schedules swapped layers submits one ahead. Weights and cache have the card's memory that was stated; activations, tables, logits and partial
//! sums lie beside.

mod batch;
mod cache;
mod copies;
mod layers;
mod pool;
mod weights;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Kept;
use plimsoll_core::machine::Machine;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::program::{Op, Program, ResourceKind, Span, TaskId};
use plimsoll_core::roster::{Moved, Roster};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;

use super::beside::{Beside, Extent};
use super::issue::{CHOICE, CardDevice, Work};
use super::lanes::Issue;
use crate::cpu::error::TaskError;
use crate::cpu::worker::{self, Held};
use crate::cpu::{CpuError, CpuOptions};
use crate::cuda::launches::{HeldAs, NO_TOKEN};
use crate::cuda::{Card, CopyRows, CudaError};
use crate::decoder::Decoder;
use crate::serving::tables::CacheSize;
use crate::serving::texts::Texts;
use crate::serving::{Served, ServingError};
use crate::tiers::Region;
use crate::weights::WeightSource;
use batch::{Batch, Tables};
use cache::CardCache;
use layers::{Block, hidden_bytes, workspace_elements};
use weights::CardWeights;

/// Room that is lost to addresses which have to be multiples of something.
const SLACK: usize = 1 << 10;

/// Where what lies between layers is on the card.
#[derive(Debug)]
struct Room {
    hidden: u64,
    workspace: (u64, u64),
    tables: u64,
    /// u32, by sequence: the next token.
    chosen: u64,
}

/// An iteration between two of its layers.
#[derive(Debug, Default)]
struct Flow {
    batch: Batch,
    next_layer: usize,
}

/// A card that serves requests.
#[derive(Debug)]
pub(crate) struct OnCard {
    device: CardDevice,
    model: ModelSpec,
    dtype: Dtype,
    decoder: Decoder,
    weights: CardWeights,
    cache: CardCache,
    texts: Arc<Texts>,
    room: Room,
    flow: Mutex<Flow>,
    /// Page-locked: tables on their way to the card.
    staged: Mutex<Region>,
    /// Page-locked: next tokens that have come from there, u32.
    chosen: Region,
    chosen_at: u64,
}

impl OnCard {
    /// Reads the weights, and takes all memory, on a card that is open.
    pub(crate) fn new(
        card: &Arc<dyn Card>,
        served: &Served,
        size: CacheSize,
        (decoder, texts): (Decoder, Arc<Texts>),
        (source, options): (&dyn WeightSource, &CpuOptions),
    ) -> Result<OnCard, CpuError> {
        let Served { model, kept, .. } = served;
        let on = &**card;
        let weights = CardWeights::load(on, (model, *kept), source)?;
        let kv = on.take(served.kv.0 as usize)?;
        let extent = extent(served, &decoder);
        let (sequences, tables) = (extent.sequences, tables(&extent, &size));
        let room = Room::take(on, &extent, (*kept, tables))?;
        let beside = Beside::new(on, &extent, false)?;
        let cache = CardCache::new(on, size, kv)?;
        // Where one fails, the card is done with the others before their memory goes.
        let locked = |bytes: usize| {
            pool::locked(on, bytes).map_err(|error| {
                on.close();
                before_tasks(error)
            })
        };
        let (staged, chosen) = (locked(tables)?, locked(4 * sequences)?);
        Ok(OnCard {
            device: CardDevice::with(Arc::clone(card), &options.dispatch, beside),
            model: model.clone(),
            dtype: kept.dtype,
            cache,
            decoder,
            weights,
            texts,
            room,
            flow: Mutex::default(),
            staged: Mutex::new(staged),
            chosen_at: chosen.address(),
            chosen,
        })
    }

    /// Sets the zero of the clock to about now.
    pub(crate) fn start_clock(&self) -> Result<(), CudaError> {
        self.device.start_clock()
    }

    /// Takes back what a request has of the cache.
    pub(crate) fn release(&self, request: u32) {
        self.cache.release(request);
    }

    /// Waits for all work and gives the card's memory back.
    pub(crate) fn close(&self) {
        self.device.card.close();
    }

    /// Gives a stream layers in a row.
    fn span(&self, stream: usize, span: &Span, roster: &Roster) -> Result<(), TaskError> {
        let flow = &mut *self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        if span.embeds {
            *flow = Flow {
                batch: Batch::new(&roster.members, &self.texts, &self.cache)?,
                next_layer: 0,
            };
        }
        let first = flow.next_layer;
        flow.next_layer += usize::from(span.layers);
        let batch = &flow.batch;
        let tables = self.bring_tables(stream, batch, first..flow.next_layer)?;
        let block = |number: usize, layer: usize| {
            let block = Block {
                on: self,
                batch,
                tables,
                number,
                layer,
            };
            Work::new((&self.device, stream), block, self.room.workspace)
        };
        if span.embeds {
            block(0, 0).embed(0)?;
        }
        for layer in 0..usize::from(span.layers) {
            block(first + layer + 1, layer).layer()?;
        }
        if span.head.is_some() {
            block(flow.next_layer + 1, 0).next_tokens()?;
        }
        Ok(())
    }

    /// Writes the tables of a batch for some layers, and brings them to the card.
    fn bring_tables(
        &self,
        stream: usize,
        batch: &Batch,
        layers: Range<usize>,
    ) -> Result<Tables, TaskError> {
        let card = &self.device.card;
        let mut staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        // Once the device has those of the span before, which may be computed yet.
        card.await_event(CHOICE)?;
        let tables = Tables::write(batch, (&self.cache, layers), &mut staged)?;
        let from = staged.address();
        card.copy(stream, &CopyRows::of(self.room.tables, from, tables.end))?;
        // Stages look for positions where a plan's are.
        let positions = from + tables.positions as u64;
        let places = self.device.beside.at.places;
        card.copy(stream, &CopyRows::of(places, positions, 4 * batch.tokens()))?;
        card.record(stream, CHOICE)?;
        Ok(tables)
    }

    /// Gives a stream a move's copies.
    fn make_move(
        &self,
        stream: usize,
        (task, bytes): (TaskId, Bytes),
        moved: Moved,
    ) -> Result<(), TaskError> {
        let card = &*self.device.card;
        let of_layer = |layer: u16, to: Tier| {
            let what = (usize::from(layer), to, bytes);
            self.cache.move_layer(card, task, what)
        };
        let copies = match moved {
            Moved::Out(request, tokens) => self.cache.move_out(card, (request, tokens as usize))?,
            Moved::In(request) => self.cache.move_in(task, request)?,
            Moved::LayerOut(layer) => of_layer(layer, Tier::Host)?,
            Moved::LayerIn(layer) => of_layer(layer, Tier::Device)?,
        };
        for copy in copies {
            card.copy(stream, &copy)?;
        }
        Ok(())
    }

    /// Reads the tokens that an iteration chose, and refuses those that are none.
    fn note_chosen(&self) -> Result<(), TaskError> {
        let flow = self.flow.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = self.chosen.bytes().as_chunks().0.iter();
        let chosen: Vec<u32> = chosen.map(|id| u32::from_ne_bytes(*id)).collect();
        let requests = flow.batch.requests();
        let chosen = &chosen[..requests.len()];
        if let Some(sequence) = chosen.iter().position(|id| *id == NO_TOKEN) {
            return Err(TaskError::NotANumber {
                sequence,
                dtype: self.dtype,
            });
        }
        self.texts
            .go_on(requests.into_iter().zip(chosen.iter().copied()));
        Ok(())
    }
}

impl Room {
    /// Bytes of what it takes, in the order in which it does: the workspace, activations, tables and next tokens.
    fn sizes(extent: &Extent<'_>, (kept, tables): (Kept, usize)) -> [usize; 4] {
        let element = extent.dtype.size_bytes() as usize;
        let hidden = hidden_bytes(extent.model, extent.dtype, extent.tokens);
        let elements = extent.tokens * workspace_elements(extent.model)
            + kept.compression.unpacked_elements(extent.model) as usize;
        let workspace = elements * element + SLACK;
        [workspace, hidden.0 as usize, tables, 4 * extent.sequences]
    }

    fn take(card: &dyn Card, extent: &Extent<'_>, with: (Kept, usize)) -> Result<Room, CudaError> {
        let [workspace, hidden, tables, chosen] = Room::sizes(extent, with);
        let start = card.take(workspace)?;
        Ok(Room {
            hidden: card.take(hidden)?,
            workspace: (start, start + workspace as u64),
            tables: card.take(tables)?,
            chosen: card.take(chosen)?,
        })
    }
}

/// How much is computed at most.
fn extent<'m>(served: &'m Served, decoder: &'m Decoder) -> Extent<'m> {
    Extent {
        model: &served.model,
        dtype: served.kept.dtype,
        held: HeldAs::Whole,
        rotary: decoder.rotary(),
        prompts: 0,
        sequences: served.most.sequences as usize,
        tokens: served.most.tokens as usize,
        positions: served.model.max_position_embeddings as usize,
        stored_inputs: 0,
    }
}

/// Bytes of tables at most.
fn tables(extent: &Extent<'_>, size: &CacheSize) -> usize {
    let blocks = size.device.0 as usize / size.block_bytes();
    Tables::most(blocks, extent.sequences, extent.tokens)
}

/// Bytes of what lies on a card beside weights and cache.
pub(crate) fn beside(card: &dyn Card, served: &Served, size: &CacheSize, with: &Decoder) -> Bytes {
    let extent = extent(served, with);
    let room = Room::sizes(&extent, (served.kept, tables(&extent, size)));
    Bytes((room.iter().sum::<usize>() + Beside::bytes(card, &extent)) as u64)
}

impl Issue for OnCard {
    fn card(&self) -> &dyn Card {
        &*self.device.card
    }

    fn issue(&self, stream: usize, (piece, index): (&Program, usize)) -> Result<(), TaskError> {
        let roster = piece.roster().ok_or(ServingError::NoRoster)?;
        let task = TaskId(piece.first_task().0 + index as u32);
        match piece.op_of(&piece.tasks()[index]) {
            Op::Span(span) => self.span(stream, span, roster),
            Op::Move { bytes, .. } => {
                let moved = roster.moves.iter().find(|(id, _)| *id == task);
                let make = |(_, moved): &(_, Moved)| self.make_move(stream, (task, *bytes), *moved);
                moved.map_or(Ok(()), make)
            }
            Op::Barrier => Ok(()),
            _ => Err(TaskError::NotExecuted("operations of a static plan")),
        }
    }

    fn ended(&self, (piece, index): (&Program, usize)) -> Result<(), TaskError> {
        match piece.op_of(&piece.tasks()[index]) {
            Op::Span(span) if span.head.is_some() => self.note_chosen(),
            Op::Move { .. } => {
                self.cache
                    .moved(TaskId(piece.first_task().0 + index as u32));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// What is no stream's has nothing to do.
impl worker::Work for OnCard {
    fn run(
        &self,
        _: (&Program, usize),
        _: ResourceKind,
        _: Held<'_>,
    ) -> Result<Option<Instant>, TaskError> {
        Err(TaskError::NotExecuted("operations of a static plan"))
    }
}

/// The same trouble before the first task.
pub(super) fn before_tasks(error: TaskError) -> CpuError {
    match error {
        TaskError::Tier(error) => CpuError::Tier(error),
        TaskError::Cuda(error) => CpuError::Cuda(error),
        TaskError::Serving(error) => CpuError::Serving(error),
        other => CpuError::Program(other.to_string()),
    }
}

/// The machine's streams and the model's products, before memory is taken.
pub(crate) fn open(
    card: &dyn Card,
    machine: &Machine,
    served: &Served,
    options: &CpuOptions,
) -> Result<(), CpuError> {
    super::supported::check_served(served, options)?;
    // Batches are of any size; the vendor's library has a kernel for some sizes each.
    let most = served.most.tokens as usize;
    let sizes = std::iter::successors(Some(1), |rows| Some(2 * rows));
    let sizes = sizes.take_while(|rows| *rows < most);
    let mut rows: Vec<usize> = sizes.flat_map(|rows| [rows, rows + rows / 2]).collect();
    rows.retain(|rows| *rows < most);
    rows.push(most);
    let Kept { dtype, compression } = served.kept;
    let of = (&served.model, dtype, compression);
    CardDevice::open(card, &options.dispatch, machine, of, &rows)
}
