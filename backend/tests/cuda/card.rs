//! A card that computes on the CPU: streams and events over the kernels' emulator, in an order that is bad on purpose, with
//! clocks that tell what the order of streams and events promises, with faults that can be asked for, and a log of calls.
#![allow(dead_code)] // each test file uses a part

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use plimsoll_backend::cuda::raw::Product;
use plimsoll_backend::cuda::{Card, CopyRows, CudaError, KernelDevice, Launch};
use plimsoll_core::Dtype;
use plimsoll_core::units::Bytes;

use super::emulator::{Emulator, emulator};

/// Events that are no task's: the zero of the clock, and the choice of tokens.
const OTHER_EVENTS: usize = 2;

/// How long a stream that is held back waits for the others to have work.
const HELD_BACK: Duration = Duration::from_micros(300);

/// Which stream goes on where several could.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// Any, by a sequence that this begins.
    Random(u64),
    /// This one only where no other can.
    Last(usize),
}

#[derive(Debug)]
enum Command {
    Copy(CopyRows),
    /// Of bytes that were read when the copy was given, row behind row.
    Staged(Vec<u8>, CopyRows),
    Launch(Launch),
    Multiply(Product),
    Record {
        event: usize,
        turn: u64,
        /// The number of the task that ends with it, of those of its stream.
        ends: Option<usize>,
    },
    Wait {
        event: usize,
        turn: u64,
    },
}

/// How much faster than ours its clock goes: runs here are short, and clocks are set anew in long ones.
const FAST: f64 = 1000.0;

/// What goes wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Streams forget to wait for events.
    ForgetsWaits,
    /// A range of scores that is found becomes so narrow that most scores leave it.
    Narrows,
    /// After so many events, the clock goes as ours does and is once so many milliseconds later than it should be.
    Leaps { after: u64, by_ms: u32 },
    /// After so many copies, kernels and products one fails, once streams had time to be filled.
    FailsAt(u64),
    /// After so many of them the next is not taken.
    RefusesAt(u64),
    /// So often there is no room when memory is asked for.
    HasNoRoom(usize),
    /// Whoever asks for the time between events after so many times panics.
    PanicsAt(u64),
}

/// How long streams have to be filled.
const FILLED_IN: Duration = Duration::from_millis(200);

/// A call of an executor, but for those on streams that are no kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Take,
    GiveBack,
    LockPages,
    Write,
    Launch(Launch),
    AwaitEvent,
}

/// An event, which may be recorded many times.
#[derive(Debug, Default, Clone)]
struct Event {
    recorded: u64,
    been: u64,
    at_ms: f64,
    /// Of its last record: how far each stream was.
    clock: Vec<u64>,
}

/// A task as the order of streams and events has it.
#[derive(Debug, Clone)]
pub struct Stamp {
    /// How far each stream was when it began, as far as that is certain.
    pub begin: Vec<u64>,
    /// How far its own was at its end.
    pub end: u64,
    /// When it ended, by the card's clock.
    pub ended_ms: f64,
}

#[derive(Debug, Default)]
struct State {
    streams: Vec<VecDeque<Command>>,
    events: Vec<Event>,
    /// By stream.
    clocks: Vec<Vec<u64>>,
    /// What the host has seen.
    seen: Vec<u64>,
    /// By stream, its tasks in order; one that has begun only has no end.
    stamps: Vec<Vec<Stamp>>,
    memory: Vec<Vec<u128>>,
    /// How often memory was asked for.
    takes: usize,
    /// Memory of the host that is page-locked: addresses and lengths.
    locked: Vec<(u64, usize)>,
    /// By stream, copies from or to memory of the host that is not.
    pageable_copies: Vec<usize>,
    /// By stream, where weights are that may still be unpacked when a kernel begins early.
    unpacking: Vec<Vec<Range<u64>>>,
    failed: Option<CudaError>,
    busy: bool,
    gone: bool,
    random: u64,
    /// With the names of the threads that called.
    calls: Vec<(Call, String)>,
    /// Events that have been, and copies, kernels and products that were taken and done.
    been: u64,
    taken: u64,
    done: u64,
    asked: u64,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    begun: Instant,
    order: Order,
    /// Kernels and copies are not done.
    idle: bool,
    fault: Option<Fault>,
}

