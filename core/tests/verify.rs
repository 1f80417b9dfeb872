//! Every rule of the verifier, broken once.

use plimsoll_core::program::{
    Access, ArenaId, Arg, Buffer, BufferId, Cell, Content, Machine, NewTask, Op, Program,
    ResourceId, ResourceKind, TaskId,
};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;
use plimsoll_core::verify::{Verifier, VerifyError};

const READ: Access = Access::Read;
const WRITE: Access = Access::Write;

/// A small program, written by hand.
struct Sketch {
    machine: Machine,
    program: Program,
}

impl Sketch {
    fn new() -> Sketch {
        let capacity = PerTier::from_fn(|_| Bytes(1000));
        Sketch {
            machine: Machine::single_gpu(capacity),
            program: Program::new(),
        }
    }

    fn buffer(&mut self, offset: u64, bytes: u64, resident: bool) -> BufferId {
        self.program.buffer(Buffer {
            arena: self.machine.arena(Tier::Device, 0).expect("a device"),
            offset: Bytes(offset),
            bytes: Bytes(bytes),
            content: Content::Workspace,
            resident,
        })
    }

    fn task(
        &mut self,
        on: ResourceKind,
        deps: &[TaskId],
        args: &[(BufferId, Access)],
        (takes, gives): (&[BufferId], &[BufferId]),
    ) -> TaskId {
        let op = self.program.op(Op::Barrier);
        let args: Vec<Arg> = args
            .iter()
            .map(|(buffer, access)| Arg {
                buffer: *buffer,
                access: *access,
            })
            .collect();
        self.program.push(NewTask {
            op,
            resource: self.machine.resource(on, 0).expect("an engine"),
            cell: Cell::default(),
            deps,
            args: &args,
            takes,
            gives,
        })
    }

    fn verdict(&self) -> Result<(), VerifyError> {
        let mut verifier = Verifier::new(&self.machine);
        verifier.check(&self.program)?;
        verifier.finish()
    }
}

use ResourceKind::{D2h, Gpu, H2d};

#[test]
fn a_life_in_order_is_valid() {
    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 600, false);
    let b = sketch.buffer(400, 600, false);
    let load = sketch.task(H2d, &[], &[(a, WRITE)], (&[a], &[]));
    let compute = sketch.task(Gpu, &[load], &[(a, READ)], (&[], &[a]));
    // The second lies over the first, and is taken only when that was given back.
    let again = sketch.task(H2d, &[compute], &[(b, WRITE)], (&[b], &[]));
    sketch.task(Gpu, &[again], &[(b, READ)], (&[], &[b]));
    assert_eq!(sketch.verdict(), Ok(()));
}

#[test]
fn a_piece_must_run_on_from_the_last() {
    let mut sketch = Sketch::new();
    sketch.task(Gpu, &[], &[], (&[], &[]));
    let mut verifier = Verifier::new(&sketch.machine);
    verifier.check(&sketch.program).expect("the first piece");
    let again = verifier.check(&sketch.program);
    let expected = VerifyError::NotNext {
        expected: TaskId(1),
        found: TaskId(0),
    };
    assert_eq!(again, Err(expected));
}

#[test]
fn a_task_waits_for_earlier_ones_only() {
    let mut sketch = Sketch::new();
    let task = sketch.task(Gpu, &[TaskId(0)], &[], (&[], &[]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::Cycle {
            task,
            dep: TaskId(0)
        })
    );
}

#[test]
fn resources_arenas_and_buffers_exist() {
    let mut sketch = Sketch::new();
    let op = sketch.program.op(Op::Barrier);
    let task = sketch.program.push(NewTask {
        op,
        resource: ResourceId(99),
        cell: Cell::default(),
        deps: &[],
        args: &[],
        takes: &[],
        gives: &[],
    });
    assert_eq!(sketch.verdict(), Err(VerifyError::NoSuchResource { task }));

    let mut sketch = Sketch::new();
    let buffer = sketch.program.buffer(Buffer {
        arena: ArenaId(9),
        offset: Bytes(0),
        bytes: Bytes(1),
        content: Content::Workspace,
        resident: false,
    });
    assert_eq!(sketch.verdict(), Err(VerifyError::NoSuchArena { buffer }));

    let mut sketch = Sketch::new();
    let buffer = BufferId(7);
    let task = sketch.task(Gpu, &[], &[(buffer, READ)], (&[], &[]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::NoSuchBuffer { task, buffer })
    );
}

#[test]
fn no_buffer_reaches_past_its_tier() {
    let mut sketch = Sketch::new();
    let buffer = sketch.buffer(500, 501, true);
    let expected = VerifyError::OverCapacity {
        buffer,
        tier: Tier::Device,
        needed: Bytes(1001),
        capacity: Bytes(1000),
    };
    assert_eq!(sketch.verdict(), Err(expected));
}

