//! `plimsoll replay`: a trace of requests served in modelled time, and for real.

mod execute;
mod manager;
mod over_time;
mod predict;
mod report;
mod server;
mod stages;
mod sweep;

use std::path::PathBuf;

use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::{Request, Reserve, ServeSummary};
use plimsoll_core::traffic::Traffic;

use super::exit::{Exit, Failure};
use super::options::{DtypeName, Format, TimeUnitName, positive};
use super::output::{Outputs, complain};
use super::picture::FileKind;
use super::what_if::{MemoryIf, WhatIf};
use crate::files::find_profile;
use crate::report::{count, packed_note, percent, rates_note};
use crate::serve::replay::{Expansion, Manager, Server};
use crate::serve::sweep::Sweep;
use crate::serve::workload::read_trace;
use execute::ExecuteArgs;
use manager::{ManagerName, PreemptionName, ReserveName, expansion};
use predict::PredictArgs;
use report::{complain_of, none_served, print_replayed, tell_infeasible};
use stages::StagesArgs;

/// By what share an expansion is another one than was stated.
const ANOTHER_EXPANSION: f64 = 0.05;

/// Who serves what.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: a path, a name in hw-profiles/, or an embedded profile
    #[arg(long, value_name = "PROFILE")]
    hw: String,
    #[command(flatten)]
    memory: MemoryIf,
    /// The model: a name, a config.json of Hugging Face, or a folder that holds one
    #[arg(long)]
    model: String,
    /// The requests: CSV (arrived_at,num_prefill_tokens,num_decode_tokens; TIMESTAMP,ContextTokens,GeneratedTokens;
    /// BurstGPT's Timestamp,...,Request tokens,Response tokens,...) or JSON lines (timestamp, input_length, output_length, and the prompt if there is one: a text or token ids); - reads standard
    /// input
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// What the trace's times count that are numbers [default: s, and ms where rows have Mooncake's hash_ids]
    #[arg(long, value_enum, value_name = "UNIT")]
    time_unit: Option<TimeUnitName>,
    /// Who gives room in the KV cache
    #[arg(long, value_enum, default_value_t = ManagerName::Vllm)]
    manager: ManagerName,
    /// Device memory for the KV cache, of each GPU, in GB of 10^9 bytes [default: what the weights leave]
    #[arg(long, value_name = "GB", allow_negative_numbers = true, value_parser = positive)]
    kv_gb: Option<f64>,
    /// orca: tokens that are reserved for each request; s3: the longest answer [default: the model's positions]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    max_len: Option<u32>,
    /// vllm: what becomes of the cache of a request that has to leave [default: recompute]
    #[arg(long, value_enum)]
    preemption: Option<PreemptionName>,
    /// s3: what room is made for [default: all]
    #[arg(long, value_enum)]
    reserve: Option<ReserveName>,
    /// pie: the cache over the GPU's part of it, buffers counted, as near as whole layers come; or auto, which finds it
    /// while requests are served, and refuses what the GPU's part alone could not hold [default: auto]
    #[arg(long, value_name = "auto|X", value_parser = expansion)]
    expansion: Option<Expansion>,
    /// pie: iterations after which adaptive expansion tries again what it gave up, or more where that cost much [default: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    probe_after: Option<u32>,
    /// What others carry over the link meanwhile, in GB/s each way, from and to in seconds: 10..20:0.4, or 10..20:0.4:h2d
    /// for one way (h2d, d2h); may be given more than once
    #[arg(long, value_name = "FROM..TO:GB/S")]
    traffic: Vec<Traffic>,
    /// Sequences in an iteration at most
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_sequences: u32,
    /// Tokens of an iteration, those of sequences that decode counted, up to which prompts join it; one prompt joins in any case,
    /// and decoding goes on whatever it is [default: the model's positions, from 2048 to 8192]
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
    /// Keep weights in 4 bits an element, in groups of 64
    #[arg(long)]
    compress_weight: bool,
    /// Write a line a request (CSV), of each run: as predicted and, with --execute, as measured
    #[arg(long, value_name = "FILE")]
    per_request: Option<PathBuf>,
    /// Write a line an iteration (CSV): when, how many sequences, what is off the GPU, how long layers waited for their caches
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    per_iteration: Option<PathBuf>,
    /// Serve the trace with each of these values: rate=..., kv-gb=... or expansion=..., numbers with commas between
    #[arg(long, value_name = "WHAT=VALUES", conflicts_with = "per_request")]
    sweep: Option<Sweep>,
    /// Draw the sweep's throughput, else expansion and sequences over time (.svg, .png), or write a line a value, else an
    /// iteration (.csv); may be given more than once
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
    #[command(flatten)]
    predict: PredictArgs,
    #[command(flatten)]
    stages: StagesArgs,
    #[command(flatten)]
    execute: ExecuteArgs,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Replays and prints.
