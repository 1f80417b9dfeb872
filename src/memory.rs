//! Throughput against device memory, for one prompt at a time: HeteGen's figure 8.

use plimsoll_core::lower::footprint;
use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;
use serde::Serialize;

use crate::baseline::{Baseline, System};
use crate::parallel::{Watch, watched};
use crate::pareto::Setting;
use crate::planner::{Block, Bound, Outcome, PlanError};
use crate::report::plan::policy_in_short;

/// Sizes of device memory that are tried, evenly up to all of it.
const SIZES: u64 = 24;

/// A system's best plan of one sequence with so much device memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryPoint {
    /// The system.
    pub system: &'static str,
    /// Device memory that it may have, all in all.
    pub device_capacity_bytes: u64,
    /// What its plan sets aside there; none where it does not fit.
    pub device_bytes: Option<u64>,
    /// Generated tokens over the time of all.
    pub throughput_tok_s: Option<f64>,
    /// The lower end of its 90% interval; none where the machine is unprofiled.
    pub low_tok_s: Option<f64>,
    /// Its upper end.
    pub high_tok_s: Option<f64>,
    /// From the prompt to the last token.
    pub latency_s: Option<f64>,
    /// Out of memory: what binds.
    pub exceeds: Option<Bound>,
    /// What the nearest plan asks of it.
    pub needed_bytes: Option<u64>,
    /// The plan in a line.
    pub policy: Option<String>,
    /// Whether the CPU and the device compute linear layers together.
    #[serde(skip)]
    pub is_split: bool,
}

/// The device memory with which a system runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryRange {
    /// The system.
    pub system: &'static str,
    /// The least that a plan of its takes on the device.
    pub least_bytes: u64,
    /// The most that it makes use of.
    pub most_bytes: u64,
    /// Tokens a second with the least that was tried, of those with which it runs.
    pub least_tok_s: f64,
    /// Tokens a second at most.
    pub most_tok_s: f64,
}

/// Evenly spaced sizes of device memory up to a machine's.
pub fn sizes(setting: Setting<'_>) -> Vec<Bytes> {
    let all = setting.profile.tiers.device_capacity_bytes.value;
    (1..=SIZES).map(|i| Bytes(all.0 * i / SIZES)).collect()
}

/// The points of some systems, system by system, memory ascending. A plan for less memory serves with more as well, so that
/// none is slower than the one before.
///
/// # Errors
/// A workload that means nothing for the model; an error of ours.
pub fn points(
    setting: Setting<'_>,
    systems: &[System],
    sizes: &[Bytes],
    watch: &Watch<'_>,
) -> Result<Vec<MemoryPoint>, PlanError> {
    let all = systems.iter().flat_map(|s| sizes.iter().map(|b| (*s, *b)));
    let found = watched(all.collect(), watch, &|(system, size)| {
        point(setting, system, size)
    });
    let mut points = found
        .into_iter()
        .collect::<Result<Vec<MemoryPoint>, PlanError>>()?;
    for index in 1..points.len() {
        let (before, here) = (points[index - 1].clone(), &mut points[index]);
        if before.system == here.system && before.throughput_tok_s > here.throughput_tok_s {
            let device_capacity_bytes = here.device_capacity_bytes;
            *here = MemoryPoint {
                device_capacity_bytes,
                ..before
            };
        }
    }
    Ok(points)
}

/// A system's best plan of one sequence on the machine with so much device memory.
fn point(setting: Setting<'_>, system: System, size: Bytes) -> Result<MemoryPoint, PlanError> {
    let machine = setting.profile.with_capacities(Some(size), None, None);
    let workload = Workload {
        num_prompts: Some(1),
        ..setting.workload
    };
    let baseline = Baseline::new(system, &machine, setting.model, workload)?;
    let outcome = match system {
        System::Plimsoll => baseline.block_or_split(1)?,
        _ => baseline.block(1)?,
    };
    let mut point = MemoryPoint {
        system: system.name(),
        device_capacity_bytes: size.0,
        device_bytes: None,
        throughput_tok_s: None,
        low_tok_s: None,
        high_tok_s: None,
        latency_s: None,
        exceeds: None,
        needed_bytes: None,
        policy: None,
        is_split: false,
    };
    match &outcome {
        Outcome::Fits(block) => point.set(block)?,
        Outcome::DoesNotFit(excess) => {
            point.exceeds = Some(excess.bound);
            point.needed_bytes = Some(excess.needed.0);
        }
    }
    Ok(point)
}

