//! Times the implementations of a product over rows, on the card that will compute it (FlashDecoding++ section 5), with weights
//! that come from its memory: a model's layers have each their own, so no cache holds what comes next.

use std::cell::Cell;
use std::collections::BTreeSet;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Implementation, ProductCurves};
use plimsoll_core::model::ModelSpec;

use super::beside::HEAD_ROWS;
use super::issue::{CHOICE, ZERO};
use super::linear::choose;
use super::multiply::multiply;
use crate::cuda::launches::{Product, matrix_groups};
use crate::cuda::{Card, CopyRows, CudaError, raw};
use crate::dispatch::{Dispatch, Tried, Weights, curves};

/// Rows that are timed for a lookup table, on either side of what a flat product of few rows has.
const ROWS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 64, 96, 128];

/// Rows of prompts, up to those of the probe's largest, for which only the vendor's library is timed. Predictions need them; a table
/// that has them may say that the vendor's is better from 256 rows on where one without them would say never.
const ROWS_OF_PROMPTS: [usize; 5] = [256, 512, 1024, 2048, 6144];

/// How often something is timed for it.
const REPEATS: Repeats = Repeats {
    in_a_row: 8,
    turns: 3,
};

/// How often products of a prompt's rows are.
const TURNS_OF_PROMPTS: usize = 2;

/// Operations from which a product takes so long (0.1 ms on the fastest cards) that beginning and ending alone is nothing beside it.
const LONG_FLOPS: usize = 100_000_000_000;

/// Operands that are used in turn are so many times a card's cache.
const CACHES: usize = 4;

/// Smaller weights are no model's that anybody waits for: a row of 256 by 256.
const TOY_BYTES: usize = 128 << 10;

/// A card is kept busy by so many copies of as much as its cache: about half a millisecond.
const BUSY_COPIES: usize = 12;

/// Numbers that operands are filled with over and over. Not a power of two, so that rows and copies differ.
const PATTERN: usize = (1 << 18) - 5;

/// How often something is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeats {
    /// Without looking at the clock, so that what an event costs is little.
    pub in_a_row: usize,
    /// Such times, of which the middle one counts.
    pub turns: usize,
}

/// Memory of a card for measurements, which is given back at the end.
#[derive(Debug)]
pub(crate) struct Taken<'c> {
    pub card: &'c dyn Card,
    addresses: Vec<u64>,
}

impl<'c> Taken<'c> {
    pub fn new(card: &'c dyn Card) -> Taken<'c> {
        Taken {
            card,
            addresses: Vec::new(),
        }
    }

    /// Room for so many bytes.
    pub fn room(&mut self, bytes: usize) -> Result<u64, CudaError> {
        let address = self.card.take(bytes)?;
        self.addresses.push(address);
        Ok(address)
    }

    /// A table, or zeros.
    pub fn words<T: bytemuck::NoUninit>(&mut self, words: &[T]) -> Result<u64, CudaError> {
        let bytes = bytemuck::cast_slice(words);
        let address = self.room(bytes.len())?;
        self.card.write(address, bytes)?;
        Ok(address)
    }

    /// Makes what was computed before no number.
    pub fn poison(&self, address: u64, bytes: usize) -> Result<(), CudaError> {
        self.card.write(address, &vec![u8::MAX; bytes])
    }

    /// Numbers between -1/2 and 1/2, as many as `bytes` hold.
    pub fn numbers(&mut self, dtype: Dtype, bytes: usize) -> Result<u64, CudaError> {
        let address = self.room(bytes)?;
        let pattern = pattern(dtype);
        let pattern: &[u8] = bytemuck::cast_slice(&pattern);
        for start in (0..bytes).step_by(pattern.len()) {
            let part = &pattern[..pattern.len().min(bytes - start)];
            self.card.write(address + start as u64, part)?;
        }
        Ok(address)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for address in self.addresses.drain(..) {
            self.card.give_back(address);
        }
    }
}

/// Numbers without an order, always the same.
fn pattern(dtype: Dtype) -> Vec<u16> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let bits = |number: f32| match dtype {
        Dtype::Bf16 => half::bf16::from_f32(number).to_bits(),
        _ => half::f16::from_f32(number).to_bits(),
    };
    (0..PATTERN).map(|_| bits(next())).collect()
}

