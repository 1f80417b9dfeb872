//! The device's memory, of a stated size: a plan for a small GPU runs on a larger one as on its own.

use std::sync::Arc;

use plimsoll_core::units::Bytes;

use super::CudaError;
use super::raw::{Device, DeviceMemory};

/// What addresses are multiples of: as the driver's own.
pub const ALIGNMENT: usize = 256;

/// Places in a number of bytes, one after another, all given back at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    capacity: usize,
    used: usize,
}

impl Places {
    /// None taken.
    pub fn new(capacity: usize) -> Places {
        Places { capacity, used: 0 }
    }

    /// The offset of so many bytes more.
    ///
    /// # Errors
    /// [`CudaError::ArenaFull`].
    pub fn take(&mut self, bytes: usize) -> Result<usize, CudaError> {
        let start = self.used.next_multiple_of(ALIGNMENT);
        let end = start.checked_add(bytes).filter(|end| *end <= self.capacity);
        let Some(end) = end else {
            let [capacity, used, wanted] =
                [self.capacity, self.used, bytes].map(|bytes| Bytes(bytes as u64));
            return Err(CudaError::ArenaFull {
                capacity,
                used,
                wanted,
            });
        };
        self.used = end;
        Ok(start)
    }

    /// Gives all back.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}

/// Device memory that is taken once.
#[derive(Debug)]
pub struct DeviceArena {
    /// All of it.
    pub memory: DeviceMemory,
    /// What is taken of it.
    pub places: Places,
}

impl DeviceArena {
    /// Takes the memory.
    ///
    /// # Errors
    /// Where the GPU has not as much.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<DeviceArena, CudaError> {
        Ok(DeviceArena {
            memory: DeviceMemory::new(device, bytes)?,
            places: Places::new(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap_and_end_with_the_arena() {
        let mut places = Places::new(1024);
        assert_eq!(places.take(1), Ok(0));
        assert_eq!(places.take(256), Ok(256));
        assert_eq!(places.take(512), Ok(512));
        let error = places.take(1).unwrap_err().to_string();
        assert!(error.starts_with("the device's arena holds"), "{error}");
        assert!(places.take(usize::MAX).is_err());
        places.clear();
        assert_eq!(places.take(1024), Ok(0));
    }
}
