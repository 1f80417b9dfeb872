//! The discrete-event engine: an executor with modelled time.
//!
//! Resources are first in, first out in program order, so only the head of each queue can start.
//! The profile says how much slower one engine is beside another; the delays of several add up. What a host's memory gives to all is shared besides.
//! Whenever the set of running tasks changes, or what others carry over the links, what is left of each is re-timed. The same
//! input gives the same trace: ties in time break on the task's number.

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_core::executor::{ExecutionError, Executor, NotSubmitted, Times, Until};
use plimsoll_core::hardware::contention::rate_of;
use plimsoll_core::program::{
    Machine, Op, OpId, Program, Resource, ResourceId, ResourceKind, TaskId,
};
use plimsoll_core::trace::{Span, Trace};
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Seconds;

use crate::background::OnLanes;
use crate::contention::Contention;
use crate::cost::CostModel;
use crate::host_memory::HostMemory;
use crate::lanes::LaneSet;

const NOBODY: u32 = u32::MAX;

/// All of a link is left, and nothing delays.
const UNDISTURBED: (f64, f64) = (1.0, 0.0);

/// Interprets programs with the times of a [`CostModel`].
#[derive(Debug)]
pub struct Simulator {
    cost: CostModel,
    lanes: Vec<Lane>,
    contention: Contention,
    host_memory: Option<HostMemory>,
    /// Of each running lane, what it goes on at where a host's memory is shared; kept for its room.
    rates: Vec<f64>,
    handoff: Handoff,
    /// Whether copies from pageable memory are begun before their turn.
    stages_ahead: bool,
    traffic: OnLanes,
    running: LaneSet,
    /// For each lane, the first unfinished task that the head of its queue waits for, or [`NOBODY`].
    blocked_on: Vec<u32>,
    /// Those that were not let go of.
    pieces: VecDeque<Piece>,
    /// How many were.
    forgotten: usize,
    done: Done,
    now: f64,
    trace: Trace,
    came_late: bool,
}

/// What it takes until a lane begins that had to wait for a task of another, in seconds.
#[derive(Debug, Clone, Copy)]
struct Handoff {
    usual: f64,
    between_streams: f64,
}

impl Handoff {
    /// From a lane to another.
    fn of(&self, from: ResourceKind, to: ResourceKind) -> f64 {
        match (from.is_stream(), to.is_stream()) {
            // A barrier takes no engine, and has its own cost only.
            _ if to == ResourceKind::Sync => 0.0,
            (true, true) => self.between_streams,
            _ => self.usual,
        }
    }
}

/// A resource with its queue.
#[derive(Debug, Clone)]
struct Lane {
    resource: Resource,
    queue: Vec<Queued>,
    head: usize,
    /// The piece that the task ahead of the head is from; the head's is this one or a later one.
    piece: usize,
    /// The running task, or [`NOBODY`].
    task: u32,
    start: f64,
    finish: f64,
    rate: f64,
    /// Its rate but for what its host's memory leaves of it.
    pace: f64,
    /// Which of the lanes that slow this one were running when its rate was set.
    beside: LaneSet,
    /// What was left of its link by the traffic of others then, and how much that delayed it besides.
    traffic: (f64, f64),
    /// Whether the running task is a copy from pageable memory to a device that begins such before their turn.
    is_staged: bool,
    /// Since when the next one can have been staged: when the last one ended, and all before it were issued.
    staging_since: f64,
}

/// A task in a lane's queue, with what it takes to begin it: here that is read in order, in a piece tasks of other lanes lie between.
#[derive(Debug, Clone, Copy)]
struct Queued {
    task: u32,
    op: OpId,
    /// Its place among what the piece's tasks wait for.
    first_dep: u32,
    num_deps: u32,
}

/// Which tasks have ended.
#[derive(Debug, Default)]
struct Done {
    /// From the first task on that was not let go of.
    done: Vec<bool>,
    first: u32,
}

/// What was submitted, with the times of its operations.
#[derive(Debug)]
struct Piece {
    program: Arc<Program>,
    end: u32,
    num_lanes: usize,
    /// By operation, then lane: tasks share operations, so each is costed once where it runs, when
    /// it first runs there. No number before that.
    seconds: Vec<f64>,
}

impl Simulator {
    /// An engine for programs on this machine.
    pub fn new(machine: &Machine, cost: CostModel) -> Simulator {
        let lanes: Vec<Lane> = machine.resources.iter().map(|r| Lane::new(*r)).collect();
        let [usual, between_streams] = cost.profile().compute.handoffs().map(|time| time.0);
        Simulator {
            handoff: Handoff {
                usual,
                between_streams,
            },
            host_memory: HostMemory::new(machine, cost.profile()),
            rates: vec![1.0; machine.resources.len()],
            stages_ahead: cost.profile().links.staged_ahead.is_some(),
            traffic: OnLanes::none(),
            contention: Contention::new(machine, cost.profile()),
            cost,
            lanes,
            running: LaneSet::default(),
            blocked_on: vec![NOBODY; machine.resources.len()],
            pieces: VecDeque::new(),
            forgotten: 0,
            done: Done::default(),
            now: 0.0,
            trace: Trace::default(),
            came_late: false,
        }
    }

