//! The iteration-level scheduler (Orca, section 3): sequences join and leave with every iteration.

use super::Request;
use super::log::IterationRow;
use super::manager::KvManager;
use super::metrics::{Ledger, ServeSummary};
use super::pie::{Iteration, Lanes, Next, Pie};
use super::predict::Score;
use super::running::Running;
use super::sequence::{Sequence, State};
use super::shape::{Load, Shape};
use super::stages::Stages;
use crate::control::{Controller, Decision};
use crate::executor::{Times, Until};
use crate::machine::Machine;
use crate::program::{BufferId, Cell, Program, TaskId};
use crate::roster::{Moved, Roster};
use crate::trace::Trace;
use crate::units::{Bytes, Seconds};

/// How much an iteration may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences at most.
    pub sequences: u32,
    /// Tokens computed at most; one prompt is in any case.
    pub tokens: u32,
}

/// A request that nobody could serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which: its number in the trace, from 0 on.
    pub request: u32,
    /// Why, and what would help.
    pub why: String,
}

/// Serves requests: a controller that submits an iteration after another.
#[derive(Debug)]
pub struct Scheduler {
    machine: Machine,
    /// The engines of the GPU that swaps layers.
    lanes: Lanes,
    stages: Stages,
    shape: Shape,
    limits: Limits,
    manager: Box<dyn KvManager>,
    /// What is left of the host's memory for caches of requests.
    host_free: Bytes,
    /// Swaps layers of the cache while others are computed.
    pie: Option<Pie>,
    running: Running,
    /// Its requests before this one have come.
    next: u32,
    /// Every so-manieth request is its own.
    every: u32,
    /// In a closed loop, a request comes when another has ended.
    clients: Option<u32>,
    iteration: i64,
    phase: Phase,
    next_task: TaskId,
    /// When the iteration at hand began, and the one before ended.
    began: Seconds,
    /// What the iteration at hand computes.
    load: Load,
    /// Those that join with it; and room for lists.
    joining: Vec<u32>,
    /// Whether somebody waits for room in the cache, and not for anything else.
    lacks_room: bool,
    found: Vec<u32>,
    moves: Vec<(Bytes, Moved)>,
    /// Whether pieces say who takes part.
    described: bool,
    /// Whose room is free since the last piece, for those that say so.
    left: Vec<u32>,
    ledger: Ledger,
    /// All iterations, where that is wanted.
    log: Option<Vec<IterationRow>>,
    refusals: Vec<Refusal>,
}

/// Where it is between two iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// None is under way.
    Between,
    /// One was submitted, which ends with this task.
    Submitted(TaskId),
    /// It is waited for.
    Awaited,
    /// One is under way, layer by layer.
    Layers,
}

impl Scheduler {
    /// Serves requests, which are in the order of their coming, on a machine's first GPU.
    ///
    /// # Panics
    /// Where the machine has no GPU.
    pub fn new(
        machine: Machine,
        shape: Shape,
        limits: Limits,
        manager: Box<dyn KvManager>,
        requests: &[Request],
    ) -> Scheduler {
        Scheduler {
            lanes: Lanes::of(&machine),
            host_free: machine.host_capacity(),
            stages: Stages::alone(&machine, 0, shape.layers),
            machine,
            shape,
            limits,
            manager,
            pie: None,
            running: Running::new(requests.iter().copied().map(Sequence::new).collect()),
            next: 0,
            every: 1,
            clients: None,
            iteration: 0,
            phase: Phase::Between,
            next_task: TaskId(0),
            began: Seconds::ZERO,
            load: Load::default(),
            joining: Vec::new(),
            lacks_room: false,
            found: Vec::new(),
            moves: Vec::new(),
            described: false,
            left: Vec::new(),
            ledger: Ledger::default(),
            log: None,
            refusals: Vec::new(),
        }
    }

    /// The same with so many clients, each of which asks again as soon as it has its answer, whatever the
    /// requests' own times are.
    pub fn in_closed_loop(mut self, clients: u32) -> Scheduler {
        self.clients = Some(clients.max(1));
        self
    }

    /// The same with layers elsewhere than all on the first GPU.
    pub fn over(mut self, stages: Stages) -> Scheduler {
        self.stages = stages;
        self
    }

    /// The same with every so-manieth request, from the `first` on, and as much of the host's memory; the others are somebody else's.
    pub(super) fn every(mut self, first: u32, every: u32) -> Scheduler {
        (self.next, self.every) = (first, every);
        self.host_free = Bytes(self.host_free.0 / u64::from(every));
        self
    }

