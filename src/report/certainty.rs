//! How sure a prediction is, for people.

use std::fmt::Write as _;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Kept;
use plimsoll_core::extrapolation::{Extrapolation, SizeUnit};
use plimsoll_core::hardware::{DeviceKind, HardwareProfile};
use plimsoll_core::interval::{Interval, Range};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::summary::Summary;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use plimsoll_sim::CostModel;
use plimsoll_sim::cost::PackedWeights;

use super::plan::durations;
use super::{count, percent, three_digits};

/// Curves that are shown; the JSON has all.
const SHOWN: usize = 3;

/// Curves that decide less of the time than this are not worth a line.
const WORTH_A_LINE: f64 = 0.01;

/// Where curves decide more of the time than this outside their points, an interval knows less than it says.
const MUCH_OUTSIDE: f64 = 0.5;

/// `90%: 7.90 to 9.40; `, to stand in front of what else a line says; nothing where there is no interval. What repeats of the
/// profile's own measurements differ by is not called so: it knows nothing of how far predictions are off.
pub(super) fn probably(interval: Option<&Interval>, ends: fn(&Interval) -> String) -> String {
    interval.map_or(String::new(), |it| match it.from_residuals {
        true => format!("90%: {}; ", ends(it)),
        false => format!("by repeats: {}; ", ends(it)),
    })
}

/// Where a run lies that such an interval was predicted of.
pub fn held_text(interval: &Interval, measured: Seconds) -> String {
    let ends = durations(interval.latency_s);
    let lies = match interval.latency_s.holds(measured.0) {
        true => "within",
        false => "outside",
    };
    match interval.from_residuals {
        true => {
            format!("90% interval of latency: {ends}; the measured one lies {lies} it\n")
        }
        false => format!(
            "repeats of the profile's measurements alone: a latency of {ends}; the measured one lies {lies}. How far predictions \
             are off, `plimsoll validate` measures, and keeps in its profile.toml\n"
        ),
    }
}

/// Both ends of a range.
pub fn numbers(range: Range) -> String {
    let Range { low, high } = range;
    format!("{} to {}", three_digits(low), three_digits(high))
}

/// Where the interval comes from, and which curves were asked outside their points.
pub(super) fn certainty_text(prediction: &Summary, policy: &Policy) -> String {
    let said = match (prediction.without.is_empty(), prediction.interval.as_ref()) {
        (true, None) if policy.split.is_some() => {
            "none: the profile has errors of no measured runs, or its CPU's products, which split layers ask for, are a data sheet's"
        }
        (true, interval) => where_from(interval),
        (false, _) => "not of the whole model, since a term is switched off",
    };
    // Runs that are measured so far are of one GPU each.
    let said = match prediction.interval.is_some() && !prediction.stages.is_empty() {
        true => {
            format!("{said}; they are of one GPU, and know nothing of what lies between stages")
        }
        false => said.to_owned(),
    };
    let mut text = format!("interval   {said}\n");
    text.push_str(&overdraw_text(prediction));
    text.push_str(&beyond_text(&prediction.extrapolates));
    if let Some(line) = less_sure(prediction) {
        let _ = writeln!(text, "           {line}");
    }
    text
}

/// That no machine of this description does what is predicted.
fn overdraw_text(prediction: &Summary) -> String {
    let overdraw = prediction.host_overdraw.as_ref();
    overdraw.map_or(String::new(), |it| {
        let gigabytes = |rate: BytesPerSecond| three_digits(rate.0 / 1e9);
        format!(
            "host       copies and the CPU draw {} GB/s from its memory, of which the profile says that it gives {} ({}, which nobody \
             measured there): one of its numbers is wrong, or this is {:.2}x too fast\n",
            gigabytes(it.asked_bytes_per_s),
            gigabytes(it.gives_bytes_per_s),
            it.number,
            it.times(),
        )
    })
}

