//! `plimsoll validate --measured`: an earlier validation, predicted again.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_core::hardware::{DeviceKind, HardwareProfile};
use serde::Serialize;

use super::super::backend::machine_of;
use super::super::output::print_json;
use super::super::{Exit, Failure, Format, print};
use super::report::errors_text;
use super::{Args, judge, read_grid, refused};
use crate::files::{InputError, find_profile};
use crate::report::{Align, Table, count, signed_percent, three_digits};
use crate::validate::{Again, predict_again, read_earlier};

#[derive(Serialize)]
struct Report<'a> {
    hardware: &'a str,
    #[serde(flatten)]
    again: &'a Again,
}

/// Predicts, prints, and runs nothing.
///
/// # Errors
/// Files that are wrong, or have no case in common; errors above the tolerance.
pub(super) fn run(args: &Args, hw: &str, measured: &Path) -> anyhow::Result<()> {
    let grid = read_grid(args)?;
    let profile = find_profile(hw)?;
    check_kind(args, &profile, hw)?;
    let earlier = read_earlier(measured)?;
    let again = predict_again(&grid, &profile, &earlier).map_err(refused)?;
    let again = again.ok_or_else(|| {
        let problem = "has no case of the grid";
        InputError::bad_whole_file(measured, problem, "give the --grid that was run")
    })?;
    match args.format {
        Format::Json => print_json(&Report {
            hardware: &profile.name,
            again: &again,
        })?,
        Format::Text => print(&text(&again, &profile))?,
    }
    judge(args, &again.errors).map_err(|said| Failure::new(Exit::OutOfTolerance, said).into())
}

/// A machine of the other kind ran another grid.
fn check_kind(args: &Args, profile: &HardwareProfile, hw: &str) -> Result<(), Failure> {
    if profile.kind == args.backend.kind() {
        return Ok(());
    }
    let its = machine_of(profile.kind);
    let flag = match profile.kind {
        DeviceKind::Gpu => "--backend cuda",
        DeviceKind::Emulated => "--backend cpu",
    };
    let line = format!("--hw {hw}: is of {its}; add {flag}, or give the profile that cases ran by");
    Err(Failure::new(Exit::Usage, line))
}

fn text(again: &Again, profile: &HardwareProfile) -> String {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("predicted s", Align::Right),
        ("measured s", Align::Right),
        ("error", Align::Right),
        ("error then", Align::Right),
    ]);
    for row in &again.cases {
        table.row([
            row.case.clone(),
            three_digits(row.predicted_s),
            three_digits(row.measured_s),
            signed_percent(row.error),
            signed_percent(row.error_then),
        ]);
    }
    let cases = count(again.cases.len() as u64, "case");
    let mut text = table.to_string();
    let _ = writeln!(
        text,
        "\n{cases} as measured before, predicted again for {} at its own pace; nothing was run",
        profile.name
    );
    text.push_str(&errors_text("error of latency", &again.errors));
    let then = "as predicted then, at the profile's own pace";
    text.push_str(&errors_text(then, &again.errors_then));
    if !again.by_plan {
        text.push_str(
            "cases are found by their names alone: the file does not tell their plans apart\n",
        );
    }
    if let [first, ..] = again.left_out.as_slice() {
        let cases = count(again.left_out.len() as u64, "case");
        let _ = writeln!(
            text,
            "left out: {cases}, such as {}: {}",
            first.case, first.why
        );
    }
    text
}
