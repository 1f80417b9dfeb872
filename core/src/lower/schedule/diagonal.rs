//! The diagonal block schedule (FlexGen appendix A.2.1), which is staggered admission: in each pass
//! over the layers every resident GPU batch advances by a token, the oldest leaves and a new one is
//! prefilled beside the others. A block's weights are still read once a pass, but no two batches are
//! at the same token, so prefill and decode share passes, and the caches are never all full at once.

use super::Round;

/// Passes after which each GPU batch is admitted: `places` admissions spread evenly over the `gen_len`
/// passes that a batch stays, so that its place is free when its successor comes.
pub(super) fn admitted(rounds: &[Round], places: u32, gen_len: u64) -> Vec<u64> {
    let batches: usize = rounds.iter().map(|r| r.batches.len()).sum();
    let places = u64::from(places);
    (0..batches as u64).map(|i| i * gen_len / places).collect()
}
