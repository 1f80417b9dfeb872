//! All results as one text in Markdown.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use plimsoll_core::term::Term;
use plimsoll_core::units::Bytes;

use super::ablation::AblationRow;
use super::definition::{Definition, Kind, Use};
use super::results::{Outcome, Row, Score, Table, score_of};
use super::schedules::SchedulesRow;
use super::serving::{LinePicture, ServingTable};
use super::split::{self, Percentage};
use crate::memory::{MemoryPoint, ranges};
use crate::pareto::Point;
use crate::published::Published;
use crate::report::{signed_percent, three_digits};

/// What a number that is not there is written as.
const NONE: &str = "";

/// Above the numbers of a score.
const SCORE_HEAD: &str = " runs | median error | p90 | beyond rounding | p90 | signed median | within the 90% interval |";
const SCORE_RULE: &str = "--:|--:|--:|--:|--:|--:|--:|";

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
            picture() + &frontier(points, published)
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
        (Outcome::Table(table), _) => rows(table),
        (Outcome::Frontier(points), _) => frontier(points, &[]),
        (Outcome::Schedules(rows), _) => schedules(rows),
        (Outcome::Ablation(rows), _) => ablation(rows),
        (Outcome::Breakdown(rows), _) => split::breakdown::text(rows),
        (Outcome::Parts(rows), _) => split::parts::text(rows),
        (Outcome::Gain(rows), _) => split::gain::text(rows),
        (Outcome::Batches(rows), _) => split::batches::text(rows),
        (Outcome::Serving(table), _) => {
            let Definition { name, title, .. } = definition;
            let drawn = table.pictures.iter().map(|LinePicture { suffix, of, .. }| {
                format!("![{title}{of}]({name}{suffix}.svg)\n\n")
            });
            drawn.collect::<String>() + &serving(table)
        }
    }
}

/// How far off the tables of runs are; nothing where there are none.
fn scores(definitions: &[Definition], outcomes: &[Outcome]) -> String {
    let all = || definitions.iter().zip(outcomes);
    if !outcomes
        .iter()
        .any(|outcome| matches!(outcome, Outcome::Table(_)))
    {
        return String::new();
    }
    let mut text = format!("\n## In short\n\n{}", in_short(outcomes));
    let _ = writeln!(
        text,
        "\n| table | used for |{SCORE_HEAD}\n|---|---|{SCORE_RULE}"
    );
    for (definition, outcome) in all() {
        if let Outcome::Table(table) = outcome {
            let (title, used) = (&definition.title, table.used_for.title());
            let row = score_cells(score_of(table.counted()));
            let _ = writeln!(text, "| {title} | {used} | {row} |");
        }
    }
    text.push_str(
        "\nA run that tables repeat counts once; one that was fitted counts for the fitted only. *Beyond \
         rounding* is the part of an\nerror that the digits of the published number cannot explain: \
         a printed 0.01 stands for 0.005 to 0.015. The *90% interval*\nis where nine of ten measurements \
         are expected, from the errors of the runs that the machine was fitted to, each left out of the\n\
         fit; of fitted runs it is no test, and of other systems and unpublished policies it knows nothing.\n",
    );
    text
}

fn serving(table: &ServingTable) -> String {
    let mut text =
        String::from("| case | number | ours | published | error | |\n|---|---|--:|--:|--:|---|\n");
    for row in &table.rows {
        let published = row.published.map_or(NONE.to_owned(), three_digits_of);
        let error = row.error.map_or(NONE.to_owned(), signed_percent);
        let ours = three_digits_of(row.ours);
        let _ = writeln!(
            text,
            "| {} | {} | {ours} | {published} | {error} | {} |",
            row.case, row.metric, row.note
        );
    }
    text
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
fn in_short(outcomes: &[Outcome]) -> String {
    let mut text = format!("| all tables used for |{SCORE_HEAD}\n|---|{SCORE_RULE}\n");
    let mut line = |title: &str, wanted: &dyn Fn(Use) -> bool| {
        let mut seen = HashSet::new();
        let tables = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Table(table) if wanted(table.used_for) => Some(table),
            _ => None,
        });
        let rows = tables.flat_map(Table::counted);
        let score =
            score_of(rows.filter(|row| seen.insert((row.key(), row.published.map(f64::to_bits)))));
        if let Some(score) = score {
            let _ = writeln!(text, "| {title} | {} |", score_cells(Some(score)));
        }
    };
    for used_for in Use::ALL {
        line(used_for.title(), &|of| of == used_for);
    }
    line("validation, all given policies", &Use::validates_given);
    text + &by_machine(outcomes)
}

