//! `plimsoll workload generate|describe`: traces of requests.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use plimsoll_core::serve::Distribution;

use super::exit::{Exit, Failure};
use super::options::{Format, TimeUnitName, positive};
use super::output::{Outputs, print, print_json, written_to};
use crate::files::{is_file, is_standard_output, write_text};
use crate::report::serve::prediction_text;
use crate::report::{Align, Table, count, three_digits};
use crate::serve::workload::{
    Arrivals, Description, GenerateError, Generator, Lengths, read_trace, trace_csv, trace_jsonl,
};

/// What to do with traces.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Make up a trace: arrivals and lengths by distributions
    Generate(Generate),
    /// A trace in a few numbers
    Describe {
        /// CSV (arrived_at,num_prefill_tokens,num_decode_tokens; TIMESTAMP,ContextTokens,GeneratedTokens; BurstGPT's
        /// Timestamp,...,Request tokens,Response tokens,...) or JSON lines (timestamp, input_length, output_length, and the prompt if there is one: a text or token ids); - reads standard input
        #[arg(value_name = "FILE", required_unless_present = "same")]
        trace: Option<PathBuf>,
        /// The same, as `replay` has it
        #[arg(
            long = "trace",
            value_name = "FILE",
            conflicts_with = "trace",
            id = "same"
        )]
        same: Option<PathBuf>,
        /// What times count that are numbers [default: s, and ms where rows have Mooncake's hash_ids]
        #[arg(long, value_enum, value_name = "UNIT")]
        time_unit: Option<TimeUnitName>,
        /// Buckets that the longest answer is cut into, to say how well answers are predicted
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        buckets: u32,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
}

/// A trace in a few flags.
#[derive(Debug, clap::Args)]
pub struct Generate {
    /// When requests come
    #[arg(long, value_enum, default_value_t = ArrivalsName::Poisson)]
    arrivals: ArrivalsName,
    /// Requests a second, on average
    #[arg(long, value_name = "R", value_parser = positive, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Deviation over mean of the times between requests; above 1 they come in bursts
    /// [default: 2]
    #[arg(long, value_name = "CV", value_parser = positive)]
    cv: Option<f64>,
    /// Both lengths as a data set has them
    #[arg(long, value_enum, default_value_t = Dataset::Alpaca)]
    lengths: Dataset,
    /// Tokens of prompts: a table (alpaca-prompt), constant:N, uniform:LOW,HIGH, exponential:MEAN, lognormal:MU,SIGMA,
    /// gamma:SHAPE,SCALE or weibull:SHAPE,SCALE [default: by --lengths]
    #[arg(long, value_name = "DISTRIBUTION")]
    prompt: Option<Lengths>,
    /// Tokens of answers, likewise
    #[arg(long, value_name = "DISTRIBUTION")]
    output_lengths: Option<Lengths>,
    /// Tokens of a prompt and its answer at most; what is longer is drawn again
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    total_max: Option<u32>,
    /// How many requests
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// The same seed gives the same trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Where to write: CSV where it ends in .csv, JSON lines where in .jsonl [default: CSV on standard output, as with -]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Kinds of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArrivalsName {
    /// Independently of each other.
    Poisson,
    /// In bursts (--cv).
    Gamma,
    /// All at time 0; for a closed loop, replay such a trace with --clients.
    AtOnce,
}

/// Lengths of published data sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Dataset {
    /// Instructions and answers of Alpaca, GPT-2's tokens: measured quantiles.
    Alpaca,
    /// Conversations of ShareGPT: only the means 161.31 and 337.99 are published (vLLM, Figure 11), taken to be
    /// exponential.
    Sharegpt,
    /// Azure's trace of 2023, code completion: measured quantiles.
    AzureCode,
    /// The same, conversations.
    AzureConv,
}

impl Dataset {
    /// Distributions of prompts and of answers.
    pub(super) fn lengths(self) -> [Lengths; 2] {
        let names = match self {
            Dataset::Alpaca => ["alpaca-prompt", "alpaca-output"],
            Dataset::Sharegpt => ["exponential:161.31", "exponential:337.99"],
            Dataset::AzureCode => ["azure-code-prompt", "azure-code-output"],
            Dataset::AzureConv => ["azure-conv-prompt", "azure-conv-output"],
        };
        names.map(|name| name.parse().expect("a known distribution"))
    }
}

/// Generates or describes.
///
/// # Errors
/// A trace that is not there or not right; a file that cannot be written.
pub fn run(action: &Action) -> anyhow::Result<()> {
    match action {
        Action::Generate(args) => generate(args),
        Action::Describe {
            trace,
            same,
            time_unit,
            buckets,
            format,
        } => {
            let trace = trace.iter().chain(same).next().expect("one is required");
            let trace = read_trace(trace, time_unit.map(Into::into))?;
            let description = Description::of_trace(&trace, *buckets);
            match format {
                Format::Json => print_json(&description),
                Format::Text => print(&description_text(&description)),
            }
        }
    }
}

