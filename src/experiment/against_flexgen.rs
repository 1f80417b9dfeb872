//! Pie's Figure 10: Pie beside FlexGen, by device memory.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::pie::{Settings, layers_off, on_host};
use plimsoll_core::serve::{Request, ServeSummary};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

use super::online::{Online, s_per_token};
use super::serving::{LinePicture, ServingRow, ServingTable};
use crate::baseline::System;
use crate::parallel::on_all_processors;
use crate::pareto::{Point, Setting, points};
use crate::report::Line;
use crate::serve::gpus::Gpus;
use crate::serve::replay::{Expansion, Manager};
use crate::serve::workload::Lengths;

/// Pie, which serves requests as they come, beside FlexGen, which takes them in blocks of one length.
#[derive(Debug)]
pub struct AgainstFlexGen {
    /// Pie's machine, with what its serving software takes.
    pub machine: HardwareProfile,
    /// FlexGen's, the same without.
    pub flexgen_machine: HardwareProfile,
    /// The model.
    pub model: ModelSpec,
    /// Data sets.
    pub cases: Vec<FlexGenCase>,
    /// Device memory beside the weights, in GB of 10^9 bytes.
    pub kv_gb: Vec<f64>,
    /// Sequences in FlexGen's block, of which the size of most throughput is taken.
    pub blocks: Vec<u32>,
    /// FlexGen's latency over Pie's as published, at most.
    pub latency: f64,
    /// What Pie's cache was published to take of the host's memory at most, in GB of 10^9 bytes.
    pub host_gb: Option<f64>,
    /// Requests of each trace.
    pub requests: usize,
    /// Of the traces.
    pub seed: u64,
}

/// A data set.
#[derive(Debug)]
pub struct FlexGenCase {
    /// In the table.
    pub name: String,
    /// Tokens of prompts and of answers.
    pub lengths: [Lengths; 2],
    /// Requests a second that Pie is asked; FlexGen takes all requests as they fit its blocks.
    pub rates: Vec<f64>,
    /// Pie's throughput over FlexGen's as published, at most.
    pub published: f64,
}

/// What FlexGen makes all requests to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Padding {
    /// As long as the longest prompt, and the longest answer: as the paper says.
    Longest,
    /// As long as all are on average: as if all were of one length, the best that FlexGen could be.
    None,
}

impl Padding {
    const ALL: [Padding; 2] = [Padding::Longest, Padding::None];

    fn words(self) -> &'static str {
        match self {
            Padding::Longest => "padded to the longest",
            Padding::None => "all of the mean length",
        }
    }

    /// Tokens of a prompt and of an answer, which a model has positions for.
    fn workload(self, requests: &[Request], positions: u32) -> Workload {
        let lengths = requests.iter().map(|it| [it.prompt_len, it.output_len]);
        let count = requests.len().max(1) as u64;
        let [prompt, answer] = match self {
            Padding::Longest => lengths.fold([1, 1], |most, it| [0, 1].map(|i| it[i].max(most[i]))),
            Padding::None => lengths
                .fold([0_u64; 2], |sum, it| {
                    [0, 1].map(|i| sum[i] + u64::from(it[i]))
                })
                .map(|sum| (sum.div_ceil(count)) as u32),
        };
        let gen_len = answer.min(positions - 1);
        Workload {
            prompt_len: prompt.min(positions - gen_len),
            gen_len,
            num_prompts: None,
        }
    }
}

/// FlexGen's best block: tokens of answers a second, padding not counted, and seconds a token.
#[derive(Debug, Clone)]
struct Block {
    tokens_per_s: f64,
    s_per_token: f64,
    note: String,
}

/// A size of device memory with what both make of it.
struct AtSize {
    gb: f64,
    /// At each rate.
    pie: Vec<(f64, ServeSummary)>,
    flexgen: [Option<Block>; 2],
}

impl AtSize {
    /// Pie over FlexGen in throughput, FlexGen over Pie in latency, each at the rate where that is the most.
    fn ratios(&self, padding: usize) -> Option<[f64; 2]> {
        let block = self.flexgen[padding].as_ref()?;
        let rates = self.pie.iter().map(|(_, it)| {
            [
                it.output_tokens_per_s / block.tokens_per_s,
                block.s_per_token / s_per_token(it),
            ]
        });
        Some(most_of(rates))
    }
}

