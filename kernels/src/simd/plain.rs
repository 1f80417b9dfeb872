//! Lanes without any instruction set in particular: the reference that the others are held to.

use half::{bf16, f16};

use super::{LANES, Lanes, Stored};

/// Sixteen f32 in an array; needs nothing. Slow where the target lacks a fused multiply-add.
#[derive(Clone, Copy)]
pub struct Plain;

impl Lanes for Plain {
    type V = [f32; LANES];
    type Part = Self::V;
    const PARTS: usize = 1;
    const WRITTEN_OUT: bool = false;
    const TILE_M: usize = 1;
    const TILE_N: usize = 2;
    const TILE_N_ALONE: usize = 2;
    const TALL: usize = 1;
    const TILE_OF_MANY: (usize, usize) = (1, 2);

    #[inline(always)]
    fn prefetch(self, _: *const u8) {}

    #[inline(always)]
    fn zero(self) -> Self::V {
        [0.0; LANES]
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    fn splat_half(self, value: f16) -> Self::V {
        [value.to_f32(); LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn load_half(self, from: &[f16; LANES]) -> Self::V {
        from.map(f16::to_f32)
    }

    #[inline(always)]
    fn load_brain(self, from: &[bf16; LANES]) -> Self::V {
        from.map(Stored::widen)
    }

    #[inline(always)]
    fn load_codes(self, from: &[u8; LANES], shift: u32) -> Self::V {
        from.map(|byte| f32::from((byte >> shift) & 15))
    }

    #[inline(always)]
    fn store(self, value: Self::V, into: &mut [f32; LANES]) {
        *into = value;
    }

    #[inline(always)]
    fn add(self, mut a: Self::V, b: Self::V) -> Self::V {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        a
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, sum: Self::V) -> Self::V {
        let mut result = sum;
        for lane in 0..LANES {
            result[lane] = a[lane].mul_add(b[lane], sum[lane]);
        }
        result
    }

    #[inline(always)]
    fn part<const P: usize>(self, value: Self::V) -> Self::V {
        value
    }

    #[inline(always)]
    fn with_part<const P: usize>(self, _: Self::V, part: Self::V) -> Self::V {
        part
    }

    #[inline(always)]
    fn fma_part(self, a: Self::V, b: Self::V, sum: Self::V) -> Self::V {
        self.fma(a, b, sum)
    }

    #[inline(always)]
    fn sum(self, mut value: Self::V) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                value[lane] += value[lane + half];
            }
            half /= 2;
        }
        value[0]
    }

    #[inline(always)]
    fn sum_four(self, values: [Self::V; 4]) -> [f32; 4] {
        values.map(|value| self.sum(value))
    }

    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        std::array::from_fn(|lane| rows.map(|row| row[lane]))
    }
}
