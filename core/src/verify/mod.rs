//! Checks a program before anything interprets it.
//!
//! Every executor keeps program order on each resource and a task's dependencies, and nothing else.
//! So a rule holds only if it holds in every order that those two allow: "A before B" here always
//! means *happens before*, which `clock` decides exactly.

mod clock;
mod error;
mod occupancy;

pub use error::VerifyError;

use rustc_hash::FxHashMap;

use crate::program::{Access, Arg, Buffer, BufferId, Machine, Program, TaskId};
use clock::{Clock, Clocks, Packed, Position};
use occupancy::Occupancy;

/// Checks pieces as they come.
#[derive(Debug)]
pub struct Verifier {
    machine: Machine,
    clocks: Clocks,
    /// How many buffers were declared.
    declared: u32,
    /// Where each that was not let go of stands in the lists below.
    places: FxHashMap<BufferId, usize>,
    /// Places that nobody has any more.
    free: Vec<usize>,
    buffers: Vec<Buffer>,
    states: Vec<State>,
    /// For each buffer and resource, one past the last reader since the last write.
    readers: Packed,
    occupancy: Vec<Occupancy>,
    /// What has ended before the task at hand; kept for its room.
    before: Clock,
}

/// What has happened to a buffer.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    taken: Option<Position>,
    given: Option<Position>,
    written: Option<Position>,
    /// Whether there are readers since the last write.
    read: bool,
}

impl Verifier {
    /// A verifier for programs on this machine.
    pub fn new(machine: &Machine) -> Verifier {
        Verifier {
            clocks: Clocks::new(machine.resources.len()),
            occupancy: vec![Occupancy::default(); machine.arenas.len()],
            machine: machine.clone(),
            declared: 0,
            places: FxHashMap::default(),
            free: Vec::new(),
            buffers: Vec::new(),
            states: Vec::new(),
            readers: Packed::new(machine.resources.len()),
            before: Clock::default(),
        }
    }

    /// Checks the next piece against all that came before.
    ///
    /// # Errors
    /// The first rule that is broken, by task and buffer.
    pub fn check(&mut self, piece: &Program) -> Result<(), VerifyError> {
        if piece.first_task() != self.clocks.end() {
            return Err(VerifyError::NotNext {
                expected: self.clocks.end(),
                found: piece.first_task(),
            });
        }
        self.declare(piece)?;
        for index in 0..piece.tasks().len() {
            self.check_task(piece, index)?;
        }
        Ok(())
    }

    /// Checks that nothing is left behind.
    ///
    /// # Errors
    /// A buffer that was taken and never given back.
    pub fn finish(&self) -> Result<(), VerifyError> {
        let kept = self.places.iter().filter(|(_, place)| {
            let (state, buffer) = (&self.states[**place], &self.buffers[**place]);
            !buffer.resident && state.taken.is_some() && state.given.is_none()
        });
        match kept.map(|(id, _)| *id).min() {
            Some(buffer) => Err(VerifyError::NeverGiven { buffer }),
            None => Ok(()),
        }
    }

    /// Lets go of the first piece that it still has, all tasks of which have ended: whatever is checked from
    /// now on runs after them.
    pub fn forget(&mut self, piece: &Program) {
        self.clocks
            .forget(piece.tasks().iter().map(|task| task.resource));
        for index in 0..piece.tasks().len() {
            let gone = piece.gives_at(index).iter();
            self.free
                .extend(gone.filter_map(|id| self.places.remove(id)));
        }
    }

