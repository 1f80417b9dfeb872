//! Pie's throughput over vLLM's, by expansion and rate (Figures 6 and 8).

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::ServeSummary;
use plimsoll_core::serve::pie::Settings;

use super::online::Online;
use super::serving::{LinePicture, ServingRow, ServingTable};
use crate::parallel::on_all_processors;
use crate::report::Line;
use crate::serve::replay::{Expansion, Manager};
use crate::serve::workload::Lengths;

/// What is tried with what.
#[derive(Debug)]
pub struct Gains {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served.
    pub cases: Vec<GainCase>,
    /// Expansions that are tried besides 1 and auto.
    pub expansions: Vec<f64>,
    /// The largest of which something was published: up to it like is compared with like.
    pub published_up_to: Option<f64>,
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
    /// The expansion at which that is.
    pub published_expansion: Option<f64>,
    /// What was published of the gain over rates, where that was.
    pub over_rates: Option<OverRates>,
}

/// What was published of the gain over rates (section 5.4).
#[derive(Debug, Clone, Copy)]
pub struct OverRates {
    /// The rate below which expansion has less effect.
    pub saturated: f64,
    /// From it on, the least of the best gains, and the most.
    pub gains: [f64; 2],
}

/// A rate, and what each expansion makes of it, the first of which is none.
#[derive(Debug)]
struct AtRate {
    rate: f64,
    runs: Vec<(Expansion, ServeSummary)>,
}

impl AtRate {
    /// Throughput over expansion, of those that do not change it.
    fn line(&self) -> Vec<(f64, f64)> {
        let fixed = self
            .runs
            .iter()
            .filter_map(|(expansion, it)| match expansion {
                Expansion::Fixed(expansion) => Some((*expansion, it.output_tokens_per_s)),
                Expansion::Auto(_) => None,
            });
        fixed.collect()
    }

    /// The expansion of most throughput, and this over the throughput without any.
    fn best(&self) -> (f64, f64) {
        self.best_up_to(f64::INFINITY)
    }

    /// The same of expansions up to one.
    fn best_up_to(&self, most: f64) -> (f64, f64) {
        let line = self.line();
        let tried = line.iter().filter(|(expansion, _)| *expansion <= most);
        let best = tried.fold(line[0], |best, at| if at.1 > best.1 { *at } else { best });
        (best.0, best.1 / line[0].1)
    }

    /// The throughput with an expansion over that without any, where it was tried.
    fn gain_at(&self, expansion: f64) -> Option<f64> {
        let line = self.line();
        let (_, tokens) = line.iter().find(|(at, _)| *at == expansion)?;
        Some(tokens / line[0].1)
    }

    fn rows(&self, case: &str) -> Vec<ServingRow> {
        let name = format!("{case}, {} requests/s", self.rate);
        let none = self.runs[0].1.output_tokens_per_s;
        let mut rows = Vec::new();
        for (expansion, it) in &self.runs {
            let tokens = it.output_tokens_per_s;
            let row = ServingRow::new(&name, "tokens/s", tokens, None);
            rows.push(row.noted(note(*expansion, it)));
            if let Expansion::Auto(_) = expansion {
                let over = tokens / (self.best().1 * none);
                rows.push(ServingRow::new(
                    &name,
                    "adaptive over the best fixed",
                    over,
                    None,
                ));
            }
        }
        rows
    }
}

impl Gains {
    /// A row for each expansion and rate, and for the best gains. One picture has each case's last rate; where what is asked
    /// is the rates, each case has one with all of them.
    ///
    /// # Errors
    /// An error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let mut table = ServingTable::from(Vec::new());
        let mut together = Vec::new();
        for case in &self.cases {
            let name = format!("{}, {} GB", case.name, case.kv_gb);
            let rates = self.rates(case)?;
            table
                .rows
                .extend(rates.iter().flat_map(|at| at.rows(&name)));
            table.rows.extend(best(&name, &rates, case));
            let tried = self.published_up_to.filter(|_| case.published.is_some());
            table.rows.extend(
                tried.and_then(|most| best_of_published(&name, &rates, (most, case.published))),
            );
            match &case.over_rates {
                Some(published) => {
                    table.rows.extend(over_rates(&name, &rates, published));
                    let lines = rates.iter().map(|at| line(&format!("{}/s", at.rate), at));
                    table.pictures.push(picture(&case.name, lines.collect()));
                }
                // The last rate asks for the most; lines of all would hide each other.
                None => together.extend(
                    rates
                        .last()
                        .map(|at| line(&format!("{}, {}/s", case.name, at.rate), at)),
                ),
            }
        }
        if !together.is_empty() {
            table.pictures.push(picture("", together));
        }
        Ok(table)
    }

    fn rates(&self, case: &GainCase) -> anyhow::Result<Vec<AtRate>> {
        let fixed = std::iter::once(&1.0).chain(&self.expansions);
        let auto = Expansion::Auto(Settings::default());
        let expansions: Vec<Expansion> =
            fixed.map(|e| Expansion::Fixed(*e)).chain([auto]).collect();
        let rates = case.rates.iter();
        let each = rates.flat_map(|rate| expansions.iter().map(move |e| (*rate, *e)));
        let online = Online {
            machine: &self.machine,
            model: &case.model,
            lengths: &case.lengths,
            requests: self.requests,
            seed: self.seed,
        };
        let runs = on_all_processors(each.collect(), &|(rate, expansion)| {
            let it = online.serve(Manager::Pie(expansion), case.kv_gb, rate)?;
            Ok((expansion, it))
        });
        let mut runs = runs.into_iter();
        let mut at = |rate: &f64| {
            let runs = runs.by_ref().take(expansions.len());
            Ok(AtRate {
                rate: *rate,
                runs: runs.collect::<anyhow::Result<_>>()?,
            })
        };
        case.rates.iter().map(&mut at).collect()
    }
}

