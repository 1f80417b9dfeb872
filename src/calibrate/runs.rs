//! Measured runs, one a line of a CSV file, in FlexGen's terms.

use std::path::Path;

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::is_slip_of;
use plimsoll_core::lower::footprint;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::{Comm, Pipeline};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;

use super::Metric;
use crate::files::{CsvText, Header, InputError, find_model, read_text};
use crate::flexgen;
use crate::published::Printed;
use crate::report::count;

/// Columns that a file must have.
const NEEDED: [&str; 11] = [
    "model",
    "prompt_len",
    "gen_len",
    "gpu_batch_size",
    "num_gpu_batches",
    "wg",
    "wc",
    "cg",
    "cc",
    "hg",
    "hc",
];

/// Columns that it may have; all others are the reader's own notes.
const KNOWN: [&str; 18] = [
    "dtype",
    "compress_weight",
    "compress_cache",
    "sparse_attention",
    "overlap",
    "barrier",
    "stored_scores",
    "cpu_compute",
    "schedule",
    "stages",
    "micro_batches",
    "comm",
    "num_prompts",
    Metric::Throughput.name(),
    Metric::DecodeThroughput.name(),
    Metric::Latency.name(),
    "hw",
    "name",
];

/// What was measured of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measured {
    /// Generated tokens over the whole time.
    ThroughputTokS(f64),
    /// The whole time.
    Latency(Seconds),
    /// It did not fit.
    OutOfMemory,
}

/// One measured run.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRun {
    /// Its line in the file, the header being 1.
    pub line: u64,
    /// What the file calls it, or its policy in short.
    pub name: String,
    /// The profile that the file names for it; none: the caller's.
    pub hardware: Option<String>,
    /// What ran.
    pub model: ModelSpec,
    /// What weights, cache and activations were stored in.
    pub dtype: Dtype,
    /// What was asked.
    pub workload: Workload,
    /// How it ran; which host memory was page-locked depends on the machine, see
    /// [`RecordedRun::plan`].
    pub policy: Policy,
    /// What came out; none where only a prediction is wanted.
    pub measured: Option<Measured>,
    /// The measured number as it was printed, if there is one.
    pub printed: Option<Printed>,
    /// Decoding throughput as it was printed beside it, if it was.
    pub printed_decode: Option<Printed>,
}

/// More stages than this is a mistake in the file.
const STAGES_MAX: u32 = 1 << 16;

impl RecordedRun {
    /// What a run is of that does not say it, as all of FlexGen's; and what constants are fitted to.
    pub const DTYPE: Dtype = Dtype::F16;

    /// Whether a number was measured.
    pub fn has_number(&self) -> bool {
        matches!(
            self.measured,
            Some(Measured::ThroughputTokS(_) | Measured::Latency(_))
        )
    }

    /// Whether both ran the same on the same machine, whatever came out.
    pub fn is_alike(&self, other: &RecordedRun) -> bool {
        self.hardware == other.hardware
            && self.model == other.model
            && self.dtype == other.dtype
            && self.workload == other.workload
            && self.policy == other.policy
    }

    /// Whether both are the same run with the same result, whatever they are called.
    pub fn is_same_run(&self, other: &RecordedRun) -> bool {
        self.is_alike(other) && self.measured == other.measured
    }

    /// Refuses a run of more stages than its machine has GPUs. `path` is the file that it comes from.
    ///
    /// # Errors
    /// Its line, and what the machine has.
    pub fn check_gpus(&self, profile: &HardwareProfile, path: &Path) -> Result<(), InputError> {
        let (stages, gpus) = (self.policy.pipeline.stages, profile.num_gpus());
        if stages <= gpus {
            return Ok(());
        }
        let has = count(gpus.into(), "GPU");
        let problem = format!("stages is {stages}, and {} has {has}", profile.name);
        let remedy = "give a machine with as many (`hw`, or --hw), as t4x4 is";
        Err(InputError::bad_file(
            path,
            format!("line {}", self.line),
            problem,
            remedy,
        ))
    }