/// Which curves were asked outside their points, and which have one rate for all sizes, a line each; nothing of those that were asked
/// for no time to speak of.
pub fn beyond_text(extrapolates: &[Extrapolation]) -> String {
    let mut text = String::new();
    let worth = |e: &&Extrapolation| e.busy_fraction >= WORTH_A_LINE;
    let (constants, curves): (Vec<_>, Vec<_>) = extrapolates
        .iter()
        .filter(worth)
        .partition(|e| e.is_constant());
    if !constants.is_empty() {
        let names: Vec<&str> = constants.iter().map(|e| e.curve.as_str()).collect();
        let shown = in_a_line(&names);
        let _ = writeln!(
            text,
            "constants  one rate for all sizes, not a curve: {shown}"
        );
    }
    for line in curves.iter().take(SHOWN) {
        let _ = writeln!(text, "beyond     {}", beyond(line));
    }
    if curves.len() > SHOWN {
        let _ = writeln!(
            text,
            "beyond     and {} (--format json)",
            count((curves.len() - SHOWN) as u64, "more curve")
        );
    }
    text
}

/// In a line, which curves a prediction asked outside their points; none: none for long.
pub fn extrapolation_text(prediction: &Summary) -> Option<String> {
    let worth = prediction.extrapolates.iter();
    let worth = worth.filter(|e| !e.is_constant() && e.busy_fraction >= WORTH_A_LINE);
    let all: Vec<String> = worth.map(beyond).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let less_sure = less_sure(prediction).map_or(String::new(), |line| format!("; {line}"));
    (!all.is_empty()).then(|| in_a_line(&all) + &less_sure)
}

/// That the interval is of machines' errors where they were measured, and this is elsewhere.
fn less_sure(prediction: &Summary) -> Option<&'static str> {
    let outside = prediction.extrapolates.iter().filter(|e| !e.is_constant());
    // The largest, since resources are busy side by side.
    let outside = outside.map(|e| e.busy_fraction).fold(0.0, f64::max);
    (prediction.interval.is_some() && outside > MUCH_OUTSIDE).then_some(
        "most of the time is asked outside what was measured, so the interval is less sure than it says",
    )
}

/// That matrix products have another type's rates, where the profile has none of the plan's.
pub fn rates_text(plan: &Plan) -> Option<String> {
    let known = plan.prediction.as_ref()?.rates_of?;
    let provenance = &plan.provenance;
    // Only the profile of an emulated device has threads.
    let device = match provenance.device_threads {
        Some(_) => DeviceKind::Emulated,
        None => DeviceKind::Gpu,
    };
    let machine = (provenance.hardware.as_str(), device);
    Some(stand_in_text(machine, plan.dtype, known))
}

/// The same of all that is predicted for a machine in a type.
pub fn rates_note(profile: &HardwareProfile, dtype: Dtype) -> Option<String> {
    let known = CostModel::new(profile, dtype).stand_in()?;
    Some(stand_in_text((&profile.name, profile.kind), dtype, known))
}

/// What times of products with weights in 4 bits rest on, where these were not measured.
pub fn packed_note(profile: &HardwareProfile, kept: Kept) -> Option<String> {
    const MEASURE: &str =
        "on the machine itself `plimsoll profile` (with a GPU: `--backend cuda`) measures them";
    let name = &profile.name;
    let packed = kept.compression.weights && profile.kind == DeviceKind::Gpu;
    let rest_on = packed.then(|| CostModel::new(profile, kept.dtype).packed_weights())?;
    Some(match rest_on {
        PackedWeights::Measured => return None,
        PackedWeights::Guessed => format!(
            "products with weights in 4 bits were measured on no {name}: they are guessed from its memory's rate, its f32 arithmetic \
             and this program's kernels; {MEASURE}"
        ),
        PackedWeights::Unpacked(source) => format!(
            "weights in 4 bits are unpacked before each product, as {name} has it (compute.unpack_elements_per_s, source `{source}`): \
             of other software, such as this program's kernels on a GPU, that says nothing; {MEASURE}"
        ),
        PackedWeights::UnpackedByMemory => format!(
            "weights in 4 bits are taken to be unpacked before each product, which may be far too slow: {name} has no f32 rate \
             (compute.gemm) to guess products by that read them as they are; {MEASURE}"
        ),
    })
}

