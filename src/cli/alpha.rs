//! `plimsoll alpha`: HeteGen's alpha benchmark on this machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::probe::{PartOptions, PartTimes, ProbeError, measure_parts};
use plimsoll_backend::weights::{Remembered, Synthetic};
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::{Curve, DeviceKind, GemmCurve, HardwareProfile, Source, SourceKind};
use plimsoll_core::split::Module;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use serde_json::json;

use super::backend::Backend;
use super::options::{DtypeName, Format, positive};
use super::output::{Outputs, complain, print, print_json};
use super::profile::{cpu_options, today};
use super::threads::DeviceThreads;
use super::{Exit, Failure, Progress};
use crate::alpha::{At, Measured, Range, benchmark};
use crate::files::{find_model, find_profile, write_text};
use crate::report::{Align, Table};
use crate::stats::quantile;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What runs the layers
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// The model whose linear layers are measured: a name, a config.json of Hugging Face, or a folder that holds one
    #[arg(long)]
    model: String,
    /// The type of weights [default: what the model's config.json says (dtype, or torch_dtype), else f16]
    #[arg(long, value_enum)]
    dtype: Option<DtypeName>,
    /// Keep weights in 4 bits an element, in groups of 64
    #[arg(long)]
    compress_weight: bool,
    /// Sequences that are computed together
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    sequences: u32,
    /// How far shares go to each side of the law's (gamma)
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = positive,
          allow_negative_numbers = true)]
    around: f64,
    /// From one share to the next (lambda)
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = positive,
          allow_negative_numbers = true)]
    step: f64,
    /// Tokens that are measured at each share
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tokens: u32,
    /// The most that copies to the device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true)]
    h2d_gb_s: Option<f64>,
    /// The most that the CPU reads of weights while it multiplies, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, allow_negative_numbers = true,
          conflicts_with = "output")]
    cpu_gb_s: Option<f64>,
    #[command(flatten)]
    threads: DeviceThreads,
    /// Where the disk tier's file would go
    #[arg(long, value_name = "DIR", default_value = ".")]
    disk_dir: PathBuf,
    /// This machine's profile, to which the curves are added, with --output
    #[arg(long, value_name = "PROFILE", requires = "output")]
    hw: Option<String>,
    /// Where the profile with the curves goes
    #[arg(short, long, value_name = "FILE", requires = "hw")]
    output: Option<PathBuf>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Shares to each side that are measured at most.
const STEPS_MOST: f64 = 100.0;

/// Measures and prints.
///
/// # Errors
/// A model that cannot be split or executed; memory that cannot be had; a GPU that is not there; an interrupt.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.backend.check_available()?;
    let output = args.output.as_deref();
    // A profile with the curves may take the profile's place.
    Outputs::of([("--output", output)])
        .sparing(None, [&*args.model])
        .check()?;
    if args.around / args.step > STEPS_MOST {
        let (step, around) = (args.step, args.around);
        let line =
            format!("--step {step}: is less than a hundredth of --around {around}; give more");
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let profile = args.hw.as_deref().map(find_profile).transpose()?;
    let other_device = |p: &&HardwareProfile| p.kind != args.backend.kind();
    if let Some(profile) = profile.as_ref().filter(other_device) {
        let of = match profile.kind {
            DeviceKind::Gpu => {
                "of a GPU's machine; what goes into it is measured on this one's CPU"
            }
            DeviceKind::Emulated => {
                "of an emulated device; what goes into it is measured beside this machine's GPU"
            }
        };
        complain(&format!("warning: {} is the profile {of}", profile.name));
    }
    let threads = args.threads.beside(args.backend, profile.as_ref());
    let options = options_of(args, threads)?;
    let mut copies = Vec::new();
    let measured = measure(args, &options, &mut copies).map_err(|error| {
        match options.cpu.interrupt.load(Ordering::Relaxed) {
            true => Failure::new(Exit::Interrupted, "interrupted; nothing was written").into(),
            false => anyhow::Error::from(error),
        }
    })?;
    let written = match (profile, &args.output) {
        (Some(profile), Some(path)) => {
            let profile = with_curves(profile, &options, (&measured, &copies));
            write_text(path, &profile.to_toml())
        }
        _ => Ok(()),
    };
    match args.format {
        Format::Text => print(&text(&measured)),
        Format::Json => print_json(&json!({ "modules": measured })),
    }?;
    Ok(written?)
}

