//! `plimsoll replay`: a trace of requests served in modelled time, and for real.

mod execute;
mod over_time;
mod predict;
mod stages;

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use plimsoll_core::Dtype;
use plimsoll_core::compression::{Compression, Kept};
use plimsoll_core::extrapolation::Extrapolation;
use plimsoll_core::hardware::{HardwareProfile, Slowness};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::pie::Settings;
use plimsoll_core::serve::predict::Score;
use plimsoll_core::serve::{Limits, Preemption, Refusal, Request, Reserve, ServeSummary};
use plimsoll_core::traffic::{Background, Traffic};
use plimsoll_core::units::Bytes;
use serde::Serialize;
use serde_json::json;

use super::exit::{Exit, Failure};
use super::options::{DtypeName, Format, TimeUnitName, positive};
use super::output::{check_apart, check_output, check_spared, complain, print, print_json};
use super::pareto::Kind;
use crate::files::{find_model, find_profile, write_atomically, write_text};
use crate::report::beyond_text;
use crate::report::serve::{prediction_text, serve_text, sweep_text, traffic_text};
use crate::report::{Line, Lines, packed_note, picture_svg, rates_note, to_csv, write_picture_png};
use crate::serve::gpus::Gpus;
use crate::serve::replay::{Expansion, Manager, Replayed, RequestRow, Server, check_expansion};
use crate::serve::sweep::{Sweep, SweepRow, Swept};
use crate::serve::workload::read_trace;
use execute::{ExecuteArgs, Measured};
use predict::PredictArgs;
use stages::StagesArgs;

/// Who serves what.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine: a path, a name in hw-profiles/, or an embedded profile
    #[arg(long, value_name = "PROFILE")]
    hw: String,
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
    /// pie: iterations after which adaptive expansion tries again what it gave up [default: 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    probe_after: Option<u32>,
    /// What others carry over the link meanwhile, in GB/s each way, from and to in seconds: 10..20:0.4, or 10..20:0.4:h2d
    /// for one way (h2d, d2h); may be given more than once
    #[arg(long, value_name = "FROM..TO:GB/S")]
    traffic: Vec<Traffic>,
    /// Sequences in an iteration at most
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_sequences: u32,
    /// Tokens computed in an iteration at most; one prompt is in any case, whatever it has [default: the model's positions, from
    /// 2048 to 8192]
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
    /// Write a line a request (CSV)
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

/// Managers of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ManagerName {
    /// A maximum length for each request.
    Orca,
    /// Blocks of 16 tokens as they are needed; the latest has to leave.
    Vllm,
    /// Room by the predicted length of the answer; who outgrows it goes to the host and gets twice as much.
    S3,
    /// vllm's blocks, and layers of the cache are swapped while others are computed.
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

/// What S3 makes room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReserveName {
    /// The answer alone, as S3's figures have it: prompts are not counted.
    Output,
    /// Prompt and answer.
    All,
}

#[derive(Serialize)]
struct Report<'a> {
    hardware: &'a str,
    model: &'a str,
    dtype: &'a str,
    /// What is in 4 bits.
    compression: Compression,
    /// The type whose rates stand for its own, where the profile has none of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    rates_of: Option<Dtype>,
    manager: String,
    /// GPUs that the model is spread over, and batches that follow each other through them; none where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    stages: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    micro_batches: Option<u32>,
    kv_bytes: Bytes,
    requests: usize,
    #[serde(flatten)]
    summary: &'a ServeSummary,
    refused_requests: Vec<Refused<'a>>,
    /// Where the profile was asked what nobody measured.
    extrapolates: &'a [Extrapolation],
    /// What others carry over the links.
    traffic: Vec<InTraffic>,
    /// How good predictions of answers' lengths were, where they were learnt.
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<Score>,
    /// Of the same trace, served for real.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<&'a ServeSummary>,
    /// What of the traffic was carried then.
    #[serde(skip_serializing_if = "Option::is_none")]
    carried_bytes: Option<Bytes>,
    /// What is predicted of a machine that goes at the pace that this one had then.
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_at_pace: Option<&'a ServeSummary>,
    /// How much longer reference work took around that than when the machine was profiled, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pace: Option<Slowness>,
}

#[derive(Serialize)]
struct SweepReport<'a> {
    hardware: &'a str,
    model: &'a str,
    dtype: &'a str,
    compression: Compression,
    manager: &'a str,
    /// What `value` is of: rate, kv-gb or expansion.
    swept: &'static str,
    rows: &'a [SweepRow],
}

