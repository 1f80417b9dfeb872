//! The disk tier: one file, read and written past the page cache.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use plimsoll_core::units::Bytes;

use super::TierError;

/// Offsets, lengths and addresses of disk transfers are multiples of this.
pub const ALIGNMENT: u64 = 4096;

/// One request is at most so long; longer transfers are several.
const REQUEST_BYTES: usize = 4 << 20;

/// How the file is read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// `O_DIRECT`: between the disk and our memory, nothing in between.
    Direct,
    /// Through the page cache, where the file system refuses `O_DIRECT`; its pages are dropped
    /// after each transfer, so that reads still come from the disk.
    Buffered,
}

/// Makes a file that may grow no further (`ulimit -f`) an error of the write, as a full disk is, and not the end of the
/// process.
pub fn report_files_too_large() {
    // SAFETY: ignoring a signal installs no handler; writes then fail with EFBIG.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

impl DiskMode {
    /// In words, for reports.
    pub const fn describe(self) -> &'static str {
        match self {
            DiskMode::Direct => "O_DIRECT",
            DiskMode::Buffered => "buffered (the file system refuses O_DIRECT)",
        }
    }
}

/// A file of stated size that vanishes with this value.
#[derive(Debug)]
pub struct DiskTier {
    file: File,
    dir: PathBuf,
    mode: DiskMode,
    capacity: Bytes,
}

impl DiskTier {
    /// Makes a file of `capacity` bytes in `dir`, with room for all of it.
    ///
    /// # Errors
    /// [`TierError::NoDisk`] where there is no such room, or no writing.
    pub fn create(dir: &Path, capacity: Bytes) -> Result<DiskTier, TierError> {
        let refused = |source: io::Error| TierError::NoDisk {
            dir: dir.to_owned(),
            capacity,
            source,
        };
        let (file, mode) = open(dir).map_err(refused)?;
        let length = capacity.0.next_multiple_of(ALIGNMENT);
        if length > 0 {
            // SAFETY: grows a file that we have open.
            let code = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length as i64) };
            if code != 0 {
                return Err(refused(io::Error::from_raw_os_error(code)));
            }
        }
        Ok(DiskTier {
            file,
            dir: dir.to_owned(),
            mode,
            capacity: Bytes(length),
        })
    }

    /// How it is read and written.
    pub fn mode(&self) -> DiskMode {
        self.mode
    }

    fn failed(&self, what: &'static str, at: u64, source: io::Error) -> TierError {
        TierError::Io {
            dir: self.dir.clone(),
            what,
            at,
            source,
        }
    }

    fn check(&self, offset: u64, address: usize, len: usize) -> Result<(), TierError> {
        let parts = [
            ("the offset", offset),
            ("the address", address as u64),
            ("the length", len as u64),
        ];
        for (what, value) in parts {
            if value % ALIGNMENT != 0 {
                return Err(TierError::Misaligned { what, value });
            }
        }
        let end = offset.saturating_add(len as u64);
        if end > self.capacity.0 {
            return Err(TierError::OutOfRange {
                tier: "disk",
                offset,
                end,
                capacity: self.capacity,
            });
        }
        Ok(())
    }

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// Misaligned or out of range; a file that ends too early; the system's own errors.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), TierError> {
        self.check(offset, into.as_ptr() as usize, into.len())?;
        let total = into.len() as u64;
        let mut done = 0;
        while done < total {
            let at = offset + done;
            let rest = &mut into[done as usize..];
            let request = rest.len().min(REQUEST_BYTES);
            match self.file.read_at(&mut rest[..request], at) {
                Ok(0) => {
                    return Err(TierError::ShortRead {
                        dir: self.dir.clone(),
                        at,
                        missing: total - done,
                    });
                }
                Ok(read) => done += read as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.failed("read", at, source)),
            }
        }
        self.forget(offset, total);
        Ok(())
    }

    /// Writes `from` at `offset`.
    ///
    /// # Errors
    /// Misaligned or out of range; the system's own errors, a full disk among them.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), TierError> {
        self.check(offset, from.as_ptr() as usize, from.len())?;
        for (index, request) in from.chunks(REQUEST_BYTES).enumerate() {
            let at = offset + (index * REQUEST_BYTES) as u64;
            let written = self.file.write_all_at(request, at);
            written.map_err(|source| self.failed("write", at, source))?;
        }
        if self.mode == DiskMode::Buffered && !from.is_empty() {
            let synced = self.file.sync_data();
            synced.map_err(|source| self.failed("sync", offset, source))?;
            self.forget(offset, from.len() as u64);
        }
        Ok(())
    }

    /// Drops cached pages where there are any.
    fn forget(&self, offset: u64, len: u64) {
        if self.mode == DiskMode::Buffered {
            // SAFETY: advice on a file that we have open.
            unsafe {
                libc::posix_fadvise(
                    self.file.as_raw_fd(),
                    offset as i64,
                    len as i64,
                    libc::POSIX_FADV_DONTNEED,
                )
            };
        }
    }
}

