//! `plimsoll replay`: a trace of requests served in modelled time.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::weights::{Safetensors, Synthetic, WeightSource};
use plimsoll_core::Dtype;
use plimsoll_core::serve::pie::Settings;
use plimsoll_core::serve::{Limits, Preemption, Refusal, Request, ServeSummary};
use plimsoll_core::units::{Bytes, BytesPerSecond};
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::options::{DtypeName, Format, positive};
use super::output::{check_apart, check_output, complain, print, print_json};
use super::pace::Around;
use super::profile::{DEVICE_THREADS, cpu_options};
use crate::files::{find_model, find_profile, write_atomically};
use crate::report::serve::{serve_comparison, serve_text};
use crate::report::to_csv;
use crate::serve::replay::{Expansion, Manager, RequestRow, Server};
use crate::serve::workload::read_trace;

/// Who serves what.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: a path, a name in hw-profiles/, or an embedded profile
    #[arg(long, value_name = "PROFILE")]
    hw: String,
    /// The model: a name, a config.json of Hugging Face, or a folder that holds one
    #[arg(long)]
    model: String,
    /// The requests: CSV (arrived_at,num_prefill_tokens,num_decode_tokens; TIMESTAMP,ContextTokens,GeneratedTokens)
    /// or JSON lines (timestamp, input_length, output_length)
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Who gives room in the KV cache
    #[arg(long, value_enum, default_value_t = ManagerName::Vllm)]
    manager: ManagerName,
    /// Device memory for the KV cache, in GB of 10^9 bytes [default: what the weights leave]
    #[arg(long, value_name = "GB", value_parser = positive)]
    kv_gb: Option<f64>,
    /// orca: tokens that are reserved for each request [default: the model's positions]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_len: Option<u32>,
    /// vllm: what becomes of the cache of a request that has to leave
    #[arg(long, value_enum, default_value_t = PreemptionName::Recompute)]
    preemption: PreemptionName,
    /// pie: the cache over the GPU's part of it, buffers counted, as near as whole layers come; or auto, which finds it
    /// while requests are served
    #[arg(long, value_name = "auto|X", default_value = "auto", value_parser = expansion)]
    expansion: Expansion,
    /// Sequences in an iteration at most
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_sequences: u32,
    /// Tokens computed in an iteration at most, unless a prompt alone has more [default: the model's positions, at
    /// least 2048]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// A closed loop: so many clients, each of which asks again as soon as it has its answer; the trace's times
    /// are not used
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    clients: Option<u32>,
    /// Seconds a token within which an answer is good (S3: how fast people read)
    #[arg(long, value_name = "S", default_value_t = 0.1875, value_parser = positive)]
    slo_s_per_token: f64,
    /// The type of weights and cache [default: what the model's config.json says, else f16]
    #[arg(long, value_enum)]
    dtype: Option<DtypeName>,
    /// Write a line a request (CSV)
    #[arg(long, value_name = "FILE")]
    per_request: Option<PathBuf>,
    /// Serve the trace for real as well, on this machine's CPU executor, and lay what was measured beside the
    /// prediction: --hw is what `plimsoll profile` wrote here; weights are the checkpoint's in --model, else synthetic,
    /// and prompts are random
    #[arg(long)]
    execute: bool,
    /// --execute: for random prompts and synthetic weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// --execute: the most that copies to the device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, requires = "execute")]
    h2d_gb_s: Option<f64>,
    /// --execute: the most that copies from the device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive, requires = "execute")]
    d2h_gb_s: Option<f64>,
    /// --execute: threads that the emulated device computes with; profiles are measured with 1
    #[arg(long, value_name = "N", default_value_t = DEVICE_THREADS, requires = "execute",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    device_threads: usize,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Managers of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ManagerName {
    /// A maximum length for each request.
    Orca,
    /// Blocks of 16 tokens as they are needed; the latest has to leave.
    Vllm,
    /// The same, and layers of the cache are swapped while others are computed.
    Pie,
}

/// What becomes of who has to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PreemptionName {
    /// It is computed again.
    Recompute,
    /// It goes to the host and comes back.
    Swap,
}

#[derive(Serialize)]
struct Report<'a> {
    hardware: &'a str,
    model: &'a str,
    dtype: &'a str,
    manager: String,
    kv_bytes: Bytes,
    requests: usize,
    #[serde(flatten)]
    summary: &'a ServeSummary,
    refused_requests: Vec<Refused<'a>>,
    /// Of the same trace, served for real.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<&'a ServeSummary>,
    /// How much longer reference work took around that than when the machine was profiled, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pace: Option<f64>,
}

/// What came of serving for real.
struct Measured {
    summary: ServeSummary,
    pace: Option<f64>,
}

#[derive(Serialize)]
struct Refused<'a> {
    request: u32,
    why: &'a str,
}

