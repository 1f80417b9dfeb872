//! What came of a trace, for people.

use plimsoll_core::serve::ServeSummary;
use plimsoll_core::serve::predict::Score;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Bytes;

use super::{Align, Table, count, percent, signed_percent, three_digits};
use crate::serve::sweep::SweepRow;

/// Names of what answers of one token do not have.
const AFTER_THE_FIRST: [&str; 2] = ["a token after it, s", "between tokens, s"];

/// Less is what differences of times leave.
const LEAST_S: f64 = 1e-9;

/// The figures under a title.
pub fn serve_text(title: &str, it: &ServeSummary) -> String {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("mean", Align::Right),
        ("p50", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
        ("max", Align::Right),
    ]);
    // Nothing comes after the one token of an answer.
    let is_of_one = it.output_tokens <= it.completed;
    for (name, of) in [
        ("to the first token, s", it.ttft_s),
        (AFTER_THE_FIRST[0], it.tpot_s),
        (AFTER_THE_FIRST[1], it.itl_s),
        ("whole request, s", it.e2e_s),
        ("queueing, s a token", it.queueing_s_per_token),
        ("compute, s a token", it.compute_s_per_token),
    ] {
        let is_none = is_of_one && AFTER_THE_FIRST.contains(&name);
        let cell = |seconds: f64| match seconds {
            _ if is_none => "-".to_owned(),
            s if s < LEAST_S => three_digits(0.0),
            s => three_digits(s),
        };
        let cells = [of.mean, of.p50, of.p90, of.p99, of.max].map(cell);
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    let refused = match it.refused {
        0 => String::new(),
        some => format!(", {some} refused"),
    };
    let of_served = match it.refused {
        0 => "",
        _ => " of those that were served",
    };
    let [out, back] = it.swaps;
    let at_the_end = match it.layers {
        Some(_) => " at the end",
        None => "",
    };
    format!(
        "{title}\n\n\
         throughput {} requests/s, {} tokens/s ({}{refused}, {} in {} s)\n\
         goodput    {} requests/s within {} s a token ({}{of_served})\n\
         iterations {}, {} sequences each on average, {} at most; one is under way {} of the time\n\
         KV cache   {} tokens{at_the_end}: {} in use, {} reserved, on average\n\
         preempted  {} times: {} tokens computed again, {out} moves to the host and {back} back ({})\n{}\n{table}",
        three_digits(it.requests_per_s),
        three_digits(it.output_tokens_per_s),
        count(it.completed, "request"),
        count(it.output_tokens, "token"),
        three_digits(it.duration_s),
        three_digits(it.goodput_per_s),
        it.slo_s_per_token,
        percent(it.within_slo),
        it.iterations,
        three_digits(it.average_batch),
        it.largest_batch,
        percent(it.busy),
        it.kv_capacity_tokens,
        percent(it.kv_used),
        percent(it.kv_reserved),
        it.preemptions,
        it.recomputed_tokens,
        Bytes(it.swapped_bytes),
        layers_text(it),
    )
}

/// A line on how well answers' lengths were predicted from what is `known`.
pub fn prediction_text(known: &str, it: &Score) -> String {
    format!(
        "predicted  {} of {} answers by {known}, {:.2} buckets off on average; always the commonest bucket: {}, {:.2}\n",
        percent(it.accuracy),
        it.answers,
        it.distance,
        percent(it.commonest_accuracy),
        it.commonest_distance,
    )
}

/// What swapping layers amounts to; nothing where none are.
fn layers_text(it: &ServeSummary) -> String {
    let Some(layers) = &it.layers else {
        return String::new();
    };
    let [out, back] = layers.swaps;
    let last = layers
        .expansions
        .last()
        .map_or(1.0, |(_, expansion)| *expansion);
    format!(
        "layers     expansion {:.2} over time, {last:.2} at the end, {} changes; {out} caches of a layer to the host and \
         {back} back ({} both ways), computation waited {} of the time\n",
        layers.expansion,
        layers.expansions.len() - 1,
        Bytes(layers.bytes),
        percent(layers.stalled_s / it.duration_s.max(f64::MIN_POSITIVE)),
    )
}

