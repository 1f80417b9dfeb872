//! When a run's tokens come: from which to which, how many, how much of it prefill.

use crate::control::Run;
use crate::lower::schedule::Passes;
use crate::plan::Plan;
use crate::policy::Schedule;
use crate::program::{Cell, Op, Stage, TaskId};
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
        let decode_s = self.decode_s().0;
        (later > 0 && decode_s > 0.0).then(|| later as f64 / decode_s)
    }

    /// What is not prefill.
    pub fn decode_s(&self) -> Seconds {
        self.latency_s - self.prefill_s
    }

    /// Times all of a run.
    pub fn of(run: &Run) -> Timing {
        let rounds = round_times(run);
        Timing {
            from: Seconds::ZERO,
            latency_s: run.trace.makespan(),
            prefill_s: prefill_time(&rounds),
            generated_tokens: rounds.iter().map(|round| round.tokens).sum(),
            first_tokens: apart(&rounds)
                .then(|| rounds.iter().map(|round| round.first_tokens).sum()),
        }
    }

    /// Times a run of a plan. Where prompts are endless, the diagonal schedule has no block that
    /// begins and ends, so its steady state is timed: as many passes as a GPU batch stays, from when
    /// every place is taken. A block's tokens come out in them; a latency is from a batch's admission
    /// to its last token, and its prefill a pass that admits one. A run that was cut short before is
    /// timed as a whole.
    pub fn of_plan(plan: &Plan, run: &Run) -> Timing {
        let endless = plan.workload.num_prompts.is_none();
        let steady = plan.policy.schedule == Schedule::Diagonal && endless;
        let timing = steady.then(|| Timing::of_steady_state(plan, run)).flatten();
        timing.unwrap_or_else(|| Timing::of(run))
    }

    /// Times one round of a run, from when the round before has its last tokens. None where the run
    /// did not get so far.
    pub fn of_round(run: &Run, round: usize) -> Option<Timing> {
        let rounds = round_times(run);
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

    fn of_steady_state(plan: &Plan, run: &Run) -> Option<Timing> {
        let passes = Passes::new(&plan.policy, &plan.workload);
        let ends = pass_ends(run, &passes);
        let stay = plan.workload.gen_len as usize;
        let (from, to) = (*ends.get(stay - 1)?, *ends.get(2 * stay - 1)?);
        let admitting = |pass: &usize| passes.turns(*pass as u64).iter().any(|t| t.token == 0);
        let admissions: Vec<usize> = (stay..2 * stay).filter(admitting).collect();
        let durations = admissions
            .iter()
            .map(|pass| ends[*pass].0 - ends[pass - 1].0);
        Some(Timing {
            from,
            latency_s: to - from,
            prefill_s: Seconds(durations.sum::<f64>() / admissions.len().max(1) as f64),
            generated_tokens: plan.policy.block_size() * u64::from(plan.workload.gen_len),
            first_tokens: None,
        })
    }
}

/// When the tokens of each pass are there.
fn pass_ends(run: &Run, passes: &Passes) -> Vec<Seconds> {
    let mut ends = vec![Seconds::ZERO; passes.count() as usize];
    let mut done = 0;
    for head in run.tasks().filter_map(|task| head_of(run, task)) {
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
struct Head {
    cell: Cell,
    sequences: u32,
    end: Seconds,
}

fn head_of(run: &Run, (id, op, _, cell): (TaskId, &Op, usize, Cell)) -> Option<Head> {
    match op {
        Op::Linear {
            stage: Stage::Head,
            m,
            ..
        } => Some(Head {
            cell,
            sequences: *m,
            end: run.trace.span(id)?.end,
        }),
        _ => None,
    }
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

fn round_times(run: &Run) -> Vec<RoundTimes> {
    let mut rounds: Vec<RoundTimes> = Vec::new();
    for head in run.tasks().filter_map(|task| head_of(run, task)) {
        let round = head.cell.round as usize;
        rounds.resize(rounds.len().max(round + 1), RoundTimes::default());
        rounds[round].see(&head);
    }
    rounds
}

/// When the first round has its first tokens.
pub(crate) fn prefill_end(run: &Run) -> Seconds {
    let rounds = round_times(run);
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
