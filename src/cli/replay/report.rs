//! What is printed of a trace that was served.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::extrapolation::Extrapolation;
use plimsoll_core::hardware::Slowness;
use plimsoll_core::serve::predict::Score;
use plimsoll_core::serve::{Refusal, ServeSummary};
use plimsoll_core::traffic::Traffic;
use plimsoll_core::units::Bytes;
use serde::Serialize;
use serde_json::json;

use super::execute::Measured;
use super::stages;
use crate::cli::exit::{Exit, Failure};
use crate::cli::options::Format;
use crate::cli::output::{complain, print, print_json};
use crate::cli::what_if::WhatIf;
use crate::report::serve::{prediction_text, serve_text, traffic_text};
use crate::report::{beyond_text, count};
use crate::serve::gpus::Gpus;
use crate::serve::replay::{Replayed, Server};

#[derive(Serialize)]
struct Report<'a> {
    hardware: &'a str,
    /// Memory that it was asked about with.
    if_it_had: WhatIf,
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
    /// Of an iteration, at most.
    max_sequences: u32,
    max_tokens: u32,
    /// Of a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<u32>,
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

impl Refused<'_> {
    fn of(refusal: &Refusal) -> Refused<'_> {
        Refused {
            request: refusal.request,
            why: &refusal.why,
        }
    }
}

pub(super) const NONE_SERVED: &str = "no request can be served";

/// With what, and why.
pub(super) fn none_served(with: &str, why: &str) -> anyhow::Error {
    let line = format!("{with}{NONE_SERVED}: {why}");
    Failure::new(Exit::Infeasible, line).into()
}

/// That nothing can be served, for programs, as a plan says that none fits.
pub(super) fn tell_infeasible(format: Format, failure: &anyhow::Error) {
    let failure = failure.downcast_ref::<Failure>();
    let line = failure.filter(|it| it.exit == Exit::Infeasible);
    if let (Format::Json, Some(line)) = (format, line) {
        // Whether it can be printed or not, the exit code says it.
        let _ = print_json(&json!({ "infeasible": { "why": line.to_string() } }));
    }
}

/// Refusals that are told one by one.
const TOLD: usize = 10;

/// Says which requests are refused, and why.
pub(super) fn complain_of(refusals: &[Refusal]) {
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

/// Prints what became of a trace's requests, in modelled time and, where it was served for real, beside that.
pub(super) fn print_replayed(
    format: Format,
    ((server, what_if), requests): ((&Server, WhatIf), usize),
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
                "{} in {} on {}{}: {}, {manager} over {} of KV cache",
                server.model.name,
                server.kept().words(),
                server.profile.name,
                stages::text(&server.gpus),
                count(requests as u64, "request"),
                server.kv_bytes
            );
            let traffic = traffic_text(&server.traffic);
            let beside = measured.map_or(String::new(), |it| it.text(summary));
            let learnt = replayed.prediction.as_ref();
            let learnt = learnt.map_or(String::new(), |it| {
                format!("\n{}", prediction_text("who learnt", it))
            });
            let beyond = beyond_text(&replayed.extrapolates);
            let machine = what_if.note(&server.profile);
            print(
                &(serve_text(&title, summary) + &machine + &beyond + &traffic + &learnt + &beside),
            )
        }
        Format::Json => print_json(&Report {
            hardware: &server.profile.name,
            if_it_had: what_if,
            model: &server.model.name,
            dtype: server.dtype.name(),
            compression: server.compression,
            rates_of: server.rates_of(),
            manager,
            stages: pipeline.map(|of| of.stages),
            micro_batches: pipeline.map(|of| of.micro_batches),
            kv_bytes: server.kv_bytes,
            max_sequences: server.limits.sequences,
            max_tokens: server.limits.tokens,
            clients: server.clients,
            requests,
            summary,
            refused_requests: replayed.refusals.iter().map(Refused::of).collect(),
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
