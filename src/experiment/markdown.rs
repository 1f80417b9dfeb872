//! All results as one text in Markdown.

use std::fmt::Write as _;

use super::definition::{Definition, Kind};
use super::results::{Outcome, Row, Score, Table, score_of};
use crate::pareto::Point;
use crate::published::Published;
use crate::report::{signed_percent, three_digits};

/// What a number that is not there is written as.
const NONE: &str = "";

/// The text; `made` says when and by which command.
pub fn results_text(definitions: &[Definition], outcomes: &[Outcome], made: &str) -> String {
    let all = || definitions.iter().zip(outcomes);
    let mut text = format!("# Results\n\n{made}\n\n## In short\n\n");
    text.push_str(&in_short(definitions, outcomes));
    text.push_str("\n| table | used for | runs | median error | p90 | signed median |\n");
    text.push_str("|---|---|--:|--:|--:|--:|\n");
    for (definition, outcome) in all() {
        if let Outcome::Table(table) = outcome {
            let (title, used) = (&definition.title, used_for(table.fitted));
            let row = score_cells(score_of(table.counted()));
            let _ = writeln!(text, "| {title} | {used} | {row} |");
        }
    }
    text.push_str(
        "\nA run that validation tables repeat from fitted ones counts for the fitted only. *Beyond \
         rounding* is the part of an\nerror that the digits of the published number cannot explain: \
         a printed 0.01 stands for 0.005 to 0.015.\n",
    );
    for (definition, outcome) in all() {
        let _ = writeln!(text, "\n## {}\n", definition.title);
        match (outcome, &definition.kind) {
            (Outcome::Frontier(points), Kind::Pareto { published, .. }) => {
                let name = &definition.name;
                let _ = writeln!(text, "![{}]({name}.svg)\n", definition.title);
                text.push_str(&frontier(points, published));
            }
            (Outcome::Table(table), _) => text.push_str(&rows(table)),
            (Outcome::Frontier(points), _) => text.push_str(&frontier(points, &[])),
        }
    }
    text
}

fn used_for(fitted: bool) -> &'static str {
    match fitted {
        true => "fitting",
        false => "validation",
    }
}

/// Fitted and validation, all tables together; a policy that is not published is a guess of its own.
fn in_short(definitions: &[Definition], outcomes: &[Outcome]) -> String {
    let mut text =
        String::from("| all tables used for | runs | median error | p90 | signed median |\n");
    text.push_str("|---|--:|--:|--:|--:|\n");
    for (title, fitted, published) in [
        ("fitting", true, true),
        ("validation, policies published", false, true),
        ("validation, policies made by rules", false, false),
    ] {
        let tables = definitions.iter().zip(outcomes);
        let tables = tables.filter_map(|(definition, outcome)| match outcome {
            Outcome::Table(table) => {
                let its = matches!(definition.kind, Kind::Runs { .. });
                (table.fitted == fitted && its == published).then_some(table)
            }
            Outcome::Frontier(_) => None,
        });
        let score = score_of(tables.flat_map(Table::counted));
        let _ = writeln!(text, "| {title} | {} |", score_cells(score));
    }
    text
}

fn score_cells(score: Option<Score>) -> String {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    match score {
        Some(score) => format!(
            "{} | {} | {} | {}",
            score.runs,
            percent(score.median_abs_error),
            percent(score.p90_abs_error),
            signed_percent(score.median_error)
        ),
        None => "0 | | | ".to_owned(),
    }
}

fn rows(table: &Table) -> String {
    let mut text = String::from(
        "| run | machine | predicted | published | error | beyond rounding | bottleneck, or policy made |\n\
         |---|---|--:|--:|--:|--:|---|\n",
    );
    for row in &table.rows {
        let repeated = match row.fitted && !table.fitted {
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
            "| {}{repeated} | {} | {} | {} | {} | {beyond} | {} |",
            row.run,
            row.hardware,
            predicted(row),
            published(row),
            row.error.map_or(NONE.to_owned(), signed_percent),
            row.note
        );
    }
    text
}

fn number(row: &Row, number: f64) -> String {
    let unit = match row.metric {
        "latency_s" => "s",
        _ => "tok/s",
    };
    format!("{} {unit}", three_digits(number))
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
