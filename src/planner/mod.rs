//! The policy search: FlexGen's two levels (section 4.3), with the simulator as the judge.
//!
//! `request` says what is asked and answered; what is here asks searches by strategy and pipeline; `search` is one of them.
//!
//! `space` enumerates GPU batch sizes, GPU batches a block and where attention runs. For each, a
//! linear program (`lp`) over the closed form places weights, cache and activations; the best are
//! made whole so that they really fit (`whole`); the simulator says which is best (`judge`).
//! Where layers take most of the device, or nothing fits, it is done again for steps of half a layer.
//! Where there are several GPUs, that is done for each pipeline (`pipelines`). Of what all of them found the
//! best few are simulated in full, and the best one is taken (`pool`). Where the time of a block is limited,
//! shapes are tried as what was learned from others says (`within`).
//! `blocks` asks the same for one block size after another, under the rules of some system.
//! That no plan fits is an answer, not an error (`infeasible`).

mod advice;
mod around;
mod blocks;
mod bound;
mod flags;
mod infeasible;
mod judge;
mod kind;
mod lp;
mod neighbour;
mod pipelines;
mod pool;
mod request;
mod room;
mod search;
mod simpler;
mod space;
pub mod split;
mod whole;
mod within;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Schedule;
use plimsoll_core::units::Seconds;
use plimsoll_core::workload::Workload;
use plimsoll_sim::predict;

pub use advice::Advice;
pub use blocks::{Block, Blocks, Excess, Outcome, Rules};
pub use bound::Bound;
pub use flags::{Flag, Unasked, unasked};
pub use infeasible::Infeasible;
pub use kind::Kind;
use pool::Pool;
pub use request::{Allowed, Answer, Objective, PlanError, Planned, Request, Strategy, Subject};
use search::{Fit, Found, Search};

/// Whether a plan takes too long to simulate for changes of its machine to be tried.
pub fn is_too_long_for_advice(plan: &Plan) -> bool {
    judge::is_large(plan)
}

/// Finds the best plan for a machine, a model and a workload.
///
/// # Errors
/// A request that means nothing; an error of ours in solving or simulating.
pub fn search(
    profile: &HardwareProfile,
    model: &ModelSpec,
    dtype: Dtype,
    request: &Request,
) -> Result<Answer, PlanError> {
    let subject = Subject {
        profile,
        model,
        dtype,
    };
    search_watched(subject, request, &mut |_, _| ())
}

/// [`search`], which says after each of its steps how many of how many are done.
///
/// # Errors
/// As [`search`].
pub fn search_watched(
    subject: Subject<'_>,
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    match request.allowed.strategy {
        Strategy::FlexGen => search_unsplit(subject, request, watch),
        Strategy::HeteGen => split::answer(subject, request),
        Strategy::Auto => {
            let whole = search_unsplit(subject, request, watch)?;
            let answer = match split::answer(subject, request) {
                Ok(Answer::Infeasible(why)) => match whole {
                    Answer::Infeasible(whole) => {
                        Answer::Infeasible(Box::new(whole.or_nearer(*why)))
                    }
                    whole => not_split(whole, why.to_string()),
                },
                Ok(split) => better(whole, split, request.objective),
                // Not with this model, or not with what was asked for.
                Err(PlanError::Request(error)) => not_split(whole, error.to_string()),
                Err(error) => return Err(error),
            };
            Ok(match answer {
                Answer::Plan(mut planned) => {
                    planned.advice = flags::advice_of_both(subject, request, &planned)?;
                    Answer::Plan(planned)
                }
                answer => answer,
            })
        }
    }
}

/// An answer that says why it has no split to compare with.
fn not_split(whole: Answer, why: String) -> Answer {
    let said = |mut planned: Box<Planned>| {
        planned.not_split = Some(why);
        planned
    };
    match whole {
        Answer::Plan(planned) => Answer::Plan(said(planned)),
        Answer::TooSlow(planned) => Answer::TooSlow(said(planned)),
        infeasible => infeasible,
    }
}

/// The better of two strategies' answers, with the other's plan as the next best.
fn better(whole: Answer, split: Answer, objective: Objective) -> Answer {
    let cost = |p: &Planned| objective.cost(p.latency_s, p.throughput_tok_s * p.latency_s.0);
    match (whole, split) {
        (Answer::Plan(whole), Answer::Plan(split)) => {
            let considered = whole.considered + split.considered;
            let (mut best, other) = match cost(&split) < cost(&whole) {
                true => (split, whole),
                false => (whole, split),
            };
            best.runner_up = Some(other.plan);
            best.considered = considered;
            Answer::Plan(best)
        }
        (Answer::Plan(one), _) | (_, Answer::Plan(one)) => Answer::Plan(one),
        (Answer::TooSlow(a), Answer::TooSlow(b)) => {
            Answer::TooSlow(if a.latency_s <= b.latency_s { a } else { b })
        }
        (Answer::TooSlow(slow), _) | (_, Answer::TooSlow(slow)) => Answer::TooSlow(slow),
        (whole, _) => whole,
    }
}