/// How many copies of operands are used in turn, so that a card's cache never holds the next one.
pub(crate) fn copies(card: &dyn Card, bytes: usize) -> usize {
    (CACHES * card.cache_bytes()).div_ceil(bytes.max(1)).max(1)
}

/// What lies on a card once stream 0 has done what it was given.
pub(crate) fn read<T: bytemuck::Pod>(
    card: &dyn Card,
    address: u64,
    count: usize,
) -> Result<Vec<T>, CudaError> {
    let mut found = vec![T::zeroed(); count];
    let to = found.as_mut_ptr() as u64;
    card.copy(0, &CopyRows::of(to, address, size_of::<T>() * count))?;
    await_stream(card)?;
    Ok(found)
}

/// Waits until stream 0 has done what it was given.
fn await_stream(card: &dyn Card) -> Result<(), CudaError> {
    card.record(0, CHOICE)?;
    card.await_event(CHOICE)
}

/// The same of elements of a stored type.
pub(crate) fn read_numbers(
    card: &dyn Card,
    (address, dtype): (u64, Dtype),
    count: usize,
) -> Result<Vec<f32>, CudaError> {
    let bits = read::<u16>(card, address, count)?;
    let number = |bits: &u16| match dtype {
        Dtype::Bf16 => half::bf16::from_bits(*bits).to_f32(),
        _ => half::f16::from_bits(*bits).to_f32(),
    };
    Ok(bits.iter().map(number).collect())
}

/// Something that is given to stream 0.
pub(crate) type Way<'w> = Box<dyn Fn() -> Result<(), CudaError> + 'w>;

