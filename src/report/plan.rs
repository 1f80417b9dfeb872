//! Plans and predictions for people.

use std::fmt::Write;
use std::ops::Range;

use plimsoll_core::batch_shape::BatchShape;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::interval;
use plimsoll_core::lower::{footprint, page_locked_bytes};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::{Comm, Pipeline};
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, Policy, Schedule};
use plimsoll_core::sparse::DENSE;
use plimsoll_core::split::{Module, SplitLinears};
use plimsoll_core::summary::Summary;
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::{Bytes, Seconds};

use super::bottleneck::in_words;
use super::certainty::{certainty_text, numbers, probably, rates_text};
use super::{Align, Table, count, percent, three_digits};
use crate::planner::Kind;

/// A plan with its prediction, if it has one.
pub fn plan_text(plan: &Plan) -> String {
    let mut text = format!("{}\n\n{}", heading(plan), placement(plan));
    let _ = write!(text, "\n{}", decisions(plan));
    text.push_str(&pipeline_text(plan));
    if let Some(prediction) = &plan.prediction {
        let _ = write!(text, "\npredicted\n{}", summary_text(plan, prediction));
        text.push_str(steady_text(plan));
        text.push_str(&certainty_text(prediction, &plan.policy));
        if let Some(said) = rates_text(plan) {
            let _ = writeln!(text, "rates      {said}");
        }
        if !prediction.stages.is_empty() {
            let _ = write!(text, "\n{}", stages(plan, prediction));
        }
        let _ = write!(text, "\n{}", memory(plan, &prediction.peak_bytes));
    }
    text
}

/// What the planner adds: the best plan of another kind and what would help.
pub fn search_text(
    (winner, runner_up): (&Plan, Option<&Plan>),
    considered: usize,
    advice: &[String],
) -> String {
    let mut text = String::new();
    if let Some(plan) = runner_up {
        let rate = plan.prediction.as_ref().map_or(String::new(), |p| {
            let rate = three_digits(p.throughput_tok_s);
            format!("{rate} tok/s, {} in all, ", duration(p.latency_s))
        });
        let kind = another_kind(&winner.policy, &plan.policy);
        let _ = writeln!(text, "next best  {rate}{kind}: {}", policy_in_short(plan));
    }
    let _ = writeln!(text, "searched   {considered} policies");
    for line in advice {
        let _ = writeln!(text, "advice     {line}");
    }
    text
}

/// What makes a policy another kind of policy than the winner's, in words.
fn another_kind(winner: &Policy, policy: &Policy) -> String {
    let (was, is) = (Kind::of(winner), Kind::of(policy));
    let mut said = Vec::new();
    if was.schedule != is.schedule {
        let (was, is) = (schedule(was.schedule), schedule(is.schedule));
        said.push(format!("{is} instead of {was}"));
    }
    if was.half_layers != is.half_layers {
        let layers = if is.half_layers { "half" } else { "whole" };
        said.push(format!("in {layers} layers"));
    }
    if was.cpu_attention != is.cpu_attention {
        let with = if is.cpu_attention { "with" } else { "without" };
        said.push(format!("{with} attention on the CPU"));
    }
    if was.stages != is.stages {
        said.push(format!(
            "on {} instead of {}",
            count(is.stages.into(), "GPU"),
            was.stages
        ));
    }
    if was.split != is.split {
        let with = if is.split { "with" } else { "without" };
        said.push(format!("{with} split linear layers"));
    }
    if said.is_empty() {
        said.push("placed otherwise".to_owned());
    }
    said.join(", ")
}

fn heading(plan: &Plan) -> String {
    let work = &plan.workload;
    let prompts = work
        .num_prompts
        .map_or(String::new(), |n| format!(", {}", count(n, "prompt")));
    format!(
        "{} in {} on {}: {}, {} generated{prompts}",
        plan.model.name,
        plan.dtype.name(),
        plan.provenance.hardware,
        count(work.prompt_len.into(), "prompt token"),
        work.gen_len
    )
}

/// The percentages that whole tensors come to and those that they are for, by device, host and disk, where these are others.
pub fn whole_tensors(plan: &Plan) -> Option<(String, String)> {
    let (real, asked) = (
        shares_in_words(&WeightPlacement::of(plan).shares()),
        shares_in_words(&plan.policy.weights),
    );
    (real != asked && plan.policy.split.is_none()).then_some((real, asked))
}

fn shares_in_words(shares: &PerTier<f64>) -> String {
    Tier::ALL.map(|tier| percent(shares[tier])).join("/")
}