/// The best of plans whose linear layers are whole.
fn search_unsplit(
    subject: Subject<'_>,
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    let answer = answer(subject, request, &mut *watch)?;
    let answer = match (answer, request.max_latency_s) {
        // Of so many prompts, what was found is the quickest already.
        (Answer::TooSlow(slow), Some(limit)) if request.workload.num_prompts.is_none() => {
            quickest(subject, request, (slow, limit), watch)?
        }
        (answer, _) => answer,
    };
    Ok(answer)
}

/// The answer of the searches on all of the machine's pipelines: of a limit on time, that of no limit if it is in time. Where it is
/// not, all is searched twice.
fn answer(
    subject: Subject<'_>,
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    if let Some(limit) = request.max_latency_s {
        let free = Request {
            max_latency_s: None,
            ..*request
        };
        let pool = searched(subject, &free, watch)?;
        if pool.may_be_in(limit)
            && let Answer::Plan(planned) =
                lightened(pool.asked_within(limit).answer()?, subject, request)?
            && planned.latency_s <= limit
        {
            return Ok(Answer::Plan(planned));
        }
    }
    let answer = searched(subject, request, watch)?.answer()?;
    lightened(answer, subject, request)
}

/// The same with fewer layers on the last stage, where that is faster; what was too slow may be in time then.
fn lightened(answer: Answer, subject: Subject<'_>, request: &Request) -> Result<Answer, PlanError> {
    let lighter = |planned| pipelines::with_lighter_end(planned, subject.profile);
    let limit = request.max_latency_s.unwrap_or(Seconds(f64::INFINITY));
    Ok(match answer {
        Answer::Plan(planned) => Answer::Plan(lighter(planned)?),
        Answer::TooSlow(slow) => {
            let slow = lighter(slow)?;
            match slow.latency_s <= limit {
                true => Answer::Plan(slow),
                false => Answer::TooSlow(slow),
            }
        }
        other => other,
    })
}

/// What the searches on all of the machine's pipelines find.
fn searched<'a>(
    subject: Subject<'a>,
    request: &Request,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Pool<'a>, PlanError> {
    let pipelines = pipelines::of_machine(subject.profile, subject.model, request).into_iter();
    // A pipeline's stages are zig-zags.
    let schedule = request.allowed.schedule;
    let zigzag = schedule.is_none_or(|s| s == Schedule::ZigZag);
    let pipelines = pipelines.filter(|pipeline| zigzag || pipeline.is_default());
    let pipelines: Vec<Pipeline> = pipelines.collect();
    // The finalists are a step of their own.
    let steps = pipelines.len() as u64 + 1;
    let mut pool = Pool::new(subject.profile, request);
    watch(0, steps);
    for (done, pipeline) in (1..).zip(pipelines) {
        let base = Search::new(subject, request, pipeline)?;
        let fits = |found: &Found| matches!(found.verdict, Fit::Plans(_));
        for (search, found) in base.in_turn(|search| search.found(request), fits)? {
            pool.add(search, found);
        }
        watch(done, steps);
    }
    Ok(pool)
}

/// Where no plan was in time: the plan that a search for the least latency finds, if that is quicker. What
/// that search finds of one prompt is the block of that one where prompts are endless.
fn quickest(
    subject: Subject<'_>,
    request: &Request,
    (slow, limit): (Box<Planned>, Seconds),
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answer, PlanError> {
    let hurried = Request {
        objective: Objective::Latency,
        max_latency_s: None,
        ..*request
    };
    let mut planned = match answer(subject, &hurried, watch)? {
        Answer::Plan(planned) if planned.latency_s < slow.latency_s => planned,
        _ => return Ok(Answer::TooSlow(slow)),
    };
    planned.considered += slow.considered;
    let workload = workload_of(request);
    for plan in [Some(&mut planned.plan), planned.runner_up.as_mut()] {
        let other = plan.filter(|plan| plan.workload != workload);
        if let Some(plan) = other {
            plan.workload = workload;
            plan.prediction = Some(predict(plan, subject.profile)?);
        }
    }
    if let Some(prediction) = &planned.plan.prediction {
        planned.latency_s = prediction.latency_s;
        planned.throughput_tok_s = prediction.throughput_tok_s;
    }
    let in_time = |plan: &Plan| {
        let prediction = plan.prediction.as_ref();
        prediction.is_some_and(|prediction| prediction.latency_s <= limit)
    };
    planned.runner_up = planned.runner_up.filter(in_time);
    Ok(match in_time(&planned.plan) {
        true => Answer::Plan(planned),
        false => Answer::TooSlow(planned),
    })
}

/// What is asked for; endless prompts mean nothing to a latency, so that it is of one.
fn workload_of(request: &Request) -> Workload {
    let mut workload = request.workload;
    if request.objective == Objective::Latency && workload.num_prompts.is_none() {
        workload.num_prompts = Some(1);
    }
    workload
}