    /// Notes a buffer that nobody has touched.
    fn add(&mut self, id: BufferId, buffer: Buffer) {
        self.declared += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.buffers[place] = buffer;
                self.states[place] = State::default();
                self.readers.get_mut(place).fill(0);
                place
            }
            None => {
                self.buffers.push(buffer);
                self.states.push(State::default());
                self.readers.extend_to(self.buffers.len());
                self.buffers.len() - 1
            }
        };
        self.places.insert(id, place);
    }

    fn declare(&mut self, piece: &Program) -> Result<(), VerifyError> {
        for buffer in piece.buffers() {
            let id = BufferId(self.declared);
            let Some(arena) = self.machine.arenas.get(buffer.arena.0 as usize) else {
                return Err(VerifyError::NoSuchArena { buffer: id });
            };
            let end = buffer.offset + buffer.bytes;
            if end > arena.capacity {
                return Err(VerifyError::OverCapacity {
                    buffer: id,
                    tier: arena.tier,
                    needed: end,
                    capacity: arena.capacity,
                });
            }
            self.add(id, *buffer);
            if buffer.resident {
                let occupancy = &mut self.occupancy[buffer.arena.0 as usize];
                if let Some(other) = occupancy.overlapping(buffer).next() {
                    return Err(VerifyError::Overlap {
                        buffer: id,
                        other,
                        task: piece.first_task(),
                    });
                }
                occupancy.insert(id, buffer);
            }
        }
        Ok(())
    }

    fn check_task(&mut self, piece: &Program, index: usize) -> Result<(), VerifyError> {
        let task = &piece.tasks()[index];
        let id = TaskId(piece.first_task().0 + index as u32);
        if task.resource.0 as usize >= self.machine.resources.len() {
            return Err(VerifyError::NoSuchResource { task: id });
        }
        for &dep in piece.deps_at(index) {
            if dep >= id {
                return Err(VerifyError::Cycle { task: id, dep });
            }
        }
        let mut before = std::mem::take(&mut self.before);
        let deps = piece.deps_at(index);
        let at = self.clocks.advance(task.resource, deps, &mut before);
        let checked = self.check_buffers((id, at), (piece, index), &mut before);
        self.before = before;
        checked
    }

    fn check_buffers(
        &mut self,
        (id, at): (TaskId, Position),
        (piece, index): (&Program, usize),
        before: &mut Clock,
    ) -> Result<(), VerifyError> {
        for &buffer in piece.takes_at(index) {
            self.take(id, buffer, at, before)?;
        }
        for &arg in piece.args_at(index) {
            self.touch(id, arg, at, before)?;
        }
        // What is given back is given with the task's end.
        before.include(at);
        for &buffer in piece.gives_at(index) {
            self.give(id, buffer, at, before)?;
        }
        Ok(())
    }

    fn index_of(&self, task: TaskId, buffer: BufferId) -> Result<usize, VerifyError> {
        match self.places.get(&buffer) {
            Some(place) => Ok(*place),
            // It was given back, and let go of.
            None if buffer.0 < self.declared => Err(VerifyError::NotAlive { task, buffer }),
            None => Err(VerifyError::NoSuchBuffer { task, buffer }),
        }
    }

    fn take(
        &mut self,
        task: TaskId,
        id: BufferId,
        at: Position,
        before: &Clock,
    ) -> Result<(), VerifyError> {
        let index = self.index_of(task, id)?;
        let buffer = self.buffers[index];
        if buffer.resident || self.states[index].taken.is_some() {
            return Err(VerifyError::TakenTwice { task, buffer: id });
        }
        let occupancy = &mut self.occupancy[buffer.arena.0 as usize];
        let is_free = |other: &BufferId| {
            let Some(place) = self.places.get(other) else {
                return true;
            };
            let given = self.states[*place].given;
            given.is_some_and(|given| before.includes(given))
        };
        let replaced = occupancy.replace(id, &buffer);
        let in_use = match replaced {
            Some(before) => (!is_free(&before)).then_some(before),
            None => occupancy.overlapping(&buffer).find(|other| !is_free(other)),
        };
        if let Some(other) = in_use {
            return Err(VerifyError::Overlap {
                buffer: id,
                other,
                task,
            });
        }
        if replaced.is_none() {
            occupancy.insert(id, &buffer);
        }
        self.states[index].taken = Some(at);
        Ok(())
    }

    fn touch(
        &mut self,
        task: TaskId,
        arg: Arg,
        at: Position,
        before: &Clock,
    ) -> Result<(), VerifyError> {
        let buffer = arg.buffer;
        let index = self.index_of(task, buffer)?;
        let resident = self.buffers[index].resident;
        let state = &mut self.states[index];
        let here = |p: Position| p == at || before.includes(p);
        if state.given.is_some() || !(resident || state.taken.is_some_and(here)) {
            return Err(VerifyError::NotAlive { task, buffer });
        }
        if state.written.is_some_and(|w| !before.includes(w)) {
            return Err(VerifyError::Race { task, buffer });
        }
        if arg.access != Access::Write && state.written.is_none() && !resident {
            return Err(VerifyError::NotResident { task, buffer });
        }
        if arg.access == Access::Read {
            state.read = true;
            at.include_in(self.readers.get_mut(index));
        } else {
            if state.read {
                let readers = self.readers.get_mut(index);
                if !before.covers(readers) {
                    return Err(VerifyError::Race { task, buffer });
                }
                readers.fill(0);
                state.read = false;
            }
            state.written = Some(at);
        }
        Ok(())
    }

    fn give(
        &mut self,
        task: TaskId,
        buffer: BufferId,
        at: Position,
        through: &Clock,
    ) -> Result<(), VerifyError> {
        let index = self.index_of(task, buffer)?;
        let state = &mut self.states[index];
        if state.given.is_some() || self.buffers[index].resident {
            return Err(VerifyError::GivenTwice { task, buffer });
        }
        let all_done = state.taken.is_some_and(|p| through.includes(p))
            && state.written.is_none_or(|p| through.includes(p))
            && (!state.read || through.covers(self.readers.get(index)));
        if !all_done {
            return Err(VerifyError::GivenInUse { task, buffer });
        }
        state.given = Some(at);
        Ok(())
    }
}