fn generate(args: &Generate) -> anyhow::Result<()> {
    Outputs::of([("--output", args.output.as_deref())]).check()?;
    let kind = kind_of(args.output.as_deref())?;
    let rate = || {
        let line = "--rate: how many requests come a second? give it, or --arrivals at-once";
        args.rate.ok_or_else(|| Failure::new(Exit::Usage, line))
    };
    if args.cv.is_some() && !matches!(args.arrivals, ArrivalsName::Gamma) {
        let line =
            "--cv: is how requests that come in bursts do; give --arrivals gamma, or leave it out";
        return Err(Failure::new(Exit::Usage, line).into());
    }
    let [prompt, output] = args.lengths.lengths();
    let generator = Generator {
        arrivals: match args.arrivals {
            ArrivalsName::Poisson => Arrivals::Poisson { rate: rate()? },
            ArrivalsName::Gamma => Arrivals::Gamma {
                rate: rate()?,
                cv: args.cv.unwrap_or(2.0),
            },
            ArrivalsName::AtOnce if args.rate.is_some() => {
                let line = "--rate: requests that come at once have no rate; leave it out";
                return Err(Failure::new(Exit::Usage, line).into());
            }
            ArrivalsName::AtOnce => Arrivals::AtOnce,
        },
        prompt: args.prompt.clone().unwrap_or(prompt),
        output: args.output_lengths.clone().unwrap_or(output),
        total_max: args.total_max,
        requests: args.requests as usize,
        seed: args.seed,
    };
    let refused = |error: GenerateError| {
        let line = match error {
            GenerateError::TooLong { .. } => {
                format!("--total-max: {error}; give more, or shorter lengths")
            }
            GenerateError::TooLate { .. } => format!("--rate: {error}; give a higher rate"),
        };
        Failure::new(Exit::Usage, line)
    };
    let requests = generator.requests().map_err(refused)?;
    let text = match kind {
        Kind::Csv => trace_csv(&requests),
        Kind::JsonLines => trace_jsonl(&requests),
    };
    match &args.output {
        Some(path) => {
            write_text(path, &text)?;
            print(&written_to(path))
        }
        None => print(&text),
    }
}

/// How a trace is written.
#[derive(Clone, Copy)]
enum Kind {
    Csv,
    JsonLines,
}

/// By the name of the file; what is no file, as our own output, has no such name.
fn kind_of(output: Option<&Path>) -> Result<Kind, Failure> {
    let Some(path) = output else {
        return Ok(Kind::Csv);
    };
    match path.extension().and_then(|it| it.to_str()) {
        Some("csv") => Ok(Kind::Csv),
        Some("jsonl") => Ok(Kind::JsonLines),
        _ if !is_file(path) || is_standard_output(path) => Ok(Kind::Csv),
        _ => {
            let file = path.display();
            let line = format!(
                "--output {file}: its name says no kind of trace; end it in .csv or, for JSON lines, in .jsonl"
            );
            Err(Failure::new(Exit::Usage, line))
        }
    }
}

fn description_text(of: &Description) -> String {
    let mut table = Table::new(&[
        ("tokens", Align::Left),
        ("mean", Align::Right),
        ("p50", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
        ("max", Align::Right),
    ]);
    for (
        name,
        Distribution {
            mean,
            p50,
            p90,
            p99,
            max,
        },
    ) in [("prompt", of.prompt_len), ("answer", of.output_len)]
    {
        let cells = [mean, p50, p90, p99, max].map(three_digits);
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    let arrivals = match of.rate.zip(of.interarrival_cv) {
        Some((rate, cv)) => format!(
            "{} over {} s: {} a second, gaps vary by {} of their mean",
            count(of.requests as u64, "request"),
            three_digits(of.duration_s),
            three_digits(rate),
            three_digits(cv)
        ),
        None => format!("{}, all at once", count(of.requests as u64, "request")),
    };
    let learnt = of.prediction.as_ref().map_or(String::new(), |it| {
        let known = match of.prompts_with_text {
            0 => "prompts' lengths (their texts are not in the trace)".to_owned(),
            texts => format!("lengths and {texts} texts of prompts"),
        };
        prediction_text(&known, it)
    });
    format!(
        "{arrivals}\n{} prompt tokens, {} of answers; the longest request has {} of both\n{learnt}\n{table}",
        of.prompt_tokens, of.output_tokens, of.total_max
    )
}
