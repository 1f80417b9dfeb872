//! `plimsoll profile`: measures this machine.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::machine::others::busy_share;
use plimsoll_backend::probe::{ProbeOptions, measure};
use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;

use super::backend::Backend;
use super::options::DtypeName;
use super::output::{Outputs, complain};
use super::threads::DeviceThreads;
use super::{Exit, Failure, Progress, print, stop_on_interrupt};
use crate::files::{find_model, write_text};
use crate::report::percent;

/// How long it is looked for what else runs here, and how much of the processors that may take.
const LOOKED_FOR: Duration = Duration::from_millis(300);
const BUSY_MOST: f64 = 0.25;

/// Measure this machine and write its hardware profile
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What runs plans
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Fewer repeats: about a third of the time
    #[arg(long)]
    quick: bool,
    /// Where the profile goes [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The profile's name
    #[arg(long, default_value = "this-machine")]
    name: String,
    /// Element types to measure, with commas between
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["f32", "f16"])]
    dtype: Vec<DtypeName>,
    /// Models for whose matrices each implementation of a product is timed, beside the probe's own: executors then choose
    /// among them for each shape, and predictions know its times
    #[arg(long, value_delimiter = ',')]
    model: Vec<String>,
    #[command(flatten)]
    threads: DeviceThreads,
    /// Where the disk tier's files go meanwhile: 3 GB where 4 GB are free, else 0.3 GB
    #[arg(long, default_value = ".", value_name = "DIR")]
    disk_dir: PathBuf,
}

/// Runs it.
///
/// # Errors
/// Memory or disk that cannot be had; an interrupt.
pub fn run(args: &Args) -> anyhow::Result<()> {
    Outputs::of([("--output", args.output.as_deref())])
        .sparing(None, args.model.iter().map(String::as_str))
        .check()?;
    let models = args.model.iter().map(|model| find_model(model));
    let models = models.map(|found| Ok(found?.spec));
    let models = models.collect::<anyhow::Result<_>>()?;
    let dtypes = args.dtype.iter().map(|dtype| Dtype::from(*dtype));
    let dtypes = args.backend.computed(dtypes)?;
    args.backend.check_available()?;
    let threads = args.threads.of(args.backend, None);
    let options = ProbeOptions {
        cpu: args
            .backend
            .on_device(cpu_options(&args.disk_dir, threads)?)?,
        quick: args.quick,
        dtypes,
        models,
        name: args.name.clone(),
        date: today(),
    };
    let profile = measure_with_progress(&options).map_err(|error| {
        match options.cpu.interrupt.load(Ordering::Relaxed) {
            true => Failure::new(Exit::Interrupted, "interrupted; nothing was written").into(),
            false => error,
        }
    })?;
    let text = profile.to_toml();
    let Some(path) = &args.output else {
        return print(&text);
    };
    if let Err(error) = write_text(path, &text) {
        print(&text)?;
        let note = "the profile is printed instead";
        return Err(Failure::noted(&error.into(), note).into());
    }
    // Known names are planned in f16 where nothing else is said.
    let dtype = match options.dtypes.as_slice() {
        [first, ..] if !options.dtypes.contains(&Dtype::F16) => {
            format!(" --dtype {}", first.name())
        }
        _ => String::new(),
    };
    // Not among what is printed, since that may be the profile's own place.
    let file = path.display();
    complain(&format!(
        "{file} is the profile of this machine; next: plimsoll plan --hw {file} --model opt-125m{dtype}"
    ));
    Ok(())
}

/// How the CPU executor runs, alike for `profile`, `run` and `validate`, so that what one measures holds
/// for the others: the device on cores of its own, as many as it has threads, stopping at Ctrl-C.
pub(super) fn cpu_options(
    disk_dir: &std::path::Path,
    device_threads: u32,
) -> anyhow::Result<CpuOptions> {
    if !disk_dir.is_dir() {
        let line = format!(
            "--disk-dir {}: is no folder; make it, or give another",
            disk_dir.display()
        );
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let mut cpu = CpuOptions::new(disk_dir);
    cpu.pin_cores = true;
    cpu.device_threads = device_threads as usize;
    cpu.interrupt = stop_on_interrupt()?;
    Ok(cpu)
}

/// Measures, and says so where something else had the processors as well.
pub(super) fn measure_with_progress(options: &ProbeOptions) -> anyhow::Result<HardwareProfile> {
    let busy = busy_share(LOOKED_FOR).filter(|busy| *busy > BUSY_MOST);
    let progress = Progress::new("measuring", 100);
    let profile = measure(options, &mut |what, share| {
        progress.begin(&format!("measuring {what}"), (share * 100.0) as u64);
    })?;
    drop(progress);
    if let Some(busy) = busy {
        complain(&format!(
            "something else kept {} of the processors busy when this began: rates come out low and uneven; \
             measure again when the machine is idle",
            percent(busy)
        ));
    }
    Ok(profile)
}

/// The date in UTC, as YYYY-MM-DD.
pub(super) fn today() -> String {
    jiff::Timestamp::now()
        .to_string()
        .chars()
        .take(10)
        .collect()
}
