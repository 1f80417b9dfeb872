//! `plimsoll plan --prompt-lens`: prompts of different lengths.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::json;

use super::exit::{Exit, Failure};
use super::options::Format;
use super::output::{complain, print, print_json};
use crate::files::{PlanFile, plan_json, write_text};
use crate::padding::{Batches, Totals};
use crate::report::plan::{duration, policy_in_short};
use crate::report::rates_text;
use crate::report::{Align, Table, count, percent, three_digits};

/// Prompts of different lengths.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LengthArgs {
    /// Prompts of different lengths: a file with a length a line, or a CSV with the column prompt_len,
    /// num_prefill_tokens, ContextTokens or input_length
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_len", "num_prompts", "max_latency_s"])]
    pub prompt_lens: Option<PathBuf>,
    /// What such prompts are padded to
    #[arg(long, value_enum, default_value_t = Padding::Longest, requires = "prompt_lens")]
    pub padding: Padding,
}

/// What prompts are padded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Padding {
    /// The longest prompt of all, as FlexGen does.
    Longest,
    /// The longest of their bucket: one bucket more, up to 8, as long as that answers all prompts sooner. With
    /// --output each bucket has a file: plan.512.json for prompts padded to 512.
    Buckets,
}

/// More buckets take long to plan, and each has the more of a last block that is not full.
const BUCKETS_MAX: usize = 8;

impl Padding {
    pub fn buckets_max(self) -> usize {
        match self {
            Padding::Longest => 1,
            Padding::Buckets => BUCKETS_MAX,
        }
    }
}

/// Prints and writes the plans of all buckets.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn report(
    batches: &Batches,
    notes: &str,
    format: Format,
    output: Option<&Path>,
) -> anyhow::Result<()> {
    // A file that cannot be written does not cost the answer.
    let written = output.map_or(Ok(Vec::new()), |path| write(batches, path));
    let several = written.as_ref().is_ok_and(|files| files.len() > 1);
    if let Some(path) = output.filter(|path| several && path.exists()) {
        complain(&format!(
            "note: {} was there before and is not of these plans, which have a file each",
            path.display()
        ));
    }
    let totals = batches.totals();
    let printed = match format {
        Format::Text => {
            let files = written.iter().flatten().map(|path| path.display());
            let files = files.map(|path| format!("written    {path}\n"));
            print(&(text(batches, &totals) + notes + &files.collect::<String>()))
        }
        Format::Json => {
            let buckets = batches.buckets.iter();
            let buckets = buckets.map(|(bucket, p)| json!({ "bucket": bucket, "plan": p.plan }));
            print_json(&json!({ "buckets": buckets.collect::<Vec<_>>(), "totals": totals }))
        }
    };
    written?;
    printed
}

/// The plan of each bucket to a file of its own; which ones.
fn write(batches: &Batches, path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for (bucket, planned) in &batches.buckets {
        let text = plan_json(&PlanFile {
            plan: &planned.plan,
            search: None,
        });
        let path = beside(path, bucket.prompt_len, batches.buckets.len())?;
        write_text(&path, &text)?;
        written.push(path);
    }
    Ok(written)
}

/// `plan.json` is where a single plan goes; of several, one goes to `plan.512.json`.
fn beside(path: &Path, prompt_len: u32, plans: usize) -> Result<PathBuf, Failure> {
    if plans == 1 {
        return Ok(path.to_owned());
    }
    let stem = path.file_stem().map(|stem| stem.to_string_lossy());
    let stem = stem.ok_or_else(|| {
        let line = format!("--output {}: is no file name; give one", path.display());
        Failure::new(Exit::Usage, line)
    })?;
    let end = path.extension().map(|end| end.to_string_lossy());
    let end = end.map_or(String::new(), |end| format!(".{end}"));
    Ok(path.with_file_name(format!("{stem}.{prompt_len}{end}")))
}

fn text(batches: &Batches, totals: &Totals) -> String {
    let mut table = Table::new(&[
        ("prompts of", Align::Right),
        ("padded to", Align::Right),
        ("prompts", Align::Right),
        ("real tokens", Align::Right),
        ("latency", Align::Right),
        ("generated", Align::Right),
        ("plan", Align::Left),
    ]);
    for (bucket, planned) in &batches.buckets {
        let prediction = planned.plan.prediction.as_ref();
        let padded = bucket.prompts * u64::from(bucket.prompt_len);
        table.row([
            match bucket.shortest == bucket.prompt_len {
                true => bucket.shortest.to_string(),
                false => format!("{} to {}", bucket.shortest, bucket.prompt_len),
            },
            bucket.prompt_len.to_string(),
            bucket.prompts.to_string(),
            percent(bucket.prompt_tokens as f64 / padded as f64),
            prediction.map_or(String::new(), |p| duration(p.latency_s)),
            prediction.map_or(String::new(), |p| {
                format!("{} tok/s", three_digits(p.throughput_tok_s))
            }),
            policy_in_short(&planned.plan),
        ]);
    }
    let plan = batches.buckets.first().map(|(_, planned)| &planned.plan);
    let heading = plan.map_or(String::new(), |plan| {
        let (model, dtype) = (&plan.model.name, plan.dtype.name());
        format!("{model} in {dtype} on {}: ", plan.provenance.hardware)
    });
    let text = format!(
        "{heading}{}, {} generated each\n\n{table}\n\
         in all     {}; {} tok/s generated\n\
         tokens     {} tok/s of prompts and answers with padding, {} without: {} of them are real\n\
         real       tokens of the prompts themselves (their share is in the table; in all, answers count too); \
         the rest is padding in front of prompts shorter than the longest of their bucket\n",
        count(totals.prompts, "prompt"),
        batches.gen_len,
        duration(totals.latency_s),
        three_digits(totals.throughput_tok_s),
        three_digits(totals.padded_tok_s),
        three_digits(totals.actual_tok_s),
        percent(totals.efficiency),
    );
    let rates = plan.and_then(rates_text);
    text + &rates.map_or(String::new(), |said| format!("rates      {said}\n"))
}
