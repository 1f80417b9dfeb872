//! `plimsoll bench`: what products, attention and a decode over the link are worth on this machine's device.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use plimsoll_backend::bench::{BenchOptions, measure};
use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::dispatch::Dispatch;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::units::BytesPerSecond;

use super::backend::Backend;
use super::options::{DtypeArgs, positive};
use super::output::{Outputs, print, print_json};
use super::picture::FileKind;
use super::profile::cpu_options;
use super::threads::DeviceThreads;
use super::{Exit, Failure, Format, Progress};
use crate::files::{find_model, write_text};
use crate::report::{BenchPicture, BenchReport};

/// Measure what the parts of decoding are worth on a device, beside the aims for GPUs; no figure is a failure
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What runs plans
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Whose shapes: a name, a config.json of Hugging Face, or a folder that holds one
    #[arg(long, default_value = "llama-2-7b")]
    model: String,
    #[command(flatten)]
    dtype: DtypeArgs,
    /// Keep weights in 4 bits an element, in groups of 64
    #[arg(long)]
    compress_weight: bool,
    /// This machine's profile, by whose table products are dispatched; shapes that it has not are measured first
    #[arg(long, value_name = "PROFILE")]
    hw: Option<String>,
    /// The most that copies to the emulated device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true)]
    h2d_gb_s: Option<f64>,
    #[command(flatten)]
    threads: DeviceThreads,
    /// Where a disk tier's file would go
    #[arg(long, default_value = ".", value_name = "DIR")]
    disk_dir: PathBuf,
    /// Where the result goes beside what is printed: a line for each way to compute a part (.csv), its picture (.svg, .png), or
    /// JSON (.json, or no ending); may be given more than once
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Measures and prints.
///
/// # Errors
/// A model that is not executed; what the machine lacks; an interrupt.
pub fn run(args: &Args) -> anyhow::Result<()> {
    Outputs::of(args.output.iter().map(|file| ("--output", Some(&**file))))
        .sparing(args.hw.as_deref(), [&*args.model])
        .check()?;
    args.output.iter().try_for_each(|file| is_known(file))?;
    let profile = args.hw.as_deref();
    let profile = profile.map(|hw| args.backend.profile(hw, "this is measured"));
    let profile = profile.transpose()?;
    let found = find_model(&args.model)?;
    let dtype = args.dtype.of(&found)?;
    args.backend.computed([dtype])?;
    args.backend.check_available()?;
    let cpu = options_of(args, profile.as_ref())?;
    let device = cpu
        .card
        .as_ref()
        .map_or_else(|| args.backend.words().to_owned(), |card| card.name());
    let options = BenchOptions {
        packed: args.compress_weight,
        ..BenchOptions::new(cpu, found.spec, dtype)
    };
    let progress = Progress::new("measuring", PARTS);
    let mut part = 0;
    let measured = measure(&options, &mut |what| {
        progress.say(what);
        progress.set(part);
        part += 1;
    });
    drop(progress);
    let bench = measured.map_err(
        |error| match options.cpu.interrupt.load(Ordering::Relaxed) {
            true => Failure::new(Exit::Interrupted, "interrupted; nothing was written").into(),
            false => anyhow::Error::from(error),
        },
    )?;
    let on = (args.backend.word(), device);
    let of = (options.model.name.clone(), dtype.name(), options.packed);
    let report = BenchReport::new(&bench, on, of, args.backend == Backend::Cuda);
    let mut files = args.output.iter();
    let written = files.try_for_each(|file| write(file, &report));
    // What was measured is shown, wherever it cannot be written.
    match args.format {
        Format::Text => print(&report.text()),
        Format::Json => print_json(&report),
    }?;
    written
}

/// That a file's extension asks for something; without one it is JSON.
fn is_known(file: &Path) -> Result<(), Failure> {
    let is_json = file.extension().is_none_or(|end| end == "json");
    match FileKind::by_extension(file) {
        None if !is_json => Err(FileKind::not_known(file, ".json, .csv, .svg or .png")),
        _ => Ok(()),
    }
}

/// Writes what a file's extension asks for.
fn write(file: &Path, report: &BenchReport) -> anyhow::Result<()> {
    match FileKind::by_extension(file) {
        Some(kind) => kind.write(file, &BenchPicture::new(report), &report.rows()),
        None => Ok(write_text(
            file,
            &(serde_json::to_string_pretty(report)? + "\n"),
        )?),
    }
}

/// Parts that are measured one after another.
const PARTS: u64 = 5;

/// The executor's options: products by a profile's table, and what it does not know by what is measured.
fn options_of(args: &Args, profile: Option<&HardwareProfile>) -> anyhow::Result<CpuOptions> {
    if args.backend == Backend::Cuda && args.h2d_gb_s.is_some() {
        let line =
            "--h2d-gb-s: limits the emulated device's link; leave it out, or use --backend cpu";
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let threads = args.threads.beside(args.backend, profile);
    let cpu = CpuOptions {
        dispatch: Dispatch::measuring(),
        throttles: Throttles {
            h2d: args.h2d_gb_s.map(|rate| BytesPerSecond(rate * 1e9)),
            ..Throttles::default()
        },
        ..cpu_options(&args.disk_dir, threads)?
    };
    let cpu = args.backend.on_device(cpu)?;
    Ok(match profile {
        Some(profile) => args.backend.choosing_by(cpu, profile),
        None => cpu,
    })
}