    /// The run as a plan for a machine.
    pub fn plan(&self, profile: &HardwareProfile) -> Plan {
        let mut policy = self.policy;
        let pipeline = &mut policy.pipeline;
        pipeline.stages_per_host = profile.gpus_per_host().min(pipeline.stages);
        policy.page_locked = flexgen::page_locked(profile, &self.model, self.dtype, &policy);
        Plan::given(self.model.clone(), self.dtype, self.workload, policy).on(profile)
    }
}

/// Reads measured runs. Columns: `model, prompt_len, gen_len, gpu_batch_size, num_gpu_batches, wg, wc, cg,
/// cc, hg, hc` (percentages on GPU and CPU of weights, cache and activations), and, if they are there,
/// `dtype` (f16, bf16 or f32; f16 where it says nothing), `compress_weight, compress_cache,
/// sparse_attention` (the share of the values that decode reads), `overlap, barrier, stored_scores,
/// cpu_compute, schedule, stages, micro_batches, comm` (`device` or `host`), `num_prompts`, what was
/// measured (`throughput_tok_s`, a number or `OOM`, else `latency_s`; and `decode_throughput_tok_s`), `hw`
/// and `name`.
///
/// # Errors
/// What is wrong, with its line and column.
pub fn read_runs(path: &Path) -> Result<Vec<RecordedRun>, InputError> {
    let text = read_text(path)?;
    let remedy = "write as many values as the header has columns";
    let file = CsvText::new(path, &text, remedy);
    let header = file.header()?;
    header.check_has(&NEEDED)?;
    check_spelling(&header)?;
    // A reader's own notes may be.
    header.check_once(|name| NEEDED.contains(&name) || KNOWN.contains(&name))?;
    let mut runs = Vec::new();
    for row in file.rows() {
        let (line, record) = row?;
        let header = &header;
        let row = Row {
            path,
            line,
            header,
            record,
        };
        runs.push(row.checked()?);
    }
    if runs.is_empty() {
        let remedy = "write a line a run under the header";
        return Err(header.nothing_below("no runs", remedy));
    }
    Ok(runs)
}

/// A reader's own columns are left alone, unless one is all but the name of one that is missing.
fn check_spelling(header: &Header<'_>) -> Result<(), InputError> {
    let missing = || KNOWN.iter().filter(|known| header.place(known).is_none());
    for column in header.names() {
        let meant = missing().find(|known| is_slip_of(column, known));
        if let Some(meant) = meant {
            let problem = format!("the column `{column}` is not known");
            return Err(header.wrong(problem, format!("did you mean `{meant}`?")));
        }
    }
    Ok(())
}

/// One line with the names of its values.
struct Row<'a> {
    path: &'a Path,
    line: u64,
    header: &'a Header<'a>,
    record: csv::StringRecord,
}

