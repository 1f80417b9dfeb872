//! What a run amounts to: the figures that a prediction and a measurement share.

use serde::{Deserialize, Serialize};

use crate::control::Run;
use crate::lower::schedule::Passes;
use crate::plan::Plan;
use crate::policy::Schedule;
use crate::program::{BufferId, Cell, Op, ResourceKind, Stage, TaskId};
use crate::tier::{PerTier, Tier};
use crate::units::{Bytes, Seconds};

/// Times, rates, memory and the bottleneck of a run, predicted or measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Generated tokens over the whole time, prefill included (FlexGen section 6).
    pub throughput_tok_s: f64,
    /// From the start to the last token of the last sequence.
    pub latency_s: Seconds,
    /// Until each round's first tokens, summed over rounds.
    pub prefill_s: Seconds,
    /// The rest.
    pub decode_s: Seconds,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// The most that was alive at once.
    pub peak_bytes: PerTier<Bytes>,
    /// Share of the time that each resource was busy.
    pub busy_fraction: BusyFraction,
    /// The resource that was busy longest.
    pub bottleneck: String,
}

/// Share of the time that each resource was busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // the resources' names
pub struct BusyFraction {
    pub gpu: f64,
    pub h2d: f64,
    pub d2h: f64,
    pub disk_read: f64,
    pub disk_write: f64,
    pub cpu: f64,
}

impl BusyFraction {
    /// With each resource's name.
    pub fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("gpu", self.gpu),
            ("h2d", self.h2d),
            ("d2h", self.d2h),
            ("disk_read", self.disk_read),
            ("disk_write", self.disk_write),
            ("cpu", self.cpu),
        ]
    }

    /// The resource that was busy longest.
    fn longest(&self) -> &'static str {
        let longer = |best: (&'static str, f64), next: (&'static str, f64)| {
            if next.1 > best.1 { next } else { best }
        };
        self.named().into_iter().fold(("gpu", 0.0), longer).0
    }

    /// Shares of a stretch of time.
    fn within(run: &Run, from: Seconds, to: Seconds) -> BusyFraction {
        let all = (to - from).0.max(f64::MIN_POSITIVE);
        let mut busy = BusyFraction::default();
        for (id, _, resource, _) in run.tasks() {
            if let Some(span) = run.trace.span(id)
                && let Some(share) = busy.slot(run.machine.resources[resource].kind)
            {
                *share += (span.end.0.min(to.0) - span.start.0.max(from.0)).max(0.0) / all;
            }
        }
        busy
    }

    fn slot(&mut self, kind: ResourceKind) -> Option<&mut f64> {
        match kind {
            ResourceKind::Gpu => Some(&mut self.gpu),
            ResourceKind::H2d => Some(&mut self.h2d),
            ResourceKind::D2h => Some(&mut self.d2h),
            ResourceKind::DiskRead => Some(&mut self.disk_read),
            ResourceKind::DiskWrite => Some(&mut self.disk_write),
            ResourceKind::Cpu => Some(&mut self.cpu),
            ResourceKind::Pin | ResourceKind::Sync | ResourceKind::PeerLink => None,
        }
    }
}

impl Summary {
    /// Sums up a run of a static plan.
    pub fn of(run: &Run) -> Summary {
        let latency = run.trace.makespan();
        let prefill = prefill_time(run);
        let tokens = run.tasks().filter_map(|task| head_of(run, task));
        let tokens = tokens.map(|head| u64::from(head.sequences)).sum();
        let busy = BusyFraction::within(run, Seconds::ZERO, latency);
        Summary {
            throughput_tok_s: tokens as f64 / latency.0.max(f64::MIN_POSITIVE),
            latency_s: latency,
            prefill_s: prefill,
            decode_s: latency - prefill,
            generated_tokens: tokens,
            peak_bytes: peak_bytes(run),
            busy_fraction: busy,
            bottleneck: busy.longest().to_owned(),
        }
    }
}