#[derive(Serialize)]
struct InTraffic {
    from_s: f64,
    to_s: f64,
    gb_s: f64,
    ways: &'static str,
}

impl InTraffic {
    fn of(it: &Traffic) -> InTraffic {
        InTraffic {
            from_s: it.from.0,
            to_s: it.to.0,
            gb_s: it.rate.0 / 1e9,
            ways: it.ways.name(),
        }
    }
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
    args.execute.check_available()?;
    let tables = [
        ("--per-request", args.per_request.as_deref()),
        ("--per-iteration", args.per_iteration.as_deref()),
    ];
    for (flag, file) in tables {
        check_output(flag, file)?;
    }
    let drawn = args.output.iter().map(|path| ("-o", Some(path.as_path())));
    let written: Vec<_> = tables.into_iter().chain(drawn).collect();
    check_apart(&written, &[("--trace", Some(&args.trace))])?;
    check_spared(&written, Some(&args.hw), Some(&args.model))?;
    for (index, output) in written.iter().enumerate() {
        check_apart(&[*output], &written[index + 1..])?;
    }
    let outputs = args.output.iter().map(|path| Kind::of(path));
    let outputs = outputs.collect::<Result<Vec<Kind>, Failure>>()?;
    check_swept(args)?;
    let profile = find_profile(&args.hw)?;
    let told = |failure: &anyhow::Error| tell_infeasible(args.format, failure);
    let mut server = server(args, &profile).inspect_err(told)?;
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
        return swept(args.format, (&server, &requests), sweep, files.collect());
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
    if let Some(said) = reserved_for_nothing(args, (&server, &replayed.summary), &requests) {
        complain(&said);
    }
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
    let printed = print_replayed(args.format, (&server, count), &replayed, measured.as_ref());
    if let Some(path) = &args.per_request {
        let csv = to_csv(&RequestRow::of(&replayed.sequences))?;
        write_atomically(path, |out| out.write_all(&csv))?;
    }
    let table = args.per_iteration.iter().map(|file| (file, Kind::Csv));
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
    ];
    notes.iter().flatten().for_each(|said| complain(said));
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

const NONE_SERVED: &str = "no request can be served";

/// With what, and why.
fn none_served(with: &str, why: &str) -> anyhow::Error {
    let line = format!("{with}{NONE_SERVED}: {why}");
    Failure::new(Exit::Infeasible, line).into()
}

/// That nothing can be served, for programs, as a plan says that none fits.
fn tell_infeasible(format: Format, failure: &anyhow::Error) {
    let failure = failure.downcast_ref::<Failure>();
    let line = failure.filter(|it| it.exit == Exit::Infeasible);
    if let (Format::Json, Some(line)) = (format, line) {
        // Whether it can be printed or not, the exit code says it.
        let _ = print_json(&json!({ "infeasible": { "why": line.to_string() } }));
    }
}

fn print_replayed(
    format: Format,
    (server, requests): (&Server, usize),
    replayed: &Replayed,
    measured: Option<&Measured>,
) -> anyhow::Result<()> {
    let summary = &replayed.summary;
    let manager = server.manager.name();
    let pipeline = match &server.gpus {
        Gpus::Pipeline(of) => Some(of),
        Gpus::One | Gpus::StageForAll { .. } => None,
    };
    match format {
        Format::Text => {
            let title = format!(
                "{} in {} on {}{}: {requests} requests, {manager} over {} of KV cache",
                server.model.name,
                server.kept().words(),
                server.profile.name,
                stages::text(&server.gpus),
                server.kv_bytes
            );
            let traffic = traffic_text(&server.traffic);
            let beside = measured.map_or(String::new(), |it| it.text(summary));
            let learnt = replayed.prediction.as_ref();
            let learnt = learnt.map_or(String::new(), |it| {
                format!("\n{}", prediction_text("who learnt", it))
            });
            let beyond = beyond_text(&replayed.extrapolates);
            print(&(serve_text(&title, summary) + &beyond + &traffic + &learnt + &beside))
        }
        Format::Json => print_json(&Report {
            hardware: &server.profile.name,
            model: &server.model.name,
            dtype: server.dtype.name(),
            compression: server.compression,
            rates_of: server.rates_of(),
            manager,
            stages: pipeline.map(|of| of.stages),
            micro_batches: pipeline.map(|of| of.micro_batches),
            kv_bytes: server.kv_bytes,
            requests,
            summary,
            refused_requests: replayed
                .refusals
                .iter()
                .map(|r| Refused {
                    request: r.request,
                    why: &r.why,
                })
                .collect(),
            extrapolates: &replayed.extrapolates,
            traffic: server.traffic.0.iter().map(InTraffic::of).collect(),
            prediction: replayed.prediction,
            measured: measured.map(|it| &it.replayed.summary),
            carried_bytes: measured
                .map(|it| it.carried)
                .filter(|_| !server.traffic.0.is_empty()),
            predicted_at_pace: measured.and_then(|it| Some(&it.at_pace.as_ref()?.summary)),
            pace: measured.and_then(|it| it.pace),
        }),
    }
}

