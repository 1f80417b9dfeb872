//! What is known of some plans says something about those with shapes near theirs.

use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::units::Seconds;

use super::kind;

/// A plan that was looked at more closely.
#[derive(Debug)]
pub(super) struct Neighbour {
    policy: Policy,
    /// How many times longer it takes than was thought.
    ratio: f64,
}

impl Neighbour {
    pub(super) fn new(plan: &Plan, found: Seconds, thought: Seconds) -> Neighbour {
        Neighbour {
            policy: plan.policy,
            ratio: found.0 / thought.0,
        }
    }

    /// How unlike a policy's shape is: by which factor its batches, and their number, differ. What else differs
    /// (compression, how tensors are made whole) counts for nothing.
    fn distance(&self, other: &Policy) -> f64 {
        let factor = |a: u32, b: u32| (f64::from(a) / f64::from(b)).ln().abs();
        factor(self.policy.gpu_batch_size, other.gpu_batch_size)
            + factor(self.policy.num_gpu_batches, other.num_gpu_batches)
    }
}

/// How many times longer than thought a policy may take: as the nearest neighbour does of those that are alike ([`kind::Alike`]), and
/// the less the farther that is, so that what nothing is known of gets a chance.
pub(super) fn ratio(policy: &Policy, known: &[Neighbour]) -> f64 {
    let way = kind::alike(policy);
    let alike = known.iter().filter(|n| kind::alike(&n.policy) == way);
    let distance = |neighbour: &&Neighbour| neighbour.distance(policy);
    let nearest = alike.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.map_or(1.0, |nearest| {
        1.0 + (nearest.ratio - 1.0) * (-nearest.distance(policy)).exp()
    })
}
