//! `plimsoll pareto --x device-memory`.

use std::time::Instant;

use serde_json::json;

use super::super::Progress;
use super::super::exit::{Exit, Failure};
use super::super::options::Format;
use super::super::output::{print, print_json};
use super::super::picture::FileKind;
use super::super::plan::{at_most, refused};
use super::{Args, rates, title};
use crate::baseline::{DTYPE, System};
use crate::memory::{points, ranges, sizes};
use crate::pareto::Setting;
use crate::report::{MemoryCurves, memory_table, ranges_table, rates_note};

/// Predicts, draws and prints.
///
/// # Errors
/// Input that is wrong.
pub(super) fn run(
    args: &Args,
    setting: Setting<'_>,
    (systems, outputs): (&[System], &[FileKind]),
) -> anyhow::Result<()> {
    let only_latency = [
        ("--batches", args.batches.is_some()),
        ("--published", args.published.is_some()),
    ];
    if let Some((flag, _)) = only_latency.into_iter().find(|(_, given)| *given) {
        let line = format!(
            "{flag}: is not for --x device-memory, which has one prompt at a time; leave it out"
        );
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let begun = Instant::now();
    let bar = Progress::new("planning", 1);
    let watch = |done, all| bar.set_of(done, all);
    let points = points(setting, systems, &sizes(setting), &watch).map_err(refused)?;
    drop(bar);
    let computed_in_s = begun.elapsed().as_secs_f64();
    let title = format!("{}, one prompt", title(setting));
    let picture = MemoryCurves {
        title: &title,
        points: &points,
    };
    let ranges = ranges(&points);
    let any_split = points.iter().any(|point| point.is_split);
    let at_most = at_most(any_split, setting.profile);
    let note = at_most.map_or(String::new(), |said| {
        format!("Where linear layers are split: {said}.\n")
    });
    let note = note + &rates(setting.profile);
    let machine = args.what_if.note(setting.profile);
    let printed = match args.format {
        Format::Json => print_json(&json!({
            "hardware": setting.profile.name,
            "if_it_had": args.what_if,
            "model": setting.model.name,
            "rates": rates_note(setting.profile, DTYPE),
            "prompt_len": setting.workload.prompt_len,
            "gen_len": setting.workload.gen_len,
            "computed_in_s": computed_in_s,
            "ranges": ranges,
            "points": points,
        })),
        Format::Text => print(&format!(
            "{title}\n{machine}tokens a second, by device memory\n\n{}\n{}\n{note}{} points in {computed_in_s:.2} s\n",
            memory_table(&points),
            ranges_table(&ranges),
            points.len()
        )),
    };
    for (path, kind) in args.output.iter().zip(outputs) {
        kind.write(path, &picture, &points)?;
    }
    printed
}
