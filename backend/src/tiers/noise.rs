//! Bytes without an order: what a disk would store as less would be read and written faster than weights are.

/// Fills memory with some, others for each seed.
pub(crate) fn fill_with_noise(bytes: &mut [u8], seed: u64) {
    // Marsaglia's xorshift, which never comes to zero.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for eight in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        eight.copy_from_slice(&state.to_le_bytes()[..eight.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_eight_bytes_come_twice() {
        let mut bytes = vec![0; 2 * 4096];
        let (one, other) = bytes.split_at_mut(4096);
        fill_with_noise(one, 1);
        fill_with_noise(other, 2);
        let (words, _) = bytes.as_chunks::<8>();
        let distinct: std::collections::BTreeSet<_> = words.iter().collect();
        assert_eq!(distinct.len(), words.len());
        // The last may be a part of one.
        let mut odd = [0; 11];
        fill_with_noise(&mut odd, 1);
        assert_eq!(odd[..8], bytes[..8]);
        assert_ne!(odd[8..], [0; 3]);
    }
}
