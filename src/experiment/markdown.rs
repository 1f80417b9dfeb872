//! All results as one text in Markdown.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use plimsoll_core::units::Bytes;

use super::definition::{Definition, Kind, Use};
use super::results::{Outcome, Row, RunTable, Score, score_of};
use super::serving::{LinePicture, ServingTable};
use super::split::Percentage;
use super::study::{percent, table_of};
use crate::memory::{MemoryPoint, ranges};
use crate::pareto::Point;
use crate::published::Published;
use crate::report::Align::{self, Left, Right};
use crate::report::{Table, signed_percent, three_digits};

/// What a number that is not there is written as.
const NONE: &str = "";

/// Above the numbers of a score.
const SCORE: [&str; 7] = [
    "runs",
    "median error",
    "p90",
    "beyond rounding",
    "p90",
    "signed median",
    "within the 90% interval",
];

/// A table of scores, behind columns of words.
fn score_table(words: &[&'static str]) -> Table {
    let words = words.iter().map(|word| (*word, Left));
    let columns: Vec<(&str, Align)> = words.chain(SCORE.map(|name| (name, Right))).collect();
    Table::new(&columns)
}

/// The text; `made` says when and by which command.
pub fn results_text(definitions: &[Definition], outcomes: &[Outcome], made: &str) -> String {
    let all = || definitions.iter().zip(outcomes);
    let mut text = format!("# Results\n\n{made}\n");
    text.push_str(&scores(definitions, outcomes));
    for (definition, outcome) in all() {
        let _ = writeln!(text, "\n## {}\n", definition.title);
        text.push_str(&section(definition, outcome));
    }
    text
}

/// A definition's table, and its picture.
fn section(definition: &Definition, outcome: &Outcome) -> String {
    let picture = || {
        let Definition { name, title, .. } = definition;
        format!("![{title}]({name}.svg)\n\n")
    };
    match (outcome, &definition.kind) {
        (Outcome::Frontier(points), Kind::Pareto { published, .. }) => {
            picture() + &frontier(points, published).markdown()
        }
        (
            Outcome::Memory(points),
            Kind::Memory {
                scene, published, ..
            },
        ) => {
            let all = scene.machine.tiers.device_capacity_bytes.value;
            picture() + &memory(points, (all, published))
        }
        (Outcome::Memory(points), _) => memory(points, (Bytes::ZERO, &[])),
        (Outcome::Runs(table), _) => rows(table).markdown(),
        (Outcome::Frontier(points), _) => frontier(points, &[]).markdown(),
        (Outcome::Study(study), _) => study.markdown(),
        (Outcome::Serving(table), _) => {
            let Definition { name, title, .. } = definition;
            let drawn = table.pictures.iter().map(|LinePicture { suffix, of, .. }| {
                format!("![{title}{of}]({name}{suffix}.svg)\n\n")
            });
            drawn.collect::<String>() + &serving(table).markdown()
        }
    }
}

/// How far off the tables of runs are; nothing where there are none.
fn scores(definitions: &[Definition], outcomes: &[Outcome]) -> String {
    let all = || definitions.iter().zip(outcomes);
    if !outcomes
        .iter()
        .any(|outcome| matches!(outcome, Outcome::Runs(_)))
    {
        return String::new();
    }
    let mut table = score_table(&["table", "used for"]);
    for (definition, outcome) in all() {
        if let Outcome::Runs(runs) = outcome {
            let words = [definition.title.clone(), runs.used_for.title().to_owned()];
            table.row(
                words
                    .into_iter()
                    .chain(score_cells(score_of(runs.counted()))),
            );
        }
    }
    let in_short = in_short(outcomes).markdown();
    let mut text = format!("\n## In short\n\n{in_short}\n{}", table.markdown());
    text.push_str(
        "\nA run that tables repeat counts once; one that was fitted counts for the fitted only. *Beyond \
         rounding* is the part of an\nerror that the digits of the published number cannot explain: \
         a printed 0.01 stands for 0.005 to 0.015. The *90% interval*\nis where nine of ten measurements \
         are expected, from the errors of the runs that the machine was fitted to, each left out of the\n\
         fit; of fitted runs it is no test, and of other systems and unpublished policies it knows nothing.\n",
    );
    text
}

fn serving(table: &ServingTable) -> Table {
    let columns = [
        ("case", Left),
        ("number", Left),
        ("ours", Right),
        ("published", Right),
        ("error", Right),
        ("note", Left),
    ];
    table_of(&table.rows, columns, |row| {
        [
            row.case.clone(),
            row.metric.to_string(),
            three_digits_of(row.ours),
            row.published.map_or(NONE.to_owned(), three_digits_of),
            row.error.map_or(NONE.to_owned(), signed_percent),
            row.note.clone(),
        ]
    })
}

/// Counts stay whole.
fn three_digits_of(value: f64) -> String {
    match value.fract() == 0.0 {
        true => format!("{value}"),
        false => three_digits(value),
    }
}

/// All tables of a use together, and all whose policies were given, whoever printed them. A run that
/// tables repeat counts once.
fn in_short(outcomes: &[Outcome]) -> Table {
    let mut table = score_table(&["all tables used for"]);
    let mut line = |title: &str, wanted: &dyn Fn(Use) -> bool| {
        let mut seen = HashSet::new();
        let tables = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Runs(table) if wanted(table.used_for) => Some(table),
            _ => None,
        });
        let rows = tables.flat_map(RunTable::counted);
        let score =
            score_of(rows.filter(|row| seen.insert((row.key(), row.published.map(f64::to_bits)))));
        if score.is_some() {
            table.row([title.to_owned()].into_iter().chain(score_cells(score)));
        }
    };
    for used_for in Use::ALL {
        line(used_for.title(), &|of| of == used_for);
    }
    line("validation, all given policies", &Use::validates_given);
    for (machine, score) in by_machine(outcomes) {
        let title = format!("on {machine}");
        table.row([title].into_iter().chain(score_cells(Some(score))));
    }
    table
}

