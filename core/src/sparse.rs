//! Top-K sparse attention on the value cache (FlexGen section 5, "Sparse Attention").
//!
//! In a decode step a query is compared with all keys, and softmax runs over all of them. Then only the
//! values of the K past tokens with the largest weights are read, and that of the newest token, which
//! was computed where attention runs; the other tokens are dropped, and the weights that are left stay
//! as they are. (The paper does not ask for weights that sum to one again. Its released code does not
//! make them so, and keeps the newest token as well.) Query heads that share values choose together, by the sum of their weights, so
//! that what is read is known before. A prompt's own attention is dense.

use crate::units::Bytes;

/// The share of past tokens whose values a decode step reads, where it reads all: dense attention.
pub const DENSE: f64 = 1.0;

/// Past tokens whose values a decode step reads, of `past`: at least one where there are any. None
/// where attention is dense.
pub fn picks(share: f64, past: u32) -> Option<u32> {
    // A tenth of 530 is 53, whatever floating point makes of it.
    const FLOAT_ERROR: f64 = 1e-9;
    let picked = (share * f64::from(past) - FLOAT_ERROR).ceil();
    (share < DENSE).then_some((picked as u32).max(1).min(past))
}

/// What goes between a layer's scores and its values, for rows of the cache whose values are elsewhere.
///
/// Where scores are computed, behind the queries of these rows: the picked positions, ascending,
/// `[row][pick]`, `u32`; then weights, the newest token's last, `[row][query head][pick + 1]`, `f32`.
/// Where the values are: the same positions, then the values of the rows of each tier in turn, as
/// stored, `[pick][row][head]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picked {
    /// Rows of the cache.
    pub rows: u32,
    /// Query heads a row.
    pub group: u32,
    /// Past tokens that a row picks.
    pub picks: u32,
}

impl Picked {
    /// Bytes of the positions.
    pub fn positions_bytes(&self) -> Bytes {
        Bytes(4 * u64::from(self.rows) * u64::from(self.picks))
    }

    /// Bytes of the weights.
    pub fn weights_bytes(&self) -> Bytes {
        let weights = u64::from(self.group) * (u64::from(self.picks) + 1);
        Bytes(4 * u64::from(self.rows) * weights)
    }

    /// Bytes of the values, of `head` a head.
    pub fn values_bytes(&self, head: Bytes) -> Bytes {
        head * (u64::from(self.rows) * u64::from(self.picks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_past_is_rounded_up() {
        assert_eq!(picks(1.0, 530), None);
        assert_eq!(picks(0.1, 530), Some(53));
        assert_eq!(picks(0.1, 531), Some(54));
        assert_eq!(picks(0.3, 10), Some(3));
        assert_eq!(picks(1e-12, 530), Some(1));
        assert_eq!(picks(0.999_999, 530), Some(530));
        assert_eq!(picks(0.1, 0), Some(0));
    }
}