    /// Numbers the next piece's tasks from here on.
    pub(super) fn number_from(&mut self, task: TaskId) {
        self.next_task = task;
    }

    /// The same where each piece says [who takes part](Roster), for executors that really compute. It takes time for
    /// each sequence and iteration, and no prediction needs it.
    pub fn described(mut self) -> Scheduler {
        self.described = true;
        self
    }

    /// The same, which [keeps](Scheduler::iterations) what each iteration was like.
    pub fn logged(mut self) -> Scheduler {
        self.log = Some(Vec::new());
        self
    }

    /// The same with a cache whose layers are swapped; its manager has vLLM's blocks.
    pub fn with_layers_swapped(mut self, pie: Pie) -> Scheduler {
        self.manager.resize(pie.capacity_tokens());
        self.pie = Some(pie);
        self
    }

    /// The same where tasks take times that are [known](crate::executor::Executor::times): then an iteration of swapped
    /// layers is not submitted layer by layer.
    pub fn foreseeing(mut self, times: Option<Box<dyn Times>>) -> Scheduler {
        if let Some(times) = times {
            self.pie = self.pie.map(|pie| pie.foreseeing(times));
        }
        self
    }

    /// What swapping layers amounts to, where they are.
    pub fn pie(&self) -> Option<&Pie> {
        self.pie.as_ref()
    }

    /// The requests, and what has become of them.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Iterations so far; none where nobody wanted them.
    pub fn iterations(&self) -> &[IterationRow] {
        self.log.as_deref().unwrap_or_default()
    }

    /// Requests that could not be served.
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// What it amounts to, when all have ended. An answer is good within so many seconds a token.
    pub fn summary(&self, slo_s: f64) -> ServeSummary {
        let swapped = self.pie.as_ref().map(Pie::swapped);
        let (all, tokens) = (self.running.sequences(), self.capacity_tokens());
        ServeSummary::of(all, (&self.ledger, swapped), tokens, slo_s)
    }

