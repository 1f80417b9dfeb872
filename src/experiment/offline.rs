//! S3's tables of all requests at once, on one GPU and on several.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::predict::{Buckets, Wrong};
use plimsoll_core::serve::{Limits, Reserve, ServeSummary};
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Bytes;

use super::serving::{ServingRow, ServingTable};
use crate::parallel::on_all_processors;
use crate::serve::gpus::Gpus;
use crate::serve::replay::{Manager, Prediction, Server};
use crate::serve::workload::{Lengths, exact_trace};

/// Requests that all come at once, and what systems reserve for them.
#[derive(Debug, Clone)]
pub struct AtOnce {
    /// Requests, tokens of all answers, tokens of the longest.
    pub answers: (usize, u64, u32),
    /// Tokens of prompts and of answers.
    pub lengths: [Lengths; 2],
    /// Tokens that ORCA reserves, and that buckets span.
    pub max_len: u32,
    /// Buckets of the classifier.
    pub buckets: u32,
    /// Its accuracy on answers above the first bucket.
    pub accuracy: f64,
    /// Of the order of requests and of mistakes.
    pub seed: u64,
}

/// Who reserves what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum S3System {
    /// The longest answer for each request.
    Orca,
    /// What the classifier says.
    S3,
    /// Each answer's own length.
    Oracle,
}

impl S3System {
    /// All of them.
    pub const ALL: [S3System; 3] = [S3System::Orca, S3System::S3, S3System::Oracle];

    /// As files call it.
    pub fn name(self) -> &'static str {
        match self {
            S3System::Orca => "orca",
            S3System::S3 => "s3",
            S3System::Oracle => "oracle",
        }
    }

    /// By its name.
    ///
    /// # Errors
    /// Which there are.
    pub fn named(name: &str) -> Result<S3System, String> {
        let all = S3System::ALL.into_iter();
        let found = all.into_iter().find(|system| system.name() == name);
        found.ok_or_else(|| format!("`{name}` is none; write orca, s3 or oracle"))
    }
}

/// How a classifier guesses that is wrong either way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guesses {
    /// The share of answers whose bucket is right.
    pub accuracy: f64,
    /// Buckets by which the others are wrong on average.
    pub distance: f64,
}

impl AtOnce {
    fn manager(&self, system: S3System) -> Manager {
        match system {
            S3System::Orca => Manager::Orca {
                max_len: self.max_len,
            },
            S3System::Oracle => predicted(Prediction::Oracle),
            S3System::S3 => predicted(self.classifier(
                Guesses {
                    accuracy: self.accuracy,
                    distance: 1.0,
                },
                Wrong::Short,
            )),
        }
    }

    fn classifier(&self, guesses: Guesses, wrong: Wrong) -> Prediction {
        Prediction::Classifier {
            buckets: Buckets {
                max_len: self.max_len,
                count: self.buckets,
            },
            accuracy: guesses.accuracy,
            wrong,
            distance: guesses.distance,
            seed: self.seed,
        }
    }

    /// Serves them all with weights and cache in f16, in iterations of any size.
    ///
    /// # Errors
    /// An error of ours.
    pub fn serve(
        &self,
        on: (&HardwareProfile, &ModelSpec),
        system: S3System,
        room: (Gpus, Bytes),
    ) -> anyhow::Result<ServeSummary> {
        self.serve_within(on, system, room, u32::MAX)
    }

    /// The same with so many sequences in an iteration at most.
    pub(super) fn serve_within(
        &self,
        on: (&HardwareProfile, &ModelSpec),
        system: S3System,
        room: (Gpus, Bytes),
        sequences: u32,
    ) -> anyhow::Result<ServeSummary> {
        self.served(on, self.manager(system), room, sequences)
    }