///
/// # Errors
/// Input that is wrong; a cache in which no request fits.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.execute.check_available()?;
    let tables = [
        ("--per-request", args.per_request.as_deref()),
        ("--per-iteration", args.per_iteration.as_deref()),
    ];
    let drawn = args.output.iter().map(|path| ("--output", Some(&**path)));
    Outputs::of(tables.into_iter().chain(drawn))
        .apart_from([("--trace", Some(&*args.trace))])
        .sparing(Some(&args.hw), [&*args.model])
        .check()?;
    let outputs = args.output.iter().map(|path| FileKind::of(path));
    let outputs = outputs.collect::<Result<Vec<FileKind>, Failure>>()?;
    sweep::check_swept(args)?;
    let what_if = WhatIf::from(args.memory);
    let profile = what_if.of(find_profile(&args.hw)?);
    let told = |failure: &anyhow::Error| tell_infeasible(args.format, failure);
    let mut server = server::server(args, &profile).inspect_err(told)?;
    server
        .check_traffic()
        .map_err(|why| Failure::new(Exit::Usage, format!("--traffic: {why}")))?;
    check_host(args, &server).inspect_err(told)?;
    args.execute.check(&server)?;
    args.execute.check_cache(&profile, args.kv_gb)?;
    let trace = read_trace(&args.trace, args.time_unit.map(Into::into))?;
    server.manager.knows(trace.features);
    let requests = trace.requests;
    say_what_stands_in(&server, &requests);
    if let Some(sweep) = &args.sweep {
        let files = args.output.iter().map(PathBuf::as_path).zip(outputs);
        let on = (&server, what_if);
        return sweep::swept(args.format, (on, &requests), sweep, files.collect());
    }
    let options = args.execute.options(&profile)?;
    if let Some(options) = &options {
        let asked = (&*requests, args.kv_gb);
        let room = args
            .execute
            .leave_room((&mut server, &profile), asked, options);
        room.inspect_err(told)?;
    }
    let replayed = server.replay(&requests)?;
    complain_of(&replayed.refusals);
    let reserved = [
        reserved_for_nothing(args, (&server, &replayed.summary), &requests),
        reserved_too_little(&server, &replayed.summary),
    ];
    reserved.into_iter().flatten().for_each(|it| complain(&it));
    if replayed.summary.completed == 0 {
        let why = format!("the first {}", replayed.refusals[0].why);
        return Err(none_served("", &why)).inspect_err(told);
    }
    let on = (&server, &profile);
    let asked = (&*requests, replayed.summary.output_tokens);
    let execute = |options| args.execute.run(on, (&args.model, options), asked);
    let measured = options.as_ref().map(execute).transpose()?;
    // What was found is said even where a file of it cannot be written.
    let count = requests.len();
    let on = (&server, what_if);
    let printed = print_replayed(args.format, (on, count), &replayed, measured.as_ref());
    if let Some(path) = &args.per_request {
        over_time::write_requests((&replayed, measured.as_ref()), path)?;
    }
    let table = args.per_iteration.iter().map(|file| (file, FileKind::Csv));
    let files = args.output.iter().zip(outputs).chain(table);
    over_time::write(&server, (&replayed, measured.as_ref()), files)?;
    printed
}