/// A card without a GPU.
#[derive(Debug)]
pub struct FakeCard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl FakeCard {
    /// None, said aloud, where kernels cannot be compiled for the CPU.
    pub fn new(order: Order) -> Option<Arc<FakeCard>> {
        FakeCard::made(order, false, None)
    }

    /// One that keeps order and computes nothing.
    pub fn idle() -> Arc<FakeCard> {
        FakeCard::made(Order::Random(0), true, None).expect("no kernel is compiled")
    }

    /// The same with a fault.
    pub fn idle_with(fault: Fault) -> Arc<FakeCard> {
        FakeCard::made(Order::Random(0), true, Some(fault)).expect("no kernel is compiled")
    }

    /// One with a fault.
    pub fn with(order: Order, fault: Fault) -> Option<Arc<FakeCard>> {
        FakeCard::made(order, false, Some(fault))
    }

    fn made(order: Order, idle: bool, fault: Option<Fault>) -> Option<Arc<FakeCard>> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            begun: Instant::now(),
            order,
            idle,
            fault,
        });
        let (there, is_there) = sync_channel(1);
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let emulator = if idle { None } else { emulator() };
            there.send(idle || emulator.is_some()).unwrap();
            if idle || emulator.is_some() {
                own.compute(emulator);
            }
        });
        let thread = Some(thread);
        let card = FakeCard { shared, thread };
        is_there.recv().unwrap().then(|| Arc::new(card))
    }

    /// What it was called for so far, and by which thread.
    pub fn calls(&self) -> Vec<(Call, String)> {
        self.shared.lock().calls.clone()
    }

    /// The zero of a run, by its clock.
    pub fn zero_ms(&self) -> f64 {
        self.shared.lock().events[0].at_ms
    }

    fn log(&self, call: Call) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("").to_owned();
        self.shared.lock().calls.push((call, name));
    }

    /// Bytes that were taken, in all.
    pub fn taken(&self) -> usize {
        let state = self.shared.lock();
        state.memory.iter().map(|words| 16 * words.len()).sum()
    }

    /// Of the last run: bytes of the host that it locked, and how many copies of a stream were from or to others.
    pub fn page_locked(&self, stream: usize) -> (usize, usize) {
        let state = self.shared.lock();
        let locked = state.locked.iter().map(|(_, bytes)| bytes);
        (locked.sum(), state.pageable_copies[stream])
    }

    /// By stream, how its tasks were ordered.
    pub fn stamps(&self) -> Vec<Vec<Stamp>> {
        self.shared.lock().stamps.clone()
    }

    fn push(&self, stream: usize, command: Command) -> Result<(), CudaError> {
        let mut state = self.shared.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if !matches!(command, Command::Record { .. } | Command::Wait { .. }) {
            state.taken += 1;
            state.look_for_fresh_weights(stream, &command)?;
            if self.shared.fault == Some(Fault::RefusesAt(state.taken)) {
                return Err(failed("a call"));
            }
        }
        let seen = state.seen.clone();
        join(&mut state.clocks[stream], &seen);
        state.streams[stream].push_back(command);
        self.shared.changed.notify_all();
        Ok(())
    }
}

fn failed(call: &'static str) -> CudaError {
    CudaError::Call {
        call,
        why: "as it was asked to".to_owned(),
    }
}

fn join(clock: &mut Vec<u64>, other: &[u64]) {
    clock.resize(clock.len().max(other.len()), 0);
    for (own, other) in clock.iter_mut().zip(other) {
        *own = (*own).max(*other);
    }
}

