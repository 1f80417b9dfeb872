//! What a split needs beside homes: slots of inputs, outputs and rows, and page-locked buffers.

use crate::batch_shape::BatchShape;
use crate::lower::CHUNK_BYTES_MIN;
use crate::lower::layout::Bump;
use crate::lower::ring::Ring;
use crate::model::TensorSpec;
use crate::placement::PAGE_BYTES;
use crate::plan::Plan;
use crate::split::{Group, Module, RowSplit, SplitLinears};
use crate::tier::Tier;
use crate::units::Bytes;

use super::Specs;

/// Inputs and outputs of parts are as sums are: f32.
pub(super) const ELEMENT_BYTES: u64 = 4;

/// A page-locked buffer is filled and moved on in so many parts, so that one is filled while another moves and a third is
/// computed with: a group has one buffer (HeteGen section 4.3), and still nobody waits for the others.
pub const BUFFER_PARTS: u64 = 4;

/// The most bands that a module's rows come in: what goes ahead may take two parts of a smaller buffer.
const BANDS_MOST: u64 = BUFFER_PARTS + 2;

/// One part in so many of the fewest rows that come is sent ahead.
const AHEAD_PARTS: u64 = 4;

/// Slots that are used in turn.
#[derive(Debug)]
pub(in crate::lower) struct Room {
    /// On the device, `[token][k]`: one that is read, one that the join before makes meanwhile.
    pub inputs: Ring,
    /// The same on the host.
    pub inputs_host: Ring,
    /// On the device, of the modules of a step, one after another.
    pub outputs: Ring,
    /// Those that the CPU computes, on the host.
    pub outputs_host: Ring,
    /// On the device, a module's rows: one that is computed with, one that the next module's come to.
    pub rows: Ring,
    /// Parts of the page-locked buffer of attention, and of that of the MLP.
    pub pinned: [Ring; 2],
    /// Bytes of a part of each.
    pinned_bytes: [Bytes; 2],
    /// Of a prompt and of a new token: the bytes of the module with the fewest rows that come.
    least: [Bytes; 2],
}

impl Room {
    /// Rows that are copied into a module's page-locked buffer, and moved on, at a time: a part of the buffer,
    /// or less where a prompt needs more of it than these rows do. What goes ahead is one such part.
    pub(super) fn pinned_at_once(&self, module: Module, band: Band, goes_ahead: bool) -> u64 {
        let parts = if goes_ahead { 1 } else { BUFFER_PARTS };
        let even = band.units().div_ceil(parts);
        let worth = even.max(CHUNK_BYTES_MIN.div_ceil(band.unit_bytes.0));
        worth.min(self.pinned_bytes[buffer_of(module)].0 / band.unit_bytes.0) * band.unit
    }

    /// How many of the next rows are sent before the outputs that the CPU still computes: so much of what the shortest step
    /// brings that the link has something to do until they are there, and not so much that they wait for it.
    pub(super) fn ahead(&self, is_prefill: bool, band: Band) -> u64 {
        let least = self.least[usize::from(!is_prefill)];
        let part = least.0.div_ceil(AHEAD_PARTS).max(CHUNK_BYTES_MIN);
        (part.div_ceil(band.unit_bytes.0) * band.unit).min(band.rows)
    }
}

/// Some rows of a stored weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Band {
    pub rows: u64,
    /// Rows that cannot be parted, and their bytes.
    unit: u64,
    unit_bytes: Bytes,
}

impl Band {
    pub(super) fn of(plan: &Plan, weight: &TensorSpec, rows: u64) -> Band {
        let compression = plan.policy.compression;
        let unit = compression.rows_together(weight);
        Band {
            rows,
            unit,
            unit_bytes: compression.rows_bytes(weight, unit, plan.dtype),
        }
    }

    fn units(&self) -> u64 {
        self.rows.div_ceil(self.unit)
    }

    pub(super) fn bytes(&self) -> Bytes {
        Bytes(self.units() * self.unit_bytes.0)
    }

    /// As many rows of the same weight.
    pub(super) fn with(self, rows: u64) -> Band {
        Band { rows, ..self }
    }
}

