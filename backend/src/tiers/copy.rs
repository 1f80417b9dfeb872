//! Copies between arenas, at full speed or paced like a slower link.

use plimsoll_core::units::Bytes;

use super::{Pace, TierError};

/// A paced copy moves so much at a time: at 1 GB/s a quarter of a millisecond.
const CHUNK_BYTES: usize = 256 << 10;

/// Copies `from` to `into`, of the same length. With a `pace` it ends when that says, to the microsecond
/// on an idle processor, and takes its time evenly: chunks are paced against times counted from the
/// start, so a late one is caught up, and between them the processor is free.
///
/// # Errors
/// [`TierError::Stopped`], part way, where the pace was stopped.
///
/// # Panics
/// Where lengths differ.
pub fn copy(from: &[u8], into: &mut [u8], pace: Option<&Pace<'_>>) -> Result<(), TierError> {
    let Some(pace) = pace else {
        into.copy_from_slice(from);
        return Ok(());
    };
    assert_eq!(
        from.len(),
        into.len(),
        "a copy has as many bytes on both sides"
    );
    let mut done = Bytes::ZERO;
    for (from, into) in from.chunks(CHUNK_BYTES).zip(into.chunks_mut(CHUNK_BYTES)) {
        into.copy_from_slice(from);
        done += Bytes(from.len() as u64);
        pace.keep(done)?;
    }
    pace.end(done)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use plimsoll_core::units::BytesPerSecond;

    use super::*;

    #[test]
    fn a_paced_copy_copies_and_is_not_early() {
        let from: Vec<u8> = (0..1_000_000_u32).map(|i| i as u8).collect();
        let mut into = vec![0; from.len()];
        let start = Instant::now();
        let pace = Pace::begin(BytesPerSecond(100e6), &|| false);
        copy(&from, &mut into, Some(&pace)).expect("nobody stops it");
        assert!(start.elapsed() >= Duration::from_millis(10));
        assert_eq!(from, into);
    }
}