impl Summary {
    /// Sums up a run of a plan. Where prompts are endless, the diagonal schedule has no block that
    /// begins and ends, so all but the peak is of its steady state: as many passes as a GPU batch stays,
    /// from when every place is taken. A block's tokens come out in them; a latency is from a batch's
    /// admission to its last token, and its prefill a pass that admits one.
    pub fn of_plan(plan: &Plan, run: &Run) -> Summary {
        let summary = Summary::of(run);
        let endless = plan.workload.num_prompts.is_none();
        if plan.policy.schedule != Schedule::Diagonal || !endless {
            return summary;
        }
        let passes = Passes::new(&plan.policy, &plan.workload);
        let ends = pass_ends(run, &passes);
        let stay = plan.workload.gen_len as usize;
        let (Some(from), Some(to)) = (ends.get(stay - 1), ends.get(2 * stay - 1)) else {
            // The run was cut short.
            return summary;
        };
        let admitting = |pass: &usize| passes.turns(*pass as u64).iter().any(|t| t.token == 0);
        let admissions: Vec<usize> = (stay..2 * stay).filter(admitting).collect();
        let durations = admissions
            .iter()
            .map(|pass| ends[*pass].0 - ends[pass - 1].0);
        let prefill = Seconds(durations.sum::<f64>() / admissions.len().max(1) as f64);
        let latency = *to - *from;
        let tokens = plan.policy.block_size() * u64::from(plan.workload.gen_len);
        let busy = BusyFraction::within(run, *from, *to);
        Summary {
            throughput_tok_s: tokens as f64 / latency.0.max(f64::MIN_POSITIVE),
            latency_s: latency,
            prefill_s: prefill,
            decode_s: latency - prefill,
            generated_tokens: tokens,
            busy_fraction: busy,
            bottleneck: busy.longest().to_owned(),
            ..summary
        }
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

#[derive(Debug, Clone, Copy, Default)]
struct RoundTimes {
    prefill_end: Seconds,
    end: Seconds,
}

impl RoundTimes {
    fn see(&mut self, cell: Cell, end: Seconds) {
        self.end = self.end.max(end);
        if cell.pass == 0 {
            self.prefill_end = self.prefill_end.max(end);
        }
    }
}

/// Until each round's first tokens, summed over rounds.
fn prefill_time(run: &Run) -> Seconds {
    let mut rounds: Vec<RoundTimes> = Vec::new();
    for head in run.tasks().filter_map(|task| head_of(run, task)) {
        let round = head.cell.round as usize;
        rounds.resize(rounds.len().max(round + 1), RoundTimes::default());
        rounds[round].see(head.cell, head.end);
    }
    let mut begun = Seconds::ZERO;
    let mut total = Seconds::ZERO;
    for round in rounds {
        // In a diagonal schedule later rounds begin before this one ends.
        total += (round.prefill_end - begun).max(Seconds::ZERO);
        begun = round.end.max(begun);
    }
    total
}

/// The most bytes of buffers alive at once in each tier, by when tasks really ran.
pub fn peak_bytes(run: &Run) -> PerTier<Bytes> {
    let mut now = PerTier::<i64>::default();
    let mut sizes: Vec<(Tier, i64)> = Vec::new();
    for buffer in run.pieces.iter().flat_map(|p| p.buffers()) {
        let tier = run.machine.arenas[buffer.arena.0 as usize].tier;
        let bytes = i64::try_from(buffer.bytes.0).unwrap_or(i64::MAX);
        sizes.push((tier, bytes));
        if buffer.resident {
            now[tier] += bytes;
        }
    }
    let mut peak = now;
    for change in changes(run) {
        let (tier, bytes) = sizes[change.buffer.0 as usize];
        if change.taken {
            now[tier] += bytes;
            peak[tier] = peak[tier].max(now[tier]);
        } else {
            now[tier] -= bytes;
        }
    }
    peak.map(|bytes| Bytes(u64::try_from(bytes).unwrap_or(0)))
}

/// A buffer that comes to life or is given back.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: Seconds,
    taken: bool,
    buffer: BufferId,
}

/// All changes by time. What is given back at an instant makes room for what is taken then.
fn changes(run: &Run) -> Vec<Change> {
    // A resource starts its tasks in order and ends them in order, so each of these lists is in
    // order as it is filled, and the stable sort only has to merge them.
    let mut lists = vec![(Vec::new(), Vec::new()); run.machine.resources.len()];
    for piece in &run.pieces {
        for (index, task) in piece.tasks().iter().enumerate() {
            let id = TaskId(piece.first_task().0 + index as u32);
            let Some(span) = run.trace.span(id) else {
                continue;
            };
            let (takes, gives) = &mut lists[task.resource.0 as usize];
            let change = |at, taken| {
                move |buffer: &BufferId| Change {
                    at,
                    taken,
                    buffer: *buffer,
                }
            };
            takes.extend(piece.takes_at(index).iter().map(change(span.start, true)));
            gives.extend(piece.gives_at(index).iter().map(change(span.end, false)));
        }
    }
    let lists = lists.into_iter().flat_map(|(takes, gives)| [takes, gives]);
    let mut changes = lists.collect::<Vec<_>>().concat();
    changes.sort_by(|a, b| a.at.0.total_cmp(&b.at.0).then(a.taken.cmp(&b.taken)));
    changes
}
