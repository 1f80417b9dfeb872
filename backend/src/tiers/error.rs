//! What can go wrong in a memory tier.

use std::path::PathBuf;

use plimsoll_core::units::Bytes;
use thiserror::Error;

/// Why a tier refused.
#[derive(Debug, Error)]
pub enum TierError {
    /// A range that is not in the tier.
    #[error("the {tier} tier holds {capacity}, and bytes {offset} to {end} were asked for")]
    OutOfRange {
        /// Which tier.
        tier: &'static str,
        /// First byte asked for.
        offset: u64,
        /// One past the last.
        end: u64,
        /// What there is.
        capacity: Bytes,
    },
    /// The system has no such memory to give.
    #[error("no {capacity} of memory for the {tier} tier: {source}; state a smaller capacity")]
    NoMemory {
        /// Which tier.
        tier: &'static str,
        /// What was asked.
        capacity: Bytes,
        /// The system's word.
        source: std::io::Error,
    },
    /// Device and host tier are both memory of this machine, and too much of it.
    #[error(
        "the device and the host tier take {needed} of this machine's memory together, and {available} is \
         free, since without --backend cuda the device is emulated; plan for this machine: `plimsoll profile -o my.toml`, \
         then `plimsoll plan --hw my.toml`"
    )]
    TooMuchMemory {
        /// What both take.
        needed: Bytes,
        /// What is free.
        available: Bytes,
    },
    /// The disk file could not be made.
    #[error("{}: no disk tier of {capacity} here: {source}; give another --disk-dir", dir.display())]
    NoDisk {
        /// Where.
        dir: PathBuf,
        /// What was asked.
        capacity: Bytes,
        /// The system's word.
        source: std::io::Error,
    },
    /// The system does not say how much more the disk takes.
    #[error("{}: its free space is not known: {source}; give another --disk-dir", dir.display())]
    NoFreeSpace {
        /// Where.
        dir: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// A disk transfer that is not whole pages.
    #[error("disk transfers are whole pages of 4096 bytes; {what} is {value}")]
    Misaligned {
        /// Offset, length or address.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The file ended too early.
    #[error(
        "{}: the disk tier's file here ended at byte {at}, {missing} bytes short; was it truncated?",
        dir.display()
    )]
    ShortRead {
        /// The file's directory.
        dir: PathBuf,
        /// Where it ended.
        at: u64,
        /// How much was still to come.
        missing: u64,
    },
    /// The disk failed.
    #[error(
        "{}: the disk tier's file here: {what} at byte {at} failed: {source}; give another --disk-dir",
        dir.display()
    )]
    Io {
        /// The file's directory.
        dir: PathBuf,
        /// Read or write.
        what: &'static str,
        /// Where.
        at: u64,
        /// The system's word.
        source: std::io::Error,
    },
    /// A paced transfer that nobody wants any more, since the run is over.
    #[error("the run ended before the transfer did")]
    Stopped,
}
