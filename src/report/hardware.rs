//! Hardware profiles for people: each number with its provenance.

use std::collections::BTreeSet;

use plimsoll_core::hardware::{HardwareProfile, Residuals};
use plimsoll_core::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};
use toml::{Table as TomlTable, Value};

use super::{Align, Table, percent, signed_percent, three_digits};

/// What of a curve is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curves {
    /// Where it begins and ends: a measured profile has thousands of points.
    Ends,
    /// Each point.
    Points,
}

/// The profile with every number, where it comes from, and the sources in full.
pub fn profile_text(profile: &HardwareProfile, curves: Curves) -> String {
    let tree: TomlTable = profile
        .to_toml()
        .parse()
        .expect("a profile writes itself as TOML");
    let mut rows = Table::new(&[
        ("key", Align::Left),
        ("value", Align::Right),
        ("kind", Align::Left),
        ("source", Align::Left),
        ("spread", Align::Right),
    ]);
    for section in ["tiers", "links", "cluster", "compute", "contention"] {
        if let Some(value) = tree.get(section) {
            numbers(section, value, (profile, curves), &mut rows);
        }
    }
    if let Some(residuals) = &profile.residuals {
        residual_row(residuals, profile, &mut rows);
    }
    let mut sources = Table::new(&[
        ("source", Align::Left),
        ("kind", Align::Left),
        ("date", Align::Left),
        ("from", Align::Left),
    ]);
    // Of those that a profile has from what it extends, not all stand behind a number.
    let mut named = BTreeSet::new();
    tree.values()
        .for_each(|value| sources_of(value, &mut named));
    let known = profile.sources.iter();
    for (name, source) in known.filter(|(name, _)| named.contains(name.as_str())) {
        let cells = [name, source.kind.name(), &source.date, &source.from];
        sources.row(cells.map(str::to_owned));
    }
    let about = match profile.description.is_empty() {
        true => profile.name.clone(),
        false => format!("{}: {}", profile.name, profile.description),
    };
    format!("{about}\n\n{rows}\n{sources}")
}

/// The sources that numbers name.
fn sources_of<'v>(value: &'v Value, named: &mut BTreeSet<&'v str>) {
    match value {
        Value::Table(table) => {
            named.extend(table.get("source").and_then(Value::as_str));
            table.values().for_each(|value| sources_of(value, named));
        }
        Value::Array(items) => items.iter().for_each(|value| sources_of(value, named)),
        _ => {}
    }
}

/// The profile as a JSON value of the same keys as its file.
pub fn profile_json(profile: &HardwareProfile) -> serde_json::Value {
    let tree: TomlTable = profile
        .to_toml()
        .parse()
        .expect("a profile writes itself as TOML");
    serde_json::to_value(tree).expect("a profile holds texts and finite numbers")
}

fn numbers(
    path: &str,
    value: &Value,
    (profile, curves): (&HardwareProfile, Curves),
    rows: &mut Table,
) {
    match value {
        Value::Table(leaf) if leaf.contains_key("value") => {
            number_row(path, leaf, profile, rows);
        }
        Value::Table(leaf) if leaf.contains_key("points") => {
            curve_rows(path, leaf, (profile, curves), rows);
        }
        Value::Table(table) => {
            for (key, value) in table {
                numbers(&format!("{path}.{key}"), value, (profile, curves), rows);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                numbers(
                    &format!("{path}[{}]", label(index, item)),
                    item,
                    (profile, curves),
                    rows,
                );
            }
        }
        _ => {}
    }
}

/// An array element by what tells it from its neighbours (`f16 project n=1024 k=1024 reused`), and where implementations of a product give
/// way to each other (`m1=2 m2=65`), else by number.
fn label(index: usize, item: &Value) -> String {
    let word = |key: &str| item.get(key).and_then(Value::as_str);
    let whole = |key: &str| item.get(key).and_then(Value::as_integer);
    let stated = |key| whole(key).map_or(String::new(), |n| format!(" {key}={n}"));
    let shape = ["width", "n", "k", "m1", "m2"].map(stated);
    let stage = word("stage").map_or(String::new(), |stage| format!(" {stage}"));
    let is = |key: &str| item.get(key).and_then(Value::as_bool) == Some(true);
    let flags = ["biased", "reused", "packed"]
        .into_iter()
        .filter(|key| is(key));
    let flags: String = flags.map(|key| format!(" {key}")).collect();
    match (word("dtype"), word("victim"), word("beside")) {
        (Some(dtype), _, _) => format!("{dtype}{stage}{}{flags}", shape.concat()),
        (_, Some(victim), Some(beside)) => format!("{victim} beside {beside}"),
        _ => index.to_string(),
    }
}

fn number_row(path: &str, leaf: &TomlTable, profile: &HardwareProfile, rows: &mut Table) {
    let value = as_number(&leaf["value"]);
    push(path.to_owned(), with_unit(path, value), leaf, profile, rows);
}

