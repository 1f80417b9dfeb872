//! Fills the weights' homes before the clock starts.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::TensorSpec;
use plimsoll_core::placement::{BlockWeights, WeightPlacement};
use plimsoll_core::program::{Access, Arg, Buffer, BufferId, Content};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;

use super::error::{CpuError, TaskError};
use super::memory::{Buffers, Memory, Operands};
use crate::cuda::Card;
use crate::decoder::DecoderError;
use crate::kernels::Elements;
use crate::kernels::groups::pack_matrix;
use crate::tiers::Arena;
use crate::weights::WeightSource;

/// What is told while weights are loaded: bytes so far, and bytes in all.
pub type Progress<'a> = dyn FnMut(Bytes, Bytes) + Send + 'a;

/// Fills homes from a source.
pub(super) struct Loader<'a, 's> {
    pub memory: &'a Memory,
    pub placement: &'a WeightPlacement,
    pub dtype: Dtype,
    pub compression: Compression,
    pub source: &'s dyn WeightSource,
    pub progress: &'a mut Progress<'s>,
    pub interrupt: &'a AtomicBool,
    /// Where the device is a GPU.
    pub card: Option<&'a dyn Card>,
}

impl Loader<'_, '_> {
    /// Fills the homes among the buffers of the first piece, which no task has seen yet.
    pub(super) fn load(&mut self, known: &Buffers, buffers: &[Buffer]) -> Result<(), CpuError> {
        let homes = buffers
            .iter()
            .enumerate()
            .filter(|(_, buffer)| buffer.resident);
        let homes: Vec<(BufferId, u16, Tier)> = homes
            .filter_map(|(index, buffer)| match buffer.content {
                Content::Weights { block, home, .. } => Some((BufferId(index as u32), block, home)),
                _ => None,
            })
            .collect();
        let bytes = |id: &BufferId| buffers[id.0 as usize].bytes;
        let total = homes.iter().map(|(id, ..)| bytes(id)).sum();
        let mut loaded = Bytes::ZERO;
        let (mut slab, mut whole) = (None, None);
        for (id, block, home) in homes {
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(CpuError::Interrupted);
            }
            let Some(weights) = self.placement.blocks.get(block as usize) else {
                return Err(CpuError::Decoder(DecoderError::Operand {
                    what: "blocks of weights",
                    expected: block as usize + 1,
                    found: self.placement.blocks.len(),
                }));
            };
            let place = (weights, home);
            let far = home == Tier::Disk || home == Tier::Device && self.card.is_some();
            if far {
                let buffer = &buffers[id.0 as usize];
                let slab = self.fill_slab(place, buffer, (&mut slab, &mut whole))?;
                self.bring((known, id), buffer, slab)?;
            } else {
                let into = self.home(known, id)?;
                self.fill(place, into, &mut whole)?;
            }
            loaded += bytes(&id);
            (self.progress)(loaded, total);
        }
        Ok(())
    }

    #[allow(unsafe_code, clippy::mut_from_ref)]
    fn home(&self, buffers: &Buffers, id: BufferId) -> Result<&mut [u8], CpuError> {
        let arg = Arg {
            buffer: id,
            access: Access::Write,
        };
        // SAFETY: no task has been handed over yet, and homes, which live as long as the program, do not
        // overlap: the verifier proved it.
        let operands = unsafe { Operands::new(self.memory, buffers, &[arg]) };
        let bytes = operands.and_then(|operands| operands.write(0));
        bytes.map_err(task_error)
    }

    /// Writes a block's tensors of one tier to their slab.
    fn fill(
        &self,
        (weights, home): (&BlockWeights, Tier),
        slab: &mut [u8],
        whole: &mut Option<Arena>,
    ) -> Result<(), CpuError> {
        for tensor in weights.tensors.iter().filter(|tensor| tensor.home == home) {
            let start = tensor.offset.0 as usize;
            let bytes = self.compression.tensor_bytes(&tensor.spec, self.dtype);
            let end = start + bytes.0 as usize;
            let found = slab.len();
            let place = slab.get_mut(start..end).ok_or(DecoderError::Operand {
                what: "a slab of weights, in bytes",
                expected: end,
                found,
            })?;
            if self.compression.packs(&tensor.spec) {
                self.pack(&tensor.spec, place, whole)?;
            } else {
                self.source.load(&tensor.spec, self.dtype, place)?;
            }
        }
        Ok(())
    }

    /// Loads a matrix into memory of its own, which is kept for the next, and packs it.
    #[allow(unsafe_code)]
    fn pack(
        &self,
        tensor: &TensorSpec,
        place: &mut [u8],
        whole: &mut Option<Arena>,
    ) -> Result<(), CpuError> {
        let bytes = Bytes(tensor.elements() * self.dtype.size_bytes());
        let whole = at_least(whole, bytes)?;
        // SAFETY: the arena is the caller's own.
        let memory = unsafe { whole.bytes_mut(0, bytes.0 as usize) }?;
        load_packed(self.source, (tensor, self.dtype), memory, place)
    }

    /// Fills a slab in memory, which is kept for the next.
    #[allow(unsafe_code)]
    fn fill_slab<'m>(
        &self,
        place: (&BlockWeights, Tier),
        buffer: &Buffer,
        (slab, whole): (&'m mut Option<Arena>, &mut Option<Arena>),
    ) -> Result<&'m [u8], CpuError> {
        let bytes = buffer.bytes;
        let slab = at_least(slab, bytes)?;
        // SAFETY: the arena is the caller's own, and lent to what is made of it.
        let memory = unsafe { slab.bytes_mut(0, bytes.0 as usize) }?;
        memory.fill(0);
        self.fill(place, memory, whole)?;
        Ok(memory)
    }

    /// Writes a slab to where the host has no memory: the disk, or a GPU.
    #[allow(unsafe_code)]
    fn bring(
        &self,
        (known, id): (&Buffers, BufferId),
        buffer: &Buffer,
        slab: &[u8],
    ) -> Result<(), CpuError> {
        if let (Tier::Device, Some(card)) = (self.memory.tier(buffer.arena)?, self.card) {
            let arg = Arg {
                buffer: id,
                access: Access::Write,
            };
            // SAFETY: no task has been handed over yet.
            let operands = unsafe { Operands::new(self.memory, known, &[arg]) };
            let to = operands.and_then(|operands| operands.address(0));
            return Ok(card.write(to.map_err(task_error)?, slab)?);
        }
        let disk = self.memory.disk(buffer.arena).map_err(task_error)?;
        Ok(disk.write_at(buffer.offset.0, slab)?)
    }
}