/// A line a value.
pub fn sweep_text(title: &str, axis: &str, rows: &[SweepRow]) -> String {
    let mut table = Table::new(&[
        (axis, Align::Right),
        ("tokens/s", Align::Right),
        ("requests/s", Align::Right),
        ("good/s", Align::Right),
        ("first token, s", Align::Right),
        ("queueing, s/token", Align::Right),
        ("compute, s/token", Align::Right),
        ("batch", Align::Right),
        ("preempted", Align::Right),
        ("refused", Align::Right),
    ]);
    for row in rows {
        let numbers = [
            Some(row.value),
            Some(row.output_tokens_per_s),
            Some(row.requests_per_s),
            Some(row.goodput_per_s),
            row.ttft_s_mean,
            row.queueing_s_per_token,
            row.compute_s_per_token,
            Some(row.average_batch),
        ];
        let cell = |number: Option<f64>| number.map_or("-".to_owned(), three_digits);
        let counts = [row.preemptions, row.refused].map(|count| count.to_string());
        table.row(numbers.map(cell).into_iter().chain(counts));
    }
    format!("{title}\n\n{table}")
}

/// Figures of a trace that was really served, beside what was predicted: as the machine was profiled and, where that is known, at
/// the pace that it had; with the signed error of the latter. Alone where nothing was predicted of this machine.
pub fn serve_comparison(
    (predicted, at_pace): (Option<&ServeSummary>, Option<&ServeSummary>),
    measured: &ServeSummary,
) -> Table {
    let mut columns = vec![("", Align::Left)];
    columns.extend(predicted.map(|_| ("predicted", Align::Right)));
    columns.extend(at_pace.map(|_| ("at this pace", Align::Right)));
    columns.push(("measured", Align::Right));
    columns.extend(predicted.map(|_| ("error", Align::Right)));
    let mut table = Table::new(&columns);
    type Value = fn(&ServeSummary) -> f64;
    let stalled: Value = |s| s.layers.as_ref().map_or(0.0, |layers| layers.stalled_s);
    let lines: [(&str, Value); 16] = [
        ("requests/s", |s| s.requests_per_s),
        ("tokens/s", |s| s.output_tokens_per_s),
        ("duration, s", |s| s.duration_s),
        ("to the first token, s, mean", |s| s.ttft_s.mean),
        ("to the first token, s, p99", |s| s.ttft_s.p99),
        ("a token after it, s, mean", |s| s.tpot_s.mean),
        ("between tokens, s, p99", |s| s.itl_s.p99),
        ("whole request, s, mean", |s| s.e2e_s.mean),
        ("whole request, s, p99", |s| s.e2e_s.p99),
        ("queueing, s a token, mean", |s| s.queueing_s_per_token.mean),
        ("compute, s a token, mean", |s| s.compute_s_per_token.mean),
        ("iterations", |s| s.iterations as f64),
        ("sequences an iteration", |s| s.average_batch),
        ("preemptions", |s| s.preemptions as f64),
        ("expansion over time", |s| {
            s.layers.as_ref().map_or(1.0, |layers| layers.expansion)
        }),
        ("waiting for layers, s", stalled),
    ];
    for (name, value) in lines {
        let real = value(measured);
        let (first, at_pace) = (predicted.map(value), at_pace.map(value));
        let error = at_pace.or(first).map(|predicted| match real {
            0.0 => String::new(),
            real => signed_percent(predicted / real - 1.0),
        });
        let said = first.into_iter().chain(at_pace).chain([real]);
        let figures = said.map(three_digits).chain(error);
        table.row([name.to_owned()].into_iter().chain(figures));
    }
    table
}

/// What traffic there is, in words; nothing where there is none.
pub fn traffic_text(traffic: &Background) -> String {
    let each = traffic.0.iter().map(|it| {
        format!(
            "traffic    {} {} from {} s to {} s\n",
            it.rate,
            it.ways.name(),
            it.from.0,
            it.to.0
        )
    });
    each.collect()
}
