//! S3's Table 4 and Figure 5: one model on 6, 8 and 10 GPUs.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::serve::ServeSummary;

use super::offline::{AtOnce, S3System, evictions};
use super::serving::{LinePicture, ServingRow, ServingTable};
use crate::parallel::on_all_processors;
use crate::report::Line;
use crate::serve::gpus::{Gpus, tokens_beside};

/// All requests at once, on pipelines.
#[derive(Debug)]
pub struct Pipelined {
    /// The machine.
    pub machine: HardwareProfile,
    /// The model.
    pub model: ModelSpec,
    /// How it is spread.
    pub cases: Vec<PipelinedCase>,
    /// What is asked.
    pub asked: AtOnce,
    /// What was published of a case and a system as the paper counts, by the names of both: iterations, average batch.
    pub published: Vec<(String, S3System, [f64; 2])>,
    /// What was published of ORCA's throughput over S3's, and of S3's batch over ORCA's, S3 with the first case and ORCA
    /// with each of the most GPUs.
    pub ratios: [f64; 2],
}

/// A way to spread it.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelinedCase {
    /// In the table.
    pub name: String,
    /// GPUs.
    pub stages: u32,
    /// Layers of the last; none: as even as can be.
    pub last_stage_layers: Option<u32>,
    /// Layers that a GPU's memory is counted with, where that is not what it has.
    pub memory_layers: Option<u32>,
    /// Layers that a token is counted to take, where that is not what the slowest stage has.
    pub time_layers: Option<u32>,
}

/// Who has which part of the cache, and when a token is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Account {
    /// As the paper counts: a batch has all, and is done at each stage's end.
    Paper,
    /// As many batches in flight as stages, which share it.
    Shared,
    /// One batch has all, and goes through all stages.
    Alone,
}

impl Account {
    fn name(self) -> &'static str {
        match self {
            Account::Paper => "as the paper counts",
            Account::Shared => "batches in flight share the cache",
            Account::Alone => "one batch, stage after stage",
        }
    }
}

/// One row's run.
type Run<'a> = (&'a PipelinedCase, S3System, Account);

impl PipelinedCase {
    pub(super) fn pipeline(&self, machine: &HardwareProfile, micro_batches: u32) -> Pipeline {
        Pipeline {
            stages: self.stages,
            micro_batches,
            stages_per_host: machine.gpus_per_host().min(self.stages),
            last_stage_layers: self.last_stage_layers,
            ..Pipeline::default()
        }
    }

    /// What is counted with layers that do not make up the model is nobody's but the paper's.
    fn accounts(&self) -> &'static [Account] {
        match (self.memory_layers, self.time_layers) {
            (Some(_), _) | (_, Some(_)) => &[Account::Paper],
            (None, None) => &[Account::Paper, Account::Shared, Account::Alone],
        }
    }
}

