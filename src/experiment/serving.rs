//! Serving systems' tables: each number beside the published one.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::pie::{Settings, most_off, most_off_by_rates, with_buffers};
use plimsoll_core::serve::predict::{Buckets, Wrong};
use plimsoll_core::serve::{Limits, Reserve, ServeSummary};
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Bytes;
use serde::Serialize;

use crate::parallel::on_all_processors;
use crate::report::Line;
use crate::serve::replay::{Expansion, Manager, Prediction, Server};
use crate::serve::workload::{Arrivals, Generator, Lengths, exact_trace};

/// A number beside the published one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServingRow {
    /// What was served.
    pub case: String,
    /// What the number is.
    pub metric: &'static str,
    /// As simulated.
    pub ours: f64,
    /// As published; none where nobody did.
    pub published: Option<f64>,
    /// Ours over published, less one.
    pub error: Option<f64>,
    /// What belongs to it.
    pub note: String,
}

/// Rows, and what is drawn of them.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingTable {
    /// A row a number.
    pub rows: Vec<ServingRow>,
    /// Lines of a picture; none where there is none.
    pub lines: Vec<Line>,
}

impl ServingRow {
    pub(super) fn new(
        case: &str,
        metric: &'static str,
        ours: f64,
        published: Option<f64>,
    ) -> ServingRow {
        ServingRow {
            case: case.to_owned(),
            metric,
            ours,
            published,
            error: published.map(|published| ours / published - 1.0),
            note: String::new(),
        }
    }

    pub(super) fn noted(self, note: String) -> ServingRow {
        ServingRow { note, ..self }
    }
}

/// Pie's throughput over vLLM's, by expansion and rate.
#[derive(Debug)]
pub struct Gains {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served.
    pub cases: Vec<GainCase>,
    /// Expansions that are tried besides 1 and auto.
    pub expansions: Vec<f64>,
    /// Requests of each trace.
    pub requests: usize,
    /// Of the traces.
    pub seed: u64,
}

/// A model with a data set.
#[derive(Debug)]
pub struct GainCase {
    /// In the table.
    pub name: String,
    /// The model.
    pub model: ModelSpec,
    /// Tokens of prompts and of answers.
    pub lengths: [Lengths; 2],
    /// Requests a second.
    pub rates: Vec<f64>,
    /// Device memory for the cache, in GB of 10^9 bytes.
    pub kv_gb: f64,
    /// The best gain as published.
    pub published: Option<f64>,
}

impl Gains {
    /// A row for each expansion and rate, and one for the best gain.
    ///
    /// # Errors
    /// An error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let mut table = ServingTable {
            rows: Vec::new(),
            lines: Vec::new(),
        };
        for case in &self.cases {
            self.add(case, &mut table)?;
        }
        Ok(table)
    }

    fn add(&self, case: &GainCase, table: &mut ServingTable) -> anyhow::Result<()> {
        let fixed = std::iter::once(&1.0).chain(&self.expansions);
        let auto = Expansion::Auto(Settings::default());
        let expansions: Vec<Expansion> =
            fixed.map(|e| Expansion::Fixed(*e)).chain([auto]).collect();
        let each = case
            .rates
            .iter()
            .flat_map(|rate| expansions.iter().map(move |e| (*rate, *e)));
        let runs = on_all_processors(each.collect(), &|(rate, expansion)| {
            Ok((rate, expansion, self.serve(case, rate, expansion)?))
        });
        let runs: Vec<(f64, Expansion, ServeSummary)> =
            runs.into_iter().collect::<anyhow::Result<_>>()?;
        let mut best: Option<(f64, String)> = None;
        for of_rate in runs.chunks(expansions.len()) {
            let none = of_rate[0].2.output_tokens_per_s;
            let name = format!(
                "{}, {} GB, {} requests/s",
                case.name, case.kv_gb, of_rate[0].0
            );
            let mut line = Vec::new();
            let mut best_fixed = none;
            for (rate, expansion, summary) in of_rate {
                let tokens = summary.output_tokens_per_s;
                let note = note(*expansion, summary);
                table
                    .rows
                    .push(ServingRow::new(&name, "tokens/s", tokens, None).noted(note));
                match expansion {
                    Expansion::Auto(_) => table.rows.push(ServingRow::new(
                        &name,
                        "adaptive over the best fixed",
                        tokens / best_fixed,
                        None,
                    )),
                    Expansion::Fixed(expansion) => {
                        best_fixed = best_fixed.max(tokens);
                        line.push((*expansion, tokens));
                        if best.as_ref().is_none_or(|(gain, _)| tokens / none > *gain) {
                            best = Some((
                                tokens / none,
                                format!("at expansion {expansion}, {rate} requests/s"),
                            ));
                        }
                    }
                }
            }
            // The last rate asks for the most; lines of all would hide each other.
            if Some(&of_rate[0].0) == case.rates.last() {
                let name = format!("{}, {}/s", case.name, of_rate[0].0);
                table.lines.push(Line { name, points: line });
            }
        }
        if let Some((gain, note)) = best {
            let name = format!("{}, {} GB", case.name, case.kv_gb);
            table
                .rows
                .push(ServingRow::new(&name, "best gain", gain, case.published).noted(note));
        }
        Ok(())
    }

    fn serve(
        &self,
        case: &GainCase,
        rate: f64,
        expansion: Expansion,
    ) -> anyhow::Result<ServeSummary> {
        let positions = case.model.max_position_embeddings;
        let [prompt, output] = case.lengths.clone();
        let requests = Generator {
            arrivals: Arrivals::Poisson { rate },
            prompt,
            output,
            total_max: Some(positions),
            requests: self.requests,
            seed: self.seed,
        }
        .requests();
        let server = Server {
            profile: self.machine.clone(),
            model: case.model.clone(),
            dtype: Dtype::F16,
            manager: Manager::Pie(expansion),
            kv_bytes: Bytes((case.kv_gb * 1e9) as u64),
            limits: Limits {
                sequences: 256,
                tokens: positions.max(2048),
            },
            clients: None,
            slo_s: 0.1875,
            traffic: Background::default(),
            logged: false,
        };
        Ok(server.replay(&requests)?.summary)
    }
}

