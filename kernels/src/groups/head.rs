//! A head's keys, or values, at one position.

use half::f16;

use super::{BYTES, ELEMENTS, Quantiser, Span, kept};
use crate::KernelError;
use crate::error::expect;
use crate::row::Row;
use crate::simd::{InstructionSet, Kernel, LANES, Lanes, dispatch_to};

/// Where a group's scale is, behind the codes; its minimum follows.
const SCALE: usize = ELEMENTS / 2;

/// Steps of sixteen elements in a group.
const STEPS: usize = ELEMENTS / LANES;

/// Bytes of a packed head.
pub fn head_bytes(head_dim: usize) -> usize {
    head_dim.div_ceil(ELEMENTS) * BYTES
}

/// A packed head, to read.
#[derive(Debug, Clone, Copy)]
pub struct PackedHead<'a> {
    groups: &'a [[u8; BYTES]],
}

impl<'a> PackedHead<'a> {
    /// Sees whole groups.
    #[inline(always)]
    pub fn new(bytes: &'a [u8]) -> PackedHead<'a> {
        PackedHead {
            groups: bytes.as_chunks().0,
        }
    }
}

#[inline(always)]
fn scale_and_minimum(group: &[u8; BYTES]) -> [f16; 2] {
    let at = |at: usize| f16::from_le_bytes([group[at], group[at + 1]]);
    [at(SCALE), at(SCALE + 2)]
}

impl Row for PackedHead<'_> {
    #[inline(always)]
    fn upto(self, length: usize) -> Self {
        PackedHead {
            groups: &self.groups[..length.div_ceil(ELEMENTS)],
        }
    }

    #[inline(always)]
    fn some(self, first: usize, steps: usize) -> Self {
        PackedHead {
            groups: &self.groups[first / STEPS..(first + steps).div_ceil(STEPS)],
        }
    }

    const STEP_BYTES: usize = BYTES / STEPS;

    #[inline(always)]
    fn place(self, step: usize) -> *const u8 {
        let start: *const u8 = self.groups.as_ptr().cast();
        start.wrapping_add(step * Self::STEP_BYTES)
    }

    #[inline(always)]
    fn vector<L: Lanes>(self, lanes: L, step: usize) -> L::V {
        let group = &self.groups[step / STEPS];
        let codes = &group.as_chunks::<LANES>().0[step % STEPS % 2];
        let codes = lanes.load_codes(codes, (step % STEPS / 2 * 4) as u32);
        let [scale, minimum] = scale_and_minimum(group);
        lanes.fma(codes, lanes.splat_half(scale), lanes.splat_half(minimum))
    }

    #[inline(always)]
    fn element(self, index: usize) -> f32 {
        let (group, index) = (&self.groups[index / ELEMENTS], index % ELEMENTS);
        let code = group[index % (ELEMENTS / 2)] >> (index / (ELEMENTS / 2) * 4) & 15;
        let [scale, minimum] = scale_and_minimum(group).map(f16::to_f32);
        f32::from(code).mul_add(scale, minimum)
    }
}

/// Packs heads, `[head][head_dim]`, into their groups, one after another.
///
/// # Errors
/// [`KernelError::Shape`] where `into` does not have the bytes of these heads.
pub fn pack_heads(elements: &[f32], head_dim: usize, into: &mut [u8]) -> Result<(), KernelError> {
    pack_heads_with(InstructionSet::best(), elements, head_dim, into)
}

/// [`pack_heads`] with a stated instruction set.
pub(super) fn pack_heads_with(
    set: InstructionSet,
    elements: &[f32],
    head_dim: usize,
    into: &mut [u8],
) -> Result<(), KernelError> {
    let heads = elements.len() / head_dim.max(1);
    expect("elements of heads", heads * head_dim, elements.len())?;
    let bytes = heads * head_bytes(head_dim);
    expect("room for packed heads, in bytes", bytes, into.len())?;
    dispatch_to(
        set,
        PackHeads {
            elements,
            head_dim,
            into,
        },
    );
    Ok(())
}

struct PackHeads<'a> {
    elements: &'a [f32],
    head_dim: usize,
    into: &'a mut [u8],
}

impl Kernel for PackHeads<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let heads = self.elements.chunks_exact(self.head_dim.max(1));
        let packed = self.into.chunks_exact_mut(head_bytes(self.head_dim).max(1));
        for (head, packed) in heads.zip(packed) {
            for (group, packed) in head.chunks(ELEMENTS).zip(packed.as_chunks_mut().0) {
                pack_group(group, packed);
            }
        }
    }
}

#[inline(always)]
fn pack_group(elements: &[f32], into: &mut [u8; BYTES]) {
    // What is missing of the group repeats its first element, so that it does not widen the span.
    let mut full = [elements[0]; ELEMENTS];
    full[..elements.len()].copy_from_slice(elements);
    let mut span = Span::EMPTY;
    full.as_chunks().0.iter().for_each(|x| span.add(x));
    let least = |a: f32, b: &f32| if *b < a { *b } else { a };
    let most = |a: f32, b: &f32| if *b > a { *b } else { a };
    let quantiser = Quantiser::new(
        span.minimum.iter().fold(f32::INFINITY, least),
        span.maximum.iter().fold(f32::NEG_INFINITY, most),
        span.taint.iter().sum(),
    );
    let (low, high) = full.split_at(ELEMENTS / 2);
    for ((byte, low), high) in into.iter_mut().zip(low).zip(high) {
        *byte = quantiser.code(*low) | quantiser.code(*high) << 4;
    }
    let [scale, minimum] = [quantiser.scale, quantiser.minimum].map(kept);
    into[SCALE..SCALE + 2].copy_from_slice(&scale.to_le_bytes());
    into[SCALE + 2..].copy_from_slice(&minimum.to_le_bytes());
}