/// The most of each of two numbers.
fn most_of(all: impl Iterator<Item = [f64; 2]>) -> [f64; 2] {
    all.fold([0.0_f64; 2], |most, it| [0, 1].map(|i| it[i].max(most[i])))
}

impl AgainstFlexGen {
    /// For each data set and size a row a system and number; the most that Pie gains; pictures of throughput and latency.
    ///
    /// # Errors
    /// Weights that do not fit; an error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let mut table = ServingTable::from(Vec::new());
        for case in &self.cases {
            let sizes = on_all_processors(self.kv_gb.clone(), &|gb| self.at(case, gb));
            let mut sizes: Vec<AtSize> = sizes.into_iter().collect::<anyhow::Result<_>>()?;
            keep_the_better(&mut sizes);
            let rows = sizes.iter().flat_map(|it| rows(&case.name, it));
            table.rows.extend(rows);
            table.rows.extend(self.most(case, &sizes));
            table.rows.extend(self.host_memory(case, &sizes));
            table.pictures.extend(pictures(case, &sizes));
        }
        Ok(table)
    }

    fn at(&self, case: &FlexGenCase, gb: f64) -> anyhow::Result<AtSize> {
        let online = Online {
            machine: &self.machine,
            model: &self.model,
            lengths: &case.lengths,
            requests: self.requests,
            seed: self.seed,
        };
        let pie = Manager::Pie(Expansion::Auto(Settings::default()));
        // Lengths are the same at every rate.
        let requests = online.requests(1.0)?;
        let block = |padding| self.block(padding, gb, &requests);
        let [padded, mean] = Padding::ALL.map(block);
        let served = case.rates.iter().map(|rate| {
            let it = online.serve(pie.clone(), gb, *rate)?;
            Ok((*rate, it))
        });
        Ok(AtSize {
            gb,
            pie: served.collect::<anyhow::Result<_>>()?,
            flexgen: [padded?, mean?],
        })
    }

    /// FlexGen's block of most throughput on the device memory that Pie has in all; none where no size fits.
    fn block(
        &self,
        padding: Padding,
        gb: f64,
        requests: &[Request],
    ) -> anyhow::Result<Option<Block>> {
        let machine = &self.flexgen_machine;
        let Some(left) = Gpus::One.kv_left(machine, &self.model, Dtype::F16) else {
            anyhow::bail!("the weights of {} do not fit", self.model.name);
        };
        let all = machine.tiers.device_capacity_bytes.value;
        let less = left.saturating_sub(Bytes((gb * 1e9) as u64));
        let machine = machine.with_capacities(Some(all.saturating_sub(less)), None, None);
        let setting = Setting {
            profile: &machine,
            model: &self.model,
            workload: padding.workload(requests, self.model.max_position_embeddings),
        };
        let answers: u64 = requests.iter().map(|it| u64::from(it.output_len)).sum();
        let mean = answers as f64 / requests.len().max(1) as f64;
        let points = points(setting, &[System::FlexGen], Some(&self.blocks), &|_, _| ())?;
        let placed = points.iter().filter_map(|it| Some((it, it.place()?)));
        let best = placed.max_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b));
        Ok(best.map(|(point, (latency, _))| Block {
            tokens_per_s: f64::from(point.effective_batch) * mean / latency,
            s_per_token: latency / mean,
            note: words(point, setting.workload),
        }))
    }

    /// The most of the host's memory that Pie's cache takes.
    fn host_memory(&self, case: &FlexGenCase, sizes: &[AtSize]) -> Option<ServingRow> {
        let layers = self.model.num_hidden_layers as u16;
        let of = |gb: f64, it: &ServeSummary| {
            let expansions = it.layers.as_ref()?.expansions.iter();
            let most = expansions
                .map(|(_, expansion)| *expansion)
                .fold(1.0, f64::max);
            Some(gb * on_host(layers, layers_off(layers, most)))
        };
        let each = sizes
            .iter()
            .flat_map(|at| at.pie.iter().map(move |(_, it)| of(at.gb, it)));
        let most = each.flatten().fold(0.0, f64::max);
        let published = self.host_gb?;
        let row = ServingRow::new(
            &case.name,
            "most host memory of pie, GB",
            most,
            Some(published),
        );
        Some(row.noted("the published number is an upper bound".to_owned()))
    }

    /// What Pie gains at most, beside what was published.
    fn most(&self, case: &FlexGenCase, sizes: &[AtSize]) -> Vec<ServingRow> {
        let each = (0..).zip(Padding::ALL).flat_map(|(index, padding)| {
            let ratios = sizes.iter().filter_map(|it| it.ratios(index));
            let most = most_of(ratios);
            let name = format!("{}, flexgen {}", case.name, padding.words());
            let row =
                |metric, ours, published| ServingRow::new(&name, metric, ours, Some(published));
            [
                row(
                    "most throughput of pie over flexgen",
                    most[0],
                    case.published,
                ),
                row("most latency of flexgen over pie", most[1], self.latency),
            ]
        });
        each.collect()
    }
}