fn note(expansion: Expansion, it: &ServeSummary) -> String {
    let (compute, queueing) = (it.compute_s_per_token.mean, it.queueing_s_per_token.mean);
    let stalled = it
        .layers
        .as_ref()
        .map_or(0.0, |layers| layers.stalled_s / it.duration_s);
    let name = match expansion {
        Expansion::Fixed(expansion) => format!("expansion {expansion}"),
        Expansion::Auto(_) => {
            let mean = it.layers.as_ref().map_or(1.0, |layers| layers.expansion);
            format!("adaptive, {mean:.2} over time")
        }
    };
    format!(
        "{name}: batch {:.1}, compute {:.1} ms and queueing {:.0} ms a token, {} preemptions, {:.1}% stalled",
        it.average_batch,
        1e3 * compute,
        1e3 * queueing,
        it.preemptions,
        100.0 * stalled
    )
}

/// How many layers may be off the GPU so that computation never waits, by the simulated queue and by the paper's condition.
pub fn stalls(layers: &[u16], swaps: &[f64]) -> ServingTable {
    let each = layers
        .iter()
        .flat_map(|n| swaps.iter().map(move |swap| (*n, *swap)));
    let rows = each.map(|(n, swap)| {
        let (found, by_rates) = (most_off(n, swap), most_off_by_rates(n, swap));
        let case = format!("{n} layers, a swap takes {swap} computations");
        let expansion = |off: u16| if off < 3 { 1.0 } else { with_buffers(n, off) };
        let row = ServingRow::new(
            &case,
            "layers off the GPU at most",
            f64::from(found),
            Some(f64::from(by_rates)),
        );
        row.noted(format!(
            "expansion {:.2}; by the condition {:.2}",
            expansion(found),
            expansion(by_rates)
        ))
    });
    ServingTable {
        rows: rows.collect(),
        lines: Vec::new(),
    }
}

/// S3's Tables 2 and 3: offline throughput of all requests at once.
#[derive(Debug)]
pub struct Offline {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served, by whom, and what was published.
    pub cases: Vec<OfflineCase>,
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

/// A model and a system with what was published of them.
#[derive(Debug, Clone)]
pub struct OfflineCase {
    /// The model.
    pub model: ModelSpec,
    /// `orca`, `s3` or `oracle`.
    pub system: String,
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
    /// An error of ours; a system that is none.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let rows = on_all_processors(self.cases.clone(), &|case| self.rows(&case));
        let rows: Vec<Vec<ServingRow>> = rows.into_iter().collect::<anyhow::Result<_>>()?;
        Ok(ServingTable {
            rows: rows.into_iter().flatten().collect(),
            lines: Vec::new(),
        })
    }

    fn rows(&self, case: &OfflineCase) -> anyhow::Result<Vec<ServingRow>> {
        let requests = exact_trace(&self.lengths, self.answers, self.seed);
        let predicted = |prediction| Manager::S3 {
            prediction,
            reserve: Reserve::Output,
        };
        let manager = match case.system.as_str() {
            "orca" => Manager::Orca {
                max_len: self.max_len,
            },
            "oracle" => predicted(Prediction::Oracle),
            _ => predicted(Prediction::Classifier {
                buckets: Buckets {
                    max_len: self.max_len,
                    count: self.buckets,
                },
                accuracy: self.accuracy,
                wrong: Wrong::Short,
                seed: self.seed,
            }),
        };
        let server = Server {
            kv_bytes: Server::kv_left(&self.machine, &case.model, Dtype::F16)
                .unwrap_or(Bytes::ZERO),
            profile: self.machine.clone(),
            model: case.model.clone(),
            dtype: Dtype::F16,
            manager,
            limits: Limits {
                sequences: u32::MAX,
                tokens: u32::MAX,
            },
            clients: None,
            slo_s: 0.1875,
            traffic: Background::default(),
            logged: false,
        };
        let it = server.replay(&requests)?.summary;
        let name = format!("{}, {}", case.model.name, case.system);
        let note = format!(
            "{} evictions, largest batch {}",
            it.preemptions, it.largest_batch
        );
        let row = |metric, ours, published| ServingRow::new(&name, metric, ours, Some(published));
        Ok(vec![
            row("iterations", it.iterations as f64, case.iterations).noted(note),
            row("average batch", it.average_batch, case.average_batch),
            row("tokens/s", it.output_tokens_per_s, case.tokens_per_s),
        ])
    }
}