/// Of others' runs on machines of many kinds, each kind by itself.
fn by_machine(outcomes: &[Outcome]) -> Vec<(&str, Score)> {
    let tables = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Runs(table) if matches!(table.used_for, Use::WholeModels | Use::Offloaded) => {
            Some(table)
        }
        _ => None,
    });
    let mut rows: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in tables.flat_map(RunTable::counted) {
        rows.entry(&row.hardware).or_default().push(row);
    }
    let scored = rows
        .into_iter()
        .map(|(machine, rows)| Some((machine, score_of(rows.into_iter())?)));
    scored.flatten().collect()
}

fn score_cells(score: Option<Score>) -> [String; SCORE.len()] {
    let Some(score) = score else {
        return std::array::from_fn(|column| if column == 0 { "0" } else { NONE }.to_owned());
    };
    [
        score.runs.to_string(),
        percent(score.median_abs_error),
        percent(score.p90_abs_error),
        percent(score.median_beyond_rounding),
        percent(score.p90_beyond_rounding),
        signed_percent(score.median_rate_error),
        coverage(&score),
    ]
}

/// How many of how many lie in their interval.
fn coverage(score: &Score) -> String {
    match score.with_interval {
        0 => "no interval".to_owned(),
        all => format!("{} of {all}", score.within_interval),
    }
}

fn rows(table: &RunTable) -> Table {
    let columns = [
        ("run", Left),
        ("machine", Left),
        ("predicted", Right),
        ("90% interval", Right),
        ("published", Right),
        ("error", Right),
        ("beyond rounding", Right),
        ("bottleneck, or policy made", Left),
    ];
    table_of(&table.rows, columns, |row| {
        let repeated = match row.fitted && table.used_for != Use::Fitting {
            true => " (fitted elsewhere)",
            false => "",
        };
        [
            format!("{}{repeated}", row.run),
            row.hardware.clone(),
            predicted(row),
            interval(row),
            published(row),
            row.error.map_or(NONE.to_owned(), signed_percent),
            match row.error_beyond_rounding {
                Some(0.0) => "none".to_owned(),
                Some(beyond) => signed_percent(beyond),
                None => NONE.to_owned(),
            },
            row.note.clone(),
        ]
    })
}

