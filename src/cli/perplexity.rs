//! `plimsoll perplexity`: what compression and sparse attention do to a model's predictions of a text.

use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use plimsoll_backend::weights::Safetensors;
use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::model::ModelSpec;
use serde::Serialize;

use super::Progress;
use super::exit::{Exit, Failure};
use super::options::{DtypeName, TableFormat, share_of_values};
use super::output::{print, print_json};
use super::profile::cpu_options;
use crate::files::{FoundModel, InputError, Tokenizer, find_model, read_text};
use crate::perplexity::{Row, Setting, Subject, Windows, measure, settings};
use crate::report::{Align, Table, count, three_digits, to_csv};

/// A checkpoint, a text, and what to compare.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder with a Hugging Face checkpoint and its tokenizer.json
    #[arg(long, value_name = "DIR")]
    model: String,
    /// The text (UTF-8), best one that the model was not trained on
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Types of weights, cache and activations; the first is what all else is compared with [default: what
    /// the model's config.json says (dtype, or torch_dtype), else f16]
    #[arg(long, value_enum, value_delimiter = ',')]
    dtype: Vec<DtypeName>,
    /// Tokens of a window, of which half are prefilled and the rest decoded one by one [default: 512, or
    /// what the model sees if that is less]
    #[arg(long, value_name = "TOKENS", value_parser = tokens_of_window, allow_negative_numbers = true)]
    context: Option<u32>,
    /// Apply 4-bit weights, and compare (plan and run only allow them)
    #[arg(long)]
    compress_weight: bool,
    /// Apply a 4-bit KV cache, and compare (plan and run only allow it)
    #[arg(long)]
    compress_cache: bool,
    /// Compare decode that reads only this share of the values, those of the largest weights; several
    /// may be given
    #[arg(long, value_name = "SHARE", value_parser = share_of_values, value_delimiter = ',',
          allow_negative_numbers = true)]
    sparse_attention: Vec<f64>,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    format: TableFormat,
}

const CONTEXT: u32 = 512;

/// What `--format json` prints.
#[derive(Serialize)]
struct Report<'a> {
    device: &'static str,
    model: &'a str,
    text: String,
    tokens: usize,
    context: u32,
    windows: usize,
    rows: &'a [Row],
}

/// Executes and prints.
///
/// # Errors
/// Input that is wrong, a model that cannot be executed, or an interruption.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let model = find_model(&args.model).map_err(|error| match error {
        // Known models have no weights.
        InputError::UnknownName(_) => lacks(args, "is no folder"),
        wrong => wrong,
    })?;
    let (source, tokenizer) = checkpoint(args, &model)?;
    let ids = tokens(&args.text, &tokenizer, &model.spec)?;
    let context = context(args, &model.spec)?;
    let windows = Windows::of(&ids, context);
    if windows.is_empty() {
        return Err(too_short(args, ids.len(), context).into());
    }
    let settings = asked(args, &model)?;
    // Nothing else has work meanwhile.
    let cores = available_parallelism().map_or(1, usize::from);
    let cpu = cpu_options(Path::new("."), cores as u32)?;
    let progress = Progress::new("windows", (windows.len() * settings.len()) as u64);
    let subject = Subject {
        model: &model.spec,
        source: &source,
        cpu: &cpu,
    };
    let rows = measure(&subject, &windows, &settings, &mut |done| {
        progress.set(done)
    })?;
    drop(progress);
    let report = Report {
        device: "emulated",
        model: &model.spec.name,
        text: args.text.display().to_string(),
        tokens: ids.len(),
        context,
        windows: windows.len(),
        rows: &rows,
    };
    match args.format {
        TableFormat::Json => print_json(&report),
        TableFormat::Csv => print(&String::from_utf8(to_csv(&rows)?)?),
        TableFormat::Text => print(&text(&report)),
    }
}

fn asked(args: &Args, model: &FoundModel) -> Result<Vec<Setting>, InputError> {
    let mut dtypes: Vec<Dtype> = args.dtype.iter().map(|name| Dtype::from(*name)).collect();
    if dtypes.is_empty() {
        dtypes.push(model.dtype(None)?);
    }
    let compression = Compression::of(args.compress_weight, args.compress_cache);
    Ok(settings(&dtypes, compression, &args.sparse_attention))
}