/// What is measured, and on which executor.
fn options_of(args: &Args, threads: u32) -> anyhow::Result<PartOptions> {
    if args.backend == Backend::Cuda && (args.h2d_gb_s.is_some() || args.cpu_gb_s.is_some()) {
        let line = "--h2d-gb-s and --cpu-gb-s: limit what stands for a GPU's machine; leave them out, or use \
                    --backend cpu";
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let model = find_model(&args.model)?;
    let dtype = model.dtype(args.dtype.map(Dtype::from))?;
    args.backend.computed([dtype])?;
    let cpu = CpuOptions {
        throttles: Throttles {
            h2d: args.h2d_gb_s.map(|rate| BytesPerSecond(rate * 1e9)),
            cpu: args.cpu_gb_s.map(|rate| BytesPerSecond(rate * 1e9)),
            ..Throttles::default()
        },
        ..cpu_options(&args.disk_dir, threads)?
    };
    Ok(PartOptions {
        cpu: args.backend.on_device(cpu)?,
        model: model.spec,
        dtype,
        compression: Compression::of(args.compress_weight, false),
        sequences: args.sequences,
        tokens: args.tokens,
    })
}

fn measure(
    args: &Args,
    options: &PartOptions,
    copies: &mut Vec<(Bytes, Seconds)>,
) -> Result<Vec<Measured>, ProbeError> {
    let range = Range {
        around: args.around,
        step: args.step,
    };
    let steps = range.offsets().len() as u64 + 1;
    let progress = Progress::new("measuring", steps);
    // Weights are the same at all shares, and making them takes longer than a run.
    let source = Remembered::new(Synthetic { seed: 0 });
    let mut done = 0;
    benchmark(range, |shares| {
        let parts = measure_parts(options, *shares, &source)?;
        copies.extend(parts.pinned);
        done += 1;
        progress.set(done);
        Ok(parts.modules.iter().map(at).collect())
    })
}

fn at(times: &PartTimes) -> (Module, At) {
    let at = At {
        share: times.share,
        cpu_s: times.cpu,
        pin_s: times.pin,
        transfer_s: times.transfer,
    };
    (times.module, at)
}

/// The profile with the CPU's products of these shapes, and with copies into page-locked memory.
fn with_curves(
    mut profile: HardwareProfile,
    options: &PartOptions,
    (measured, copies): (&[Measured], &[(Bytes, Seconds)]),
) -> HardwareProfile {
    let name = format!("alpha-{}", options.model.name);
    let source = Source {
        kind: SourceKind::Measured,
        from: format!(
            "plimsoll alpha on the {} executor: two layers of {}, the CPU beside copies",
            if options.cpu.card.is_some() {
                "CUDA"
            } else {
                "CPU"
            },
            options.model.name,
        ),
        date: today(),
    };
    profile.sources.insert(name.clone(), source);
    let curve = |points| Curve::new(points, name.as_str(), None).ok();
    for ((n, k), rates) in cpu_rates(options, measured) {
        let packed = options.compression.weights;
        let shape = (options.dtype, Some(n), Some(k), packed);
        let is_of = |c: &GemmCurve| (c.dtype, c.n, c.k, c.packed) == shape;
        let curves = &mut profile.compute.cpu_gemm;
        let mut points = curves
            .iter()
            .find(|c| is_of(c))
            .map_or(Vec::new(), |c| c.rate.points().to_vec());
        // What was measured of other numbers of sequences stays.
        let m = f64::from(options.sequences);
        points.retain(|(at, _)| *at != m);
        points.push((m, quantile(&rates, 0.5)));
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let Some(rate) = curve(points) {
            curves.retain(|c| !is_of(c));
            curves.push(GemmCurve {
                dtype: options.dtype,
                n: Some(n),
                k: Some(k),
                stage: None,
                reused: false,
                packed,
                rate,
            });
        }
    }
    let mut by_size = BTreeMap::<u64, Vec<f64>>::new();
    for (bytes, seconds) in copies {
        by_size.entry(bytes.0).or_default().push(seconds.0);
    }
    let rates = by_size.iter().map(|(bytes, seconds)| {
        let bytes = *bytes as f64;
        (bytes, bytes / quantile(seconds, 0.5))
    });
    if let Some(pinned) = curve(rates.collect()) {
        profile.links.page_lock = Some(pinned);
    }
    profile
}

/// FLOP/s of the CPU by shape; modules of one shape have several.
fn cpu_rates(options: &PartOptions, measured: &[Measured]) -> BTreeMap<(u32, u32), Vec<f64>> {
    let tensors = options.model.tensors(1);
    let mut rates = BTreeMap::<_, Vec<f64>>::new();
    for found in measured {
        let weight = tensors.iter().find(|tensor| {
            Module::of(tensor.role).is_some_and(|module| module.name() == found.module)
        });
        let (Some(weight), Some(balance)) = (weight, &found.balance) else {
            continue;
        };
        let products = f64::from(options.sequences) * weight.elements() as f64;
        let flops = 2.0 * products * (1.0 - balance.share);
        let shape = (weight.rows as u32, weight.cols as u32);
        let rates = rates.entry(shape).or_default();
        rates.push(flops / balance.cpu_s.0);
    }
    rates
}

fn text(measured: &[Measured]) -> String {
    let mut table = Table::new(&[
        ("module", Align::Left),
        ("alpha", Align::Right),
        ("known to", Align::Right),
        ("by the law", Align::Right),
        ("T_CPU", Align::Right),
        ("T_COM", Align::Right),
    ]);
    let mut apart = Vec::new();
    for found in measured {
        let Some(balance) = &found.balance else {
            continue;
        };
        let ms = |seconds: Seconds| format!("{:.3} ms", seconds.0 * 1e3);
        table.row([
            found.module.to_owned(),
            format!("{:.3}", balance.share),
            balance
                .uncertainty
                .map_or("-".to_owned(), |u| format!("{u:.3}")),
            format!("{:.3}", found.first_share),
            ms(balance.cpu_s),
            ms(balance.communication_s),
        ]);
        if !balance.meets {
            apart.push(found.module);
        }
    }
    let mut text = table.to_string();
    if !apart.is_empty() {
        let _ = writeln!(
            text,
            "note: the curves of {} do not meet in what was measured; the nearest end is given (--around)",
            apart.join(", ")
        );
    }
    text
}