    /// The same with traffic of others on the machine's links.
    ///
    /// # Panics
    /// Where it leaves nothing of one ([`Background::check`]).
    pub fn with_traffic(mut self, machine: &Machine, traffic: &Background) -> Simulator {
        self.traffic = OnLanes::new(traffic, machine, self.cost.profile());
        self
    }

    /// Whether a task of a piece that was submitted after the start could begin at once. It may have been
    /// able to before, so a run that is to be as if all had been submitted at first may not be.
    pub(crate) fn came_late(&self) -> bool {
        self.came_late
    }

    /// Tasks submitted so far.
    pub fn num_tasks(&self) -> usize {
        self.done.end() as usize
    }

    /// Starts the head of an idle lane's queue, or notes what it waits for. `handed` says on what kind of lane that has just
    /// ended for which this one stood waiting: that takes the profile's hand-off time.
    fn start_ready(&mut self, lane: usize, handed: Option<ResourceKind>) {
        let this = &mut self.lanes[lane];
        let Some(&queued) = this.queue.get(this.head) else {
            return;
        };
        let task = queued.task;
        this.piece = this.piece.max(self.forgotten);
        while self.pieces[this.piece - self.forgotten].end <= task {
            this.piece += 1;
        }
        let piece = &mut self.pieces[this.piece - self.forgotten];
        let deps = &piece.program.deps()[queued.first_dep as usize..][..queued.num_deps as usize];
        let missing = deps.iter().find(|dep| !self.done.contains(dep.0));
        self.blocked_on[lane] = missing.map_or(NOBODY, |dep| dep.0);
        if missing.is_some() {
            return;
        }
        let seconds = piece.seconds_of(queued.op, (lane, this.resource), &self.cost);
        let op = &piece.program.ops()[queued.op.0 as usize];
        let this_lane = (lane, this.resource);
        self.contention.begin(this_lane, op, (&self.cost, seconds));
        if let Some(memory) = &mut self.host_memory {
            memory.begin(this_lane, op, (&self.cost, seconds));
        }
        this.head += 1;
        this.task = task;
        let handoff = handed.map_or(0.0, |from| self.handoff.of(from, this.resource.kind));
        this.start = self.now + handoff;
        this.finish = this.start + seconds;
        if self.stages_ahead && this.resource.kind == ResourceKind::H2d {
            self.stage(lane, task);
        }
        let this = &mut self.lanes[lane];
        (this.rate, this.pace) = (1.0, 1.0);
        this.beside = LaneSet::default();
        this.traffic = UNDISTURBED;
        self.running.insert(lane);
    }

    /// Takes from a copy to a device that begins what its driver has of it by now. A stream's tasks are issued in order, each once all
    /// that the host has to do for it is done, and a copy from pageable memory is staged from then on, behind the one before it.
    fn stage(&mut self, lane: usize, task: u32) {
        let Some((program, index)) = self.place_of(task) else {
            return;
        };
        let op = *program.op_of(&program.tasks()[index]);
        let issued = program.deps_at(index).iter().filter_map(|dep| {
            let (program, index) = self.place_of(dep.0)?;
            let on = program.tasks()[index].resource;
            let kind = self.lanes[usize::from(on.0)].resource.kind;
            // A copy down to pageable memory, and a barrier that the host has a part in, are waited for as well.
            let of_host = !matches!(kind, ResourceKind::Gpu | ResourceKind::H2d);
            let span = self.trace.span(*dep).filter(|_| of_host)?;
            Some(span.end.0 + self.handoff.of(kind, ResourceKind::H2d))
        });
        let issued = issued.fold(self.lanes[lane].staging_since, f64::max);
        let this = &mut self.lanes[lane];
        this.staging_since = issued;
        this.is_staged = op.pageable_bytes().is_some();
        let since = Seconds(this.start - issued);
        this.finish -= self.cost.staged_ahead(&op, since).0;
    }

    /// The piece that a task is of, and its place there; none where it was let go of.
    fn place_of(&self, task: u32) -> Option<(&Program, usize)> {
        let mut pieces = self.pieces.iter().rev();
        let piece = pieces.find(|piece| piece.program.first_task().0 <= task)?;
        let index = task - piece.program.first_task().0;
        Some((&*piece.program, index as usize))
    }

