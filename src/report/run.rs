//! A run for people: what was measured beside what was predicted.

use plimsoll_core::summary::Summary;
use plimsoll_core::tier::Tier;

use super::plan::{duration, in_words};
use super::{Align, Table, percent, signed_percent, three_digits};

/// Measured and predicted, line by line, with the prediction's signed error.
pub fn comparison(predicted: Option<&Summary>, measured: &Summary) -> Table {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("predicted", Align::Right),
        ("measured", Align::Right),
        ("error", Align::Right),
    ]);
    type Value<'a> = &'a dyn Fn(&Summary) -> Option<f64>;
    let mut line = |name: &str, value: Value<'_>, text: &dyn Fn(f64) -> String| {
        let Some(real) = value(measured) else {
            return;
        };
        let (said, error) = match predicted.and_then(value) {
            Some(said) if real != 0.0 => (text(said), signed_percent(said / real - 1.0)),
            Some(said) => (text(said), String::new()),
            None => (String::new(), String::new()),
        };
        table.row([name.to_owned(), said, text(real), error]);
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
    for (index, (name, _)) in measured.busy_fraction.named().into_iter().enumerate() {
        let linked = |s: &Summary| s.busy_fraction.peer_link > 0.0;
        if name == "peer_link" && !linked(measured) {
            continue;
        }
        let cell = |s: &Summary| percent(s.busy_fraction.named()[index].1);
        let said = predicted.map(cell).unwrap_or_default();
        table.row([
            format!("{} busy", in_words(name)),
            said,
            cell(measured),
            String::new(),
        ]);
    }
    table
}
