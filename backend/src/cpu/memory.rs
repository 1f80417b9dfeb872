//! The bytes of buffers: the one place where tasks get at tiers.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_core::machine::Machine;
use plimsoll_core::program::{Access, ArenaId, Arg, Buffer, BufferId, Content};
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;

use super::error::{CpuError, TaskError};
use crate::cuda::Card;
use crate::tiers::{Arena, DiskTier, fill_with_noise};

/// The real memory of an emulated machine, by the number of its arenas.
#[derive(Debug)]
pub(crate) struct Memory {
    places: Vec<Place>,
}

/// The buffers that tasks may still touch, by number.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    declared: u32,
    known: HashMap<BufferId, Buffer>,
}

impl Buffers {
    /// The number of the next one.
    pub(super) fn end(&self) -> BufferId {
        BufferId(self.declared)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Takes those of the next piece.
    pub(super) fn declare(&mut self, buffers: &[Buffer]) {
        let ids = (self.declared..).map(BufferId);
        self.known.extend(ids.zip(buffers.iter().copied()));
        self.declared += buffers.len() as u32;
    }

    /// Lets go of these, which were given back.
    pub(super) fn forget(&mut self, buffers: &[BufferId]) {
        for buffer in buffers {
            self.known.remove(buffer);
        }
    }
}

/// What an arena of the program is here.
#[derive(Debug)]
enum Place {
    /// Of a host, or of a device that is emulated.
    Memory(Tier, Arena),
    /// Of a GPU, from an address of its own on.
    Card(u64),
    /// None where the program keeps nothing there.
    Disk(Option<DiskTier>),
}

/// A buffer as a task sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    /// Where it is.
    pub tier: Tier,
    arena: ArenaId,
    /// Its first byte there.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// What it holds.
    pub content: Content,
    /// How the task touches it.
    pub access: Access,
}

impl Operand {
    /// The buffer of an argument.
    fn of(memory: &Memory, buffers: &Buffers, arg: Arg) -> Result<Operand, TaskError> {
        let buffer = buffers.known.get(&arg.buffer);
        let buffer = buffer.ok_or(TaskError::NoOperand("a declared buffer"))?;
        Ok(Operand {
            tier: memory.place(buffer.arena)?.tier(),
            arena: buffer.arena,
            offset: buffer.offset.0,
            bytes: buffer.bytes.0,
            content: buffer.content,
            access: arg.access,
        })
    }

    /// A part of it.
    pub(crate) fn part(mut self, from: Bytes, bytes: Bytes) -> Result<Operand, TaskError> {
        let end = Bytes(from.0.saturating_add(bytes.0));
        if end.0 > self.bytes {
            return Err(TaskError::PastEnd {
                bytes: end,
                room: Bytes(self.bytes),
            });
        }
        self.offset += from.0;
        self.bytes = bytes.0;
        Ok(self)
    }
}

impl Place {
    fn tier(&self) -> Tier {
        match self {
            Place::Memory(tier, _) => *tier,
            Place::Card(_) => Tier::Device,
            Place::Disk(_) => Tier::Disk,
        }
    }
}

/// What lies between some ranges, which ascend and have nothing in common, of so many bytes.
fn between(ranges: &[Range<Bytes>], bytes: Bytes) -> impl Iterator<Item = Range<Bytes>> {
    debug_assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
    let starts = std::iter::once(Bytes::ZERO).chain(ranges.iter().map(|range| range.end));
    let ends = ranges.iter().map(|range| range.start);
    let ends = ends.chain(std::iter::once(bytes));
    let between = starts.zip(ends).map(|(start, end)| start..end);
    between.filter(|range| !range.is_empty())
}

impl Memory {
    /// The arenas of a machine, of these sizes; with a GPU, the device's is its own, and the host's is page-locked but for
    /// what is pageable: homes, by arena, in their order.
    pub(super) fn new(
        machine: &Machine,
        (sizes, pageable): (&[Bytes], &[Vec<Range<Bytes>>]),
        (disk_dir, interrupt): (&std::path::Path, &AtomicBool),
        card: Option<&dyn Card>,
    ) -> Result<Memory, CpuError> {
        let mut memory = Memory { places: Vec::new() };
        let arenas = machine.arenas.iter().zip(sizes).zip(pageable);
        for ((arena, bytes), pageable) in arenas {
            let added = memory.add((arena.tier, *bytes), pageable, (disk_dir, interrupt), card);
            if let (Err(_), Some(card)) = (&added, card) {
                // What is page-locked is unlocked before it is gone.
                card.close();
            }
            added?;
        }
        Ok(memory)
    }

