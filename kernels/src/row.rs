//! Rows of elements, read sixteen at a time: as they lie, or unpacked from 4 bits on the way.

use super::simd::{LANES, Lanes, Stored};

/// A row, however it is stored.
pub trait Row: Copy {
    /// The first `length` elements.
    fn upto(self, length: usize) -> Self;
    /// Sixteen elements, of which there must be as many, from `step * LANES` on.
    fn vector<L: Lanes>(self, lanes: L, step: usize) -> L::V;
    /// `steps` times sixteen elements, from a step on that begins a group of 64.
    fn some(self, first: usize, steps: usize) -> Self;
    /// Bytes from where [`Row::vector`] reads at a step to the next: of codes, where a row is packed.
    const STEP_BYTES: usize;
    /// Where it reads at a step, which may lie past the end: for hints.
    fn place(self, step: usize) -> *const u8;
    /// One element.
    fn element(self, index: usize) -> f32;
    /// All, where they are f32.
    #[inline(always)]
    fn singles(&self) -> Option<&[f32]> {
        None
    }

    /// What whole vectors leave of the first `length` elements, and zeros.
    #[inline(always)]
    fn rest<L: Lanes>(self, lanes: L, length: usize) -> L::V {
        let mut padded = [0.0; LANES];
        let start = length - length % LANES;
        for (index, value) in padded.iter_mut().enumerate().take(length - start) {
            *value = self.element(start + index);
        }
        lanes.load(&padded)
    }
}

impl<W: Stored> Row for &[W] {
    #[inline(always)]
    fn upto(self, length: usize) -> Self {
        &self[..length]
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L, step: usize) -> L::V {
        W::load(lanes, &self.as_chunks::<LANES>().0[step])
    }

    #[inline(always)]
    fn some(self, first: usize, steps: usize) -> Self {
        &self[first * LANES..(first + steps) * LANES]
    }

    const STEP_BYTES: usize = LANES * size_of::<W>();

    #[inline(always)]
    fn place(self, step: usize) -> *const u8 {
        self.as_ptr().wrapping_add(step * LANES).cast()
    }

    #[inline(always)]
    fn element(self, index: usize) -> f32 {
        self[index].widen()
    }

    #[inline(always)]
    fn singles(&self) -> Option<&[f32]> {
        W::singles(self)
    }

    #[inline(always)]
    fn rest<L: Lanes>(self, lanes: L, length: usize) -> L::V {
        let mut padded = [W::ZERO; LANES];
        let tail = &self[length - length % LANES..length];
        padded[..tail.len()].copy_from_slice(tail);
        W::load(lanes, &padded)
    }
}

/// Writes the elements of a row as f32.
#[inline(always)]
pub fn widen<L: Lanes, R: Row>(lanes: L, row: R, into: &mut [f32]) {
    let row = row.upto(into.len());
    let (vectors, rest) = into.as_chunks_mut::<LANES>();
    let start = vectors.len() * LANES;
    for (step, into) in vectors.iter_mut().enumerate() {
        lanes.store(row.vector(lanes, step), into);
    }
    for (index, into) in rest.iter_mut().enumerate() {
        *into = row.element(start + index);
    }
}