/// Memory of at least so many bytes: what is there, if it is large enough.
fn at_least(memory: &mut Option<Arena>, bytes: Bytes) -> Result<&mut Arena, CpuError> {
    let large_enough = memory.take().filter(|memory| memory.capacity() >= bytes);
    Ok(memory.insert(match large_enough {
        Some(memory) => memory,
        None => Arena::new("host", bytes)?,
    }))
}

/// The same trouble before the first task.
pub(super) fn task_error(error: TaskError) -> CpuError {
    match error {
        TaskError::Tier(error) => CpuError::Tier(error),
        TaskError::Decoder(error) => CpuError::Decoder(error),
        TaskError::Cuda(error) => CpuError::Cuda(error),
        other => CpuError::Program(other.to_string()),
    }
}

/// Loads a matrix into some memory and packs it from there.
pub(crate) fn load_packed(
    source: &dyn WeightSource,
    (tensor, dtype): (&TensorSpec, Dtype),
    memory: &mut [u8],
    place: &mut [u8],
) -> Result<(), CpuError> {
    source.load(tensor, dtype, memory)?;
    let elements = Elements::from_bytes(memory, dtype);
    let packed = elements.and_then(|e| pack_matrix(e, tensor.cols as usize, place));
    Ok(packed.map_err(DecoderError::from)?)
}
