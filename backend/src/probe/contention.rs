//! Who slows whom, from the same plans run with overlap and without.
//!
//! A task that takes `alone` by itself and lasted `wall` beside others, `beside[j]` of it while engine j
//! was busy, lost `wall - alone = sum_j loss[j] * beside[j]`. Least squares over all tasks of an engine,
//! with no negative losses, gives each pair's loss; one minus it is the share of its pace that is left.

use std::collections::BTreeMap;

use plimsoll_core::program::ResourceKind;

use super::samples::Timed;
use super::stats::median;

/// The engines that can slow each other here.
pub(super) const ENGINES: [ResourceKind; 6] = [
    ResourceKind::Gpu,
    ResourceKind::H2d,
    ResourceKind::D2h,
    ResourceKind::DiskRead,
    ResourceKind::DiskWrite,
    ResourceKind::Cpu,
];

/// The least share of its pace that an engine is said to keep.
const SHARE_MIN: f64 = 0.1;

/// A pair says something only where it ran together for so long.
const BESIDE_MIN_S: f64 = 20e-3;

/// So much time together without any loss is assumed of every pair (a ridge), so that a few odd tasks do
/// not make a large loss.
const RIDGE_S: f64 = 10e-3;

/// What a task lost, and beside whom.
#[derive(Debug, Clone, Copy)]
struct Loss {
    wall: f64,
    alone: f64,
    beside: [f64; ENGINES.len()],
}

/// Losses by victim.
#[derive(Debug, Default)]
pub(super) struct Losses {
    of: BTreeMap<ResourceKind, Vec<Loss>>,
}

impl Losses {
    /// Takes in a run with overlap, and what its tasks take without it.
    pub(super) fn add(&mut self, overlapped: &[Timed], serial: &[Timed]) {
        let mut alone = BTreeMap::<(ResourceKind, String), Vec<f64>>::new();
        for task in serial {
            let key = (task.kind, format!("{:?}", task.op));
            alone.entry(key).or_default().push(task.seconds());
        }
        for task in overlapped.iter().filter(|t| ENGINES.contains(&t.kind)) {
            let Some(alone) = alone.get(&(task.kind, format!("{:?}", task.op))) else {
                continue;
            };
            self.of.entry(task.kind).or_default().push(Loss {
                wall: task.span.duration().0,
                alone: median(alone) * task.pace,
                beside: beside(task, overlapped),
            });
        }
    }

    /// For each pair that ran together long enough: victim, aggressor, the share of its pace left.
    pub(super) fn shares(&self) -> Vec<(ResourceKind, ResourceKind, f64)> {
        let mut shares = Vec::new();
        for (victim, losses) in &self.of {
            let fitted = fit(losses);
            for (index, beside) in ENGINES.iter().enumerate() {
                let together: f64 = losses.iter().map(|l| l.beside[index]).sum();
                if beside != victim && together > BESIDE_MIN_S {
                    shares.push((*victim, *beside, (1.0 - fitted[index]).max(SHARE_MIN)));
                }
            }
        }
        shares
    }
}

/// How long each engine was busy while a task ran.
fn beside(task: &Timed, all: &[Timed]) -> [f64; ENGINES.len()] {
    let mut beside = [0.0; ENGINES.len()];
    for other in all {
        let common =
            task.span.end.0.min(other.span.end.0) - task.span.start.0.max(other.span.start.0);
        if other.kind != task.kind
            && common > 0.0
            && let Some(index) = ENGINES.iter().position(|e| *e == other.kind)
        {
            beside[index] += common;
        }
    }
    beside
}

/// Non-negative least squares by coordinate descent; each task weighs as one over its own time, so that
/// long tasks do not drown short ones.
fn fit(losses: &[Loss]) -> [f64; ENGINES.len()] {
    const ROUNDS: usize = 200;
    let mut fitted = [0.0; ENGINES.len()];
    for _ in 0..ROUNDS {
        for index in 0..ENGINES.len() {
            let (mut with, mut squared) = (0.0, RIDGE_S);
            for loss in losses {
                let weight = 1.0 / loss.alone.max(1e-6);
                let others: f64 = (0..ENGINES.len())
                    .filter(|j| *j != index)
                    .map(|j| fitted[j] * loss.beside[j])
                    .sum();
                let own = loss.beside[index];
                with += weight * own * (loss.wall - loss.alone - others);
                squared += weight * own * own;
            }
            fitted[index] = (with / squared).clamp(0.0, 1.0 - SHARE_MIN);
        }
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_losses_are_found_again() {
        let truth = [0.0, 0.3, 0.0, 0.5, 0.0, 0.0];
        let losses: Vec<Loss> = (1..500)
            .map(|i| {
                let beside = [
                    0.0,
                    f64::from(i % 7) * 1e-3,
                    0.0,
                    f64::from(i % 5) * 1e-3,
                    0.0,
                    0.0,
                ];
                let alone = 8e-3;
                let lost: f64 = beside.iter().zip(truth).map(|(b, t)| b * t).sum();
                Loss {
                    wall: alone + lost,
                    alone,
                    beside,
                }
            })
            .collect();
        let fitted = fit(&losses);
        for (found, truth) in fitted.iter().zip(truth) {
            assert!((found - truth).abs() < 0.12, "{fitted:?}");
        }
    }
}