/// An expansion by its number, or `auto`.
fn expansion(text: &str) -> Result<Expansion, String> {
    match text.parse::<f64>() {
        _ if text == "auto" => Ok(Expansion::Auto(Settings::default())),
        Ok(number) if number >= 1.0 && number.is_finite() => Ok(Expansion::Fixed(number)),
        _ => Err("give auto, or a number of 1 and more, such as 1.6".to_owned()),
    }
}

/// Serves with each value, prints, writes and draws.
fn swept(
    format: Format,
    (server, requests): (&Server, &[Request]),
    sweep: &Sweep,
    files: Vec<(&Path, Kind)>,
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
            model,
            dtype: server.dtype.name(),
            compression: server.compression,
            manager: &manager,
            swept: sweep.what.name(),
            rows: &rows,
        }),
        Format::Text => print(&sweep_text(&title, sweep.what.axis(), &rows)),
    };
    for (path, kind) in files {
        match kind {
            Kind::Svg => write_text(path, &picture_svg(&picture)?)?,
            Kind::Png => write_picture_png(path, &picture)?,
            Kind::Csv => write_rows(path, sweep.what, &rows)?,
        }
    }
    any_served(sweep.what, &rows)?;
    printed
}

fn write_rows(path: &Path, what: Swept, rows: &[SweepRow]) -> anyhow::Result<()> {
    let csv = to_csv(rows)?;
    // The first column is what was changed.
    let name = what.name().replace('-', "_");
    let rest = csv.strip_prefix(b"value").expect("its header");
    write_atomically(path, |out| {
        out.write_all(name.as_bytes())?;
        out.write_all(rest)
    })?;
    Ok(())
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

/// Refusals that are told one by one.
const TOLD: usize = 10;

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

fn server(args: &Args, profile: &HardwareProfile) -> anyhow::Result<Server> {
    let profile = args.execute.held(profile.clone());
    let model = find_model(&args.model)?;
    let dtype = model.dtype(args.dtype.map(Dtype::from))?;
    let model = model.spec;
    let gpus = args.stages.gpus(&profile, &model)?;
    let compression = Compression::of(args.compress_weight, false);
    let left = kv_left((&gpus, &profile), (&model, Kept { dtype, compression }))?;
    let kv_bytes = match args.kv_gb {
        Some(gb) => {
            let within = gpus.kv_within(left, gb, &model);
            within.map_err(|why| Failure::new(Exit::Infeasible, format!("--kv-gb {gb}: {why}")))?
        }
        None => left,
    };
    let positions = model.max_position_embeddings;
    let manager = manager(args, positions)?;
    if let Manager::Pie(Expansion::Fixed(expansion)) = manager {
        check_expansion(expansion, &model)
            .map_err(|why| Failure::new(Exit::Usage, format!("--expansion {expansion}: {why}")))?;
    }
    stages::check(args, &gpus, &manager)?;
    Ok(Server {
        gpus,
        manager,
        limits: Limits {
            sequences: args.max_sequences,
            tokens: args.max_tokens.unwrap_or(positions.clamp(2048, 8192)),
        },
        clients: args.clients,
        slo_s: args.slo_s_per_token,
        traffic: Background(args.traffic.clone()),
        logged: args.sweep.is_none() && (args.per_iteration.is_some() || !args.output.is_empty()),
        profile,
        model,
        dtype,
        compression,
        kv_bytes,
    })
}

/// Memory that the weights leave for the cache.
fn kv_left(
    (gpus, profile): (&Gpus, &HardwareProfile),
    (model, kept): (&ModelSpec, Kept),
) -> Result<Bytes, Failure> {
    gpus.kv_left(profile, model, kept).ok_or_else(|| {
        let usable = profile.tiers.device_usable();
        let (name, in_what) = (&model.name, kept.words());
        let (weights, whose) = match gpus.heaviest(model, kept) {
            Some((stage, bytes)) => (bytes, format!("stage {stage} of {} has", stages::count(gpus))),
            None => (kept.weights(model), "the GPU has".to_owned()),
        };
        let line = format!(
            "{whose} {weights} of {name}'s weights in {in_what}, and tensors may fill {usable} of {}'s device memory: \
             {} too little, before any cache; take {}a smaller model or a larger machine{}",
            profile.name,
            weights.saturating_sub(usable),
            in_4_bits((gpus, profile), (model, kept)),
            stages::more(gpus, profile)
        );
        Failure::new(Exit::Infeasible, line)
    })
}

/// The flag with which the weights would leave some memory, if there is one.
fn in_4_bits(
    (gpus, profile): (&Gpus, &HardwareProfile),
    (model, kept): (&ModelSpec, Kept),
) -> &'static str {
    let packed = Kept {
        compression: Compression::of(true, false),
        ..kept
    };
    match gpus.kv_left(profile, model, packed) {
        Some(_) => "--compress-weight (4 bits), ",
        None => "",
    }
}