impl Pipelined {
    /// Three rows for each case, system and account; two for each comparison of systems; throughput over GPUs.
    ///
    /// # Errors
    /// A case whose weights do not fit; an error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let each = self.cases.iter().flat_map(|case| {
            let systems = S3System::ALL.into_iter();
            systems.flat_map(move |system| {
                let accounts = case.accounts().iter();
                accounts.map(move |account| (case, system, *account))
            })
        });
        let each: Vec<Run<'_>> = each.collect();
        let runs = on_all_processors(each, &|run| Ok((run, self.serve(run)?)));
        let runs: Vec<(Run<'_>, ServeSummary)> = runs.into_iter().collect::<anyhow::Result<_>>()?;
        let mut rows: Vec<ServingRow> = runs
            .iter()
            .flat_map(|(run, it)| self.rows(*run, it))
            .collect();
        rows.extend(self.compared(&runs));
        Ok(ServingTable {
            rows,
            pictures: vec![self.picture(&runs)],
        })
    }

    fn serve(&self, (case, system, account): Run<'_>) -> anyhow::Result<ServeSummary> {
        let (machine, model) = (&self.machine, &self.model);
        let alone = case.pipeline(machine, 1);
        let gpus = match account {
            Account::Paper => stage_for_all(&alone.layers(model.num_hidden_layers), case),
            Account::Shared => Gpus::Pipeline(case.pipeline(machine, case.stages)),
            Account::Alone => Gpus::Pipeline(alone),
        };
        let kv_bytes = match case.memory_layers {
            // The first stage's, which has the embedding.
            Some(layers) => tokens_beside(machine, model, Dtype::F16, &(0..layers + 1))
                .map(|tokens| model.kv_bytes_per_token(Dtype::F16) * tokens),
            None => Gpus::Pipeline(alone).kv_left(machine, model, Dtype::F16),
        };
        let Some(kv_bytes) = kv_bytes else {
            anyhow::bail!("{}: the weights of {} do not fit", case.name, model.name);
        };
        self.asked.serve((machine, model), system, (gpus, kv_bytes))
    }

    fn rows(&self, (case, system, account): Run<'_>, it: &ServeSummary) -> [ServingRow; 3] {
        let name = format!("{}, {}, {}", case.name, system.name(), account.name());
        let published = self.published.iter();
        let mut published = published.filter(|(of, by, _)| *of == case.name && *by == system);
        let published = published.next().filter(|_| account == Account::Paper);
        let number = |index: usize| published.map(|(_, _, numbers)| numbers[index]);
        let room = format!(
            "{}, room for {} tokens",
            evictions(it),
            it.kv_capacity_tokens
        );
        let row = |metric, ours, published| ServingRow::new(&name, metric, ours, published);
        [
            row("iterations", it.iterations as f64, number(0)).noted(room),
            row("average batch", it.average_batch, number(1)),
            row("tokens/s", it.output_tokens_per_s, None),
        ]
    }

    /// ORCA with the most GPUs beside S3 with the fewest. A case that nobody but the paper counts is beside the paper's S3.
    fn compared(&self, runs: &[(Run<'_>, ServeSummary)]) -> Vec<ServingRow> {
        let fewest = &self.cases[0];
        let most = self.cases.iter().map(|case| case.stages).max().unwrap_or(0);
        let of = |wanted: Run<'_>| {
            let found = runs.iter().find(|(run, _)| *run == wanted);
            &found.expect("it was served").1
        };
        let large = self.cases.iter().filter(|case| case.stages == most);
        let each =
            large.flat_map(|case| case.accounts().iter().map(move |account| (case, *account)));
        let rows = each.flat_map(|(case, account)| {
            let orca = of((case, S3System::Orca, account));
            let s3 = of((fewest, S3System::S3, account));
            let name = format!("{}, {}", case.name, account.name());
            let ratios = [
                orca.output_tokens_per_s / s3.output_tokens_per_s,
                s3.average_batch / orca.average_batch,
            ];
            let metrics = [
                "tokens/s of orca over those of s3 with the fewest GPUs",
                "average batch of s3 with the fewest GPUs over orca's",
            ];
            let each = metrics.into_iter().zip(ratios).zip(self.ratios);
            each.map(|((metric, ours), published)| {
                ServingRow::new(&name, metric, ours, Some(published))
            })
            .collect::<Vec<_>>()
        });
        rows.collect()
    }

    fn picture(&self, runs: &[(Run<'_>, ServeSummary)]) -> LinePicture {
        let accounts = [
            (Account::Paper, "paper's count"),
            (Account::Shared, "shared cache"),
        ];
        let each = accounts
            .into_iter()
            .flat_map(|account| S3System::ALL.map(|system| (account, system)));
        let lines = each.map(|((account, words), system)| {
            let its = runs.iter().filter(|((case, by, how), _)| {
                *by == system && *how == account && case.accounts().len() > 1
            });
            Line {
                name: format!("{}, {words}", system.name()),
                points: its
                    .map(|((case, ..), it)| (f64::from(case.stages), it.output_tokens_per_s))
                    .collect(),
            }
        });
        LinePicture {
            x: "GPUs",
            lines: lines.collect(),
            ..LinePicture::throughput_of("")
        }
    }
}

/// The stage of the most layers, of those the last, which has the head; or as many layers from the first on as a token is
/// counted to take.
fn stage_for_all(stages: &[u32], case: &PipelinedCase) -> Gpus {
    if let Some(layers) = case.time_layers {
        return Gpus::StageForAll { first: 0, layers };
    }
    let firsts = stages.iter().scan(0, |first, layers| {
        *first += layers;
        Some(*first - layers)
    });
    let slowest = firsts.zip(stages).max_by_key(|(_, layers)| **layers);
    let (first, layers) = slowest.unwrap_or((0, &0));
    Gpus::StageForAll {
        first,
        layers: *layers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_stage_has_the_most_layers_and_the_head() {
        let mut case = PipelinedCase {
            name: String::new(),
            stages: 6,
            last_stage_layers: None,
            memory_layers: Some(9),
            time_layers: None,
        };
        let of = |stages: &[u32], case: &PipelinedCase| match stage_for_all(stages, case) {
            Gpus::StageForAll { first, layers } => (first, layers),
            _ => panic!("it is one stage"),
        };
        assert_eq!(of(&[16; 6], &case), (80, 16));
        assert_eq!(of(&[10, 10, 10, 6], &case), (20, 10));
        case.time_layers = Some(9);
        assert_eq!(of(&[10, 10, 10, 6], &case), (0, 9));
    }
}