/// Refuses layers off the GPU that the host has no room for. Of a sweep each value is looked at.
fn check_host(args: &Args, server: &Server) -> anyhow::Result<()> {
    let is_swept = args.sweep.is_some();
    let has_room = if is_swept {
        Ok(())
    } else {
        server.check_host()
    };
    has_room.map_err(|why| Failure::new(Exit::Infeasible, why).into())
}

/// Says which of the machine's rates nobody measured.
fn say_what_stands_in(server: &Server, requests: &[Request]) {
    let notes = [
        rates_note(&server.profile, server.dtype),
        packed_note(&server.profile, server.kept()),
        windows_note(&server.model, requests),
        whole_layers_note(server),
        longer_note(server, requests),
    ];
    notes.iter().flatten().for_each(|said| complain(said));
}

/// That whole layers make another expansion of a stated one.
fn whole_layers_note(server: &Server) -> Option<String> {
    let [stated, had] = server.expansions()?;
    let is_another = (had / stated - 1.0).abs() > ANOTHER_EXPANSION;
    is_another.then(|| {
        format!("note: whole layers make an expansion of {had:.2} of {stated}, the nearest that there is")
    })
}

/// That answers are longer than S3 was told that any is.
fn longer_note(server: &Server, requests: &[Request]) -> Option<String> {
    let Manager::S3 { prediction, .. } = &server.manager else {
        return None;
    };
    let most = prediction.longest()?;
    let longer = requests.iter().filter(|it| it.output_len > most).count();
    (longer > 0).then(|| {
        format!(
            "note: {} of more than the {most} tokens of --max-len: what is predicted is too short",
            count(longer as u64, "answer")
        )
    })
}

/// That a window slides in the model, and not in what is predicted of serving it.
fn windows_note(model: &ModelSpec, requests: &[Request]) -> Option<String> {
    let window = model.sliding_window?;
    let longest = requests.iter().map(Request::total_len).max()?;
    (longest > window).then(|| {
        format!(
            "note: {} attends to the last {window} tokens, and is predicted as if to all: too slow, if anything",
            model.name
        )
    })
}

/// That the cache, prompts counted, would have to be larger, where S3 makes room for answers only.
fn reserved_too_little(server: &Server, summary: &ServeSummary) -> Option<String> {
    let Manager::S3 { reserve, .. } = &server.manager else {
        return None;
    };
    (*reserve == Reserve::Output && summary.kv_used > 1.0).then(|| {
        format!(
            "no room was made for prompts, and with them the cache would be {} full, on average; --reserve all makes room \
             for them",
            percent(summary.kv_used)
        )
    })
}

/// That Orca reserves far more for each request than any has, where nobody said how much and no more of them had room.
fn reserved_for_nothing(
    args: &Args,
    (server, summary): (&Server, &ServeSummary),
    requests: &[Request],
) -> Option<String> {
    let Manager::Orca { max_len } = server.manager else {
        return None;
    };
    let longest = requests.iter().map(Request::total_len).max()?;
    let is_far_more = u64::from(max_len) >= 2 * u64::from(longest);
    // Batches that follow each other through stages share the cache.
    let of_batch = summary.kv_capacity_tokens / u64::from(server.gpus.batches());
    let is_full = u64::from(summary.largest_batch) >= of_batch / u64::from(max_len);
    (args.max_len.is_none() && is_far_more && is_full).then(|| {
        format!(
            "orca reserves the model's {max_len} positions for each request, and none has more than {longest} tokens; \
             --max-len {longest} leaves room for more of them at once"
        )
    })
}
