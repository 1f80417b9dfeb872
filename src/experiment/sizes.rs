//! Pie's Figure 7: throughput over the device memory that the cache has, Pie beside vLLM.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::pie::Settings;
use plimsoll_core::serve::{Preemption, ServeSummary};

use super::online::{Online, s_per_token};
use super::serving::{LinePicture, ServingRow, ServingTable};
use crate::parallel::on_all_processors;
use crate::report::Line;
use crate::serve::replay::{Expansion, Manager};
use crate::serve::workload::Lengths;

/// Pie beside vLLM, by the size of the cache on the device.
#[derive(Debug)]
pub struct Sizes {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served.
    pub cases: Vec<SizesCase>,
    /// Device memory for the cache, in GB of 10^9 bytes, from the least on.
    pub kv_gb: Vec<f64>,
    /// By a data set's name, the most that Pie was published to gain.
    pub published: Vec<(String, f64)>,
    /// The most that vLLM's latency was published to be over Pie's.
    pub latency: Option<f64>,
    /// The most that vLLM's cache on the device was published to be over Pie's with the same throughput.
    pub memory: Option<f64>,
    /// Requests of each trace.
    pub requests: usize,
    /// Of the traces.
    pub seed: u64,
}

/// A model with a data set.
#[derive(Debug)]
pub struct SizesCase {
    /// In the table.
    pub name: String,
    /// The data set's name.
    pub data: String,
    /// The model.
    pub model: ModelSpec,
    /// Tokens of prompts and of answers.
    pub lengths: [Lengths; 2],
    /// Requests a second to choose from, ascending.
    pub rates: Vec<f64>,
}

/// Requests that have to leave, as a share of all: some do in any burst.
const HARDLY: f64 = 0.01;

/// A size, and what vLLM and Pie make of it.
type AtSize = (f64, [ServeSummary; 2]);

impl Sizes {
    /// For each case a row a size and system, and two for what Pie gains; for each data set the most and, at the largest size, the
    /// gain of each case.
    ///
    /// # Errors
    /// A case at none of whose rates vLLM can do with the largest cache; an error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let mut table = ServingTable::from(Vec::new());
        let mut most = Vec::new();
        let mut headlines = [Vec::new(), Vec::new()];
        for case in &self.cases {
            let rate = self.rate(case)?;
            let sizes = on_all_processors(self.kv_gb.clone(), &|gb| self.at(case, rate, gb));
            let sizes: Vec<AtSize> = sizes.into_iter().collect::<anyhow::Result<_>>()?;
            let name = format!("{}, {rate} requests/s", case.name);
            for size in &sizes {
                table.rows.extend(rows(&name, size));
            }
            table.rows.extend(meeting(&name, &sizes));
            table.pictures.push(picture(&name, &case.name, &sizes));
            headlines[0].extend(
                sizes
                    .iter()
                    .map(|at| (latency(at), format!("{name}, {} GB", at.0))),
            );
            headlines[1].extend(
                sizes
                    .iter()
                    .filter_map(|at| Some((memory(at, &sizes)?, format!("{name}, {} GB", at.0)))),
            );
            let best = sizes.iter().map(gain).fold(0.0, f64::max);
            most.push((&case.data, best));
        }
        for (data, published) in &self.published {
            let its = most.iter().filter(|(of, _)| *of == data);
            let best = its.map(|(_, best)| *best).fold(0.0, f64::max);
            let row = ServingRow::new(data, "most of pie over vllm", best, Some(*published));
            table.rows.push(row);
        }
        let metrics = [
            ("most latency of vllm over pie", self.latency),
            (
                "most cache of vllm over pie's on the device at equal throughput",
                self.memory,
            ),
        ];
        for ((metric, published), all) in metrics.into_iter().zip(headlines) {
            table.rows.extend(headline(metric, published, all));
        }
        Ok(table)
    }

    /// The highest rate at which vLLM has hardly anybody leave with the largest cache: the paper's point of comparison (5.3).
    fn rate(&self, case: &SizesCase) -> anyhow::Result<f64> {
        let largest = self.kv_gb.iter().copied().fold(0.0, f64::max);
        let tried = on_all_processors(case.rates.clone(), &|rate| {
            Ok((rate, self.online(case).serve(vllm(), largest, rate)?))
        });
        let tried: Vec<(f64, ServeSummary)> = tried.into_iter().collect::<anyhow::Result<_>>()?;
        let enough = tried
            .iter()
            .filter(|(_, it)| it.preemptions as f64 <= HARDLY * self.requests as f64);
        let Some((rate, _)) = enough.max_by(|(a, _), (b, _)| a.total_cmp(b)) else {
            anyhow::bail!(
                "{}: at each rate vLLM preempts more than 1% of all with {largest} GB; give lower rates",
                case.name
            );
        };
        Ok(*rate)
    }

    fn at(&self, case: &SizesCase, rate: f64, gb: f64) -> anyhow::Result<AtSize> {
        let online = self.online(case);
        let pie = Manager::Pie(Expansion::Auto(Settings::default()));
        Ok((
            gb,
            [
                online.serve(vllm(), gb, rate)?,
                online.serve(pie, gb, rate)?,
            ],
        ))
    }

    fn online<'a>(&'a self, case: &'a SizesCase) -> Online<'a> {
        Online {
            machine: &self.machine,
            model: &case.model,
            lengths: &case.lengths,
            requests: self.requests,
            seed: self.seed,
        }
    }
}