/// What whole parts of a GPU batch come to, and what they are for, where that is another.
fn whole_parts(
    parts: &PerTier<u32>,
    (what, asked): (&str, &PerTier<f64>),
) -> (PerTier<f64>, String) {
    let all = Tier::ALL.iter().map(|tier| parts[*tier]).sum::<u32>();
    let real = PerTier::from_fn(|tier| f64::from(parts[tier]) / f64::from(all.max(1)));
    let note = match (shares_in_words(&real), shares_in_words(asked)) {
        (real, asked) if real != asked => format!("(whole {what}, for {asked})"),
        _ => String::new(),
    };
    (real, note)
}

/// Shares of each tier, as weights and the first GPU batch really lie.
fn placement(plan: &Plan) -> Table {
    let policy = &plan.policy;
    let weights = WeightPlacement::of(plan).shares();
    let note = match whole_tensors(plan) {
        Some((_, asked)) => format!("(whole tensors, for {asked})"),
        None => String::new(),
    };
    let prompts = plan.workload.num_prompts.unwrap_or(u64::MAX);
    let sequences = u64::from(policy.gpu_batch_size).min(prompts);
    let batch = BatchShape::of(plan, sequences as u32);
    let (cache, rows) = whole_parts(&batch.rows, ("heads of sequences", &policy.cache));
    let (activations, sequences) = whole_parts(&batch.hidden, ("sequences", &policy.activations));
    let mut table = Table::new(&[
        ("", Align::Left),
        ("device", Align::Right),
        ("host", Align::Right),
        ("disk", Align::Right),
        ("", Align::Left),
    ]);
    let never_read = match plan.workload.gen_len {
        1 => "(stored, but never read: there is one token to generate)",
        _ => "",
    };
    let of_cache = [&*rows, never_read]
        .into_iter()
        .filter(|note| !note.is_empty());
    for (name, shares, note) in [
        ("weights", &weights, note),
        ("cache", &cache, of_cache.collect::<Vec<&str>>().join(" ")),
        ("activations", &activations, sequences),
    ] {
        let [device, host, disk] = Tier::ALL.map(|tier| percent(shares[tier]));
        table.row([name.to_owned(), device, host, disk, note]);
    }
    table
}

fn decisions(plan: &Plan) -> String {
    let policy = &plan.policy;
    let switch = |on| if on { "on" } else { "off" };
    let granularity = match policy.granularity {
        Granularity::Layer => "layer by layer",
        Granularity::Spread => "over the whole model",
    };
    let sparse = if policy.sparse_attention < DENSE {
        let whole = match policy.cache.disk > 0.0 {
            true => " (but all of what is read from disk, where values lie scattered)",
            false => "",
        };
        format!(
            "attention  sparse: decode reads {} of the values{whole}, those with the largest weights; what \
             that does to the quality of the tokens is not judged here (see plimsoll perplexity)\n",
            percent(policy.sparse_attention)
        )
    } else {
        String::new()
    };
    format!(
        "batch      {} x {}{} = {} a block{}\n\
         schedule   {}{}, overlap {}, barrier {}, attention on the CPU {}\n\
         tensors    made whole {granularity}, page-locked on the host: {}, in 4 bits: {}\n{}{sparse}",
        policy.gpu_batch_size,
        policy.num_gpu_batches,
        match policy.pipeline.micro_batches {
            1 => String::new(),
            many => format!(" x {many} micro-batches"),
        },
        count(policy.block_size(), "sequence"),
        match plan.workload.num_prompts {
            Some(prompts) if prompts < policy.block_size() =>
                format!(", not all filled by {prompts}"),
            _ => String::new(),
        },
        schedule(policy.schedule),
        policy.steps_in_words(),
        switch(policy.overlap),
        switch(policy.barrier),
        switch(policy.cpu_attention),
        page_locked(plan),
        policy.compression.words().unwrap_or(NOTHING),
        policy
            .split
            .as_ref()
            .map_or(String::new(), |split| split_text(split, &plan.model)),
    )
}