fn number(row: &Row, number: f64) -> String {
    format!("{} {}", three_digits(number), row.metric.unit())
}

fn interval(row: &Row) -> String {
    let ends = row.low.zip(row.high);
    ends.map_or(NONE.to_owned(), |(low, high)| {
        format!("{} to {}", three_digits(low), three_digits(high))
    })
}

fn predicted(row: &Row) -> String {
    match (row.predicted, row.out_of_memory_agreed) {
        (Some(predicted), _) => number(row, predicted),
        (None, Some(agreed)) if agreed == row.published.is_none() => "out of memory".to_owned(),
        (None, _) => "fits".to_owned(),
    }
}

fn published(row: &Row) -> String {
    let published = row.published.map(|published| number(row, published));
    published.unwrap_or_else(|| "out of memory".to_owned())
}

/// With how much device memory each system runs, beside what was published.
fn memory(points: &[MemoryPoint], (all, published): (Bytes, &[Percentage])) -> String {
    let columns = [
        ("system", Left),
        ("runs with, GB", Right),
        ("of all", Right),
        ("published", Right),
        ("tok/s with the least", Right),
        ("with the most", Right),
    ];
    let table = table_of(ranges(points), columns, |range| {
        let both = |of: &dyn Fn(f64) -> String| {
            let [least, most] = [range.least_bytes, range.most_bytes].map(|b| of(b as f64));
            match least == most {
                true => least,
                false => format!("{least} to {most}"),
            }
        };
        let named = |end: &str| {
            let name = format!("{} {end}", range.system);
            published.iter().find(|it| it.name == name)
        };
        let said = named("least").zip(named("most"));
        let said = said.map(|(least, most)| format!("{}% to {}%", least.percent, most.percent));
        [
            range.system.to_string(),
            both(&|bytes| format!("{:.2}", bytes / 1e9)),
            both(&|bytes| percent(bytes / all.as_f64())),
            said.unwrap_or_default(),
            three_digits(range.least_tok_s),
            three_digits(range.most_tok_s),
        ]
    });
    let lead = "Published ranges are percentages of all device memory.";
    format!("{lead}\n\n{}", table.markdown())
}

/// What each system reaches at most, beside what it was published to.
fn frontier(points: &[Point], published: &[Published]) -> Table {
    let columns = [
        ("system", Left),
        ("most tok/s", Right),
        ("at", Right),
        ("latency", Right),
        ("published", Right),
        ("at", Right),
        ("latency", Right),
        ("out of memory at", Left),
    ];
    let of_systems = points.chunk_by(|a, b| a.system == b.system);
    table_of(of_systems, columns, |of_system| {
        let places = of_system.iter().filter(|point| point.on_frontier);
        let rate = |point: &Point| point.throughput_tok_s.unwrap_or(0.0);
        let best = places.max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let name = of_system[0].system;
        let full = of_system.iter().find_map(|point| {
            let tier = point.exceeds?;
            Some(format!("{} ({tier})", point.effective_batch))
        });
        let its = published.iter().filter(|p| p.system.name() == name);
        let its = its.filter_map(|p| Some((p.effective_batch, p.throughput_tok_s?, p.latency_s)));
        let most = its.max_by(|a, b| a.1.value.total_cmp(&b.1.value));
        let best = best.map(|p| most_cells(p.effective_batch, rate(p), p.latency_s));
        let most = most.map(|(batch, rate, s)| most_cells(batch, rate.value, s.map(|s| s.value)));
        let [our_rate, our_batch, our_latency] = best.unwrap_or_default();
        let [rate, batch, latency] = most.unwrap_or_default();
        [
            name.to_string(),
            our_rate,
            our_batch,
            our_latency,
            rate,
            batch,
            latency,
            full.unwrap_or_default(),
        ]
    })
}

/// What is reached, at which batch, and in which time.
fn most_cells(batch: u32, tok_s: f64, latency_s: Option<f64>) -> [String; 3] {
    let latency = latency_s.map_or(NONE.to_owned(), |s| format!("{s:.0} s"));
    [three_digits(tok_s), batch.to_string(), latency]
}