/// A plan for less memory serves with more as well; sizes ascend.
fn keep_the_better(sizes: &mut [AtSize]) {
    for index in 1..sizes.len() {
        let before = sizes[index - 1].flexgen.clone();
        for (here, before) in sizes[index].flexgen.iter_mut().zip(before) {
            let rate = |of: &Option<Block>| of.as_ref().map(|it| it.tokens_per_s);
            if rate(&before) > rate(here) {
                *here = before;
            }
        }
    }
}

/// A block in a line.
fn words(point: &Point, workload: Workload) -> String {
    let percent = |share: Option<f64>| share.unwrap_or(0.0).round();
    format!(
        "{} + {} tokens, {} x {} sequences, {}% of weights and {}% of cache on the GPU",
        workload.prompt_len,
        workload.gen_len,
        point.gpu_batch_size.unwrap_or(0),
        point.num_gpu_batches.unwrap_or(0),
        percent(point.wg),
        percent(point.cg)
    )
}

fn rows(case: &str, it: &AtSize) -> Vec<ServingRow> {
    let name = format!("{case}, {} GB beside the weights", it.gb);
    let mut rows = Vec::new();
    for (rate, pie) in &it.pie {
        let name = format!("{name}, {rate} requests/s");
        let layers = pie.layers.as_ref();
        let note = format!(
            "batch {:.1}, expansion {:.2} over time",
            pie.average_batch,
            layers.map_or(1.0, |layers| layers.expansion)
        );
        let row = |metric, ours| ServingRow::new(&name, metric, ours, None);
        rows.push(row("pie, tokens/s", pie.output_tokens_per_s).noted(note));
        rows.push(row("pie, s a token", s_per_token(pie)));
    }
    let row = |metric, ours| ServingRow::new(&name, metric, ours, None);
    for (padding, block) in Padding::ALL.iter().zip(&it.flexgen) {
        let Some(block) = block else {
            continue;
        };
        let note = format!("{}: {}", padding.words(), block.note);
        rows.push(row("flexgen, tokens/s", block.tokens_per_s).noted(note));
        rows.push(row("flexgen, s a token", block.s_per_token));
    }
    rows
}

fn pictures(case: &FlexGenCase, sizes: &[AtSize]) -> [LinePicture; 2] {
    let line = |name: &str, of: &dyn Fn(&AtSize) -> Option<f64>| Line {
        name: name.to_owned(),
        points: sizes
            .iter()
            .filter_map(|it| Some((it.gb, of(it)?)))
            .collect(),
    };
    let lines = |pie: fn(&ServeSummary) -> f64, flexgen: fn(&Block) -> f64| {
        let rates = case.rates.iter().enumerate().map(|(index, rate)| {
            line(&format!("Pie, {rate}/s"), &|it| Some(pie(&it.pie[index].1)))
        });
        let of = |index: usize| move |it: &AtSize| it.flexgen[index].as_ref().map(flexgen);
        let blocks = [
            line("FlexGen, padded", &of(0)),
            line("FlexGen, mean lengths", &of(1)),
        ];
        rates.chain(blocks).collect()
    };
    let x = "GPU memory beside the weights (GB)";
    let throughput = LinePicture::throughput_of(&case.name);
    let latency = LinePicture {
        suffix: format!("{}-latency", throughput.suffix),
        y: "queueing and compute (s a token)",
        x,
        lines: lines(s_per_token, |block| block.s_per_token),
        ..throughput.clone()
    };
    let throughput = LinePicture {
        x,
        lines: lines(|it| it.output_tokens_per_s, |block| block.tokens_per_s),
        ..throughput
    };
    [throughput, latency]
}
