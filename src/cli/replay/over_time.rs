//! `plimsoll replay --per-request` and `--per-iteration`, and its picture over time.

use std::io::Write as _;
use std::path::Path;

use plimsoll_core::serve::IterationRow;

use super::execute::Measured;
use super::{FileKind, Server};
use crate::files::write_atomically;
use crate::report::{OverTime, to_csv};
use crate::serve::over_time::{panels, rows, shaded};
use crate::serve::replay::{Replayed, RequestRow};

/// Runs by name: predicted as the machine was profiled and, where it was really served, as fast as the
/// machine went, and measured. Alone where predictions were of another machine.
fn runs<'a>(
    replayed: &'a Replayed,
    measured: Option<&'a Measured>,
) -> Vec<(&'static str, &'a Replayed)> {
    let mut runs = Vec::new();
    if measured.is_none_or(|it| !it.foreign) {
        runs.push(("predicted", replayed));
    }
    if let Some(it) = measured {
        let at_pace = it.at_pace.as_ref();
        runs.extend(at_pace.map(|it| ("predicted at this pace", it)));
        runs.push(("measured", &it.replayed));
    }
    runs
}

/// Writes a table of all requests of all runs.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write_requests(
    (replayed, measured): (&Replayed, Option<&Measured>),
    path: &Path,
) -> anyhow::Result<()> {
    let runs = runs(replayed, measured).into_iter();
    let rows = runs.flat_map(|(run, it)| RequestRow::of(run, &it.sequences));
    let csv = to_csv(&rows.collect::<Vec<_>>())?;
    Ok(write_atomically(path, |out| out.write_all(&csv))?)
}

/// Writes tables and pictures of all iterations.
///
/// # Errors
/// Files that cannot be written.
pub(super) fn write(
    server: &Server,
    (replayed, measured): (&Replayed, Option<&Measured>),
    files: impl Iterator<Item = (impl AsRef<Path>, FileKind)>,
) -> anyhow::Result<()> {
    let runs = runs(replayed, measured).into_iter();
    let runs: Vec<(&str, &[IterationRow])> =
        runs.map(|(name, it)| (name, &*it.iterations)).collect();
    let title = format!(
        "{} in {} on {}",
        server.model.name,
        server.kept().words(),
        server.profile.name
    );
    for (path, kind) in files {
        let path = path.as_ref();
        // Of the two predictions a picture has the one that is compared.
        let drawn = match runs.len() {
            3 => &runs[1..],
            _ => &runs[..],
        };
        let picture = OverTime {
            title: &title,
            panels: &panels(drawn),
            shaded: &shaded(&server.traffic),
        };
        kind.write_or(path, &picture, || {
            let all = runs.iter().flat_map(|(name, it)| rows(name, it));
            to_csv(&all.collect::<Vec<_>>())
        })?;
    }
    Ok(())
}
