//! Lanes in one AVX-512 register.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, LANES, Lanes};

/// The proof that the processor has AVX-512 F, BW, DQ and VL: only [`Avx512::detect`] makes one.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// Asks the processor (the answer is kept by the standard library).
    pub fn detect() -> Option<Avx512> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Avx512(()))
    }

    /// Runs `kernel`, compiled for these instructions.
    pub fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has the features that `compiled` enables.
        unsafe { compiled(self, kernel) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn compiled<K: Kernel>(lanes: Avx512, kernel: K) {
    kernel.run(lanes);
}

impl Lanes for Avx512 {
    type V = __m512;
    type Part = Self::V;
    const PARTS: usize = 1;
    const WRITTEN_OUT: bool = true;
    const TILE_M: usize = 4;
    const TILE_N: usize = 6;
    const TILE_N_ALONE: usize = 4;
    const TALL: usize = 8;
    const TILE_OF_MANY: (usize, usize) = (4, 6);

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch reads nothing and cannot fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    fn zero(self) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn splat_half(self, value: f16) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(value.to_bits() as i16)) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; sixteen f32 lie behind the reference; no alignment is asked.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_half(self, from: &[f16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; sixteen f16 (32 bytes) lie behind the reference; no alignment
        // is asked.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_brain(self, from: &[bf16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512; sixteen bf16 (32 bytes) lie behind the reference; no alignment
        // is asked.
        unsafe {
            let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper))
        }
    }

    #[inline(always)]
    fn load_codes(self, from: &[u8; LANES], shift: u32) -> __m512 {
        // SAFETY: `self` proves AVX-512; sixteen bytes lie behind the reference; no alignment is asked.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let shifted = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(shift as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(15)))
        }
    }

    #[inline(always)]
    fn store(self, value: __m512, into: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512; sixteen f32 lie behind the reference; no alignment is asked.
        unsafe { _mm512_storeu_ps(into.as_mut_ptr(), value) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, sum: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, sum) }
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
    fn sum(self, value: __m512) -> f32 {
        self.sum_four([value; 4])[0]
    }

    #[inline(always)]
    fn sum_four(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves AVX-512; the array is four f32 and no alignment is asked.
        unsafe {
            // Quarters of 128 bits: (q0 + q2, q1 + q3) of a pair of values in one register.
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d),
            );
            // One quarter a value: lane i + lane i + 4.
            let four = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            let four = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
            let four = _mm512_add_ps(four, _mm512_permute_ps::<0b10_11_00_01>(four));
            let first_of_each = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, four));
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), first_of_each);
            sums
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [__m512; LANES]) -> [__m512; LANES] {
        // SAFETY: `self` proves AVX-512.
        let quarters = |first: usize| unsafe { transpose_quarters(&rows, first) };
        let (a, b, c, d) = (quarters(0), quarters(4), quarters(8), quarters(12));
        let mut columns = [self.zero(); LANES];
        for lane in 0..LANES / 4 {
            // SAFETY: `self` proves AVX-512.
            unsafe {
                let even = |x, y| _mm512_shuffle_f32x4::<0b10_00_10_00>(x, y);
                let odd = |x, y| _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y);
                let (ab, cd) = (even(a[lane], b[lane]), even(c[lane], d[lane]));
                columns[lane] = even(ab, cd);
                columns[lane + 8] = odd(ab, cd);
                let (ab, cd) = (odd(a[lane], b[lane]), odd(c[lane], d[lane]));
                columns[lane + 4] = even(ab, cd);
                columns[lane + 12] = odd(ab, cd);
            }
        }
        columns
    }

    #[inline(always)]
    fn transpose_from(self, rows: [&[f32; LANES]; LANES]) -> [__m512; LANES] {
        let mut columns = [self.zero(); LANES];
        for quarter in 0..LANES / 4 {
            // Loops and no closures: these would be compiled without the instructions.
            let mut four = [self.zero(); 4];
            for (row, into) in four.iter_mut().enumerate() {
                // SAFETY: `self` proves AVX-512.
                *into = unsafe { quarters_of(&rows, row, 4 * quarter) };
            }
            // SAFETY: the same.
            let four = unsafe { transpose_four(four) };
            columns[4 * quarter..4 * (quarter + 1)].copy_from_slice(&four);
        }
        columns
    }
}

/// Elements `first..first + 4` of rows `row`, `row + 4`, `row + 8` and `row + 12`, a quarter each, put together by loads: they leave
/// the shuffles' port to others.
///
/// # Safety
/// The processor has AVX-512 F; `row` is below 4 and `first` at most 12.
#[inline(always)]
unsafe fn quarters_of(rows: &[&[f32; LANES]; LANES], row: usize, first: usize) -> __m512 {
    // SAFETY: the caller knows that there is AVX-512, and that each load is within its row.
    unsafe {
        let all = _mm512_castps128_ps512(_mm_loadu_ps(rows[row].as_ptr().add(first)));
        let next = _mm_loadu_ps(rows[row + 4].as_ptr().add(first));
        let all = _mm512_mask_broadcast_f32x4(all, 0x00f0, next);
        let next = _mm_loadu_ps(rows[row + 8].as_ptr().add(first));
        let all = _mm512_mask_broadcast_f32x4(all, 0x0f00, next);
        let next = _mm_loadu_ps(rows[row + 12].as_ptr().add(first));
        _mm512_mask_broadcast_f32x4(all, 0xf000, next)
    }
}

/// Four rows from one on: lanes i, i + 4, i + 8 and i + 12 of all four, for each i below 4.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn transpose_quarters(rows: &[__m512; LANES], first: usize) -> [__m512; 4] {
    // SAFETY: the caller knows that there is AVX-512.
    unsafe {
        transpose_four([
            rows[first],
            rows[first + 1],
            rows[first + 2],
            rows[first + 3],
        ])
    }
}

/// In each quarter of four registers by itself: for each lane, what the four have there.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn transpose_four([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    // SAFETY: the caller knows that there is AVX-512.
    unsafe {
        let (ab, ab2) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (cd, cd2) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        [
            _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd),
            _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd),
            _mm512_shuffle_ps::<0b01_00_01_00>(ab2, cd2),
            _mm512_shuffle_ps::<0b11_10_11_10>(ab2, cd2),
        ]
    }
}