/// That products in one type are predicted with the rates that a profile knows of another.
fn stand_in_text((profile, device): (&str, DeviceKind), wanted: Dtype, known: Dtype) -> String {
    let slower = match (wanted, device) {
        (Dtype::Bf16, DeviceKind::Gpu) => {
            ", which is far too fast where the device has no bf16 (GPUs before Ampere: T4, V100)"
        }
        _ => "",
    };
    let (wanted, known) = (wanted.name(), known.name());
    format!(
        "{profile} has no rates of matrix products in {wanted}: predicted with those in {known}{slower}; give \
         a profile that has them (of this machine: plimsoll profile --dtype {wanted}), or --dtype {known} where there is that flag"
    )
}

fn where_from(interval: Option<&Interval>) -> &'static str {
    match interval.map(|i| (i.from_residuals, i.from_spread)) {
        Some((true, true)) => {
            "from errors of measured runs and from the spread of the profile's repeats"
        }
        Some((true, false)) => "from errors of measured runs",
        Some((false, _)) => {
            "from the spread of the profile's repeats alone; no run was compared with its prediction"
        }
        None => "none, unprofiled: the profile has neither errors of measured runs nor repeats",
    }
}

/// The first few, and how many more.
fn in_a_line(names: &[&str]) -> String {
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn beyond(extrapolation: &Extrapolation) -> String {
    let Extrapolation {
        curve,
        unit,
        asked,
        known,
        busy_fraction,
    } = extrapolation;
    let size = |value: f64| size_text(*unit, value);
    let place = match (asked.low < known.low, asked.high > known.high) {
        (true, false) => format!("at {}, known from {}", size(asked.low), size(known.low)),
        (false, _) => format!("at {}, known to {}", size(asked.high), size(known.high)),
        (true, true) => format!(
            "from {} to {}, known from {} to {}",
            size(asked.low),
            size(asked.high),
            size(known.low),
            size(known.high)
        ),
    };
    format!("{curve} {place} ({} of the time)", percent(*busy_fraction))
}

fn size_text(unit: SizeUnit, value: f64) -> String {
    match unit {
        SizeUnit::Bytes => Bytes(value as u64).to_string(),
        SizeUnit::Tokens => format!("M = {value:.0}"),
        SizeUnit::ContextTokens => format!("{value:.0} tokens of context"),
        SizeUnit::Elements if value >= 1e6 => format!("{} M elements", three_digits(value / 1e6)),
        SizeUnit::Elements => format!("{value:.0} elements"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::hardware::embedded;

    #[test]
    fn only_gpus_may_lack_bf16() {
        let mut t4 = embedded::profile("t4").expect("embedded");
        assert_eq!(rates_note(&t4, Dtype::F16), None);
        let said = rates_note(&t4, Dtype::Bf16).expect("it has none");
        assert!(said.contains("before Ampere"), "{said}");
        t4.kind = DeviceKind::Emulated;
        let said = rates_note(&t4, Dtype::Bf16).expect("it has none");
        assert!(
            said.contains("with those in f16; give") && !said.contains("Ampere"),
            "{said}"
        );
    }

    fn at(low: f64, high: f64) -> Extrapolation {
        Extrapolation {
            curve: "links.h2d.page_locked".to_owned(),
            unit: SizeUnit::Bytes,
            asked: Range { low, high },
            known: Range {
                low: 4096.0,
                high: 48e6,
            },
            busy_fraction: 0.41,
        }
    }

    #[test]
    fn what_lies_outside_is_said_with_the_end_that_it_passed() {
        assert_eq!(
            beyond(&at(302e6, 302e6)),
            "links.h2d.page_locked at 302 MB, known to 48.0 MB (41% of the time)"
        );
        assert!(beyond(&at(100.0, 200.0)).contains("at 100 B, known from 4.10 kB"));
        assert!(beyond(&at(100.0, 1e9)).contains("from 100 B to 1.00 GB, known from"));
    }
}