fn curve_rows(
    path: &str,
    leaf: &TomlTable,
    (profile, curves): (&HardwareProfile, Curves),
    rows: &mut Table,
) {
    // GEMM curves and what is beside them run over rows, attention over tokens where it counts operations, unpacking over elements,
    // and what is left of attention over the query heads that share a key head.
    let is_count = ["flops_per_s", "elements_per_s", "_shared"]
        .into_iter()
        .any(|unit| path.ends_with(unit));
    let size = |point: &Value| match as_number(&point[0]) {
        size if is_count => format!("{size:.0}"),
        size => Bytes(size as u64).to_string(),
    };
    let rate = |point: &Value| with_unit(path, as_number(&point[1]));
    let points = leaf["points"].as_array().map_or(&[][..], Vec::as_slice);
    match points {
        [first, .., last] if curves == Curves::Ends => {
            let key = format!("{path} at {} to {}", size(first), size(last));
            let value = match (rate(first), rate(last)) {
                (first, last) if first == last => first,
                (first, last) => format!("{first} to {last}"),
            };
            push(key, value, leaf, profile, rows);
        }
        points => {
            for point in points {
                let key = format!("{path} at {}", size(point));
                push(key, rate(point), leaf, profile, rows);
            }
        }
    }
}

fn push(key: String, value: String, leaf: &TomlTable, profile: &HardwareProfile, rows: &mut Table) {
    let name = leaf.get("source").and_then(Value::as_str).unwrap_or("");
    let kind = profile.sources.get(name).map_or("", |s| s.kind.name());
    let spread = leaf.get("spread").map(as_number).map(percent);
    rows.row([
        key,
        value,
        kind.to_owned(),
        name.to_owned(),
        spread.unwrap_or_default(),
    ]);
}

fn residual_row(residuals: &Residuals, profile: &HardwareProfile, rows: &mut Table) {
    let percent = |log: f64| signed_percent(log.exp_m1());
    let kind = profile.sources.get(&residuals.source);
    let on = residuals.of.as_ref();
    let on = on.map_or(String::new(), |of| format!(" on {of}"));
    rows.row([
        format!(
            "residuals: rate predicted over measured, {} runs{on}",
            residuals.runs
        ),
        format!(
            "{} ({} to {})",
            percent(residuals.median_log_error),
            percent(residuals.p05_log_error),
            percent(residuals.p95_log_error)
        ),
        kind.map_or(String::new(), |source| source.kind.name().to_owned()),
        residuals.source.clone(),
        String::new(),
    ]);
}

fn as_number(value: &Value) -> f64 {
    let whole = || value.as_integer().map(|whole| whole as f64);
    value.as_float().or_else(whole).unwrap_or(f64::NAN)
}

fn with_unit(key: &str, value: f64) -> String {
    if key.ends_with("bytes_per_s") {
        BytesPerSecond(value).to_string()
    } else if key.ends_with("flops_per_s") {
        FlopsPerSecond(value).to_string()
    } else if key.ends_with("elements_per_s") {
        format!("{value:.3e} elements/s")
    } else if key.ends_with("_bytes") {
        Bytes(value as u64).to_string()
    } else if key.ends_with("_s") {
        Seconds(value).to_string()
    } else if key.starts_with("cluster.") || key.ends_with("_threads") {
        format!("{value:.0}")
    } else {
        three_digits(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::hardware::embedded;

    #[test]
    fn curves_are_told_from_their_neighbours() {
        let item =
            "dtype = \"f16\"\nn = 8\nk = 4\nstage = \"finish\"\nreused = true\npacked = false";
        let item: Value = item.parse::<TomlTable>().unwrap().into();
        assert_eq!(label(3, &item), "f16 finish n=8 k=4 reused");
    }

    #[test]
    fn a_curve_is_its_ends_or_all_its_points() {
        let profile = embedded::profile("h200").unwrap();
        let curve = "points = [[1000, 2e9], [2000, 3e9], [4000, 5e9]]";
        let leaf: TomlTable = curve.parse().unwrap();
        let rows_at = |path, leaf: &TomlTable, curves| {
            let mut rows = Table::new(&[("", Align::Left); 5]);
            curve_rows(path, leaf, (&profile, curves), &mut rows);
            rows.to_string()
        };
        let rows_of = |curves| rows_at("x_bytes_per_s", &leaf, curves);
        let ends = rows_of(Curves::Ends);
        assert!(ends.contains("x_bytes_per_s at 1.00 kB to 4.00 kB  2.00 GB/s to 5.00 GB/s"));
        assert!(!ends.contains("3.00 GB/s"), "{ends}");
        let points = rows_of(Curves::Points);
        assert!(
            points.contains("x_bytes_per_s at 2.00 kB  3.00 GB/s"),
            "{points}"
        );
        // Heads are not bytes.
        let heads: TomlTable = "points = [[1, 1.0], [8, 0.5]]".parse().unwrap();
        let heads = rows_at("x_shared", &heads, Curves::Ends);
        assert!(
            heads.contains("x_shared at 1 to 8  1.00 to 0.500"),
            "{heads}"
        );
    }

    #[test]
    fn every_number_of_every_profile_has_a_kind() {
        for name in embedded::names() {
            let profile = embedded::profile(name).unwrap();
            let text = profile_text(&profile, Curves::Points);
            let (numbers, _) = text.split_once("\n\nsource").unwrap_or((&text, ""));
            for line in numbers
                .lines()
                .filter(|line| line.contains("_capacity_bytes"))
            {
                let kinds = ["measured", "datasheet", "fitted", "published"];
                assert!(kinds.iter().any(|kind| line.contains(kind)), "{line}");
            }
            assert!(!text.contains("NaN"), "{text}");
        }
    }
}