/// What a file may still take of the file system that holds `dir`.
///
/// # Errors
/// [`TierError::NoFreeSpace`] where the system does not say.
pub fn free_bytes(dir: &Path) -> Result<Bytes, TierError> {
    let unknown = |source: io::Error| TierError::NoFreeSpace {
        dir: dir.to_owned(),
        source,
    };
    let path = CString::new(dir.as_os_str().as_bytes()).map_err(|e| unknown(e.into()))?;
    // SAFETY: the path ends in a zero, and the answer is plain numbers that the call fills in.
    let answer = unsafe {
        let mut answer: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(path.as_ptr(), &mut answer) != 0 {
            return Err(unknown(io::Error::last_os_error()));
        }
        answer
    };
    Ok(Bytes(answer.f_bavail * answer.f_frsize))
}

/// A nameless file: it is gone when it is closed, however the process ends.
fn open(dir: &Path) -> io::Result<(File, DiskMode)> {
    let nameless = |flags: i32| {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE | flags);
        options.open(dir)
    };
    if let Ok(file) = nameless(libc::O_DIRECT) {
        return Ok((file, DiskMode::Direct));
    }
    if let Ok(file) = nameless(0) {
        return Ok((file, DiskMode::Buffered));
    }
    // The file system has no nameless files: name one and take the name away.
    let path = dir.join(format!(".plimsoll-disk-tier-{}", std::process::id()));
    let named = |flags: i32| {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(flags);
        let file = options.open(&path)?;
        std::fs::remove_file(&path)?;
        Ok::<File, io::Error>(file)
    };
    match named(libc::O_DIRECT) {
        Ok(file) => Ok((file, DiskMode::Direct)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let _ = std::fs::remove_file(&path);
            Ok((named(0)?, DiskMode::Buffered))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiers::Arena;

    fn tier(capacity: u64) -> (tempfile::TempDir, DiskTier) {
        let dir = tempfile::tempdir().expect("a directory");
        let tier = DiskTier::create(dir.path(), Bytes(capacity)).expect("room");
        (dir, tier)
    }

    #[test]
    fn what_is_written_is_read_and_the_file_has_no_name() {
        let (dir, tier) = tier(12 << 20);
        let memory = Arena::new("host", Bytes(24 << 20)).expect("memory");
        // SAFETY: two ranges of an arena that nobody else has.
        let (from, into) = unsafe {
            (
                memory.bytes_mut(0, 9 << 20).expect("in range"),
                memory.bytes_mut(12 << 20, 9 << 20).expect("in range"),
            )
        };
        for (index, byte) in from.iter_mut().enumerate() {
            *byte = (index / 4096) as u8;
        }
        tier.write_at(4096, from).expect("written");
        tier.read_at(4096, into).expect("read");
        assert!(from == into);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
    }

    #[test]
    fn transfers_are_whole_pages_inside_the_tier() {
        let (_dir, tier) = tier(8192);
        let memory = Arena::new("host", Bytes(16384)).expect("memory");
        // SAFETY: nobody else has the arena.
        let bytes = unsafe { memory.bytes_mut(0, 16384) }.expect("in range");
        let misaligned = tier
            .read_at(100, &mut bytes[..4096])
            .expect_err("misaligned");
        assert!(
            misaligned.to_string().contains("the offset is 100"),
            "{misaligned}"
        );
        assert!(matches!(
            tier.read_at(0, bytes),
            Err(TierError::OutOfRange { .. })
        ));
    }

    #[test]
    fn a_truncated_file_is_a_short_read() {
        let (_dir, tier) = tier(8192);
        tier.file.set_len(4096).expect("truncated");
        let memory = Arena::new("host", Bytes(8192)).expect("memory");
        // SAFETY: nobody else has the arena.
        let bytes = unsafe { memory.bytes_mut(0, 8192) }.expect("in range");
        let error = tier.read_at(0, bytes).expect_err("too short");
        assert!(
            matches!(
                error,
                TierError::ShortRead {
                    at: 4096,
                    missing: 4096,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_tier_takes_of_what_is_free() {
        let dir = tempfile::tempdir().expect("a directory");
        let free = free_bytes(dir.path()).expect("the system knows");
        assert!(free > Bytes::ZERO);
        let all =
            DiskTier::create(dir.path(), Bytes(u64::MAX / 4)).expect_err("more than any disk");
        assert!(matches!(all, TierError::NoDisk { .. }), "{all}");
        let error = free_bytes(Path::new("/nowhere/at/all")).expect_err("nowhere");
        assert!(
            error.to_string().starts_with("/nowhere/at/all: "),
            "{error}"
        );
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error =
            DiskTier::create(Path::new("/nowhere/at/all"), Bytes(4096)).expect_err("nowhere");
        assert!(
            error
                .to_string()
                .starts_with("/nowhere/at/all: no disk tier"),
            "{error}"
        );
    }
}