impl State {
    /// Kernels that begin early load their weights before what came before has ended: back to the last that did not begin early.
    fn look_for_fresh_weights(
        &mut self,
        stream: usize,
        command: &Command,
    ) -> Result<(), CudaError> {
        self.unpacking.resize(self.streams.len(), Vec::new());
        let unpacking = &mut self.unpacking[stream];
        let Command::Launch(launch) = command else {
            unpacking.clear();
            return Ok(());
        };
        if !launch.early {
            unpacking.clear();
        }
        let words = launch.arguments.words();
        if launch.kernel.starts_with("unpack_matrix") {
            let [rows, columns] = [words[2] & 0xffff_ffff, words[2] >> 32];
            unpacking.push(words[0]..words[0] + 2 * rows * columns);
        }
        let multiplies = ["gemv", "thin"]
            .iter()
            .any(|it| launch.kernel.starts_with(it));
        // Of up to three products that share their input.
        let matrices = [1, 5, 9].into_iter().filter_map(|at| words.get(at));
        let is_fresh = |matrix: &u64| unpacking.iter().any(|it| it.contains(matrix));
        match multiplies && { matrices }.any(is_fresh) {
            true => Err(CudaError::Call {
                call: "a product that begins early",
                why: "its weights are not unpacked yet".to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// A stream that could go on.
    fn ready(&self) -> Vec<usize> {
        let ready = |commands: &VecDeque<Command>| match commands.front() {
            None => false,
            Some(Command::Wait { event, turn }) => self.events[*event].been >= *turn,
            Some(_) => true,
        };
        let streams = self.streams.iter().enumerate();
        let ready = streams.filter(|(_, commands)| ready(commands));
        ready.map(|(stream, _)| stream).collect()
    }

    /// Notes a copy that is not between page-locked memory and the card's own, and says whether its source and its target are such.
    fn look_at(&mut self, stream: usize, copy: &CopyRows) -> [bool; 2] {
        let own = self.memory.iter();
        let own = own.map(|words| (words.as_ptr() as u64, 16 * words.len()));
        let ranges: Vec<_> = own.chain(self.locked.iter().copied()).collect();
        let is_known = |address: u64, pitch: usize| {
            let end = address + (pitch * copy.rows.saturating_sub(1) + copy.bytes) as u64;
            let holds =
                |(start, bytes): &(u64, usize)| *start <= address && end <= start + *bytes as u64;
            ranges.iter().any(holds)
        };
        let known = [
            is_known(copy.from, copy.from_pitch),
            is_known(copy.to, copy.to_pitch),
        ];
        self.pageable_copies[stream] += usize::from(known != [true; 2]);
        known
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next stream that goes on; none when the card is gone.
    fn next(&self) -> Option<(usize, Command)> {
        let mut state = self.lock();
        let mut waited = false;
        loop {
            if state.gone {
                return None;
            }
            let mut ready = state.ready();
            let held_back = match self.order {
                Order::Last(stream) if !waited && ready == [stream] => {
                    ready.clear();
                    true
                }
                Order::Last(stream) if ready.len() > 1 => {
                    ready.retain(|ready| *ready != stream);
                    false
                }
                _ => false,
            };
            if ready.is_empty() {
                let woken = self.changed.wait_timeout(state, HELD_BACK);
                let (guard, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
                state = guard;
                waited = held_back && timeout.timed_out();
                continue;
            }
            let stream = ready[state.draw(ready.len())];
            let command = state.streams[stream].pop_front().unwrap();
            state.busy = true;
            return Some((stream, command));
        }
    }

    fn compute(&self, mut emulator: Option<Emulator>) {
        if let Order::Random(seed) = self.order {
            self.lock().random = seed;
        }
        while let Some((stream, command)) = self.next() {
            let done = self.obey(&mut emulator, &command);
            let mut state = self.lock();
            state.busy = false;
            if let Err(error) = done {
                state.failed = Some(error);
            }
            if let Command::Record { event, turn, ends } = command {
                state.been += 1;
                let at_ms = self.now_ms(state.been);
                let event = &mut state.events[event];
                event.been = event.been.max(turn);
                event.at_ms = at_ms;
                if let Some(task) = ends {
                    state.stamps[stream][task].ended_ms = at_ms;
                }
            }
            self.changed.notify_all();
        }
    }

    /// The clock, after so many events.
    fn now_ms(&self, events: u64) -> f64 {
        let ours = self.begun.elapsed().as_secs_f64() * 1e3;
        match self.fault {
            Some(Fault::Leaps { after, by_ms }) if events > after => ours + f64::from(by_ms),
            Some(Fault::Leaps { .. }) => ours,
            _ => ours * FAST,
        }
    }

    fn obey(&self, emulator: &mut Option<Emulator>, command: &Command) -> Result<(), CudaError> {
        if matches!(command, Command::Record { .. } | Command::Wait { .. }) {
            return Ok(());
        }
        let (is_over, number) = {
            let mut state = self.lock();
            state.done += 1;
            (state.failed.is_some(), state.done)
        };
        if self.fault == Some(Fault::FailsAt(number)) {
            std::thread::sleep(FILLED_IN);
            return Err(failed("a kernel"));
        }
        let Some(emulator) = emulator.as_mut().filter(|_| !is_over) else {
            return Ok(());
        };
        match command {
            Command::Copy(copy) | Command::Staged(_, copy) => copy_rows(copy),
            Command::Launch(launch) => {
                emulator.launch(launch)?;
                if self.fault == Some(Fault::Narrows) && launch.kernel == "choose_range" {
                    narrow(launch);
                }
            }
            Command::Multiply(product) => multiply(product),
            Command::Record { .. } | Command::Wait { .. } => {}
        }
        Ok(())
    }
}

/// Has a range of scores that was found reach no further than a twentieth about its middle.
fn narrow(launch: &Launch) {
    let range = launch.arguments.words()[1] as *mut f32;
    // SAFETY: the kernel has just written phi, low and high there.
    unsafe {
        *range.add(1) = -0.05;
        *range.add(2) = 0.05;
    }
}

fn copy_rows(copy: &CopyRows) {
    for row in 0..copy.rows {
        let to = copy.to as usize + row * copy.to_pitch;
        let from = copy.from as usize + row * copy.from_pitch;
        // SAFETY: the executor answers for the addresses, as it does on a GPU.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, copy.bytes) };
    }
}

/// What a copy reads, row behind row, and the copy of that.
fn staged(copy: &CopyRows) -> (Vec<u8>, CopyRows) {
    let mut bytes = vec![0; copy.rows * copy.bytes];
    let to_staging = CopyRows {
        to: bytes.as_mut_ptr() as u64,
        to_pitch: copy.bytes,
        ..*copy
    };
    copy_rows(&to_staging);
    let from_staging = CopyRows {
        from: bytes.as_ptr() as u64,
        from_pitch: copy.bytes,
        ..*copy
    };
    (bytes, from_staging)
}

/// The vendor's product, one sum after another.
fn multiply(product: &Product) {
    let [m, n, k] = product.shape;
    let read = |address: u64, count: usize| -> Vec<f32> {
        // SAFETY: the executor answers for the addresses.
        let bits = unsafe { std::slice::from_raw_parts(address as *const u16, count) };
        let number = |bits: &u16| match product.dtype {
            Dtype::F16 => f16::from_bits(*bits).to_f32(),
            _ => bf16::from_bits(*bits).to_f32(),
        };
        bits.iter().map(number).collect()
    };
    let [x, weights, y] = product.addresses;
    let (x, weights) = (read(x, m * k), read(weights, n * k));
    for (index, (row, weights)) in x
        .chunks(k)
        .flat_map(|row| weights.chunks(k).map(move |weights| (row, weights)))
        .enumerate()
    {
        let sum: f32 = row.iter().zip(weights).map(|(a, b)| a * b).sum();
        let bits = match product.dtype {
            Dtype::F16 => f16::from_f32(sum).to_bits(),
            _ => bf16::from_f32(sum).to_bits(),
        };
        // SAFETY: as above.
        unsafe {
            match product.wide {
                true => *(y as *mut f32).add(index) = sum,
                false => *(y as *mut u16).add(index) = bits,
            }
        }
    }
}

impl Card for FakeCard {
    fn open(&self, streams: usize, events: usize) -> Result<(), CudaError> {
        let mut state = self.shared.lock();
        state.streams = (0..streams).map(|_| VecDeque::new()).collect();
        state.events = vec![Event::default(); events];
        state.clocks = vec![vec![0; streams]; streams];
        state.stamps = vec![Vec::new(); streams];
        state.seen = vec![0; streams];
        state.locked.clear();
        state.pageable_copies = vec![0; streams];
        Ok(())
    }

    fn take(&self, bytes: usize) -> Result<u64, CudaError> {
        // What nobody wrote is a NaN.
        self.log(Call::Take);
        let mut state = self.shared.lock();
        state.takes += 1;
        if matches!(self.shared.fault, Some(Fault::HasNoRoom(times)) if state.takes <= times) {
            return Err(CudaError::Memory {
                wanted: Bytes(bytes as u64),
                why: "CUDA_ERROR_OUT_OF_MEMORY".to_owned(),
            });
        }
        let words = vec![u128::MAX; bytes.div_ceil(16)];
        let address = words.as_ptr() as u64;
        state.memory.push(words);
        Ok(address)
    }

    fn give_back(&self, address: u64) {
        self.log(Call::GiveBack);
        let mut state = self.shared.lock();
        state
            .memory
            .retain(|words| words.as_ptr() as u64 != address);
    }

    fn lock_pages(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        self.log(Call::LockPages);
        self.shared.lock().locked.push((address, bytes));
        Ok(())
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.log(Call::Write);
        // SAFETY: the executor answers for the address.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    /// As the driver does it: what comes from pageable memory is read before the call returns, and what goes there is there then.
    fn copy(&self, stream: usize, copy: &CopyRows) -> Result<(), CudaError> {
        let [from_known, to_known] = self.shared.lock().look_at(stream, copy);
        if !from_known {
            let (bytes, copy) = staged(copy);
            return self.push(stream, Command::Staged(bytes, copy));
        }
        self.push(stream, Command::Copy(*copy))?;
        let mut state = self.shared.lock();
        let is_done = |state: &State| state.streams[stream].is_empty() && !state.busy;
        while !to_known && !is_done(&state) && state.failed.is_none() && !state.gone {
            let woken = self.shared.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn launch(&self, stream: usize, launch: &Launch) -> Result<(), CudaError> {
        self.log(Call::Launch(launch.clone()));
        self.push(stream, Command::Launch(launch.clone()))
    }

    fn multiply(&self, stream: usize, product: &Product) -> Result<(), CudaError> {
        self.push(stream, Command::Multiply(*product))
    }

    fn record(&self, stream: usize, event: usize) -> Result<(), CudaError> {
        let mut state = self.shared.lock();
        let seen = state.seen.clone();
        join(&mut state.clocks[stream], &seen);
        state.clocks[stream][stream] += 1;
        let clock = state.clocks[stream].clone();
        let mut ends = None;
        if event >= OTHER_EVENTS {
            let end = clock[stream];
            let stamps = &mut state.stamps[stream];
            let last = stamps.len().checked_sub(1);
            match stamps.last_mut().filter(|s| s.end == 0) {
                Some(stamp) => {
                    stamp.end = end;
                    ends = last;
                }
                None => stamps.push(Stamp {
                    begin: clock.clone(),
                    end: 0,
                    ended_ms: f64::NAN,
                }),
            }
        }
        let of = &mut state.events[event];
        of.recorded += 1;
        of.clock = clock;
        let turn = of.recorded;
        drop(state);
        self.push(stream, Command::Record { event, turn, ends })
    }

    fn wait_for(&self, stream: usize, event: usize) -> Result<(), CudaError> {
        if self.shared.fault == Some(Fault::ForgetsWaits) {
            return Ok(());
        }
        let mut state = self.shared.lock();
        let of = state.events[event].clone();
        join(&mut state.clocks[stream], &of.clock);
        drop(state);
        let turn = of.recorded;
        self.push(stream, Command::Wait { event, turn })
    }

    fn await_event(&self, event: usize) -> Result<(), CudaError> {
        self.log(Call::AwaitEvent);
        let mut state = self.shared.lock();
        let turn = state.events[event].recorded;
        while state.events[event].been < turn {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let woken = self.shared.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        let clock = state.events[event].clock.clone();
        join(&mut state.seen, &clock);
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn elapsed_ms(&self, since: usize, event: usize) -> Result<f32, CudaError> {
        let mut state = self.shared.lock();
        state.asked += 1;
        if self.shared.fault == Some(Fault::PanicsAt(state.asked)) {
            panic!("as it was asked to");
        }
        Ok((state.events[event].at_ms - state.events[since].at_ms) as f32)
    }

    fn name(&self) -> String {
        "a card without a GPU".to_owned()
    }

    fn memory(&self) -> [usize; 2] {
        [1 << 30; 2]
    }

    fn cache_bytes(&self) -> usize {
        1 << 12
    }

    fn multiprocessors(&self) -> usize {
        4
    }

    fn close(&self) {
        let mut state = self.shared.lock();
        while state.busy || state.streams.iter().any(|commands| !commands.is_empty()) {
            let woken = self.shared.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.memory.clear();
    }
}

impl Drop for FakeCard {
    fn drop(&mut self) {
        self.shared.lock().gone = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