    fn add(
        &mut self,
        (tier, bytes): (Tier, Bytes),
        pageable: &[Range<Bytes>],
        (disk_dir, interrupt): (&std::path::Path, &AtomicBool),
        card: Option<&dyn Card>,
    ) -> Result<(), CpuError> {
        let is_over = || interrupt.load(Ordering::Relaxed);
        let place = match (tier, bytes, card) {
            (Tier::Disk, Bytes::ZERO, _) => Place::Disk(None),
            (Tier::Disk, bytes, _) => Place::Disk(Some(DiskTier::create(disk_dir, bytes)?)),
            (Tier::Device, bytes, Some(card)) => Place::Card(card.take(bytes.0 as usize)?),
            (tier, bytes, _) => {
                let arena = Arena::unless(tier.name(), bytes, &is_over)?;
                Place::Memory(tier, arena.ok_or(CpuError::Interrupted)?)
            }
        };
        self.places.push(place);
        if let (Some(Place::Memory(_, arena)), Some(card)) = (self.places.last(), card) {
            for locked in between(pageable, bytes) {
                let bytes = (locked.end - locked.start).0 as usize;
                card.lock_pages(arena.address() + locked.start.0, bytes)?;
            }
        }
        Ok(())
    }

    /// Fills the host's arenas with what is no zeros, before anything is there; for nobody where there is no disk.
    pub(super) fn fill_hosts(&mut self) {
        if self.first_disk().is_none() {
            return;
        }
        for (place, seed) in self.places.iter_mut().zip(1..) {
            if let Place::Memory(Tier::Host, arena) = place {
                fill_with_noise(arena.all_mut(), seed);
            }
        }
    }

    fn place(&self, arena: ArenaId) -> Result<&Place, TaskError> {
        let place = self.places.get(usize::from(arena.0));
        place.ok_or(TaskError::NoOperand("an arena of the machine"))
    }

    fn arena(&self, arena: ArenaId) -> Result<&Arena, TaskError> {
        match self.place(arena)? {
            Place::Memory(_, arena) => Ok(arena),
            Place::Card(_) | Place::Disk(_) => Err(TaskError::NoOperand("a buffer in memory")),
        }
    }

    /// The tier that an arena is of.
    pub(super) fn tier(&self, arena: ArenaId) -> Result<Tier, CpuError> {
        let place = self.place(arena).map_err(super::load::task_error)?;
        Ok(place.tier())
    }

    /// The disk that an arena is.
    pub(super) fn disk(&self, arena: ArenaId) -> Result<&DiskTier, TaskError> {
        match self.place(arena)? {
            Place::Disk(Some(disk)) => Ok(disk),
            _ => Err(TaskError::NoOperand("a disk")),
        }
    }

    /// The first disk, where there is one.
    pub(super) fn first_disk(&self) -> Option<&DiskTier> {
        self.places.iter().find_map(|place| match place {
            Place::Disk(disk) => disk.as_ref(),
            Place::Memory(..) | Place::Card(_) => None,
        })
    }

    /// The address of a buffer, of a GPU's memory or of the host's.
    pub(super) fn address(&self, operand: &Operand) -> Result<u64, TaskError> {
        match self.place(operand.arena)? {
            Place::Memory(_, arena) => Ok(arena.address() + operand.offset),
            Place::Card(base) => Ok(base + operand.offset),
            Place::Disk(_) => Err(TaskError::NoOperand("a buffer in memory")),
        }
    }

    /// A buffer's bytes, to read.
    ///
    /// # Safety
    /// Until the slice is gone, nobody writes the buffer. A task that was submitted as part of a
    /// verified program and whose turn it is may read its operands: the verifier proved that two tasks
    /// that touch the same bytes, one of them writing, are ordered by the program, and the scheduler
    /// keeps that order.
    pub(super) unsafe fn read(&self, operand: &Operand) -> Result<&[u8], TaskError> {
        let arena = self.arena(operand.arena)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { arena.bytes(operand.offset, operand.bytes as usize) }?)
    }

    /// A buffer's bytes, to write.
    ///
    /// # Safety
    /// Until the slice is gone, nobody else touches the buffer. A task whose turn it is may write the
    /// operands that it states as written or updated, each once; see [`Memory::read`].
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn write(&self, operand: &Operand) -> Result<&mut [u8], TaskError> {
        let arena = self.arena(operand.arena)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { arena.bytes_mut(operand.offset, operand.bytes as usize) }?)
    }
}