/// Refuses a value of what a sweep changes.
fn check_swept(args: &Args) -> Result<(), Failure> {
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

/// Refuses what only other managers go by.
fn check_flags(args: &Args) -> Result<(), Failure> {
    use ManagerName::{Orca, Pie, S3, Vllm};
    let flags: [(_, _, &[ManagerName]); 10] = [
        ("--max-len", args.max_len.is_some(), &[Orca, S3]),
        ("--preemption", args.preemption.is_some(), &[Vllm]),
        ("--predictor", args.predict.predictor.is_some(), &[S3]),
        ("--accuracy", args.predict.accuracy.is_some(), &[S3]),
        ("--distance", args.predict.distance.is_some(), &[S3]),
        ("--wrong", args.predict.wrong.is_some(), &[S3]),
        ("--buckets", args.predict.buckets.is_some(), &[S3]),
        ("--reserve", args.reserve.is_some(), &[S3]),
        ("--expansion", args.expansion.is_some(), &[Pie]),
        ("--probe-after", args.probe_after.is_some(), &[Pie]),
    ];
    let foreign =
        |(_, given, whose): &(_, bool, &[ManagerName])| *given && !whose.contains(&args.manager);
    let Some((flag, _, whose)) = flags.into_iter().find(foreign) else {
        return check_probes(args);
    };
    let name = |it: ManagerName| format!("{it:?}").to_lowercase();
    let whose: Vec<String> = whose.iter().copied().map(name).collect();
    let line = format!(
        "{flag} is of --manager {}, and {} does not go by it; leave it out",
        whose.join(" or "),
        name(args.manager)
    );
    Err(Failure::new(Exit::Usage, line))
}

/// Refuses a word to the controller where expansions are given.
fn check_probes(args: &Args) -> Result<(), Failure> {
    let given = matches!(args.expansion, Some(Expansion::Fixed(_)));
    let swept = args.sweep.as_ref().map(|sweep| sweep.what) == Some(Swept::Expansion);
    match args.probe_after {
        Some(_) if given || swept => {
            let line =
                "--probe-after is of --expansion auto, and expansions are given; leave it out";
            Err(Failure::new(Exit::Usage, line))
        }
        _ => Ok(()),
    }
}

fn manager(args: &Args, positions: u32) -> Result<Manager, Failure> {
    check_flags(args)?;
    Ok(match args.manager {
        ManagerName::Orca => Manager::Orca {
            max_len: args.max_len.unwrap_or(positions),
        },
        ManagerName::Pie => Manager::Pie(match args.expansion {
            None | Some(Expansion::Auto(_)) => {
                let usual = Settings::default();
                Expansion::Auto(Settings {
                    probe_after: args.probe_after.unwrap_or(usual.probe_after),
                    ..usual
                })
            }
            Some(fixed @ Expansion::Fixed(_)) => fixed,
        }),
        ManagerName::S3 => Manager::S3 {
            prediction: args.predict.prediction(args.max_len.unwrap_or(positions))?,
            reserve: match args.reserve {
                Some(ReserveName::Output) => Reserve::Output,
                None | Some(ReserveName::All) => Reserve::All,
            },
        },
        ManagerName::Vllm => Manager::Vllm {
            preemption: match args.preemption {
                None | Some(PreemptionName::Recompute) => Preemption::Recompute,
                Some(PreemptionName::Swap) => Preemption::Swap,
            },
        },
    })
}