    /// The same in iterations of any size with a classifier that is wrong either way.
    pub(super) fn serve_guessing(
        &self,
        on: (&HardwareProfile, &ModelSpec),
        guesses: Guesses,
        room: (Gpus, Bytes),
    ) -> anyhow::Result<ServeSummary> {
        let manager = predicted(self.classifier(guesses, Wrong::Either));
        self.served(on, manager, room, u32::MAX)
    }

    fn served(
        &self,
        (machine, model): (&HardwareProfile, &ModelSpec),
        manager: Manager,
        (gpus, kv_bytes): (Gpus, Bytes),
        sequences: u32,
    ) -> anyhow::Result<ServeSummary> {
        let server = Server {
            profile: machine.clone(),
            model: model.clone(),
            dtype: Dtype::F16,
            compression: Compression::default(),
            gpus,
            manager,
            kv_bytes,
            limits: Limits {
                sequences,
                tokens: u32::MAX,
            },
            clients: None,
            slo_s: 0.1875,
            traffic: Background::default(),
            logged: false,
        };
        let requests = exact_trace(&self.lengths, self.answers, self.seed);
        Ok(server.replay(&requests)?.summary)
    }
}

/// S3 by its paper: reservations are of the output alone.
fn predicted(prediction: Prediction) -> Manager {
    Manager::S3 {
        prediction,
        reserve: Reserve::Output,
    }
}

/// S3's Tables 2 and 3: offline throughput of all requests at once.
#[derive(Debug)]
pub struct Offline {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served, by whom, and what was published.
    pub cases: Vec<OfflineCase>,
    /// What is asked.
    pub asked: AtOnce,
}

/// A model and a system with what was published of them.
#[derive(Debug, Clone)]
pub struct OfflineCase {
    /// The model.
    pub model: ModelSpec,
    /// Who serves.
    pub system: S3System,
    /// Table 3.
    pub iterations: f64,
    /// Table 3.
    pub average_batch: f64,
    /// Table 2.
    pub tokens_per_s: f64,
}

impl Offline {
    /// Three rows for each case.
    ///
    /// # Errors
    /// An error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let rows = on_all_processors(self.cases.clone(), &|case| self.rows(&case));
        let rows: Vec<Vec<ServingRow>> = rows.into_iter().collect::<anyhow::Result<_>>()?;
        Ok(rows.concat().into())
    }

    fn rows(&self, case: &OfflineCase) -> anyhow::Result<Vec<ServingRow>> {
        let on = (&self.machine, &case.model);
        let left = Gpus::One.kv_left(&self.machine, &case.model, Dtype::F16);
        let room = (Gpus::One, left.unwrap_or(Bytes::ZERO));
        let it = self.asked.serve(on, case.system, room)?;
        let name = format!("{}, {}", case.model.name, case.system.name());
        let row = |metric, ours, published| ServingRow::new(&name, metric, ours, Some(published));
        Ok(vec![
            row("iterations", it.iterations as f64, case.iterations).noted(evictions(&it)),
            row("average batch", it.average_batch, case.average_batch),
            row("tokens/s", it.output_tokens_per_s, case.tokens_per_s),
        ])
    }
}

/// Whom the supervisor sent away.
pub(super) fn evictions(it: &ServeSummary) -> String {
    format!(
        "{} evictions, largest batch {}",
        it.preemptions, it.largest_batch
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{find_model, find_profile};

    /// What Table 3's iterations and batches imply: all of ORCA's memory is what the weights leave, 2048 tokens a request.
    #[test]
    fn orca_has_room_for_as_many_requests_as_table_3_implies() {
        let machine = find_profile("a100-s3").unwrap();
        for (model, seats) in [
            ("gpt-j-6b", 72),
            ("llama-13b", 32),
            ("gpt-neox-20b", 17),
            ("llama-33b", 4),
        ] {
            let model = find_model(model).unwrap().spec;
            let left = Gpus::One.kv_left(&machine, &model, Dtype::F16).unwrap();
            let each = model.kv_bytes_per_token(Dtype::F16) * 2048;
            assert_eq!(left.0 / each.0, seats, "{}", model.name);
        }
    }
}