/// The device's share of each linear layer, and which it has whole.
fn split_text(split: &SplitLinears, model: &ModelSpec) -> String {
    let layers = model.num_hidden_layers;
    let shares: Vec<String> = split_shares(split, layers)
        .map(|(module, share)| format!("{} {}", module.name(), percent(share)))
        .collect();
    let whole = split
        .layers_on_device
        .iter()
        .filter(|(_, layers)| *layers > 0);
    let whole: Vec<String> = whole
        .map(|(module, layers)| format!("{} of {}", module.name(), count(layers.into(), "layer")))
        .collect();
    let whole = match whole.is_empty() {
        true => NOTHING.to_owned(),
        false => whole.join(", "),
    };
    let tensors = model.tensors(1);
    let mut modules = tensors.iter().filter_map(|tensor| Module::of(tensor.role));
    let has_all = modules.all(|module| split.layers_on_device[module] == layers);
    let of_prompts = percent(split.prefill_share);
    let split = match (shares.is_empty(), has_all) {
        (_, true) => "nothing: the device has all linear layers whole".to_owned(),
        (true, false) => format!(
            "the CPU computes a token's outputs of what the device does not have, the device {of_prompts} of a prompt's"
        ),
        (false, false) => format!(
            "the device computes {} of a token's outputs and {of_prompts} of a prompt's, the CPU the rest",
            shares.join(", "),
        ),
    };
    format!("split      {split}\non device  whole: {whole}\n")
}

/// How the model lies on several GPUs; nothing where there is one.
fn pipeline_text(plan: &Plan) -> String {
    let pipeline = &plan.policy.pipeline;
    if pipeline.stages == 1 {
        return String::new();
    }
    let layers = pipeline.layers(plan.model.num_hidden_layers);
    let layers: Vec<String> = layers.iter().map(u32::to_string).collect();
    let comm = match pipeline.comm {
        Comm::Device => "from device to device",
        Comm::Host => "by way of their hosts",
    };
    let hosts = match pipeline.stages_per_host {
        1 => "each with a host of its own".to_owned(),
        some => format!("{some} on a host"),
    };
    format!(
        "pipeline   {} stages {hosts}, {} layers, handed over {comm}\n",
        pipeline.stages,
        layers.join(" + "),
    )
}

/// What each stage holds and does.
fn stages(plan: &Plan, prediction: &Summary) -> Table {
    let model = &plan.model;
    let placed = WeightPlacement::new(model, plan.dtype, &plan.policy);
    let blocks = plan.policy.pipeline.blocks(model.num_hidden_layers);
    let mut table = Table::new(&[
        ("stage", Align::Left),
        ("holds", Align::Left),
        ("weights", Align::Right),
        ("device", Align::Right),
        ("host", Align::Right),
        ("disk", Align::Right),
        ("GPU", Align::Right),
        ("link", Align::Right),
        ("prefill bubble", Align::Right),
        ("decode bubble", Align::Right),
    ]);
    for (index, (blocks, stage)) in blocks.into_iter().zip(&prediction.stages).enumerate() {
        let range = blocks.start as usize..blocks.end as usize;
        let slabs = placed.blocks[range].iter().map(|block| block.slab);
        let weights: Bytes = slabs.map(|s| s.device + s.host + s.disk).sum();
        let peak = stage.peak_bytes;
        let busy = &stage.busy_fraction;
        // A host's memory and disk are counted with its first stage.
        let of_host = |bytes: Bytes| match index % plan.policy.pipeline.stages_per_host as usize {
            0 => bytes.to_string(),
            _ => "as above".to_owned(),
        };
        table.row([
            index.to_string(),
            holds(blocks, model.num_hidden_layers),
            weights.to_string(),
            peak.device.to_string(),
            of_host(peak.host),
            of_host(peak.disk),
            percent(busy.gpu),
            percent(busy.peer_link),
            percent(stage.prefill_bubble),
            stage.decode_bubble.map_or("-".to_owned(), percent),
        ]);
    }
    table
}

/// A stage's blocks in words; layers count from 0.
fn holds(blocks: Range<u32>, num_layers: u32) -> String {
    let layers = (blocks.start.max(1) - 1, blocks.end.min(num_layers + 1) - 2);
    let embedding = if blocks.start == 0 { "embedding, " } else { "" };
    let head = if blocks.end > num_layers + 1 {
        ", head"
    } else {
        ""
    };
    format!("{embedding}layers {} to {}{head}", layers.0, layers.1)
}

const NOTHING: &str = "nothing";

/// What is page-locked of the homes on the host, and how much that is with all else there.
fn page_locked(plan: &Plan) -> String {
    let policy = &plan.policy;
    let locked = policy.page_locked;
    // The linear layers that are split are on the host.
    let weights = policy.weights.host > 0.0 || policy.split.is_some();
    let all = [
        ("weights", locked.weights && weights),
        ("cache", locked.cache && policy.cache.host > 0.0),
        (
            "activations",
            locked.activations && policy.activations.host > 0.0,
        ),
    ];
    let names: Vec<&str> = all.iter().filter(|(_, is)| *is).map(|(n, _)| *n).collect();
    // A plan that is told of has a layout.
    let bytes = page_locked_bytes(plan).unwrap_or_default();
    match names.is_empty() {
        true => format!("buffers alone ({bytes})"),
        false => format!("{} ({bytes} with buffers)", names.join(", ")),
    }
}

