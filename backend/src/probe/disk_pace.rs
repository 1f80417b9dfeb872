//! How fast the disk happens to be read: a file of reference, a part of it at a time, on and on.

use std::time::Instant;

use plimsoll_core::units::Bytes;

use crate::cpu::{CpuError, CpuOptions};
use crate::tiers::{DiskTier, Region, fill_with_noise, free_bytes};

use super::moves::{DISK_REGION, DISK_ROOM};

/// Bytes of the file: read on and on, it is no small place that something between here and the disk may keep. As much as the probe's
/// own reads go over, where the disk has room.
const FILE: u64 = DISK_REGION.0;

/// Bytes of a read.
const PART: u64 = 4 << 20;

/// The reference work's bytes.
const REFERENCE: u64 = 64 << 20;

/// How long it is read at least, at a moment.
const SECONDS_MIN: f64 = 0.2;

/// The file, and memory for a part of it.
#[derive(Debug)]
pub(super) struct DiskMeter {
    disk: DiskTier,
    part: Region,
    at: u64,
}

impl DiskMeter {
    /// Writes the file, where the disk tier of these options lies; none where the disk would be nearly full, with what else needs
    /// room beside it.
    ///
    /// # Errors
    /// What the system says of writing.
    pub fn new(options: &CpuOptions, beside: Bytes) -> Result<Option<DiskMeter>, CpuError> {
        if free_bytes(&options.disk_dir)? < beside + DISK_ROOM {
            return Ok(None);
        }
        let disk = DiskTier::create(&options.disk_dir, Bytes(FILE))?;
        let mut part = Region::new("host", Bytes(PART))?;
        for at in (0..FILE).step_by(PART as usize) {
            fill_with_noise(part.bytes_mut(), at + 1);
            disk.write_at(at, part.bytes())?;
        }
        Ok(Some(DiskMeter { disk, part, at: 0 }))
    }

    /// Seconds that the reference work takes now.
    ///
    /// # Errors
    /// What the system says of reading.
    pub fn now(&mut self) -> Result<f64, CpuError> {
        let (start, mut bytes) = (Instant::now(), 0);
        loop {
            self.disk.read_at(self.at, self.part.bytes_mut())?;
            self.at = (self.at + PART) % FILE;
            bytes += PART;
            let seconds = start.elapsed().as_secs_f64();
            if seconds >= SECONDS_MIN && bytes >= REFERENCE {
                return Ok(seconds * REFERENCE as f64 / bytes as f64);
            }
        }
    }
}
