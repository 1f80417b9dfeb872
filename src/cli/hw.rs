//! `plimsoll hw list|show`

use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use super::Format;
use super::output::{print, print_json};
use crate::files::{find_profile, list_profiles};
use crate::report::hardware::{Curves, profile_json, profile_text};
use crate::report::{Align, Table};

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// All profiles that `--hw` knows by name
    List {
        /// How to print them
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// One profile: each number and where it comes from
    Show {
        /// A path, a name in hw-profiles/ of the current directory, or an embedded one
        #[arg(value_name = "PROFILE")]
        hw: String,
        /// Print each point of each curve, not its first and last only
        #[arg(long)]
        points: bool,
        /// How to print it
        #[arg(long, value_enum, default_value_t = ProfileFormat::Text)]
        format: ProfileFormat,
    },
}

/// How a profile is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProfileFormat {
    /// For people
    Text,
    /// For programs
    Json,
    /// As the file of a profile with all that others give it: to begin one's own with
    Toml,
}

#[derive(Serialize)]
struct Row {
    name: String,
    file: Option<String>,
    device_capacity_bytes: u64,
    host_capacity_bytes: u64,
    disk_capacity_bytes: u64,
    device_usable_bytes: u64,
    host_usable_bytes: u64,
    description: String,
}

/// Lists or shows.
///
/// # Errors
/// A profile that is not there or not right.
pub fn run(action: &Action) -> anyhow::Result<()> {
    match action {
        Action::List { format } => list(*format),
        Action::Show { hw, points, format } => {
            let profile = find_profile(hw)?;
            let curves = match points {
                true => Curves::Points,
                false => Curves::Ends,
            };
            match format {
                ProfileFormat::Text => print(&profile_text(&profile, curves)),
                ProfileFormat::Json => print_json(&profile_json(&profile)),
                ProfileFormat::Toml => print(&profile.to_toml()),
            }
        }
    }
}

fn list(format: Format) -> anyhow::Result<()> {
    let rows = list_profiles()
        .into_iter()
        .map(|listed| {
            let profile = find_profile(&listed.name)?;
            let (tiers, usable) = (&profile.tiers, profile.usable());
            Ok(Row {
                device_capacity_bytes: tiers.device_capacity_bytes.value.0,
                host_capacity_bytes: tiers.host_capacity_bytes.value.0,
                disk_capacity_bytes: tiers.disk_capacity_bytes.value.0,
                device_usable_bytes: usable.device.0,
                host_usable_bytes: usable.host.0,
                name: listed.name,
                file: listed.file.map(|file| file.display().to_string()),
                description: profile.description,
            })
        })
        .collect::<anyhow::Result<Vec<Row>>>()?;
    match format {
        Format::Json => print_json(&rows),
        Format::Text => print(&text(&rows)),
    }
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        ("name", Align::Left),
        ("device", Align::Right),
        ("host", Align::Right),
        ("disk", Align::Right),
        ("from", Align::Left),
        ("", Align::Left),
    ]);
    let bytes = |count| plimsoll_core::units::Bytes(count).to_string();
    for row in rows {
        table.row([
            row.name.clone(),
            bytes(row.device_capacity_bytes),
            bytes(row.host_capacity_bytes),
            bytes(row.disk_capacity_bytes),
            row.file.clone().unwrap_or_else(|| "embedded".to_owned()),
            row.description.clone(),
        ]);
    }
    table.to_string()
}