/// Says that an interval is from errors of runs on another machine.
pub fn intervals_machine(plan: &Plan, profile: &HardwareProfile) -> String {
    let interval = plan.prediction.as_ref().and_then(|it| it.interval.as_ref());
    let from_runs = interval.is_some_and(|interval| interval.from_residuals);
    let of = profile.residuals.as_ref().and_then(|it| it.of.as_ref());
    of.filter(|_| from_runs).map_or(String::new(), |of| {
        format!(
            "note       the interval is from errors of runs on {of}, which {} extends\n",
            profile.name
        )
    })
}

/// Says that a plan page-locks more than its machine is known to allow or nearly as much, or much where nobody knows.
pub fn locks_much(plan: &Plan, profile: &HardwareProfile) -> String {
    let locked = page_locked_bytes(plan).unwrap_or_default();
    let host = profile.tiers.host_capacity_bytes.value;
    match &profile.tiers.page_lockable_bytes {
        Some(most) if locked > most.value => format!(
            "note       {locked} of the host are page-locked, and {} is known to allow {}\n",
            profile.name, most.value
        ),
        Some(most) if locked.as_f64() > LOCKED_NEARLY_ALL * most.value.as_f64() => format!(
            "note       {locked} of the host are page-locked, nearly all of the {} that {} is known to allow, which bounds plans as \
             memory does; where yours allows more, say so (`page_lockable_bytes` under [tiers], in a profile that extends it)\n",
            most.value, profile.name
        ),
        None if locked.as_f64() > LOCKED_MUCH * host.as_f64() => format!(
            "note       {locked} of {host} of the host are page-locked, which is more than some systems allow; how much \
             yours does is `page_lockable_bytes` under [tiers], in its profile or in one that extends it\n",
        ),
        _ => String::new(),
    }
}

/// A share of the host's memory from which on page-locking is worth a word.
const LOCKED_MUCH: f64 = 0.5;

/// Of what a machine allows, the share from which on that is what bounds a plan.
const LOCKED_NEARLY_ALL: f64 = 0.95;

fn schedule(schedule: Schedule) -> &'static str {
    match schedule {
        Schedule::Row => "row by row",
        Schedule::ZigZag => "zig-zag",
        Schedule::Diagonal => "diagonal",
    }
}

/// Whose shares those of the weights are.
pub fn but_split(policy: &Policy) -> &'static str {
    match policy.split {
        Some(_) => " but split linear layers",
        None => "",
    }
}

/// The least and the most that the device computes of any linear layer that is split in some of so many layers; none
/// where none is.
fn shares_of(split: &SplitLinears, layers: u32) -> Option<(String, String)> {
    let shares = || split_shares(split, layers).map(|(_, share)| share);
    let low = shares().min_by(f64::total_cmp)?;
    Some((percent(low), percent(shares().fold(low, f64::max))))
}

/// The device's shares of the linear layers that are split in some of so many layers.
fn split_shares(split: &SplitLinears, layers: u32) -> impl Iterator<Item = (Module, f64)> {
    let is_split = move |module| split.layers_on_device[module] < layers;
    let shares = split.share.iter();
    shares.filter(move |(module, share)| *share > 0.0 && is_split(*module))
}

/// A plan's policy in a line.
pub fn policy_in_short(plan: &Plan) -> String {
    let policy = &plan.policy;
    let shares = |s: &PerTier<f64>| Tier::ALL.map(|t| percent(s[t])).join("/");
    format!(
        "{} x {}{} {}{}, weights{} {}, cache {}, activations {} on device/host/disk{}{}{}{}",
        policy.gpu_batch_size,
        policy.num_gpu_batches,
        match policy.pipeline {
            Pipeline { stages: 1, .. } => String::new(),
            it => format!(" x {} over {} stages", it.micro_batches, it.stages),
        },
        schedule(policy.schedule),
        policy.steps_in_words(),
        but_split(policy),
        shares(&policy.weights),
        shares(&policy.cache),
        shares(&policy.activations),
        if policy.attends_on_cpu() {
            ", CPU attention"
        } else {
            ""
        },
        match policy.compression.words() {
            Some(names) => format!(", {names} in 4 bits"),
            None => String::new(),
        },
        if policy.sparse_attention < DENSE {
            format!(", {} of the values read", percent(policy.sparse_attention))
        } else {
            String::new()
        },
        match &policy.split {
            Some(split) => match shares_of(split, plan.model.num_hidden_layers) {
                Some((low, high)) => format!(
                    ", linear layers split ({low} to {high} of a token's outputs on the device)"
                ),
                None => ", linear layers computed where they are".to_owned(),
            },
            None => String::new(),
        },
    )
}

