//! What an executor needs of a GPU, and no more: the seam at which another device can stand in for tests.
//!
//! Streams and events go by number. Work that is given to a stream is done in order, some time later; nothing but
//! [`Card::await_event`], [`Card::write`] and [`Card::close`] waits for it.

use std::fmt::Debug;

use super::raw::Product;
use super::{CudaError, Launch};

/// A copy of equal rows between memories, of the GPU or of the host: both have addresses of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRows {
    /// Of the first row.
    pub to: u64,
    /// Of the first row.
    pub from: u64,
    /// Of each row.
    pub bytes: usize,
    /// How many.
    pub rows: usize,
    /// Bytes from a row of the target to the next.
    pub to_pitch: usize,
    /// Bytes from a row of the source to the next.
    pub from_pitch: usize,
}

/// The furthest that rows of a copy may lie apart: as every driver takes it.
pub(crate) const PITCH_MOST: usize = i32::MAX as usize;

impl CopyRows {
    /// The same in copies whose rows lie no further apart than drivers take: itself, or each row by itself.
    pub fn in_reach(self) -> impl Iterator<Item = CopyRows> {
        let is_far = self.rows > 1 && self.to_pitch.max(self.from_pitch) > PITCH_MOST;
        let (copies, rows) = if is_far {
            (self.rows, 1)
        } else {
            (1, self.rows)
        };
        (0..copies).map(move |copy| CopyRows {
            to: self.to + (copy * self.to_pitch) as u64,
            from: self.from + (copy * self.from_pitch) as u64,
            rows,
            ..self
        })
    }

    /// One row.
    pub fn of(to: u64, from: u64, bytes: usize) -> CopyRows {
        CopyRows {
            to,
            from,
            bytes,
            rows: 1,
            to_pitch: bytes,
            from_pitch: bytes,
        }
    }
}

/// When a task began and ended on a stream: the numbers of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moments {
    /// The resource whose stream it is.
    pub stream: usize,
    /// Recorded when all that it waited for had been.
    pub begin: usize,
    /// Recorded behind its last command.
    pub end: usize,
}

/// A GPU with streams, events and memory. Whoever calls answers for addresses, which must stay until the work is done.
pub trait Card: Send + Sync + Debug {
    /// Makes so many streams and events, and whatever else would take time later, such as compiling kernels.
    ///
    /// # Errors
    /// What the device says.
    fn open(&self, streams: usize, events: usize) -> Result<(), CudaError>;
    /// Takes memory, which is kept until [`Card::close`].
    ///
    /// # Errors
    /// Where there is not as much.
    fn take(&self, bytes: usize) -> Result<u64, CudaError>;
    /// Gives memory back before that, which no work uses any more.
    fn give_back(&self, address: u64);
    /// Page-locks memory of the host until [`Card::close`].
    ///
    /// # Errors
    /// Where the system does not lock as much.
    fn lock_pages(&self, address: u64, bytes: usize) -> Result<(), CudaError>;
    /// Writes memory of the GPU, and returns when that is done.
    ///
    /// # Errors
    /// What the device says.
    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError>;
    /// Copies, on a stream.
    ///
    /// # Errors
    /// What the device says.
    fn copy(&self, stream: usize, copy: &CopyRows) -> Result<(), CudaError>;
    /// Runs a kernel, on a stream.
    ///
    /// # Errors
    /// What the device says.
    fn launch(&self, stream: usize, launch: &Launch) -> Result<(), CudaError>;
    /// The vendor's product, on a stream.
    ///
    /// # Errors
    /// What the library says.
    fn multiply(&self, stream: usize, product: &Product) -> Result<(), CudaError>;
    /// Has an event be when all has been that the stream was given.
    ///
    /// # Errors
    /// What the device says.
    fn record(&self, stream: usize, event: usize) -> Result<(), CudaError>;
    /// Lets a stream wait for an event, not the host.
    ///
    /// # Errors
    /// What the device says.
    fn wait_for(&self, stream: usize, event: usize) -> Result<(), CudaError>;
    /// Waits, on the host, until an event has been.
    ///
    /// # Errors
    /// Where work before it failed.
    fn await_event(&self, event: usize) -> Result<(), CudaError>;
    /// Milliseconds from one event that has been to another.
    ///
    /// # Errors
    /// What the device says.
    fn elapsed_ms(&self, since: usize, event: usize) -> Result<f32, CudaError>;
    /// What it is called.
    fn name(&self) -> String;
    /// Its memory in bytes: what was free when it was found, and all.
    fn memory(&self) -> [usize; 2];
    /// Bytes of the cache between its memory and its multiprocessors.
    fn cache_bytes(&self) -> usize;
    /// How many multiprocessors there are.
    fn multiprocessors(&self) -> usize;
    /// Waits for all work and gives memory, streams and events back.
    fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_lie_too_far_apart_are_copies_of_their_own() {
        let copy = CopyRows {
            to: 8,
            from: 16,
            bytes: 4,
            rows: 3,
            to_pitch: 4,
            from_pitch: PITCH_MOST,
        };
        assert_eq!(copy.in_reach().collect::<Vec<_>>(), [copy]);
        let far = CopyRows {
            from_pitch: PITCH_MOST + 1,
            ..copy
        };
        let places = far.in_reach().map(|copy| (copy.rows, copy.to, copy.from));
        let at = |row: u64| (1, 8 + 4 * row, 16 + row * far.from_pitch as u64);
        assert_eq!(places.collect::<Vec<_>>(), [at(0), at(1), at(2)]);
        let one = CopyRows { rows: 1, ..far };
        assert_eq!(one.in_reach().collect::<Vec<_>>(), [one]);
    }
}
