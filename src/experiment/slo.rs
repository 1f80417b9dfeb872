//! S3's Figure 4d: sequences a second where each has to come as fast as it is read.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::ServeSummary;
use plimsoll_core::units::Bytes;

use super::offline::{AtOnce, S3System};
use super::serving::{ServingRow, ServingTable};
use crate::parallel::on_all_processors;
use crate::serve::gpus::Gpus;

/// Batches that are limited so that sequences are in time.
#[derive(Debug)]
pub struct InTime {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served.
    pub models: Vec<ModelSpec>,
    /// What is asked.
    pub asked: AtOnce,
    /// Seconds a token that a sequence may be computed for.
    pub slo_s: f64,
    /// The least and the most that S3 was published to gain over ORCA.
    pub published: [f64; 2],
}

/// The largest batch that is in time, and what comes of it.
type Limited = (u32, ServeSummary);

impl InTime {
    /// Three rows a model, one for its gain; the least and the most gain.
    ///
    /// # Errors
    /// An error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let models = self.models.iter();
        let each = models.flat_map(|model| S3System::ALL.map(|system| (model, system)));
        let runs = on_all_processors(each.collect(), &|(model, system)| {
            self.limited(model, system)
        });
        let runs: Vec<Limited> = runs.into_iter().collect::<anyhow::Result<_>>()?;
        let mut rows = Vec::new();
        let mut gains = Vec::new();
        for (model, runs) in self.models.iter().zip(runs.chunks(S3System::ALL.len())) {
            for (system, (most, it)) in S3System::ALL.iter().zip(runs) {
                let name = format!("{}, {}", model.name, system.name());
                let row = ServingRow::new(&name, "sequences/s in time", it.requests_per_s, None);
                rows.push(row.noted(format!(
                    "batches of {most} at most; {:.3} s a token at most for 99% of them",
                    it.compute_s_per_token.p99
                )));
            }
            let rate = |system: S3System| {
                let its = S3System::ALL.iter().position(|other| *other == system);
                its.map_or(0.0, |at| runs[at].1.requests_per_s)
            };
            let gain = rate(S3System::S3) / rate(S3System::Orca);
            let name = &model.name;
            rows.push(ServingRow::new(name, "s3 over orca in time", gain, None));
            let left = rate(S3System::Oracle) / rate(S3System::S3);
            rows.push(ServingRow::new(name, "oracle over s3 in time", left, None));
            gains.push(gain);
        }
        let [least, most] = self.published;
        let ends = [
            (
                "least of s3 over orca in time",
                gains.iter().copied().fold(f64::INFINITY, f64::min),
                least,
            ),
            (
                "most of s3 over orca in time",
                gains.iter().copied().fold(0.0, f64::max),
                most,
            ),
        ];
        let ends = ends
            .map(|(metric, ours, said)| ServingRow::new("all models", metric, ours, Some(said)));
        rows.extend(ends);
        Ok(rows.into())
    }

    /// With the largest batch at which 99 of 100 sequences are in time. Who waits for room is not late: all come at once.
    fn limited(&self, model: &ModelSpec, system: S3System) -> anyhow::Result<Limited> {
        let left = Gpus::One.kv_left(&self.machine, model, Dtype::F16);
        let run = |most: u32| {
            let room = (Gpus::One, left.unwrap_or(Bytes::ZERO));
            let it = self
                .asked
                .serve_within((&self.machine, model), system, room, most)?;
            let in_time = it.compute_s_per_token.p99 <= self.slo_s;
            anyhow::Ok((it, in_time))
        };
        let (free, in_time) = run(u32::MAX)?;
        let (mut in_time_at, mut late_at) = (1, free.largest_batch);
        if in_time {
            return Ok((late_at, free));
        }
        let mut best = None;
        // Within a twentieth: the next batch is hardly faster.
        while late_at > in_time_at + in_time_at / 20 + 1 {
            let middle = in_time_at.midpoint(late_at);
            match run(middle)? {
                (it, true) => (in_time_at, best) = (middle, Some(it)),
                (_, false) => late_at = middle,
            }
        }
        match best {
            Some(it) => Ok((in_time_at, it)),
            None => Ok((1, run(1)?.0)),
        }
    }
}