/// Tokens of a window, as a flag.
fn tokens_of_window(text: &str) -> Result<u32, String> {
    let least = Windows::CONTEXT_MIN;
    match text.parse() {
        Ok(tokens) if tokens >= least => Ok(tokens),
        _ => Err(format!(
            "give a whole number of tokens, from {least} to what the model sees"
        )),
    }
}

/// That a text does not fill a window.
fn too_short(args: &Args, tokens: usize, context: u32) -> InputError {
    let found = count(tokens as u64, "token");
    let least = Windows::CONTEXT_MIN;
    let (problem, remedy) = match tokens < least as usize {
        true => (
            format!("has {found}, and the shortest window has {least}"),
            "give a text to predict",
        ),
        false => (
            format!("has {found}, a window has {context}"),
            "give a longer text, or lower --context",
        ),
    };
    InputError::bad_whole_file(&args.text, problem, remedy)
}

/// That the model has not what is needed to measure it.
fn lacks(args: &Args, what: &str) -> InputError {
    let remedy =
        "give a folder with a trained model's config.json, model.safetensors and tokenizer.json";
    InputError::BadFile(format!("--model {}: {what}; {remedy}", args.model))
}

/// Weights and tokenizer, both of which must be there.
fn checkpoint(args: &Args, model: &FoundModel) -> anyhow::Result<(Safetensors, Tokenizer)> {
    let folder = model.checkpoint()?;
    let folder = folder.ok_or_else(|| lacks(args, "has no weights (model.safetensors)"))?;
    let tokenizer = Tokenizer::find(folder)?;
    let tokenizer = tokenizer.ok_or_else(|| lacks(args, "has no tokenizer.json"))?;
    let checkpoint = Safetensors::open(folder, &model.spec)?;
    checkpoint.check(&model.spec)?;
    Ok((checkpoint, tokenizer))
}

fn tokens(path: &Path, tokenizer: &Tokenizer, model: &ModelSpec) -> Result<Vec<u32>, InputError> {
    let ids = tokenizer.encode(&read_text(path)?);
    let wrong = |problem: String, remedy: &str| InputError::bad_whole_file(path, problem, remedy);
    let ids = ids.map_err(|why| wrong(why, "correct the text, or the tokenizer.json"))?;
    match ids.iter().find(|id| **id >= model.vocab_size) {
        Some(id) => {
            let problem = format!("token {id} is outside of {}'s vocabulary", model.name);
            Err(wrong(problem, "give the model its own tokenizer.json"))
        }
        None => Ok(ids),
    }
}

fn context(args: &Args, model: &ModelSpec) -> Result<u32, Failure> {
    let sees = model.max_position_embeddings;
    match args.context {
        Some(asked) if asked > sees => {
            let line = format!("--context {asked}: {} sees {sees}; lower it", model.name);
            Err(Failure::new(Exit::Usage, line))
        }
        Some(asked) => Ok(asked),
        None => Ok(CONTEXT.min(sees)),
    }
}

fn text(report: &Report<'_>) -> String {
    let mut table = Table::new(&[
        ("", Align::Left),
        ("perplexity", Align::Right),
        ("change", Align::Right),
        ("KL, nats", Align::Right),
        ("same token", Align::Right),
    ]);
    for row in report.rows {
        table.row([
            row.setting.clone(),
            format!("{:.3}", row.perplexity),
            format!("{:+.2}%", 100.0 * row.change),
            three_digits(row.kl_divergence),
            format!("{:.1}%", 100.0 * row.same_token),
        ]);
    }
    let scored = report.rows.first().map_or(0, |row| row.scored_tokens);
    let first = report.rows.first().map_or("", |row| &row.setting);
    format!(
        "{} on {}: {}, of which {scored} are scored; {} of {}, the second half decoded token by token\n\
         change, KL divergence and same likeliest token: beside {first}; all executed on an emulated device\n\n\
         {table}",
        report.model,
        report.text,
        count(report.tokens as u64, "token"),
        count(report.windows as u64, "window"),
        report.context,
    )
}