/// Replays and prints.
///
/// # Errors
/// Input that is wrong; a cache in which no request fits.
pub fn run(args: &Args) -> anyhow::Result<()> {
    check_output("--per-request", args.per_request.as_deref())?;
    check_apart(
        &[("--per-request", args.per_request.as_deref())],
        &[("--trace", Some(&args.trace))],
    )?;
    if args.execute && args.manager == ManagerName::Pie {
        let line = "--execute: layers of the cache are not swapped for real yet; give --manager vllm or orca";
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let server = server(args)?;
    let requests = read_trace(&args.trace)?;
    let replayed = server.replay(&requests)?;
    complain_of(&replayed.refusals);
    if replayed.summary.completed == 0 {
        let why = &replayed.refusals[0].why;
        let line = format!("no request can be served: the first {why}");
        return Err(Failure::new(Exit::Infeasible, line).into());
    }
    if let Some(path) = &args.per_request {
        let csv = to_csv(&RequestRow::of(&replayed.sequences))?;
        write_atomically(path, |out| out.write_all(&csv))?;
    }
    let measured = match args.execute {
        true => Some(execute(args, &server, &requests)?),
        false => None,
    };
    let summary = &replayed.summary;
    let manager = server.manager.name();
    match args.format {
        Format::Text => {
            let title = format!(
                "{} in {} on {}: {} requests, {manager} over {} of KV cache",
                server.model.name,
                server.dtype.name(),
                server.profile.name,
                requests.len(),
                server.kv_bytes
            );
            let mut text = serve_text(&title, summary);
            if let Some(measured) = &measured {
                let device = "\nserved for real on an emulated device\n";
                text += &format!("{device}{}", serve_comparison(summary, &measured.summary));
                if let Some(pace) = measured.pace {
                    text += &format!(
                        "pace: around it, reference work took {pace:.2} times as long as when this machine was profiled\n"
                    );
                }
            }
            print(&text)
        }
        Format::Json => print_json(&Report {
            hardware: &server.profile.name,
            model: &server.model.name,
            dtype: server.dtype.name(),
            manager,
            kv_bytes: server.kv_bytes,
            requests: requests.len(),
            summary,
            refused_requests: replayed
                .refusals
                .iter()
                .map(|r| Refused {
                    request: r.request,
                    why: &r.why,
                })
                .collect(),
            measured: measured.as_ref().map(|it| &it.summary),
            pace: measured.as_ref().and_then(|it| it.pace),
        }),
    }
}

/// Serves the trace for real.
fn execute(args: &Args, server: &Server, requests: &[Request]) -> anyhow::Result<Measured> {
    let options = CpuOptions {
        throttles: Throttles {
            h2d: args.h2d_gb_s.map(rate),
            d2h: args.d2h_gb_s.map(rate),
            ..Throttles::default()
        },
        device_threads: args.device_threads,
        ..cpu_options(Path::new("."))?
    };
    let found = find_model(&args.model)?;
    let source: Box<dyn WeightSource> = match found.checkpoint()? {
        Some(folder) => Box::new(Safetensors::open(folder, &server.model)?),
        None => Box::new(Synthetic { seed: args.seed }),
    };
    let around = Around::begin(Some(&server.profile), &options);
    let executed = server.execute(requests, (&*source, args.seed), &options)?;
    Ok(Measured {
        summary: executed.replayed.summary,
        pace: around.and_then(Around::end),
    })
}

fn rate(gb_s: f64) -> BytesPerSecond {
    BytesPerSecond(gb_s * 1e9)
}

/// An expansion by its number, or `auto`.
fn expansion(text: &str) -> Result<Expansion, String> {
    match text.parse::<f64>() {
        _ if text == "auto" => Ok(Expansion::Auto(Settings::default())),
        Ok(number) if number >= 1.0 && number.is_finite() => Ok(Expansion::Fixed(number)),
        _ => Err("give auto, or a number of 1 and more, such as 1.6".to_owned()),
    }
}

/// Refusals that are told one by one.
const TOLD: usize = 10;

fn complain_of(refusals: &[Refusal]) {
    for refusal in refusals.iter().take(TOLD) {
        complain(&format!(
            "request {} is refused: it {}",
            refusal.request, refusal.why
        ));
    }
    if let Some(more @ 1..) = refusals.len().checked_sub(TOLD) {
        complain(&format!("{more} more are refused; --format json names all"));
    }
}

fn server(args: &Args) -> anyhow::Result<Server> {
    let profile = find_profile(&args.hw)?;
    let profile = profile.with_link_cap(args.h2d_gb_s.map(rate), args.d2h_gb_s.map(rate));
    let model = find_model(&args.model)?;
    let dtype = model.dtype(args.dtype.map(Dtype::from))?;
    let model = model.spec;
    let left = Server::kv_left(&profile, &model, dtype);
    let kv_bytes = match (args.kv_gb, left) {
        (_, None) => {
            let (weights, usable) = (model.weight_bytes(dtype), profile.tiers.device_usable());
            let line = format!(
                "{} in {} has {weights} of weights, and tensors may fill {usable} of {}'s device memory; take a \
                 smaller model or a larger machine",
                model.name,
                dtype.name(),
                profile.name
            );
            return Err(Failure::new(Exit::Infeasible, line).into());
        }
        (Some(gb), Some(left)) if gb * 1e9 > left.as_f64() => {
            let line = format!("--kv-gb {gb}: the weights leave {left}; give less");
            return Err(Failure::new(Exit::Infeasible, line).into());
        }
        (Some(gb), _) => Bytes((gb * 1e9) as u64),
        (None, Some(left)) => left,
    };
    let positions = model.max_position_embeddings;
    Ok(Server {
        manager: match args.manager {
            ManagerName::Orca => Manager::Orca {
                max_len: args.max_len.unwrap_or(positions),
            },
            ManagerName::Pie => Manager::Pie(args.expansion),
            ManagerName::Vllm => Manager::Vllm {
                preemption: match args.preemption {
                    PreemptionName::Recompute => Preemption::Recompute,
                    PreemptionName::Swap => Preemption::Swap,
                },
            },
        },
        limits: Limits {
            sequences: args.max_sequences,
            tokens: args.max_tokens.unwrap_or(positions.max(2048)),
        },
        clients: args.clients,
        slo_s: args.slo_s_per_token,
        profile,
        model,
        dtype,
        kv_bytes,
    })
}