/// A module's part of [`Room::pinned`].
pub(super) fn buffer_of(module: Module) -> usize {
    match module.group() {
        Group::Attention => 0,
        Group::Mlp => 1,
    }
}

impl Room {
    /// Takes it, behind what lies in the tiers already; none where nothing is split.
    pub(in crate::lower) fn of(plan: &Plan, shape: &BatchShape, bump: &mut Bump) -> Option<Room> {
        let split = plan.policy.split.as_ref()?;
        let sizes = Sizes::of(plan, split, shape);
        let pinned_bytes = sizes.buffer_parts.map(|part| part.align_up(PAGE_BYTES));
        let pinned = pinned_bytes.map(|part| bump.ring(Tier::Host, BUFFER_PARTS as usize, part));
        Some(Room {
            inputs: bump.ring(Tier::Device, 2, sizes.input),
            inputs_host: bump.ring(Tier::Host, 2, sizes.input_host),
            outputs: bump.ring(Tier::Device, 1, sizes.outputs),
            outputs_host: bump.ring(Tier::Host, 1, sizes.outputs_host),
            rows: bump.ring(Tier::Device, 2, sizes.rows),
            pinned,
            pinned_bytes,
            least: sizes.least,
        })
    }
}

/// The most that each slot holds, of a prompt or of a new token.
#[derive(Debug, Default)]
struct Sizes {
    input: Bytes,
    input_host: Bytes,
    outputs: Bytes,
    outputs_host: Bytes,
    rows: Bytes,
    buffer_parts: [Bytes; 2],
    least: [Bytes; 2],
}

impl Sizes {
    fn of(plan: &Plan, split: &SplitLinears, shape: &BatchShape) -> Sizes {
        let specs = Specs::of(&plan.model);
        let layers = plan.model.num_hidden_layers;
        let mut most = Sizes::default();
        for is_prefill in [true, false] {
            let new = if is_prefill {
                plan.workload.prompt_len
            } else {
                1
            };
            let tokens = u64::from(shape.sequences) * u64::from(new);
            let values = |count: u64| slot_bytes(tokens, count);
            for step in super::STEPS {
                let (mut outputs, mut outputs_host) = (Bytes::ZERO, Bytes::ZERO);
                for (module, weight) in specs.of_step(step) {
                    most.input = most.input.max(values(weight.cols));
                    // Whole on the device it has one part, split it has two.
                    let is_split = split.layers_on_device[module] < layers;
                    let rows = match is_split {
                        true => split.rows((module, weight), is_prefill, plan.policy.compression),
                        false => RowSplit {
                            host: 0,
                            device: weight.rows,
                        },
                    };
                    let apart = values(rows.host) + values(rows.device);
                    outputs += apart.max(values(weight.rows));
                    if rows.host > 0 {
                        most.input_host = most.input_host.max(values(weight.cols));
                        outputs_host += values(rows.host);
                    }
                    if is_split {
                        let band = Band::of(plan, weight, rows.device);
                        let bytes = band.bytes();
                        outputs += Bytes(CACHE_LINE * BANDS_MOST);
                        most.rows = most.rows.max(bytes);
                        let least = &mut most.least[usize::from(!is_prefill)];
                        if bytes > Bytes::ZERO && (*least == Bytes::ZERO || bytes < *least) {
                            *least = bytes;
                        }
                        if split.route.pins() {
                            let units = band.units().div_ceil(BUFFER_PARTS);
                            let part = &mut most.buffer_parts[buffer_of(module)];
                            *part = (*part).max(Bytes(units * band.unit_bytes.0));
                        }
                    }
                }
                most.outputs = most.outputs.max(outputs);
                most.outputs_host = most.outputs_host.max(outputs_host);
            }
        }
        most
    }
}

/// What a slot's bytes are a multiple of.
const CACHE_LINE: u64 = 64;

/// Room for so many values of each token, the next one's beginning aligned.
pub(super) fn slot_bytes(tokens: u64, values: u64) -> Bytes {
    Bytes(tokens * values * ELEMENT_BYTES).align_up(CACHE_LINE)
}
