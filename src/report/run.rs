//! A run for people: what was measured beside what was predicted.

use plimsoll_core::machine::ResourceKind;
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::Tier;

use super::bottleneck::in_words;
use super::plan::duration;
use super::{Align, Table, percent, signed_percent, three_digits};

/// Measured and predicted, line by line, with the prediction's signed error; where the machine's pace around the run is known, beside what
/// is predicted at that, which one run's tells less surely than a median of several.
pub fn comparison(
    (predicted, at_pace): (Option<&Summary>, Option<&Summary>),
    measured: &Summary,
) -> Table {
    let mut columns = vec![("", Align::Left), ("predicted", Align::Right)];
    columns.extend(at_pace.map(|_| ("at this pace", Align::Right)));
    columns.extend([("measured", Align::Right), ("error", Align::Right)]);
    let mut table = Table::new(&columns);
    let row = |name: String, predicted: [Option<String>; 2], measured: String, error: String| {
        let [first, then] = predicted;
        let then = at_pace.map(|_| then.unwrap_or_default());
        let cells = [name, first.unwrap_or_default()].into_iter().chain(then);
        cells.chain([measured, error]).collect::<Vec<String>>()
    };
    type Value<'a> = &'a dyn Fn(&Summary) -> Option<f64>;
    let mut line = |name: &str, value: Value<'_>, text: &dyn Fn(f64) -> String| {
        let Some(real) = value(measured) else {
            return;
        };
        let said = [predicted, at_pace].map(|it| it.and_then(value));
        let error = said[0].filter(|_| real != 0.0);
        let error = error.map_or(String::new(), |said| signed_percent(said / real - 1.0));
        table.row(row(
            name.to_owned(),
            said.map(|it| it.map(text)),
            text(real),
            error,
        ));
    };
    let time = |s: f64| duration(plimsoll_core::units::Seconds(s));
    line("latency", &|s| Some(s.latency_s.0), &time);
    // Where phases share passes, neither has a time of its own.
    if !measured.shares_passes() {
        line("prefill", &|s| Some(s.prefill_s.0), &time);
        line("decode", &|s| s.decode_s.map(|s| s.0), &time);
    }
    line("tokens/s", &|s| Some(s.throughput_tok_s), &three_digits);
    for tier in Tier::ALL {
        let name = format!("{tier} peak");
        let text = |b: f64| plimsoll_core::units::Bytes(b as u64).to_string();
        line(&name, &|s| Some(s.peak_bytes[tier].as_f64()), &text);
    }
    for (kind, share) in measured.busy_fraction.by_kind() {
        // Few machines and plans have these.
        if matches!(kind, ResourceKind::PeerLink | ResourceKind::Pin) && share == 0.0 {
            continue;
        }
        let cell = |s: &Summary| percent(s.busy_fraction.of(kind));
        let said = [predicted, at_pace].map(|it| it.map(cell));
        let name = format!("{} busy", in_words(kind));
        table.row(row(name, said, cell(measured), String::new()));
    }
    table
}