impl MemoryPoint {
    fn set(&mut self, block: &Block) -> Result<(), PlanError> {
        let range = block.interval().map(|interval| interval.throughput_tok_s);
        self.device_bytes = Some(footprint(&block.plan)?.device.0);
        self.throughput_tok_s = Some(block.throughput_tok_s);
        self.low_tok_s = range.map(|range| range.low);
        self.high_tok_s = range.map(|range| range.high);
        self.latency_s = Some(block.latency_s.0);
        self.is_split = block.plan.policy.split.is_some();
        // CSV is read by many who know no quotes.
        self.policy = Some(policy_in_short(&block.plan).replace(',', ";"));
        Ok(())
    }

    /// Device memory that its plan takes, in bytes, and throughput, where it fits.
    pub fn place(&self) -> Option<(f64, f64)> {
        Some((self.device_bytes? as f64, self.throughput_tok_s?))
    }
}

/// With how much device memory each system runs; systems that do not are left out.
pub fn ranges(points: &[MemoryPoint]) -> Vec<MemoryRange> {
    let systems = points.chunk_by(|a, b| a.system == b.system);
    let range = |points: &[MemoryPoint]| {
        let fitting: Vec<(f64, f64)> = points.iter().filter_map(MemoryPoint::place).collect();
        let least = fitting.iter().map(|(bytes, _)| *bytes as u64).min()?;
        // What does not fit says what would: its nearest plan is the smallest.
        let on_device = points
            .iter()
            .filter(|p| p.exceeds == Some(Bound::Tier(Tier::Device)));
        let needed = on_device.filter_map(|p| p.needed_bytes).min();
        Some(MemoryRange {
            system: points[0].system,
            least_bytes: needed.map_or(least, |needed| needed.min(least)),
            most_bytes: fitting.iter().map(|(bytes, _)| *bytes as u64).max()?,
            least_tok_s: fitting.first()?.1,
            most_tok_s: fitting.last()?.1,
        })
    };
    systems.filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::model::registry;

    #[test]
    fn more_memory_is_never_slower_and_who_needs_a_stated_amount_has_one_point() {
        let profile = embedded::profile("a10").expect("embedded");
        let model = registry::find("opt-13b").expect("registered");
        let setting = Setting {
            profile: &profile,
            model: &model,
            workload: Workload {
                prompt_len: 32,
                gen_len: 4,
                num_prompts: None,
            },
        };
        let sizes = [1, 4, 12].map(|gb| Bytes(gb * 1_000_000_000));
        let systems = [System::HeteGen, System::FlexGen, System::DeepSpeed];
        let points = points(setting, &systems, &sizes, &|_, _| ()).expect("points");
        assert_eq!(points.len(), 9);
        assert!(points[..3].windows(2).all(|p| {
            p[0].throughput_tok_s.unwrap_or(0.0) <= p[1].throughput_tok_s.unwrap_or(0.0)
        }));
        for point in &points {
            assert!(
                point
                    .device_bytes
                    .is_none_or(|b| b <= point.device_capacity_bytes)
            );
        }
        let ranges = ranges(&points);
        assert_eq!(ranges.len(), 3);
        let of = |system: System| {
            ranges
                .iter()
                .find(|r| r.system == system.name())
                .expect("runs")
        };
        let (split, streamed) = (of(System::HeteGen), of(System::DeepSpeed));
        assert!(split.most_bytes > 8_000_000_000 && split.most_tok_s > streamed.most_tok_s);
        assert_eq!(streamed.least_tok_s, streamed.most_tok_s);
    }
}