/// The expansion of the best gain of all rates, of those up to one, that gain, and its rate.
fn best_of(rates: &[AtRate], most: f64) -> Option<(f64, f64, f64)> {
    let each = rates.iter().map(|at| {
        let (expansion, gain) = at.best_up_to(most);
        (expansion, gain, at.rate)
    });
    each.reduce(|best, at| if best.1 >= at.1 { best } else { at })
}

/// The best gain of the expansions up to the largest that was published, where there may be more beyond.
fn best_of_published(
    name: &str,
    rates: &[AtRate],
    (most, published): (f64, Option<f64>),
) -> Option<ServingRow> {
    let (expansion, gain, rate) = best_of(rates, most)?;
    let row = ServingRow::new(
        name,
        "best gain of expansions as published",
        gain,
        published,
    );
    let at_end = if expansion == most {
        ", the largest"
    } else {
        ""
    };
    let note = format!("up to {most}: at expansion {expansion}{at_end}, {rate} requests/s");
    Some(row.noted(note))
}

/// The best gain of all rates, and beside the expansion of which it was published.
fn best(name: &str, rates: &[AtRate], case: &GainCase) -> Vec<ServingRow> {
    let Some((expansion, gain, rate)) = best_of(rates, f64::INFINITY) else {
        return Vec::new();
    };
    let note = format!("at expansion {expansion}, {rate} requests/s");
    let row = ServingRow::new(name, "best gain", gain, case.published).noted(note);
    let metric = "expansion of the best gain";
    let found = case.published_expansion;
    let found = found.map(|it| ServingRow::new(name, metric, expansion, Some(it)));
    // What the paper's best expansion gains here.
    let at_its = case.published_expansion.and_then(|it| {
        let gain = rates
            .iter()
            .filter_map(|at| at.gain_at(it))
            .reduce(f64::max)?;
        let metric = "gain at the published expansion";
        Some(ServingRow::new(name, metric, gain, case.published))
    });
    [Some(row), found, at_its].into_iter().flatten().collect()
}

/// The best gain at each rate, and what was published of them.
fn over_rates(name: &str, rates: &[AtRate], published: &OverRates) -> Vec<ServingRow> {
    let gains = rates.iter().map(|at| (at.rate, at.best()));
    let gains: Vec<(f64, (f64, f64))> = gains.collect();
    let each = gains.iter().map(|(rate, (expansion, gain))| {
        let name = format!("{name}, {rate} requests/s");
        let row = ServingRow::new(&name, "best gain at this rate", *gain, None);
        row.noted(format!("at expansion {expansion}"))
    });
    let mut rows: Vec<ServingRow> = each.collect();
    let saturated = gains
        .iter()
        .filter(|(rate, _)| *rate >= published.saturated);
    let saturated: Vec<f64> = saturated.map(|(_, (_, gain))| *gain).collect();
    let [least, most] = [
        saturated.iter().copied().fold(f64::INFINITY, f64::min),
        saturated.iter().copied().fold(0.0, f64::max),
    ];
    let said = format!("at {} requests/s and more", published.saturated);
    let [low, high] = published.gains;
    let all = gains.iter().map(|(_, (_, gain))| *gain).fold(1.0, f64::max);
    // The paper says "less effect"; this is where half of the most is gained.
    let half = gains
        .iter()
        .find(|(_, (_, gain))| gain - 1.0 >= 0.5 * (all - 1.0));
    rows.push(ServingRow::new(name, "least best gain", least, Some(low)).noted(said.clone()));
    rows.push(ServingRow::new(name, "most best gain", most, Some(high)).noted(said));
    if let Some((rate, _)) = half {
        let metric = "rate from which half of the most is gained";
        rows.push(ServingRow::new(
            name,
            metric,
            *rate,
            Some(published.saturated),
        ));
    }
    rows
}

fn line(name: &str, at: &AtRate) -> Line {
    Line {
        name: name.to_owned(),
        points: at.line(),
    }
}

/// Of one case, or of all where it is none's.
fn picture(case: &str, lines: Vec<Line>) -> LinePicture {
    LinePicture {
        x: "expansion, buffers counted",
        lines,
        ..LinePicture::throughput_of(case)
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
