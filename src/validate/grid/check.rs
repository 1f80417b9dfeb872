//! What the numbers and names of a grid file must be.

use std::fmt::Display;

use plimsoll_core::did_you_mean;
use plimsoll_core::units::{Bytes, BytesPerSecond};
use toml::Spanned;

use super::file::{BatchEntry, GridFile, MachineEntry, Part};
use crate::files::{InputError, TomlText};

/// Checks a file entry by entry, used or not.
pub(super) fn check(text: &TomlText<'_>, file: &GridFile) -> Result<(), InputError> {
    if *file.repeats.get_ref() == 0 {
        let at = file.repeats.span().start;
        return Err(text.bad(at, "repeats", "is 0", "give at least 1"));
    }
    names(text, &file.model)?;
    names(text, &file.placement)?;
    names(text, &file.schedule)?;
    names(text, &file.batch)?;
    names(text, &file.machine)?;
    for batch in &file.batch {
        counts(text, batch)?;
        let (machine, model) = batch.get_ref().only();
        find(text, batch.span().start, &file.machine, machine)?;
        find(text, batch.span().start, &file.model, model)?;
    }
    for machine in &file.machine {
        limits(text, machine)?;
    }
    Ok(())
}

/// An error about a key of an entry.
pub(super) fn bad<T: Part>(
    text: &TomlText<'_>,
    entry: &Spanned<T>,
    key: &str,
    problem: impl Display,
    remedy: impl Display,
) -> InputError {
    says(text, entry, key, format!("{problem}; {remedy}"))
}

/// The same with an error's own words; the key may be empty.
pub(super) fn says<T: Part>(
    text: &TomlText<'_>,
    entry: &Spanned<T>,
    key: &str,
    said: impl Display,
) -> InputError {
    let key = match key {
        "" => String::new(),
        key => format!(": {key}"),
    };
    let key = format!("{} `{}`{key}", T::KIND, entry.get_ref().name());
    text.says(entry.span().start, key, said.to_string())
}

/// There is one at least, and no two have one name.
fn names<T: Part>(text: &TomlText<'_>, entries: &[Spanned<T>]) -> Result<(), InputError> {
    let kind = T::KIND;
    if entries.is_empty() {
        return Err(text.bad(0, kind, "is empty", format!("write a [[{kind}]]")));
    }
    for (index, entry) in entries.iter().enumerate() {
        let name = entry.get_ref().name();
        let mut before = entries[..index].iter();
        if let Some(first) = before.find(|e| e.get_ref().name() == name) {
            let line = text.line(first.span().start);
            let problem = format!("line {line} has the same");
            return Err(bad(text, entry, "name", problem, "give it another name"));
        }
    }
    Ok(())
}

/// The entry of a name; the first of its kind where none is named. `at` is where it is named.
pub(super) fn find<'a, T: Part>(
    text: &TomlText<'_>,
    at: usize,
    entries: &'a [Spanned<T>],
    wanted: Option<&str>,
) -> Result<&'a Spanned<T>, InputError> {
    let Some(wanted) = wanted else {
        return Ok(&entries[0]);
    };
    let names = || entries.iter().map(|e| e.get_ref().name());
    let found = names().position(|name| name == wanted);
    found.map(|index| &entries[index]).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        let remedy =
            did_you_mean(wanted, names()).unwrap_or_else(|| format!("name one of: {known}"));
        let problem = format!("there is no {} `{wanted}`", T::KIND);
        text.bad(at, T::KIND, problem, remedy)
    })
}

fn counts(text: &TomlText<'_>, entry: &Spanned<BatchEntry>) -> Result<(), InputError> {
    let batch = entry.get_ref();
    for (key, count) in [
        ("gpu_batch_size", batch.gpu_batch_size.map_or(1, u64::from)),
        (
            "num_gpu_batches",
            batch.num_gpu_batches.map_or(1, u64::from),
        ),
        ("prompt_len", u64::from(batch.prompt_len)),
        ("gen_len", u64::from(batch.gen_len)),
        ("num_prompts", batch.num_prompts.unwrap_or(1)),
    ] {
        if count == 0 {
            return Err(bad(text, entry, key, "is 0", "give at least 1"));
        }
    }
    Ok(())
}

fn limits(text: &TomlText<'_>, entry: &Spanned<MachineEntry>) -> Result<(), InputError> {
    let machine = entry.get_ref();
    let bytes = |b: Option<Bytes>| b.map(Bytes::as_f64);
    let rate = |r: Option<BytesPerSecond>| r.map(|r| r.0);
    for (key, value) in [
        (
            "device_capacity_bytes",
            bytes(machine.device_capacity_bytes),
        ),
        ("host_capacity_bytes", bytes(machine.host_capacity_bytes)),
        ("disk_capacity_bytes", bytes(machine.disk_capacity_bytes)),
        ("h2d_bytes_per_s", rate(machine.h2d_bytes_per_s)),
        ("d2h_bytes_per_s", rate(machine.d2h_bytes_per_s)),
        ("disk_read_bytes_per_s", rate(machine.disk_read_bytes_per_s)),
        (
            "disk_write_bytes_per_s",
            rate(machine.disk_write_bytes_per_s),
        ),
    ] {
        // Below a kilobyte a second nothing would ever end.
        let least = if key.ends_with("per_s") { 1e3 } else { 1.0 };
        if let Some(value) = value.filter(|v| !(v.is_finite() && *v >= least)) {
            let remedy = format!("give at least {least}");
            return Err(bad(text, entry, key, format!("is {value}"), remedy));
        }
    }
    Ok(())
}