impl Row<'_> {
    /// A run that means something, on a machine of any size.
    fn checked(&self) -> Result<RecordedRun, InputError> {
        let run = self.run()?;
        let mut plan = Plan::given(run.model.clone(), run.dtype, run.workload, run.policy);
        // Of one host there may be most stages; how many there are, only the machine says.
        plan.policy.pipeline.stages_per_host = plan.policy.pipeline.stages;
        footprint(&plan).map_err(|error| self.said("", &error.to_string()))?;
        Ok(run)
    }

    fn run(&self) -> Result<RecordedRun, InputError> {
        let (model, dtype) = (self.model()?, self.dtype()?);
        let policy = self.policy()?;
        let workload = Workload {
            prompt_len: self.need("prompt_len")?,
            gen_len: self.need("gen_len")?,
            num_prompts: self.maybe("num_prompts")?,
        };
        let name = match self.text("name") {
            "" => short_name((&model, dtype), &policy, &workload),
            name => name.to_owned(),
        };
        Ok(RecordedRun {
            line: self.line,
            name,
            hardware: Some(self.text("hw").to_owned()).filter(|hw| !hw.is_empty()),
            model,
            dtype,
            workload,
            policy,
            measured: self.measured()?,
            printed: Printed::parse(self.text(Metric::Throughput.name()))
                .or_else(|| Printed::parse(self.text(Metric::Latency.name()))),
            printed_decode: self.printed_decode()?,
        })
    }

    fn model(&self) -> Result<ModelSpec, InputError> {
        let name = self.text("model");
        let found = find_model(name).or_else(|_| find_model(&name.to_lowercase()));
        let found = found.map_err(|error| {
            let said = error.to_string();
            self.said("model", said.strip_prefix("--model: ").unwrap_or(&said))
        })?;
        Ok(found.spec)
    }

    fn dtype(&self) -> Result<Dtype, InputError> {
        let text = self.text("dtype");
        let named = Dtype::ALL.into_iter().find(|dtype| dtype.name() == text);
        match (text, named) {
            ("", _) => Ok(RecordedRun::DTYPE),
            (_, Some(dtype)) => Ok(dtype),
            (other, None) => {
                let problem = format!("`{other}` is no type of elements");
                Err(self.wrong("dtype", problem, "give f16, bf16 or f32"))
            }
        }
    }

    fn policy(&self) -> Result<Policy, InputError> {
        let mut percent = [0.0; 6];
        for (slot, column) in percent.iter_mut().zip(&NEEDED[5..]) {
            *slot = self.need(column)?;
        }
        let batch = self.need("gpu_batch_size")?;
        let policy = Policy::from_percent(batch, self.need("num_gpu_batches")?, percent)
            .map_err(|error| self.wrong("wg to hc", error.to_string(), "correct the line"))?;
        let policy = Policy {
            schedule: self.schedule()?,
            overlap: self.switch("overlap", true)?,
            barrier: self.switch("barrier", policy.barrier)?,
            stored_scores: self.switch("stored_scores", policy.stored_scores)?,
            cpu_attention: self.switch("cpu_compute", false)?,
            compression: Compression {
                weights: self.switch("compress_weight", false)?,
                cache: self.switch("compress_cache", false)?,
            },
            sparse_attention: self.maybe("sparse_attention")?.unwrap_or(DENSE),
            pipeline: self.pipeline()?,
            ..policy
        };
        policy
            .validate()
            .map_err(|error| self.wrong("policy", error.to_string(), "correct the line"))?;
        Ok(policy)
    }

    /// How many stages share a host depends on the machine.
    fn pipeline(&self) -> Result<Pipeline, InputError> {
        let stages = self.maybe("stages")?.unwrap_or(1);
        if stages > STAGES_MAX {
            let problem = format!("is {stages}: no machine has so many GPUs");
            return Err(self.wrong("stages", problem, "give how many stages a pipeline had"));
        }
        Ok(Pipeline {
            stages,
            micro_batches: self.maybe("micro_batches")?.unwrap_or(stages),
            comm: match self.text("comm") {
                "" | "device" => Comm::Device,
                "host" => Comm::Host,
                other => {
                    let problem = format!("`{other}` is no way between stages");
                    return Err(self.wrong("comm", problem, "give device or host"));
                }
            },
            ..Pipeline::default()
        })
    }

    fn printed_decode(&self) -> Result<Option<Printed>, InputError> {
        let column = Metric::DecodeThroughput.name();
        match self.text(column) {
            "" => Ok(None),
            text => Printed::parse(text).map(Some).ok_or_else(|| {
                let problem = format!("`{text}` is no number above 0");
                self.wrong(column, problem, "give one, or nothing")
            }),
        }
    }

    fn schedule(&self) -> Result<Schedule, InputError> {
        match self.text("schedule") {
            "" | "zigzag" => Ok(Schedule::ZigZag),
            "row" => Ok(Schedule::Row),
            "diagonal" => Ok(Schedule::Diagonal),
            other => {
                let problem = format!("`{other}` is no schedule");
                Err(self.wrong("schedule", problem, "give row, zigzag or diagonal"))
            }
        }
    }

    fn measured(&self) -> Result<Option<Measured>, InputError> {
        let throughput = Metric::Throughput.name();
        if self.text(throughput).eq_ignore_ascii_case("oom") {
            return Ok(Some(Measured::OutOfMemory));
        }
        for (column, of) in [
            (throughput, Measured::ThroughputTokS as fn(f64) -> _),
            (Metric::Latency.name(), |s| Measured::Latency(Seconds(s))),
        ] {
            match self.maybe::<f64>(column)? {
                Some(value) if value > 0.0 && value.is_finite() => return Ok(Some(of(value))),
                Some(value) => {
                    let problem = format!("is {value}");
                    return Err(self.wrong(column, problem, "give a number above 0, or nothing"));
                }
                None => {}
            }
        }
        Ok(None)
    }

    fn text(&self, column: &str) -> &str {
        let index = self.header.place(column);
        index.and_then(|i| self.record.get(i)).unwrap_or("")
    }

    fn maybe<T: std::str::FromStr>(&self, column: &str) -> Result<Option<T>, InputError> {
        let text = self.text(column);
        if text.is_empty() {
            return Ok(None);
        }
        let value = text.parse::<T>().map_err(|_| {
            let problem = format!("`{text}` is not such a number");
            self.wrong(column, problem, "give a number, whole where it counts")
        })?;
        Ok(Some(value))
    }

    fn need<T: std::str::FromStr>(&self, column: &str) -> Result<T, InputError> {
        let value = self.maybe(column)?;
        value.ok_or_else(|| self.wrong(column, "is empty".to_owned(), "give a number"))
    }

    fn switch(&self, column: &str, default: bool) -> Result<bool, InputError> {
        match self.text(column).to_ascii_lowercase().as_str() {
            "" => Ok(default),
            "true" | "on" | "yes" | "1" => Ok(true),
            "false" | "off" | "no" | "0" => Ok(false),
            other => {
                let problem = format!("`{other}` is neither true nor false");
                Err(self.wrong(column, problem, "give true or false, on or off"))
            }
        }
    }

    /// An error in somebody else's words, problem and remedy in one.
    fn said(&self, column: &str, said: &str) -> InputError {
        InputError::said_of_line(self.path, self.line, column, said)
    }

    fn wrong(&self, column: &str, problem: String, remedy: &str) -> InputError {
        let place = format!("line {}, {column}", self.line);
        InputError::bad_file(self.path, place, problem, remedy)
    }
}

/// The policy in the way that FlexGen's tables print it.
fn short_name((model, dtype): (&ModelSpec, Dtype), policy: &Policy, workload: &Workload) -> String {
    let mut name = format!(
        "{} {}/{} {}",
        model.name,
        workload.prompt_len,
        workload.gen_len,
        flexgen::tuple(policy)
    );
    for (said, is) in [
        (" w4", policy.compression.weights),
        (" c4", policy.compression.cache),
        (" cpu", policy.cpu_attention),
        (" sparse", policy.sparse_attention < DENSE),
        (" serial", !policy.overlap),
        (" without barrier", !policy.barrier),
        (" scores not stored", !policy.stored_scores),
        (" row", policy.schedule == Schedule::Row),
        (" diagonal", policy.schedule == Schedule::Diagonal),
    ] {
        if is {
            name.push_str(said);
        }
    }
    if dtype != RecordedRun::DTYPE {
        name.push_str(&format!(" {}", dtype.name()));
    }
    if policy.pipeline.stages > 1 {
        name.push_str(&format!(" over {} stages", policy.pipeline.stages));
    }
    name
}
