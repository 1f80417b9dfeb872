//! When a run's tokens come: from which to which, how many, how much of it prefill.

use crate::control::Run;
use crate::lower::schedule::Passes;
use crate::plan::Plan;
use crate::policy::Schedule;
use crate::program::{Cell, Op, Program, Stage, TaskId};
use crate::tally::Tally;
use crate::trace::Trace;
use crate::units::Seconds;

/// How long generating a number of tokens took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// When what is timed begins.
    pub from: Seconds,
    /// From there to the last token.
    pub latency_s: Seconds,
    /// Until each round's first tokens, summed over rounds.
    pub prefill_s: Seconds,
    /// Tokens generated in that time.
    pub generated_tokens: u64,
    /// Of them, those that prefill chose: the first of each sequence. None where prefill and decode share
    /// passes.
    pub first_tokens: Option<u64>,
}

/// Where a run of a plan is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// From its start to its end.
    Whole,
    /// From the end of one pass to the end of another.
    Passes {
        /// The pass before the first that counts.
        after: u64,
        /// The last one.
        to: u64,
    },
}

impl Part {
    /// Where prompts are endless, the diagonal schedule has no block that begins and ends, so its steady
    /// state is timed: as many passes as a GPU batch stays, from when every place is taken.
    pub fn of(plan: &Plan) -> Part {
        let endless = plan.workload.num_prompts.is_none();
        let stay = u64::from(plan.workload.gen_len);
        match plan.policy.schedule == Schedule::Diagonal && endless {
            true => Part::Passes {
                after: stay - 1,
                to: 2 * stay - 1,
            },
            false => Part::Whole,
        }
    }
}

impl Timing {
    /// Generated tokens over the whole time, prefill included (FlexGen section 6).
    pub fn throughput_tok_s(&self) -> f64 {
        self.generated_tokens as f64 / self.latency_s.0.max(f64::MIN_POSITIVE)
    }

    /// Tokens after the first of each sequence over the time of decode (FlexGen section 6.1, decoding
    /// throughput). In a pipeline that time begins when the last stage has the last first token: the first
    /// stage decodes some of the micro-batches before. None where there is no such time.
    pub fn decode_throughput_tok_s(&self) -> Option<f64> {
        let later = self.generated_tokens - self.first_tokens?;
        let decode_s = self.decode_s()?.0;
        (later > 0 && decode_s > 0.0).then(|| later as f64 / decode_s)
    }

    /// What is not prefill; none where prefill chose all tokens.
    pub fn decode_s(&self) -> Option<Seconds> {
        let decodes = self.first_tokens != Some(self.generated_tokens);
        decodes.then(|| self.latency_s - self.prefill_s)
    }

    /// When what is timed ends.
    pub fn to(&self) -> Seconds {
        self.from + self.latency_s
    }

    /// Times all of a run.
    pub fn of(run: &Run) -> Timing {
        Timing::of_heads(&heads(run), run.trace.makespan())
    }

    fn of_heads(heads: &[Head], end: Seconds) -> Timing {
        let rounds = round_times(heads);
        Timing {
            from: Seconds::ZERO,
            latency_s: end,
            prefill_s: prefill_time(&rounds),
            generated_tokens: rounds.iter().map(|round| round.tokens).sum(),
            first_tokens: apart(&rounds)
                .then(|| rounds.iter().map(|round| round.first_tokens).sum()),
        }
    }

    /// Times a run of a plan, the [`Part`] of it that counts: of a steady state, a block's tokens come
    /// out in it; a latency is from a batch's admission to its last token, and its prefill a pass that
    /// admits one. A run that was cut short before is timed as a whole.
    pub fn of_plan(plan: &Plan, run: &Run) -> Timing {
        Timing::of_plan_by(plan, &heads(run), run.trace.makespan())
    }

    /// The same of what a tally has seen, once that is all.
    pub fn of_tally(plan: &Plan, tally: &Tally) -> Timing {
        Timing::of_plan_by(plan, tally.heads(), tally.end())
    }

    fn of_plan_by(plan: &Plan, heads: &[Head], end: Seconds) -> Timing {
        let timing = match Part::of(plan) {
            Part::Whole => None,
            Part::Passes { after, to } => Timing::of_steady_state(plan, heads, (after, to)),
        };
        timing.unwrap_or_else(|| Timing::of_heads(heads, end))
    }

    /// Times one round of a run, from when the round before has its last tokens. None where the run
    /// did not get so far.
    pub fn of_round(run: &Run, round: usize) -> Option<Timing> {
        let rounds = round_times(&heads(run));
        let before = rounds.get(round.checked_sub(1)?)?;
        let this = rounds.get(round)?;
        Some(Timing {
            from: before.end,
            latency_s: this.end - before.end,
            prefill_s: (this.prefill_end - before.end).max(Seconds::ZERO),
            generated_tokens: this.tokens,
            first_tokens: apart(&rounds).then_some(this.first_tokens),
        })
    }