/// The operands of a task whose turn it is.
#[derive(Debug)]
pub(crate) struct Operands<'m> {
    memory: &'m Memory,
    list: Vec<Operand>,
    handed_out: std::cell::Cell<u32>,
}

impl<'m> Operands<'m> {
    /// The operands of a task.
    ///
    /// # Safety
    /// The task is one of a verified program, and it runs now: what it waits for has ended, and nothing
    /// that waits for it has begun. One `Operands` a task, dropped before its end is announced.
    pub(super) unsafe fn new(
        memory: &'m Memory,
        buffers: &Buffers,
        args: &[Arg],
    ) -> Result<Operands<'m>, TaskError> {
        let list: Result<Vec<Operand>, TaskError> = args
            .iter()
            .map(|arg| Operand::of(memory, buffers, *arg))
            .collect();
        Ok(Operands {
            memory,
            list: list?,
            handed_out: std::cell::Cell::new(0),
        })
    }

    /// Every argument.
    pub(crate) fn all(&self) -> &[Operand] {
        &self.list
    }

    /// The number of the argument that holds `wanted`.
    pub(crate) fn find(&self, wanted: impl Fn(&Operand) -> bool) -> Option<usize> {
        self.list.iter().position(wanted)
    }

    /// An argument.
    pub(crate) fn get(&self, index: usize) -> Result<&Operand, TaskError> {
        self.list
            .get(index)
            .ok_or(TaskError::NoOperand("an argument"))
    }

    /// The address of an argument, for a GPU that reads or writes it when its turn has come.
    pub(crate) fn address(&self, index: usize) -> Result<u64, TaskError> {
        self.memory.address(self.get(index)?)
    }

    /// The bytes of an argument, to read.
    pub(crate) fn read(&self, index: usize) -> Result<&'m [u8], TaskError> {
        let operand = self.get(index)?;
        if operand.access != Access::Read {
            self.hand_out(index)?;
        }
        // SAFETY: `Operands::new`'s promise; an operand that the task also writes is handed out once.
        unsafe { self.memory.read(operand) }
    }

    /// The bytes of an argument that the task states as written.
    pub(super) fn write(&self, index: usize) -> Result<&'m mut [u8], TaskError> {
        let operand = self.get(index)?;
        if operand.access == Access::Read {
            return Err(TaskError::NoOperand("a buffer to write"));
        }
        self.hand_out(index)?;
        // SAFETY: `Operands::new`'s promise; buffers that are alive together do not overlap, and each is
        // handed out once.
        unsafe { self.memory.write(operand) }
    }

    /// Marks an argument that must not be seen twice.
    fn hand_out(&self, index: usize) -> Result<(), TaskError> {
        let bit = 1_u32.checked_shl(index as u32).unwrap_or(0);
        if bit == 0 || self.handed_out.get() & bit != 0 {
            return Err(TaskError::NoOperand("a buffer that is not in use"));
        }
        self.handed_out.set(self.handed_out.get() | bit);
        Ok(())
    }

    /// The disk that an argument is on.
    pub(super) fn disk(&self, index: usize) -> Result<&'m DiskTier, TaskError> {
        self.memory.disk(self.get(index)?.arena)
    }

    /// A part of an argument in memory, to read, of a task that moves it.
    pub(super) fn read_part(
        &self,
        index: usize,
        from: Bytes,
        bytes: Bytes,
    ) -> Result<&'m [u8], TaskError> {
        let all = self.read(index)?;
        self.get(index)?.part(from, bytes)?;
        Ok(&all[from.0 as usize..(from.0 + bytes.0) as usize])
    }

    /// A part of an argument in memory, to write, of a task that moves it.
    pub(super) fn write_part(
        &self,
        index: usize,
        from: Bytes,
        bytes: Bytes,
    ) -> Result<&'m mut [u8], TaskError> {
        let all = self.write(index)?;
        self.get(index)?.part(from, bytes)?;
        Ok(&mut all[from.0 as usize..(from.0 + bytes.0) as usize])
    }
}
