//! What tells two inputs apart without keeping them.

use sha2::{Digest, Sha256};

/// SHA-256 over parts, each with its length, in hexadecimal.
pub fn digest<Part: AsRef<[u8]>>(parts: impl IntoIterator<Item = Part>) -> String {
    let mut sum = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        sum.update((part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    let bytes = sum.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_part_ends_matters() {
        assert_ne!(digest(["ab", "c"]), digest(["a", "bc"]));
        assert_eq!(digest(["ab", "c"]), digest(["ab", "c"]));
        assert_eq!(digest(["ab"]).len(), 64);
    }
}