    fn of_steady_state(plan: &Plan, heads: &[Head], (after, to): (u64, u64)) -> Option<Timing> {
        let passes = Passes::new(&plan.policy, &plan.workload);
        let ends = pass_ends(heads, &passes);
        let end = |pass: u64| ends.get(pass as usize).copied();
        let (from, end) = (end(after)?, end(to)?);
        let admitting = |pass: &u64| passes.turns(*pass).iter().any(|t| t.token == 0);
        let admissions: Vec<u64> = (after + 1..=to).filter(admitting).collect();
        let durations = admissions.iter().map(|pass| {
            let pass = *pass as usize;
            ends[pass].0 - ends[pass - 1].0
        });
        let generated_tokens = plan.policy.block_size() * u64::from(plan.workload.gen_len);
        Some(Timing {
            from,
            latency_s: end - from,
            prefill_s: Seconds(durations.sum::<f64>() / admissions.len().max(1) as f64),
            generated_tokens,
            first_tokens: (plan.workload.gen_len == 1).then_some(generated_tokens),
        })
    }
}

/// When the tokens of each pass are there.
fn pass_ends(heads: &[Head], passes: &Passes) -> Vec<Seconds> {
    let mut ends = vec![Seconds::ZERO; passes.count() as usize];
    let mut done = 0;
    for head in heads {
        let pass = passes.pass_of(head.cell.round, head.cell.batch, u32::from(head.cell.pass));
        if let Some(end) = pass.and_then(|pass| ends.get_mut(pass as usize)) {
            *end = end.max(head.end);
            done = done.max(pass.unwrap_or(0) as usize + 1);
        }
    }
    ends.truncate(done);
    ends
}

/// The end of a GPU batch's pass, when its tokens are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    cell: Cell,
    sequences: u32,
    end: Seconds,
}

/// Those of a piece that have ended.
pub(crate) fn heads_of<'a>(
    piece: &'a Program,
    trace: &'a Trace,
) -> impl Iterator<Item = Head> + 'a {
    heads_with_ids(piece).filter_map(|(id, cell, sequences)| {
        Some(Head {
            cell,
            sequences,
            end: trace.span(id)?.end,
        })
    })
}

/// The tasks after which the tokens of a piece's passes are there.
pub fn last_of_passes(piece: &Program) -> impl Iterator<Item = TaskId> + '_ {
    heads_with_ids(piece).map(|(id, ..)| id)
}

fn heads_with_ids(piece: &Program) -> impl Iterator<Item = (TaskId, Cell, u32)> + '_ {
    let tasks = piece.tasks().iter().zip(piece.first_task().0..);
    tasks.filter_map(|(task, id)| match piece.op_of(task) {
        Op::Linear {
            stage: Stage::Head,
            m,
            ..
        } => Some((TaskId(id), task.cell, *m)),
        _ => None,
    })
}

/// Those of a run, in order.
pub(crate) fn heads(run: &Run) -> Vec<Head> {
    let pieces = run.pieces.iter();
    pieces
        .flat_map(|piece| heads_of(piece, &run.trace))
        .collect()
}

#[derive(Debug, Clone, Copy)]
struct RoundTimes {
    prefill_end: Seconds,
    end: Seconds,
    tokens: u64,
    first_tokens: u64,
    /// When its first token of a later pass is there.
    decodes_from: Seconds,
}

impl Default for RoundTimes {
    fn default() -> RoundTimes {
        RoundTimes {
            prefill_end: Seconds::ZERO,
            end: Seconds::ZERO,
            tokens: 0,
            first_tokens: 0,
            decodes_from: Seconds(f64::INFINITY),
        }
    }
}

impl RoundTimes {
    fn see(&mut self, head: &Head) {
        self.end = self.end.max(head.end);
        if head.cell.pass == 0 {
            self.prefill_end = self.prefill_end.max(head.end);
            self.first_tokens += u64::from(head.sequences);
        } else {
            self.decodes_from = Seconds(self.decodes_from.0.min(head.end.0));
        }
        self.tokens += u64::from(head.sequences);
    }
}

fn round_times(heads: &[Head]) -> Vec<RoundTimes> {
    let mut rounds: Vec<RoundTimes> = Vec::new();
    for head in heads {
        let round = head.cell.round as usize;
        rounds.resize(rounds.len().max(round + 1), RoundTimes::default());
        rounds[round].see(head);
    }
    rounds
}

/// When the first round has its first tokens.
pub(crate) fn prefill_end(heads: &[Head]) -> Seconds {
    let rounds = round_times(heads);
    rounds
        .first()
        .map_or(Seconds::ZERO, |round| round.prefill_end)
}

/// Whether no round decodes while it prefills.
fn apart(rounds: &[RoundTimes]) -> bool {
    let mut rounds = rounds.iter();
    rounds.all(|round| round.prefill_end <= round.decodes_from)
}

/// Until each round's first tokens, summed over rounds.
fn prefill_time(rounds: &[RoundTimes]) -> Seconds {
    let mut begun = Seconds::ZERO;
    let mut total = Seconds::ZERO;
    for round in rounds {
        // In a diagonal schedule later rounds begin before this one ends.
        total += (round.prefill_end - begun).max(Seconds::ZERO);
        begun = round.end.max(begun);
    }
    total
}