fn vllm() -> Manager {
    Manager::Vllm {
        preemption: Preemption::Recompute,
    }
}

/// Pie's throughput over vLLM's.
fn gain((_, [vllm, pie]): &AtSize) -> f64 {
    pie.output_tokens_per_s / vllm.output_tokens_per_s
}

/// vLLM's latency over Pie's.
fn latency((_, [vllm, pie]): &AtSize) -> f64 {
    s_per_token(vllm) / s_per_token(pie)
}

/// Throughputs that differ by less are equal.
const EQUAL: f64 = 0.01;

/// The size at which vLLM has the throughput that Pie has at this one, over this one: on a straight line between the sizes that
/// were tried. None where vLLM has it at none of them.
fn memory((gb, [_, pie]): &AtSize, sizes: &[AtSize]) -> Option<f64> {
    let enough = (1.0 - EQUAL) * pie.output_tokens_per_s;
    let vllm = sizes
        .iter()
        .map(|(gb, [vllm, _])| (*gb, vllm.output_tokens_per_s));
    let vllm: Vec<(f64, f64)> = vllm.collect();
    let at = vllm.iter().position(|(_, rate)| *rate >= enough)?;
    let size = match at.checked_sub(1).map(|before| vllm[before]) {
        None => vllm[at].0,
        Some((size, rate)) => {
            let share = (enough - rate) / (vllm[at].1 - rate);
            size + share * (vllm[at].0 - size)
        }
    };
    Some(size.max(*gb) / gb)
}

/// The most of all, and where that is.
fn headline(
    metric: &'static str,
    published: Option<f64>,
    all: Vec<(f64, String)>,
) -> Option<ServingRow> {
    let published = published?;
    let (most, at) = all.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let row = ServingRow::new("all cases", metric, most, Some(published));
    Some(row.noted(at))
}

fn rows(name: &str, size: &AtSize) -> [ServingRow; 4] {
    let (gb, [vllm, pie]) = size;
    let name = format!("{name}, {gb} GB");
    let note = |it: &ServeSummary| {
        let expansion = it.layers.as_ref().map_or(1.0, |layers| layers.expansion);
        format!(
            "batch {:.1}, {} preemptions, {} tokens computed again, expansion {expansion:.2} over time",
            it.average_batch, it.preemptions, it.recomputed_tokens
        )
    };
    let row = |metric, ours| ServingRow::new(&name, metric, ours, None);
    [
        row("vllm, tokens/s", vllm.output_tokens_per_s).noted(note(vllm)),
        row("pie, tokens/s", pie.output_tokens_per_s).noted(note(pie)),
        row("pie over vllm", gain(size)),
        row("latency of vllm over pie", latency(size)).noted(format!(
            "{:.3} and {:.3} s a token",
            s_per_token(vllm),
            s_per_token(pie)
        )),
    ]
}

/// The paper has both alike at the largest size.
fn meeting(name: &str, sizes: &[AtSize]) -> Option<ServingRow> {
    let largest = sizes.iter().max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let name = format!("{name}, {} GB", largest.0);
    let metric = "pie over vllm at the largest size";
    Some(ServingRow::new(&name, metric, gain(largest), Some(1.0)))
}

fn picture(name: &str, case: &str, sizes: &[AtSize]) -> LinePicture {
    let line = |system: &str, index: usize| Line {
        name: system.to_owned(),
        points: sizes
            .iter()
            .map(|(gb, both)| (*gb, both[index].output_tokens_per_s))
            .collect(),
    };
    LinePicture {
        of: format!(": {name}"),
        x: "KV cache on the device (GB)",
        lines: vec![line("vLLM (recompute)", 0), line("Pie (adaptive)", 1)],
        ..LinePicture::throughput_of(case)
    }
}