/// Of others' runs on machines of many kinds, each kind by itself.
fn by_machine(outcomes: &[Outcome]) -> String {
    let tables = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Table(table) if matches!(table.used_for, Use::WholeModels | Use::Offloaded) => {
            Some(table)
        }
        _ => None,
    });
    let mut rows: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in tables.flat_map(Table::counted) {
        rows.entry(&row.hardware).or_default().push(row);
    }
    let mut text = String::new();
    for (machine, rows) in rows {
        if let Some(score) = score_of(rows.into_iter()) {
            let _ = writeln!(text, "| on {machine} | {} |", score_cells(Some(score)));
        }
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

fn score_cells(score: Option<Score>) -> String {
    match score {
        Some(score) => format!(
            "{} | {} | {} | {} | {} | {} | {}",
            score.runs,
            percent(score.median_abs_error),
            percent(score.p90_abs_error),
            percent(score.median_beyond_rounding),
            percent(score.p90_beyond_rounding),
            signed_percent(score.median_rate_error),
            coverage(&score)
        ),
        None => "0 | | | | | | ".to_owned(),
    }
}

/// How many of how many lie in their interval.
fn coverage(score: &Score) -> String {
    match score.with_interval {
        0 => "no interval".to_owned(),
        all => format!("{} of {all}", score.within_interval),
    }
}

fn rows(table: &Table) -> String {
    let mut text = String::from(
        "| run | machine | predicted | 90% interval | published | error | beyond rounding | bottleneck, or \
         policy made |\n|---|---|--:|--:|--:|--:|--:|---|\n",
    );
    for row in &table.rows {
        let repeated = match row.fitted && table.used_for != Use::Fitting {
            true => " (fitted elsewhere)",
            false => "",
        };
        let beyond = match row.error_beyond_rounding {
            Some(0.0) => "none".to_owned(),
            Some(beyond) => signed_percent(beyond),
            None => NONE.to_owned(),
        };
        let _ = writeln!(
            text,
            "| {}{repeated} | {} | {} | {} | {} | {} | {beyond} | {} |",
            row.run,
            row.hardware,
            predicted(row),
            interval(row),
            published(row),
            row.error.map_or(NONE.to_owned(), signed_percent),
            row.note
        );
    }
    text
}

fn ablation(rows: &[AblationRow]) -> String {
    let runs = rows.first().map_or(0, |row| row.runs);
    let mut text = format!(
        "The {runs} validation runs whose policy was given, each term off by itself. Constants stay what \
         they are with all terms,\nand there is no interval. *Moved* are runs whose prediction changes by \
         1% or more; their median error is given with\nthe term and without it. The other columns are of \
         all runs.\n\n\
         | without | what is assumed | moved | with it | without it | median error | change | p90 | \
         signed median |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    for row in rows {
        let assumed = Term::named(row.without).map_or("the whole model", Term::when_off);
        let _ = writeln!(
            text,
            "| {} | {assumed} | {} | {} | {} | {} | {} | {} | {} |",
            row.without,
            row.moved,
            row.moved_with.map_or(NONE.to_owned(), percent),
            row.moved_without.map_or(NONE.to_owned(), percent),
            percent(row.median_abs_error),
            signed_percent(row.change),
            percent(row.p90_abs_error),
            signed_percent(row.median_rate_error)
        );
    }
    text
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
    let mut text = String::from(
        "Published ranges are percentages of all device memory.\n\n\
         | system | runs with, GB | of all | published | tok/s with the least | with the most |\n|---|--:|--:|--:|--:|--:|\n",
    );
    for range in ranges(points) {
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
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            range.system,
            both(&|bytes| format!("{:.2}", bytes / 1e9)),
            both(&|bytes| percent(bytes / all.as_f64())),
            said.unwrap_or_default(),
            three_digits(range.least_tok_s),
            three_digits(range.most_tok_s)
        );
    }
    text
}

/// What each system reaches at most, beside what it was published to.
fn frontier(points: &[Point], published: &[Published]) -> String {
    let mut text = String::from(
        "| system | most tok/s | at | latency | published | at | latency | out of memory at |\n\
         |---|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for of_system in points.chunk_by(|a, b| a.system == b.system) {
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
        let cells = |batch: u32, rate: f64, latency: Option<f64>| {
            let latency = latency.map_or(NONE.to_owned(), |s| format!("{s:.0} s"));
            format!("{} | {batch} | {latency}", three_digits(rate))
        };
        let best = best.map(|p| cells(p.effective_batch, rate(p), p.latency_s));
        let most = most.map(|(batch, rate, s)| cells(batch, rate.value, s.map(|s| s.value)));
        let none = || " | | ".to_owned();
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} |",
            best.unwrap_or_else(none),
            most.unwrap_or_else(none),
            full.unwrap_or_default()
        );
    }
    text
}

/// The largest blocks that fit and what they reach.
fn schedules(rows: &[SchedulesRow]) -> String {
    let mut text = String::from(
        "| prompt + tokens | zig-zag block | diagonal block | ratio | (2s+2n)/(2s+n) | zig-zag tok/s | \
         diagonal, same block | diagonal tok/s | gain | weights a token, GB | busiest |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for row in rows {
        let gigabytes = |bytes: f64| three_digits(bytes / 1e9);
        let busiest = match [row.zigzag_bottleneck, row.diagonal_bottleneck] {
            [before, now] if before == now => now.to_string(),
            [before, now] => format!("{before}, then {now}"),
        };
        let _ = writeln!(
            text,
            "| {} + {} | {} | {} | {:.2} | {:.2} | {} | {} | {} | {} | {}, then {} | {busiest} |",
            row.prompt_len,
            row.gen_len,
            row.zigzag_block,
            row.diagonal_block,
            row.block_ratio,
            row.formula_ratio,
            three_digits(row.zigzag_tok_s),
            three_digits(row.same_block_tok_s),
            three_digits(row.diagonal_tok_s),
            signed_percent(row.gain),
            gigabytes(row.zigzag_weight_bytes_per_token),
            gigabytes(row.diagonal_weight_bytes_per_token),
        );
    }
    text
}