/// Throughput, times and the bottleneck.
pub fn summary_text(plan: &Plan, summary: &Summary) -> String {
    let mut text = String::new();
    let rate = three_digits(summary.throughput_tok_s);
    let interval = summary.interval.as_ref();
    let _ = writeln!(
        text,
        "throughput {rate} tok/s ({}{})",
        probably(interval, |i| numbers(i.throughput_tok_s)),
        count(summary.generated_tokens, "token")
    );
    let _ = writeln!(
        text,
        "latency    {} ({}{})",
        duration(summary.latency_s),
        probably(interval, |i| durations(i.latency_s)),
        phases(summary, is_steady(plan))
    );
    if let Some(rate) = summary.decode_throughput_tok_s {
        let _ = writeln!(
            text,
            "decoding   {} tok/s, the first tokens and the time until then left out",
            three_digits(rate)
        );
    }
    let _ = writeln!(
        text,
        "bottleneck {}, busy {} of the time",
        in_words(summary.bottleneck),
        percent(summary.busy_fraction.of(summary.bottleneck))
    );
    let shares = summary.busy_fraction.by_kind().into_iter();
    let shares: Vec<String> = shares
        .filter(|(_, share)| *share > 0.0)
        .map(|(kind, share)| format!("{} {}", in_words(kind), percent(share)))
        .collect();
    let _ = writeln!(text, "busy       {}", shares.join(", "));
    text
}

/// Whose time a prediction's latency is, where that is not a whole run's.
fn steady_text(plan: &Plan) -> &'static str {
    match is_steady(plan) {
        true => {
            "steady     prompts come without end: the latency is that of a block's worth of them once batches come \
             and go\n           evenly; a first block takes longer (--num-prompts N predicts a run of N from its \
             start to its end)\n"
        }
        false => "",
    }
}

/// Whether a prediction is of GPU batches that come and go without end.
fn is_steady(plan: &Plan) -> bool {
    plan.policy.schedule == Schedule::Diagonal && plan.workload.num_prompts.is_none()
}

/// What a latency is made of. Where batches come and go, each is prefilled beside the others' decoding.
fn phases(summary: &Summary, is_steady: bool) -> String {
    let prefill = duration(summary.prefill_s);
    match summary.decode_s {
        Some(decode) if is_steady => {
            format!(
                "first token after {prefill}, the others in {}",
                duration(decode)
            )
        }
        Some(_) if summary.shares_passes() => {
            "prompts are prefilled beside the decoding of others".to_owned()
        }
        Some(decode) => format!("prefill {prefill}, decode {}", duration(decode)),
        None => "all of it prefill, which gives the one token of each prompt".to_owned(),
    }
}

/// What lives at once in each tier at most, and the room that a run sets aside, against what the tier holds.
fn memory(plan: &Plan, peak: &PerTier<Bytes>) -> Table {
    let capacity = &plan.capacity_bytes;
    let reserved = footprint(plan).unwrap_or(*peak);
    let mut table = Table::new(&[
        ("memory", Align::Left),
        ("peak", Align::Right),
        ("reserved", Align::Right),
        ("usable", Align::Right),
        ("full", Align::Right),
    ]);
    for tier in Tier::ALL {
        let share = reserved[tier].as_f64() / capacity[tier].as_f64().max(1.0);
        table.row([
            tier.name().to_owned(),
            peak[tier].to_string(),
            reserved[tier].to_string(),
            capacity[tier].to_string(),
            percent(share),
        ]);
    }
    table
}

/// A time to three digits, in the unit that people would use.
pub fn duration(time: Seconds) -> String {
    let (unit_s, unit) = unit_of(time.0);
    format!("{} {unit}", three_digits(time.0 / unit_s))
}

/// Both ends of a range of seconds, in the unit of the upper.
pub fn durations(range: interval::Range) -> String {
    let (unit_s, unit) = unit_of(range.high);
    let [low, high] = [range.low, range.high].map(|s| three_digits(s / unit_s));
    format!("{low} to {high} {unit}")
}

/// The unit that people would use for so many seconds, and what it is in seconds.
fn unit_of(s: f64) -> (f64, &'static str) {
    match s.abs() {
        0.0 => (1.0, "s"),
        a if a < 1e-3 => (1e-6, "us"),
        a if a < 1.0 => (1e-3, "ms"),
        a if a < 600.0 => (1.0, "s"),
        a if a < 7200.0 => (60.0, "min"),
        _ => (3600.0, "h"),
    }
}