    /// Re-times what runs, where the lanes beside it have changed, or traffic has.
    fn retime(&mut self) {
        let (running, contention) = (self.running, &self.contention);
        running.for_each(|lane| {
            let beside = running.and(contention.slowed_by(lane));
            let delay_beside = |other: usize| contention.delay_beside(lane, other);
            let by_traffic = self
                .traffic
                .delay(delay_beside, |other| running.contains(other));
            let traffic = (self.traffic.left(lane), by_traffic);
            let this = &mut self.lanes[lane];
            let is_as_it_was = beside == this.beside && traffic == this.traffic;
            if is_as_it_was && !contention.asks_what_runs() {
                return;
            }
            let delay = by_traffic + contention.delay(lane, beside);
            this.pace = rate_of(delay) * traffic.0;
            this.beside = beside;
            this.traffic = traffic;
            if self.host_memory.is_none() && this.pace != this.rate {
                this.go_on_at(this.pace, self.now);
            }
        });
        self.share_host_memory();
    }

    /// Re-times what runs by what the memory of its host leaves it.
    fn share_host_memory(&mut self) {
        let Some(memory) = &self.host_memory else {
            return;
        };
        let (lanes, rates) = (&mut self.lanes, &mut self.rates);
        self.running.for_each(|lane| rates[lane] = lanes[lane].pace);
        let pace = |lane: usize| lanes[lane].pace;
        memory.shares(self.running, pace, |lane, share| rates[lane] *= share);
        self.running.for_each(|lane| {
            if rates[lane] != lanes[lane].rate {
                lanes[lane].go_on_at(rates[lane], self.now);
            }
        });
    }

    /// Goes on to what happens next, if it does by `limit`: a task ends, or what runs goes on at another pace.
    fn step(&mut self, limit: f64) -> bool {
        let next = self.next();
        let finish = next.map_or(f64::INFINITY, |lane| self.lanes[lane].finish);
        let change = self.traffic.next();
        if change < finish && change <= limit {
            self.now = change;
            self.traffic.turn(change);
            self.retime();
            return true;
        }
        match next {
            Some(lane) if finish <= limit => {
                self.end(lane);
                true
            }
            _ => false,
        }
    }

    /// The running task that ends next.
    fn next(&self) -> Option<usize> {
        let mut best: Option<(f64, u32, usize)> = None;
        self.running.for_each(|lane| {
            let this = &self.lanes[lane];
            let sooner = best.is_none_or(|(finish, task, _)| {
                this.finish < finish || (this.finish == finish && this.task < task)
            });
            if sooner {
                best = Some((this.finish, this.task, lane));
            }
        });
        best.map(|(_, _, lane)| lane)
    }

    /// Ends the task of a lane and starts what that allows.
    fn end(&mut self, lane: usize) {
        let this = &mut self.lanes[lane];
        let task = this.task;
        self.now = this.finish;
        let span = Span {
            start: Seconds(this.start),
            end: Seconds(this.finish),
        };
        this.task = NOBODY;
        if this.is_staged {
            this.staging_since = self.now;
            this.is_staged = false;
        }
        self.trace.record(TaskId(task), span);
        self.done.insert(task);
        self.running.remove(lane);
        let kind = this.resource.kind;
        self.start_ready(lane, None);
        let mut freed = LaneSet::default();
        for (other, on) in self.blocked_on.iter().enumerate() {
            if *on == task {
                freed.insert(other);
            }
        }
        freed.for_each(|lane| self.start_ready(lane, Some(kind)));
        self.retime();
    }

    fn start_idle(&mut self) {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].task == NOBODY && self.blocked_on[lane] == NOBODY {
                self.start_ready(lane, None);
            }
        }
        self.retime();
    }

    fn run_to(&mut self, task: TaskId) -> Result<(), ExecutionError> {
        if task.0 >= self.done.end() {
            return Err(NotSubmitted { task }.into());
        }
        while !self.done.contains(task.0) {
            if !self.step(f64::INFINITY) {
                return Err(self.stuck(task));
            }
        }
        Ok(())
    }

    fn stuck(&self, task: TaskId) -> ExecutionError {
        let why = format!(
            "task {} never ends: it waits for what was not submitted",
            task.0
        );
        ExecutionError::Executor(why.into())
    }
}

impl Done {
    /// The number after the last that was submitted.
    fn end(&self) -> u32 {
        self.first + self.done.len() as u32
    }

    fn extend_to(&mut self, end: u32) {
        self.done.resize((end - self.first) as usize, false);
    }

    #[inline]
    fn insert(&mut self, task: u32) {
        self.done[(task - self.first) as usize] = true;
    }

    /// What was let go of has ended.
    #[inline]
    fn contains(&self, task: u32) -> bool {
        let place = task.checked_sub(self.first);
        place.is_none_or(|place| self.done[place as usize])
    }

    fn forget_to(&mut self, end: u32) {
        self.done.drain(..(end - self.first) as usize);
        self.first = end;
    }
}