    /// Tokens whose keys and values its cache has room for.
    pub(super) fn capacity_tokens(&self) -> u64 {
        self.manager.capacity_tokens()
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How good predictions of answers' lengths have been, where they are learnt.
    pub fn prediction_score(&self) -> Option<Score> {
        self.manager.prediction_score()
    }

    /// Requests that have come by now wait; those that can never have room are refused.
    fn arrive(&mut self, now: Seconds) {
        while let Some(sequence) = self.running.sequences().get(self.next as usize) {
            let request = sequence.request;
            let here = match self.clients {
                None => request.arrival.0 <= now.0,
                Some(clients) => self.running.count() + (self.manager.waiting() as u32) < clients,
            };
            if !here {
                break;
            }
            let id = self.next;
            self.next += self.every;
            if self.clients.is_some() {
                self.running.sequence_mut(id).request.arrival = now;
            }
            match self.check(&request) {
                Ok(()) => self.manager.enqueue(id, &self.running),
                Err(why) => {
                    self.running.sequence_mut(id).state = State::Refused;
                    self.refusals.push(Refusal { request: id, why });
                }
            }
        }
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let (len, most) = (request.total_len(), self.shape.max_positions());
        if len > most {
            return Err(format!(
                "has {len} tokens, and the model has positions for {most}; give a model with more, or a shorter request"
            ));
        }
        self.manager.check(request)
    }

    /// Puts the next iteration together; false where there is nothing to compute.
    fn form(&mut self) -> bool {
        let iteration = self.iteration + 1;
        let mut made_room = false;
        while let Some(id) = self.manager.make_room(iteration, &mut self.running) {
            made_room = true;
            self.send_away(id);
        }
        self.load = Load {
            sequences: self.running.count(),
            tokens: self.running.count(),
            context_tokens: self.running.tokens_at(iteration),
            ..Load::default()
        };
        // Who joined now would take the room that somebody has just left.
        if !made_room || self.running.count() == 0 {
            self.let_in(iteration);
        }
        if self.pie.is_some() {
            let full = self.load.sequences >= self.limits.sequences;
            let lacks_room = !full && self.manager.lacks_room(&self.running);
            // Where the iteration takes no more tokens either, room may not be what is lacking: it is as it was.
            self.lacks_room = lacks_room && (self.lacks_room || !self.takes_no_more());
        }
        let is_one = self.load.sequences > 0;
        if is_one {
            self.iteration = iteration;
        }
        is_one
    }

    /// Takes out a sequence that has no room for its next token. Where the host has none either, it is computed again.
    fn send_away(&mut self, id: u32) {
        let (began, busy) = (self.began, self.ledger.busy);
        self.running.leave(id, self.iteration, State::Waiting);
        let held = self.running.sequence(id).held;
        let bytes = self.shape.bytes_per_token() * u64::from(held);
        let swaps = self.manager.swaps() && bytes <= self.host_free;
        self.manager.release(id, &self.running);
        let sequence = self.running.sequence_mut(id);
        sequence.on_host = swaps;
        sequence.preemptions += 1;
        sequence.computed += busy;
        sequence.last_token = began;
        self.ledger.preemptions += 1;
        if swaps {
            self.host_free = self.host_free.saturating_sub(bytes);
            self.ledger.swaps_out += 1;
            self.ledger.swapped_bytes += bytes.0;
            let moved = Moved::Out(id, held);
            self.moves.push((bytes, moved));
        } else if self.described {
            self.left.push(id);
        }
        self.manager.put_back(id, &self.running);
    }

    /// Adds those that wait, as far as there is room.
    fn let_in(&mut self, iteration: i64) {
        while self.load.sequences < self.limits.sequences {
            let Some(id) = self.manager.admit(&self.running, self.tokens_left()) else {
                return;
            };
            self.running.join(id, iteration);
            self.manager.joined(id, &self.running);
            self.joining.push(id);
            let sequence = self.running.sequence(id);
            let tokens = u64::from(sequence.to_compute());
            self.load.sequences += 1;
            self.load.tokens += tokens as u32;
            if sequence.on_host {
                let bytes = self.shape.bytes_per_token() * u64::from(sequence.held);
                self.load.context_tokens += u64::from(sequence.held) + 1;
                self.host_free += bytes;
                self.ledger.swaps_in += 1;
                self.ledger.swapped_bytes += bytes.0;
                self.moves.push((bytes, Moved::In(id)));
            } else {
                self.load.prompt_tokens += tokens as u32;
                self.load.prompt_pairs += tokens * (tokens + 1) / 2;
                self.ledger.prompt_tokens += tokens;
                self.ledger.recomputed_tokens += u64::from(sequence.held);
            }
            let busy = self.ledger.busy;
            let sequence = self.running.sequence_mut(id);
            sequence.computed = sequence.computed - busy;
        }
    }

    /// Tokens that the iteration at hand may compute yet of one that joins.
    fn tokens_left(&self) -> u32 {
        // One prompt goes in any case: it shall not wait for those who decode to end, nor for ever.
        match self.load.prompt_tokens {
            0 => u32::MAX,
            _ => self.limits.tokens.saturating_sub(self.load.tokens),
        }
    }

    /// Whether it takes the next that is to join no more.
    fn takes_no_more(&self) -> bool {
        let next = self.manager.next().map(|id| self.running.sequence(id));
        next.is_some_and(|sequence| sequence.to_compute() > self.tokens_left())
    }

    fn cell(&self) -> Cell {
        Cell {
            round: self.iteration as u32,
            ..Cell::default()
        }
    }

    /// Goes on with an iteration layer by layer.
    fn layers(&mut self, now: Seconds, trace: &Trace) -> Decision {
        let cell = self.cell();
        let pie = self.pie.as_mut().expect("only then there are layers");
        let iteration = Iteration {
            shape: &self.shape,
            load: &self.load,
            cell,
        };
        match pie.next(iteration, (now, trace), self.next_task) {
            Next::Submit(mut piece) => {
                self.next_task = piece.end_task();
                if self.described {
                    let roster = Roster {
                        left: std::mem::take(&mut self.left),
                        moves: self.lanes.layers_moved(&piece),
                        members: self.running.members(self.iteration).collect(),
                    };
                    piece.set_roster(roster);
                }
                Decision::Submit(piece)
            }
            Next::Wait(task) => Decision::Wait(Until::Task(task)),
            Next::Ended => self.ended(now, trace),
        }
    }

    /// Goes on behind an iteration.
    fn ended(&mut self, now: Seconds, trace: &Trace) -> Decision {
        self.note(now);
        self.end(now);
        self.swap_more_or_less(now);
        self.between(now, trace)
    }

    /// Has Pie look at the iteration that has ended.
    fn swap_more_or_less(&mut self, now: Seconds) {
        let it = ((now - self.began).0, &self.load);
        let pie = self.pie.as_mut();
        if let Some(tokens) = pie.and_then(|pie| pie.ended(now, it, self.lacks_room)) {
            self.manager.resize(tokens);
        }
    }

    /// The iteration as a piece.
    fn piece(&mut self) -> Program {
        let mut piece = Program::numbered(self.next_task, BufferId(0));
        let iteration = Iteration {
            shape: &self.shape,
            load: &self.load,
            cell: self.cell(),
        };
        let moves = self.stages.write(&mut piece, &iteration, &self.moves);
        self.moves.clear();
        self.next_task = piece.end_task();
        if self.described {
            piece.set_roster(Roster {
                left: std::mem::take(&mut self.left),
                moves,
                members: self.running.members(self.iteration).collect(),
            });
        }
        piece
    }

    /// Writes the iteration at hand down, where that is wanted.
    fn note(&mut self, now: Seconds) {
        let Some(log) = &mut self.log else {
            return;
        };
        let (layers_off, expansion, stalled) = match &self.pie {
            Some(pie) => (pie.off(), pie.expansion(), pie.stalled()),
            None => (0, 1.0, Seconds::ZERO),
        };
        log.push(IterationRow {
            batch: 0,
            iteration: self.iteration as u64,
            began_s: self.began.0,
            ended_s: now.0,
            sequences: self.load.sequences,
            prompt_tokens: self.load.prompt_tokens,
            waiting: self.manager.waiting(),
            cached_tokens: self.running.tokens_at(self.iteration),
            capacity_tokens: self.manager.capacity_tokens(),
            layers_off,
            expansion,
            stalled_s: stalled.0,
            preemptions: self.ledger.preemptions,
        });
    }

    /// The iteration at hand has ended.
    fn end(&mut self, now: Seconds) {
        let seconds = (now - self.began).0;
        let capacity = self.manager.capacity_tokens() as f64;
        let used = self.running.tokens_at(self.iteration) as f64 / capacity;
        let reserved = self.manager.reserved_tokens() as f64 / capacity;
        let count = self.load.sequences;
        self.ledger.iteration(seconds, count, (used, reserved));
        self.ledger.gap(seconds, count - self.joining.len() as u32);
        for id in self.joining.drain(..) {
            let sequence = self.running.sequence_mut(id);
            if sequence.first_token.0.is_nan() {
                sequence.first_token = now;
            } else {
                self.ledger.gap((now - sequence.last_token).0, 1);
            }
            sequence.on_host = false;
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        self.running.ended(self.iteration, &mut found);
        for id in &found {
            self.running.leave(*id, self.iteration, State::Done);
            self.manager.release(*id, &self.running);
            if self.described {
                self.left.push(*id);
            }
            let sequence = self.running.sequence_mut(*id);
            sequence.computed += self.ledger.busy;
            sequence.last_token = now;
        }
        self.found = found;
    }

    /// What to do between two iterations.
    fn between(&mut self, now: Seconds, trace: &Trace) -> Decision {
        self.phase = Phase::Between;
        self.arrive(now);
        self.began = now;
        if !self.form() {
            // Nothing runs, so all that fits alone has joined: nobody waits.
            return match self.running.sequences().get(self.next as usize) {
                Some(sequence) => Decision::Wait(Until::Time(sequence.request.arrival)),
                None => Decision::Done,
            };
        }
        let cell = self.cell();
        if let Some(pie) = &mut self.pie {
            let iteration = Iteration {
                shape: &self.shape,
                load: &self.load,
                cell,
            };
            if let Some(end) = pie.foresee(iteration, now) {
                self.phase = Phase::Awaited;
                return Decision::Wait(Until::Time(end));
            }
            self.phase = Phase::Layers;
            return self.layers(now, trace);
        }
        let piece = self.piece();
        self.phase = Phase::Submitted(TaskId(self.next_task.0 - 1));
        Decision::Submit(Box::new(piece))
    }
}

impl Controller for Scheduler {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn decide(&mut self, now: Seconds, trace: &Trace) -> Decision {
        if let Some(pie) = &mut self.pie {
            pie.land(trace);
        }
        match self.phase {
            Phase::Submitted(last) => {
                self.phase = Phase::Awaited;
                Decision::Wait(Until::Task(last))
            }
            Phase::Awaited => self.ended(now, trace),
            Phase::Between => self.between(now, trace),
            Phase::Layers => self.layers(now, trace),
        }
    }
}
