//! The same trace served with several values of something.

use std::path::Path;

use plimsoll_core::compression::Compression;
use plimsoll_core::serve::Request;
use serde::Serialize;

use super::Args;
use super::report::{NONE_SERVED, none_served};
use crate::cli::exit::{Exit, Failure};
use crate::cli::options::Format;
use crate::cli::output::{complain, print, print_json};
use crate::cli::picture::FileKind;
use crate::cli::what_if::WhatIf;
use crate::report::serve::sweep_text;
use crate::report::{Line, Lines, to_csv};
use crate::serve::replay::Server;
use crate::serve::sweep::{Sweep, SweepRow, Swept};

#[derive(Serialize)]
struct SweepReport<'a> {
    hardware: &'a str,
    /// Memory that it was asked about with.
    if_it_had: WhatIf,
    model: &'a str,
    dtype: &'a str,
    compression: Compression,
    manager: &'a str,
    /// What `value` is of: rate, kv-gb or expansion.
    swept: &'static str,
    rows: &'a [SweepRow],
}

/// Refuses a value of what a sweep changes.
pub(super) fn check_swept(args: &Args) -> Result<(), Failure> {
    let flag = match args.sweep.as_ref().map(|sweep| sweep.what) {
        Some(Swept::KvGb) => args.kv_gb.map(|_| "--kv-gb"),
        Some(Swept::Expansion) => args.expansion.map(|_| "--expansion"),
        Some(Swept::Rate) | None => None,
    };
    let Some(flag) = flag else {
        return Ok(());
    };
    let line = format!("{flag} is what --sweep changes; leave one of them out");
    Err(Failure::new(Exit::Usage, line))
}

/// Serves with each value, prints, writes and draws.
pub(super) fn swept(
    format: Format,
    ((server, what_if), requests): ((&Server, WhatIf), &[Request]),
    sweep: &Sweep,
    files: Vec<(&Path, FileKind)>,
) -> anyhow::Result<()> {
    sweep
        .check(server, requests)
        .map_err(|why| Failure::new(Exit::Usage, format!("--sweep: {why}")))?;
    let rows = sweep.rows(server, requests)?;
    let (model, hardware) = (&server.model.name, &server.profile.name);
    let manager = match sweep.what {
        Swept::Expansion => "pie".to_owned(),
        Swept::Rate | Swept::KvGb => server.manager.name(),
    };
    let title = format!(
        "{model} in {} on {hardware}, {manager}",
        server.kept().words()
    );
    let places = rows.iter().map(|row| (row.value, row.output_tokens_per_s));
    let line = Line {
        name: "as simulated".to_owned(),
        points: places.filter(|(_, tokens)| *tokens > 0.0).collect(),
    };
    let picture = Lines {
        title: &title,
        x: sweep.what.axis(),
        y: "throughput (tokens/s)",
        lines: &[line],
    };
    let printed = match format {
        Format::Json => print_json(&SweepReport {
            hardware,
            if_it_had: what_if,
            model,
            dtype: server.dtype.name(),
            compression: server.compression,
            manager: &manager,
            swept: sweep.what.name(),
            rows: &rows,
        }),
        Format::Text => {
            let text = sweep_text(&title, sweep.what.axis(), &rows);
            print(&(text + &what_if.note(&server.profile)))
        }
    };
    for (path, kind) in files {
        kind.write_or(path, &picture, || swept_csv(sweep.what, &rows))?;
    }
    any_served(sweep.what, &rows)?;
    printed
}

fn swept_csv(what: Swept, rows: &[SweepRow]) -> Result<Vec<u8>, csv::Error> {
    let csv = to_csv(rows)?;
    // The first column is what was changed.
    let name = what.name().replace('-', "_");
    let rest = csv.strip_prefix(b"value").expect("its header");
    Ok([name.as_bytes(), rest].concat())
}

/// Says with which values requests were refused; that is an error where nothing was served with any.
fn any_served(what: Swept, rows: &[SweepRow]) -> anyhow::Result<()> {
    let refused = rows
        .iter()
        .filter_map(|row| Some((row, row.refusal.as_ref()?)));
    let refused: Vec<(&SweepRow, &String)> = refused.collect();
    let none = rows.iter().all(|row| row.completed == 0);
    let with = |row: &SweepRow| format!("{} {}", what.name(), row.value);
    if let (true, Some((row, why))) = (none, refused.first()) {
        return Err(none_served(&format!("{}: ", with(row)), why));
    }
    for (row, why) in refused {
        complain(&match row.completed {
            0 => format!("{}: {NONE_SERVED}: {why}", with(row)),
            _ => format!("{}: {} refused: {why}", with(row), row.refused),
        });
    }
    Ok(())
}