impl Piece {
    fn new(program: Arc<Program>, num_lanes: usize) -> Piece {
        Piece {
            end: program.end_task().0,
            num_lanes,
            seconds: vec![f64::NAN; program.ops().len() * num_lanes],
            program,
        }
    }

    fn seconds_of(
        &mut self,
        op: OpId,
        (lane, resource): (usize, Resource),
        cost: &CostModel,
    ) -> f64 {
        let op = op.0 as usize;
        let known = &mut self.seconds[op * self.num_lanes + lane];
        if known.is_nan() {
            *known = cost.seconds(resource, &self.program.ops()[op]).0;
        }
        *known
    }
}

impl Lane {
    fn new(resource: Resource) -> Lane {
        Lane {
            resource,
            queue: Vec::new(),
            head: 0,
            piece: 0,
            task: NOBODY,
            start: 0.0,
            finish: 0.0,
            rate: 1.0,
            pace: 1.0,
            beside: LaneSet::default(),
            traffic: UNDISTURBED,
            is_staged: false,
            staging_since: 0.0,
        }
    }

    /// What is left of the running task is done at another rate from now on.
    fn go_on_at(&mut self, rate: f64, now: f64) {
        self.finish = now + (self.finish - now) * self.rate / rate;
        self.rate = rate;
    }
}

impl Executor for Simulator {
    fn submit(&mut self, piece: Arc<Program>) -> Result<(), ExecutionError> {
        let mut first_dep = 0;
        for (index, task) in piece.tasks().iter().enumerate() {
            let num_deps = piece.deps_at(index).len() as u32;
            self.lanes[task.resource.0 as usize].queue.push(Queued {
                task: piece.first_task().0 + index as u32,
                op: task.op,
                first_dep,
                num_deps,
            });
            first_dep += num_deps;
        }
        self.done.extend_to(piece.end_task().0);
        self.trace.extend_to(piece.end_task());
        self.pieces.push_back(Piece::new(piece, self.lanes.len()));
        let before = self.running;
        self.start_idle();
        self.came_late |= self.now > 0.0 && self.running != before;
        Ok(())
    }

    fn wait(&mut self, until: Until) -> Result<Seconds, ExecutionError> {
        match until {
            Until::Task(task) => self.run_to(task)?,
            Until::Time(time) => {
                while self.step(time.0) {}
                self.now = self.now.max(time.0);
            }
            Until::Idle => {
                while self.running != LaneSet::default() {
                    self.step(f64::INFINITY);
                }
                if let Some(waiting) = self.lanes.iter().find_map(|l| l.queue.get(l.head)) {
                    return Err(self.stuck(TaskId(waiting.task)));
                }
            }
        }
        Ok(Seconds(self.now))
    }

    fn forget(&mut self, piece: &Program) {
        self.trace.forget_to(piece.end_task());
        self.done.forget_to(piece.end_task().0);
        for lane in &mut self.lanes {
            lane.queue.drain(..lane.head);
            lane.head = 0;
        }
        self.pieces.pop_front();
        self.forgotten += 1;
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }

    fn times(&self) -> Option<Box<dyn Times>> {
        let lanes = self.lanes.iter();
        let known = || Known {
            resources: lanes.map(|lane| lane.resource).collect(),
            cost: self.cost.clone(),
            contention: self.contention.clone(),
            handoff: self.handoff,
        };
        // What others carry changes times while tasks run, and so does a host's memory that does not do for its links.
        let links = &self.cost.profile().links;
        let beside = |victim, other| self.cost.profile().contention_factor(victim, other);
        let h2d = links.h2d.page_locked.peak() * beside(ResourceKind::H2d, ResourceKind::D2h);
        let d2h = links.d2h.page_locked.peak() * beside(ResourceKind::D2h, ResourceKind::H2d);
        let memory = self.host_memory.as_ref();
        let does = memory.is_none_or(|memory| memory.does_for(h2d + d2h));
        (self.traffic.is_none() && does).then(|| Box::new(known()) as Box<dyn Times>)
    }
}

/// What tasks take, as far as nobody but those of the program is there.
#[derive(Debug)]
struct Known {
    resources: Vec<Resource>,
    cost: CostModel,
    contention: Contention,
    handoff: Handoff,
}

impl Times for Known {
    fn seconds(&self, on: ResourceId, op: &Op) -> Seconds {
        self.cost.seconds(self.resources[usize::from(on.0)], op)
    }

    fn share(&self, of: ResourceId, beside: ResourceId) -> f64 {
        self.contention
            .least_rate(usize::from(of.0), usize::from(beside.0))
    }

    fn handoff(&self, from: ResourceId, to: ResourceId) -> Seconds {
        let [from, to] = [from, to].map(|it| self.resources[usize::from(it.0)].kind);
        Seconds(self.handoff.of(from, to))
    }
}
