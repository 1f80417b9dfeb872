//! Flags that were not given, and about what they would bring.

use plimsoll_core::compression::Compression;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;

use super::advice::{self, GAIN_MIN};
use super::judge::{self, Judged};
use super::{
    Advice, Allowed, PlanError, Planned, Request, Search, Strategy, Subject, space, split,
    workload_of,
};

/// Sequences of the smaller blocks whose layers are split to say what that would bring; the others are all prompts at once.
const SPLIT_SEQUENCES: u32 = 8;

/// Smaller gains may be none where plans are too long to be compared but by parts.
const GAIN_MIN_OF_PARTS: f64 = 1.3;

/// What a request may allow besides what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Weights in 4 bits an element.
    CompressWeight,
    /// The cache in 4 bits an element.
    CompressCache,
    /// Linear layers that the CPU and the device compute together, where that is better.
    SplitLayers,
}

/// A flag that was not given, and what it would bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unasked {
    /// The flag.
    pub flag: Flag,
    /// Tokens a second with it over those without, of one plan that has it and may not be the best: a search with it finds about this
    /// or more.
    pub gain: f64,
}

/// The flags that a plan's request left out and that are worth a word, in a fixed order.
///
/// # Errors
/// As [`search`](super::search).
pub fn unasked(
    subject: Subject<'_>,
    request: &Request,
    planned: &Planned,
) -> Result<Vec<Unasked>, PlanError> {
    let in_4_bits = |what| in_4_bits(subject, (request, what), &planned.plan);
    let rates = [
        (
            Flag::CompressWeight,
            in_4_bits(Compression::of(true, false))?,
        ),
        (
            Flag::CompressCache,
            in_4_bits(Compression::of(false, true))?,
        ),
        (
            Flag::SplitLayers,
            in_part_on_the_cpu(subject, request, &planned.plan)?,
        ),
    ];
    let is_large = judge::is_large(&planned.plan);
    let gain = |(flag, rate): (Flag, Option<f64>)| {
        let least = match is_large && flag != Flag::SplitLayers {
            true => GAIN_MIN_OF_PARTS,
            false => GAIN_MIN,
        };
        let gain = rate? / planned.throughput_tok_s;
        (gain >= least).then_some(Unasked { flag, gain })
    };
    Ok(rates.into_iter().filter_map(gain).collect())
}

/// Tokens a second with weights or cache in 4 bits, and all else that may be chosen; with blocks no larger than the plan's where time is
/// limited, or where its layers are split. None where that is allowed.
fn in_4_bits(
    subject: Subject<'_>,
    (request, what): (&Request, Compression),
    plan: &Plan,
) -> Result<Option<f64>, PlanError> {
    let allowed = request.allowed;
    let has = |of: Compression| (of.weights && what.weights) || (of.cache && what.cache);
    if has(allowed.compression) {
        return Ok(None);
    }
    let compression = Compression {
        weights: allowed.compression.weights || what.weights,
        cache: allowed.compression.cache || what.cache,
    };
    let is_packed = |policy: &Policy| has(policy.compression);
    let request = Request {
        allowed: Allowed {
            compression,
            ..allowed
        },
        ..*request
    };
    let block = plan.policy.block_size();
    if plan.policy.split.is_some() {
        return split::rate(
            subject,
            &request,
            (&[plan.policy.gpu_batch_size], is_packed),
        );
    }
    let is_open = |policy: &Policy| {
        is_packed(policy) && (request.max_latency_s.is_none() || policy.block_size() <= block)
    };
    unsplit_rate(subject, &request, (plan, is_open))
}

/// Tokens a second of a plan whose layers are whole, of the policies that are `open`: the closed form's best, which need not be the
/// best. It is of the pipeline of another plan, and in half layers where that is. None where none fits.
fn unsplit_rate(
    subject: Subject<'_>,
    request: &Request,
    (plan, is_open): (&Plan, impl Fn(&Policy) -> bool),
) -> Result<Option<f64>, PlanError> {
    let search = Search::new(subject, request, plan.policy.pipeline)?;
    let room = search.maker.room();
    let open: Vec<Policy> = match plan.policy.half_layers {
        true => space::also_in_halves(search.open.clone()).concat(),
        false => search.open.clone(),
    };
    let mut shapes = space::shapes(&search.forms, &open, search.maker.workload(), room);
    shapes.retain(|shape| is_open(&shape.policy));
    let placed = advice::best_of(&shapes, room);
    let best = advice::best_by_samples(&placed, (plan, None), (subject.profile, &search.forms))?;
    let rate = |best: Judged| advice::rate_beside(best, plan, (subject.profile, &search.forms));
    best.map(rate).transpose()
}

/// The change of the machine that helps most where plans of either strategy may be made for it: what fits only there may be of the
/// other. Of many prompts it is that of the plan's own.
pub(super) fn advice_of_both(
    subject: Subject<'_>,
    request: &Request,
    planned: &Planned,
) -> Result<Option<Advice>, PlanError> {
    let plan = &planned.plan;
    let few = few(workload_of(request).num_prompts);
    // As always, none is looked for where plans take long to simulate.
    let Some(all) = few.filter(|_| !judge::is_large(plan)) else {
        return Ok(planned.advice.clone());
    };
    advice::most_of_changes(subject.profile, planned, &|profile| {
        let subject = Subject { profile, ..subject };
        match plan.policy.split {
            Some(_) => unsplit_rate(subject, request, (plan, |_: &Policy| true)),
            None => split::rate(subject, request, (&split_blocks(all), |_: &_| true)),
        }
    })
}

/// Prompts, if they are so few that layers may be split for them.
fn few(prompts: Option<u64>) -> Option<u32> {
    let few = |prompts: &u64| *prompts <= split::SEQUENCES_MAX.into();
    prompts.filter(few).map(|few| few as u32)
}

/// Tokens a second of few prompts with split layers: of all of them, or where they are endless and time is limited, of blocks as large as the
/// plan's. None where split layers are allowed, or prompts are many.
fn in_part_on_the_cpu(
    subject: Subject<'_>,
    request: &Request,
    plan: &Plan,
) -> Result<Option<f64>, PlanError> {
    let limited = request.max_latency_s.map(|_| plan.policy.block_size());
    let prompts = workload_of(request).num_prompts;
    let Some(all) = few(prompts.or(limited)) else {
        return Ok(None);
    };
    if request.allowed.strategy != Strategy::FlexGen {
        return Ok(None);
    }
    let blocks = match prompts {
        Some(_) => split_blocks(all),
        None => vec![all],
    };
    split::rate(subject, request, (&blocks, |_: &_| true))
}

/// The blocks that so many prompts are split in to say about what that would bring.
fn split_blocks(all: u32) -> Vec<u32> {
    let smaller = (all > SPLIT_SEQUENCES).then_some(SPLIT_SEQUENCES);
    smaller.into_iter().chain([all]).collect()
}
