//! A bounded region of real memory.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use plimsoll_core::units::Bytes;

use super::{TierError, available_memory};

/// Mappings start at multiples of this, so that the system can use large pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory that is made present at once: in between signals are seen, which the system would else keep for many seconds.
const PRESENT_AT_ONCE: usize = 64 << 20;

/// A tier's memory: one anonymous mapping of the stated size, present before it is used.
///
/// Workers touch it at the same time, through [`Arena::bytes`] and [`Arena::bytes_mut`].
#[derive(Debug)]
pub struct Arena {
    tier: &'static str,
    mapping: NonNull<u8>,
    mapped: usize,
    base: NonNull<u8>,
    capacity: Bytes,
}

// SAFETY: the arena is plain memory; who may touch which range is the contract of its accessors.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `capacity` bytes, zeroed and resident.
    ///
    /// # Errors
    /// [`TierError::NoMemory`] where the system refuses.
    pub fn new(tier: &'static str, capacity: Bytes) -> Result<Arena, TierError> {
        let arena = Arena::unless(tier, capacity, &|| false)?;
        Ok(arena.expect("nobody gives it up"))
    }

    /// The same, which takes a while, unless it is given up meanwhile.
    ///
    /// # Errors
    /// As [`Arena::new`].
    pub(crate) fn unless(
        tier: &'static str,
        capacity: Bytes,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<Arena>, TierError> {
        let refused = |source: io::Error| TierError::NoMemory {
            tier,
            capacity,
            source,
        };
        let wanted =
            usize::try_from(capacity.0).map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
        if let Some(available) = available_memory().filter(|available| *available < capacity) {
            return Err(refused(io::Error::other(format!(
                "only {available} is free"
            ))));
        }
        let mapped = wanted
            .checked_add(2 * HUGE_PAGE_BYTES)
            .ok_or_else(|| refused(io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: a fresh private anonymous mapping at an address of the system's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(refused(io::Error::last_os_error()));
        }
        let Some(mapping) = NonNull::new(address.cast::<u8>()) else {
            return Err(refused(io::ErrorKind::OutOfMemory.into()));
        };
        let skip = mapping.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skip` is under one huge page, and the mapping is two larger than what is used.
        let base = unsafe { mapping.add(skip) };
        let arena = Arena {
            tier,
            mapping,
            mapped,
            base,
            capacity,
        };
        let whole = wanted.next_multiple_of(HUGE_PAGE_BYTES);
        for start in (0..whole).step_by(PRESENT_AT_ONCE) {
            if is_over() {
                return Ok(None);
            }
            let part = start..whole.min(start + PRESENT_AT_ONCE);
            arena.make_resident(part).map_err(refused)?;
        }
        Ok(Some(arena))
    }

    /// Asks for large pages and has every page present, so that no task pays for a first touch.
    fn make_resident(&self, part: Range<usize>) -> io::Result<()> {
        // SAFETY: the range is inside the mapping; both calls only advise or populate it.
        unsafe {
            let address = self.base.add(part.start).as_ptr().cast();
            libc::madvise(address, part.len(), libc::MADV_HUGEPAGE);
            if libc::madvise(address, part.len(), libc::MADV_POPULATE_WRITE) == 0 {
                return Ok(());
            }
        }
        let error = io::Error::last_os_error();
        // Before Linux 5.14 there is no such advice: touch the pages.
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        for offset in part.step_by(4096) {
            // SAFETY: inside the mapping, and nobody else has the arena yet.
            unsafe { self.base.add(offset).write_volatile(0) };
        }
        Ok(())
    }

    /// How much it holds.
    pub fn capacity(&self) -> Bytes {
        self.capacity
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// All of it, to write.
    pub fn all_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the mapping, initialised, and the caller has the arena for itself.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.capacity.0 as usize) }
    }

    fn start(&self, offset: u64, len: usize) -> Result<NonNull<u8>, TierError> {
        let end = offset.saturating_add(len as u64);
        if end > self.capacity.0 {
            return Err(TierError::OutOfRange {
                tier: self.tier,
                offset,
                end,
                capacity: self.capacity,
            });
        }
        // SAFETY: inside the mapping, as just checked.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    /// Bytes to read.
    ///
    /// # Safety
    /// While the slice lives, nobody writes this range. A verified program's tasks keep that: two that
    /// touch the same bytes, one of them writing, are ordered.
    ///
    /// # Errors
    /// [`TierError::OutOfRange`].
    pub unsafe fn bytes(&self, offset: u64, len: usize) -> Result<&[u8], TierError> {
        let start = self.start(offset, len)?;
        // SAFETY: in range, initialised (mapped zeroed), and the caller keeps writers away.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// Bytes to write.
    ///
    /// # Safety
    /// While the slice lives, nobody else touches this range.
    ///
    /// # Errors
    /// [`TierError::OutOfRange`].
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self, offset: u64, len: usize) -> Result<&mut [u8], TierError> {
        let start = self.start(offset, len)?;
        // SAFETY: in range, and the caller keeps everyone else away.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }
}

/// An arena with one owner: whoever borrows it has all of it.
#[derive(Debug)]
pub struct Region {
    arena: Arena,
    length: usize,
}

impl Region {
    /// As [`Arena::new`].
    ///
    /// # Errors
    /// [`TierError::NoMemory`] where the system refuses.
    pub fn new(tier: &'static str, length: Bytes) -> Result<Region, TierError> {
        Ok(Region {
            arena: Arena::new(tier, length)?,
            length: length.0 as usize,
        })
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.arena.address()
    }

    /// All of it, to read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping, initialised; who writes needs the region for itself.
        unsafe { std::slice::from_raw_parts(self.arena.base.as_ptr(), self.length) }
    }

    /// All of it, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.arena.all_mut()
    }
}

/// Refuses arenas that this machine cannot hold together, before the first of them is made.
///
/// # Errors
/// [`TierError::TooMuchMemory`].
pub fn check_memory(device: Bytes, host: Bytes) -> Result<(), TierError> {
    let needed = Bytes(device.0.saturating_add(host.0));
    match available_memory() {
        Some(available) if available < needed => {
            Err(TierError::TooMuchMemory { needed, available })
        }
        _ => Ok(()),
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it outlives the arena.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_up_waits_for_no_more_of_it() {
        let asked = std::cell::Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) == 2;
        let whole = Bytes(4 * PRESENT_AT_ONCE as u64);
        let arena = Arena::unless("host", whole, &is_over).expect("memory");
        assert!(arena.is_none() && asked.get() == 3);
    }

    #[test]
    fn a_range_past_the_end_is_refused_by_tier_and_size() {
        let arena = Arena::new("device", Bytes(10_000)).expect("memory");
        // SAFETY: nothing else touches the arena.
        let error = unsafe { arena.bytes(9_000, 1_001) }.expect_err("past the end");
        assert_eq!(
            error.to_string(),
            "the device tier holds 10.0 kB, and bytes 9000 to 10001 were asked for"
        );
    }

    #[test]
    fn tiers_share_this_machines_memory() {
        let most = available_memory().expect("the system says");
        check_memory(Bytes(1 << 20), Bytes(1 << 20)).expect("little");
        let refused = check_memory(most, Bytes(most.0 / 2));
        assert!(matches!(refused, Err(TierError::TooMuchMemory { .. })));
        check_memory(Bytes(u64::MAX), Bytes(u64::MAX)).expect_err("too much");
    }

    #[test]
    fn what_is_written_is_read() {
        let arena = Arena::new("host", Bytes(1 << 20)).expect("memory");
        // SAFETY: one range after the other, from one thread.
        unsafe {
            arena
                .bytes_mut(4096, 3)
                .expect("in range")
                .copy_from_slice(&[1, 2, 3]);
            assert_eq!(arena.bytes(4095, 5).expect("in range"), &[0, 1, 2, 3, 0]);
            assert_eq!(
                arena.bytes(0, 1).expect("in range").as_ptr() as usize % 4096,
                0
            );
        }
    }

    #[test]
    fn a_capacity_that_no_machine_has_is_an_error() {
        for capacity in [Bytes(1 << 44), Bytes(1 << 60), Bytes(u64::MAX)] {
            let refused = Arena::new("host", capacity);
            assert!(
                matches!(refused, Err(TierError::NoMemory { .. })),
                "{capacity}"
            );
        }
    }
}