/// Seconds of each of some ways, each time, by the card's clock. They take turns, so that what disturbs one disturbs all.
pub(crate) fn in_turns(
    card: &dyn Card,
    repeats: Repeats,
    ways: &[Way<'_>],
) -> Result<Vec<Vec<f64>>, CudaError> {
    in_turns_behind(&|| Ok(()), card, repeats, ways)
}

/// What a card is kept busy with: two places of as many bytes as its cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Busy(u64);

impl Busy {
    pub(crate) fn new(taken: &mut Taken<'_>) -> Result<Busy, CudaError> {
        taken.room(2 * taken.card.cache_bytes()).map(Busy)
    }

    /// Gives stream 0 copies, of what nothing else reads, that take the card longer than the host needs to give it what is timed: what
    /// reads so many bytes may end sooner than the next is given, and its time would be the host's. That of toys may be.
    pub(crate) fn keep(self, card: &dyn Card, timed: usize) -> Result<(), CudaError> {
        if timed < TOY_BYTES {
            return Ok(());
        }
        let bytes = card.cache_bytes();
        for _ in 0..BUSY_COPIES {
            card.copy(0, &CopyRows::of(self.0 + bytes as u64, self.0, bytes))?;
        }
        Ok(())
    }
}

/// The same, each time behind something else that the stream is given first.
pub(crate) fn in_turns_behind(
    first: &dyn Fn() -> Result<(), CudaError>,
    card: &dyn Card,
    repeats: Repeats,
    ways: &[Way<'_>],
) -> Result<Vec<Vec<f64>>, CudaError> {
    let mut all = vec![Vec::new(); ways.len()];
    for turn in 0..=repeats.turns {
        for (way, seconds) in ways.iter().zip(&mut all) {
            first()?;
            let took = self::seconds(card, repeats.in_a_row, way)?;
            // The first turn pays for what only the first has to.
            if turn > 0 {
                seconds.push(took);
            }
        }
    }
    Ok(all)
}

/// Seconds of one of so many in a row.
fn seconds(card: &dyn Card, in_a_row: usize, give: &Way<'_>) -> Result<f64, CudaError> {
    // While the GPU is at these, the host gives it those that count, which it would else stand waiting for.
    for _ in 0..in_a_row {
        give()?;
    }
    let all = timed(card, &mut || (0..in_a_row).try_for_each(|_| give()))?;
    Ok(all / in_a_row as f64)
}

/// Seconds from when stream 0 is free until it has done something, by the card's clock.
pub(crate) fn timed(
    card: &dyn Card,
    give: &mut dyn FnMut() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    card.record(0, ZERO)?;
    give()?;
    card.record(0, CHOICE)?;
    card.await_event(CHOICE)?;
    Ok(f64::from(card.elapsed_ms(ZERO, CHOICE)?) / 1e3)
}

/// Measures weights that a table does not know, on a card that no executor has.
pub(crate) fn learn_on(
    card: &dyn Card,
    dispatch: &Dispatch,
    weights: Vec<Weights>,
) -> Result<(), CudaError> {
    learn_by(time, card, dispatch, weights)
}

/// The same for rows of prompts as well.
pub(crate) fn learn_with_prompts_on(
    card: &dyn Card,
    dispatch: &Dispatch,
    weights: Vec<Weights>,
) -> Result<(), CudaError> {
    learn_by(time_with_prompts, card, dispatch, weights)
}

fn learn_by(
    time: impl Fn(&dyn Card, &Dispatch, Weights) -> Result<Option<ProductCurves>, CudaError>,
    card: &dyn Card,
    dispatch: &Dispatch,
    weights: Vec<Weights>,
) -> Result<(), CudaError> {
    if weights.is_empty() {
        return Ok(());
    }
    with_stream(card, || {
        dispatch.learn(weights, |weights| time(card, dispatch, weights))
    })
}

/// Does something with stream 0 of a card that no executor has.
pub(crate) fn with_stream<R>(
    card: &dyn Card,
    work: impl FnOnce() -> Result<R, CudaError>,
) -> Result<R, CudaError> {
    let done = card.open(1, CHOICE + 1).and_then(|()| work());
    card.close();
    done
}

/// The curves of weights of a shape, for the rows of a lookup table.
pub(super) fn time(
    card: &dyn Card,
    dispatch: &Dispatch,
    weights: Weights,
) -> Result<Option<ProductCurves>, CudaError> {
    time_and((card, dispatch), weights, &[])
}

/// The same and for rows of prompts.
fn time_with_prompts(
    card: &dyn Card,
    dispatch: &Dispatch,
    weights: Weights,
) -> Result<Option<ProductCurves>, CudaError> {
    time_and((card, dispatch), weights, &ROWS_OF_PROMPTS)
}

/// The curves for the rows of a lookup table, and for those of some prompts. Of weights in 4 bits the conventional way is what the
/// table has for whole ones, once they are unpacked: those come first.
fn time_and(
    (card, dispatch): (&dyn Card, &Dispatch),
    weights: Weights,
    prompts: &[usize],
) -> Result<Option<ProductCurves>, CudaError> {
    // Else there is no choice.
    if !Implementation::Gemv.computes(weights.on_gpu()) {
        return Ok(None);
    }
    let most = prompts.iter().chain(&ROWS).max().copied().unwrap_or(0);
    // A card without room for the operands chooses by what is known without a table.
    let operands = match Operands::new((card, dispatch), weights, most) {
        Err(error) if error.is_of_room() => return Ok(None),
        operands => operands?,
    };
    let mut tried = operands.of_table()?;
    for m in prompts.iter().copied() {
        let vendors = [Implementation::Conventional];
        let is_long = 2 * m * weights.n * weights.k >= LONG_FLOPS;
        let repeats = Repeats {
            in_a_row: if is_long { 1 } else { REPEATS.in_a_row },
            turns: TURNS_OF_PROMPTS,
        };
        tried.extend(operands.tried_of(&vendors, m, repeats)?);
    }
    Ok(curves(weights, &tried))
}

/// Has the vendor's library load what computes a model's products of so many rows, where it does: the first of each kind would
/// else take milliseconds longer than those that follow. A card without room for the operands pays for that later.
pub(super) fn load(
    card: &dyn Card,
    dispatch: &Dispatch,
    (model, dtype, rows): (&ModelSpec, Dtype, &[usize]),
) -> Result<(), CudaError> {
    let mut products = Vec::new();
    for weights in Weights::of_model_on_card(model, dtype) {
        // A head has a row a sequence, some at a time, and its results are as wide as f32.
        let wide = weights.n == model.vocab_size as usize;
        let at_once = |m: &usize| match wide {
            true => [HEAD_ROWS.min(*m), m % HEAD_ROWS],
            false => [*m, 0],
        };
        let vendors =
            |m: &usize| *m > 0 && choose(dispatch, *m, weights) == Implementation::Conventional;
        let rows: BTreeSet<usize> = rows.iter().flat_map(at_once).filter(vendors).collect();
        products.extend(rows.into_iter().map(|m| raw::Product {
            addresses: [0; 3],
            shape: [m, weights.n, weights.k],
            dtype,
            wide,
        }));
    }
    for product in &mut products {
        let [m, n, k] = product.shape;
        let result = if product.wide { 4 } else { 2 };
        let mut taken = Taken::new(card);
        for (address, bytes) in
            (product.addresses.iter_mut()).zip([2 * m * k, 2 * n * k, result * m * n])
        {
            *address = match taken.room(bytes) {
                Err(error) if error.is_of_room() => 0,
                room => room?,
            };
        }
        if product.addresses.contains(&0) {
            continue;
        }
        card.multiply(0, product)?;
        card.record(0, CHOICE)?;
        card.await_event(CHOICE)?;
    }
    Ok(())
}

/// Operands of products with weights of a shape.
#[derive(Debug)]
pub(crate) struct Operands<'c> {
    taken: Taken<'c>,
    dispatch: &'c Dispatch,
    /// x, the first copy of the weights, and y.
    addresses: [u64; 3],
    /// For weights that are unpacked.
    room: u64,
    busy: Busy,
    weights: Weights,
    copies: usize,
    next: Cell<usize>,
}

impl<'c> Operands<'c> {
    /// For up to so many rows.
    pub fn new(
        (card, dispatch): (&'c dyn Card, &'c Dispatch),
        weights: Weights,
        rows: usize,
    ) -> Result<Self, CudaError> {
        let Weights { dtype, n, k, .. } = weights;
        let element = dtype.size_bytes() as usize;
        let copies = copies(card, weights.bytes());
        let mut taken = Taken::new(card);
        let x = taken.numbers(dtype, rows * k * element)?;
        // Any numbers of 16 bits that are no larger than one are codes, scales and minima as well.
        let matrices = taken.numbers(dtype, copies * weights.bytes())?;
        let y = taken.room(rows * n * element)?;
        let busy = Busy::new(&mut taken)?;
        let room = match weights.packed {
            true => taken.room(n * k * element)?,
            false => 0,
        };
        Ok(Operands {
            taken,
            dispatch,
            addresses: [x, matrices, y],
            room,
            busy,
            weights,
            copies,
            next: Cell::new(0),
        })
    }

    /// A product of so many rows with a copy of the weights.
    fn product(&self, m: usize, copy: usize) -> Product {
        let Weights { dtype, n, k, .. } = self.weights;
        let [x, matrices, y] = self.addresses;
        Product {
            dtype,
            x,
            weights: matrices + (copy * self.weights.bytes()) as u64,
            // Any row of the operands does.
            bias: if self.weights.biased { matrices } else { 0 },
            y,
            packed: self.weights.packed,
            shape: [m, n, k],
            wide: false,
            fresh: false,
        }
    }

    /// Gives stream 0 a product of so many rows with a copy of the weights.
    fn give(&self, by: Implementation, m: usize, copy: usize) -> Result<(), CudaError> {
        let (card, product) = (self.taken.card, self.product(m, copy));
        if !product.packed || by == Implementation::Gemv {
            return multiply((card, 0), by, &product);
        }
        let [_, n, k] = product.shape;
        let places = [self.room, product.weights];
        card.launch(0, &matrix_groups((product.dtype, false), places, [n, k])?)?;
        let unpacked = Product {
            weights: self.room,
            packed: false,
            fresh: true,
            ..product
        };
        let whole = Weights {
            packed: false,
            ..self.weights
        };
        multiply((card, 0), choose(self.dispatch, m, whole), &unpacked)
    }

    /// The same with the copy that was used longest ago.
    fn give_next(&self, by: Implementation, m: usize) -> Result<(), CudaError> {
        let copy = self.next.get();
        self.next.set((copy + 1) % self.copies);
        self.give(by, m, copy)
    }

    /// Those that compute it.
    fn implementations(&self) -> Vec<Implementation> {
        let all = Implementation::ALL.into_iter();
        all.filter(|by| by.computes(self.weights.on_gpu()))
            .collect()
    }

    /// The times of all implementations for the rows of a lookup table.
    fn of_table(&self) -> Result<Vec<Tried>, CudaError> {
        let of_rows = ROWS.into_iter().map(|m| self.tried(m, REPEATS));
        Ok(of_rows.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The times of all implementations of a product of so many rows.
    pub fn tried(&self, m: usize, repeats: Repeats) -> Result<Vec<Tried>, CudaError> {
        self.tried_of(&self.implementations(), m, repeats)
    }

    /// The same of some.
    fn tried_of(
        &self,
        all: &[Implementation],
        m: usize,
        repeats: Repeats,
    ) -> Result<Vec<Tried>, CudaError> {
        let ways: Vec<Way<'_>> = all
            .iter()
            .map(|by| Box::new(|| self.give_next(*by, m)) as Way<'_>)
            .collect();
        let card = self.taken.card;
        let keep_busy = || self.busy.keep(card, self.weights.bytes());
        let times = in_turns_behind(&keep_busy, card, repeats, &ways)?;
        let tried = all.iter().zip(times);
        Ok(tried
            .map(|(implementation, seconds)| Tried {
                implementation: *implementation,
                m,
                seconds,
            })
            .collect())
    }

    /// How far results of all implementations are from each other at most, as a share of the largest.
    pub fn apart(&self, m: usize, elements_most: usize) -> Result<f32, CudaError> {
        let count = (m * self.weights.n).min(elements_most);
        let mut results = Vec::new();
        for by in self.implementations() {
            let y = (self.addresses[2], self.weights.dtype);
            let element = y.1.size_bytes() as usize;
            self.taken.poison(y.0, m * self.weights.n * element)?;
            self.give(by, m, 0)?;
            results.push(read_numbers(self.taken.card, y, count)?);
        }
        let first = &results[0];
        let apart = results[1..].iter().map(|other| apart(first, other));
        Ok(apart.fold(0.0, f32::max))
    }
}

/// How far results are from others at most, as a share of the largest; infinite where one is no number.
pub(crate) fn apart(one: &[f32], other: &[f32]) -> f32 {
    let largest = one.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let off = one.iter().zip(other).map(|(a, b)| (a - b).abs());
    let most = off.fold(0.0, |most, off| match off.is_nan() {
        true => f32::INFINITY,
        false => f32::max(most, off),
    });
    match most.is_finite() && largest.is_finite() {
        true => most / largest.max(f32::MIN_POSITIVE),
        false => f32::INFINITY,
    }
}