#[test]
fn a_place_is_taken_only_after_it_was_given_back() {
    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 600, false);
    let b = sketch.buffer(400, 600, false);
    let load = sketch.task(H2d, &[], &[(a, WRITE)], (&[a], &[]));
    sketch.task(Gpu, &[load], &[(a, READ)], (&[], &[a]));
    // It waits for the load, but not for the task that gives the place back.
    let task = sketch.task(D2h, &[load], &[(b, WRITE)], (&[b], &[b]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::Overlap {
            task,
            buffer: b,
            other: a
        })
    );
}

#[test]
fn a_buffer_comes_to_life_once() {
    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, false);
    sketch.task(Gpu, &[], &[(a, WRITE)], (&[a], &[]));
    let task = sketch.task(Gpu, &[], &[], (&[a], &[a]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::TakenTwice { task, buffer: a })
    );
}

#[test]
fn a_buffer_is_used_while_it_is_alive() {
    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, false);
    sketch.task(Gpu, &[], &[(a, WRITE)], (&[a], &[a]));
    let task = sketch.task(Gpu, &[], &[(a, READ)], (&[], &[]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::NotAlive { task, buffer: a })
    );
}

#[test]
fn nothing_is_read_before_it_is_there() {
    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, false);
    let task = sketch.task(Gpu, &[], &[(a, READ)], (&[a], &[a]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::NotResident { task, buffer: a })
    );
}

#[test]
fn a_read_waits_for_the_write_and_a_write_for_the_reads() {
    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, false);
    let taken = sketch.task(Gpu, &[], &[], (&[a], &[]));
    sketch.task(H2d, &[taken], &[(a, WRITE)], (&[], &[]));
    let task = sketch.task(Gpu, &[], &[(a, READ)], (&[], &[]));
    assert_eq!(sketch.verdict(), Err(VerifyError::Race { task, buffer: a }));

    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, true);
    sketch.task(Gpu, &[], &[(a, READ)], (&[], &[]));
    let task = sketch.task(H2d, &[], &[(a, WRITE)], (&[], &[]));
    assert_eq!(sketch.verdict(), Err(VerifyError::Race { task, buffer: a }));
}

#[test]
fn a_buffer_is_given_back_once_when_all_are_done_with_it() {
    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, false);
    sketch.task(Gpu, &[], &[(a, WRITE)], (&[a], &[a]));
    let task = sketch.task(Gpu, &[], &[], (&[], &[a]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::GivenTwice { task, buffer: a })
    );

    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, false);
    let write = sketch.task(Gpu, &[], &[(a, WRITE)], (&[a], &[]));
    sketch.task(D2h, &[write], &[(a, READ)], (&[], &[]));
    let task = sketch.task(Gpu, &[], &[], (&[], &[a]));
    assert_eq!(
        sketch.verdict(),
        Err(VerifyError::GivenInUse { task, buffer: a })
    );

    let mut sketch = Sketch::new();
    let a = sketch.buffer(0, 10, false);
    sketch.task(Gpu, &[], &[(a, WRITE)], (&[a], &[]));
    assert_eq!(sketch.verdict(), Err(VerifyError::NeverGiven { buffer: a }));
}

/// A first piece whose buffer lies where the second piece's does, and a second that touches `again` of the two.
fn verdict_of_two_pieces(forgets: bool, again: usize) -> Result<(), VerifyError> {
    let mut sketch = Sketch::new();
    let first = sketch.buffer(0, 100, false);
    sketch.task(Gpu, &[], &[(first, WRITE)], (&[first], &[first]));
    let mut verifier = Verifier::new(&sketch.machine);
    verifier.check(&sketch.program)?;
    if forgets {
        verifier.forget(&sketch.program);
    }
    sketch.program = sketch.program.next_piece();
    let second = sketch.buffer(0, 100, false);
    let touched = [first, second][again];
    // On another engine, with no task to wait for.
    sketch.task(H2d, &[], &[(touched, WRITE)], (&[second], &[second]));
    verifier.check(&sketch.program)?;
    verifier.finish()
}

#[test]
fn what_was_let_go_of_ended_before_and_is_not_alive() {
    assert!(matches!(
        verdict_of_two_pieces(false, 1),
        Err(VerifyError::Overlap { .. })
    ));
    assert_eq!(verdict_of_two_pieces(true, 1), Ok(()));
    assert!(matches!(
        verdict_of_two_pieces(true, 0),
        Err(VerifyError::NotAlive { .. })
    ));
}
