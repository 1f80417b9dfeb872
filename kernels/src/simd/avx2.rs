//! Lanes in two AVX2 registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, LANES, Lanes};

/// Lanes of a register.
const EIGHT: usize = 8;

/// The proof that the processor has AVX2, FMA and F16C: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// Asks the processor (the answer is kept by the standard library).
    pub fn detect() -> Option<Avx2> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Avx2(()))
    }

    /// Runs `kernel`, compiled for these instructions.
    pub fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: `self` proves that the processor has the features that `compiled` enables.
        unsafe { compiled(self, kernel) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn compiled<K: Kernel>(lanes: Avx2, kernel: K) {
    kernel.run(lanes);
}

/// Lanes 0 to 7, and 8 to 15.
type Pair = (__m256, __m256);

impl Lanes for Avx2 {
    type V = Pair;
    type Part = __m256;
    const PARTS: usize = 2;
    const WRITTEN_OUT: bool = true;
    const TILE_M: usize = 4;
    const TILE_N: usize = 3;
    const TILE_N_ALONE: usize = 4;
    const TALL: usize = 1;
    const TILE_OF_MANY: (usize, usize) = (1, 6);

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch reads nothing and cannot fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn zero(self) -> Pair {
        self.splat(0.0)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Pair {
        // SAFETY: `self` proves AVX2.
        let both = unsafe { _mm256_set1_ps(value) };
        (both, both)
    }

    #[inline(always)]
    fn splat_half(self, value: f16) -> Pair {
        // SAFETY: `self` proves AVX2 and F16C.
        let both = unsafe { _mm256_cvtph_ps(_mm_set1_epi16(value.to_bits() as i16)) };
        (both, both)
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Pair {
        // SAFETY: `self` proves AVX2; sixteen f32 lie behind the reference; no alignment is asked.
        unsafe {
            (
                _mm256_loadu_ps(from.as_ptr()),
                _mm256_loadu_ps(from.as_ptr().add(8)),
            )
        }
    }

    #[inline(always)]
    fn load_half(self, from: &[f16; LANES]) -> Pair {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY: `self` proves F16C; sixteen f16 (twice 16 bytes) lie behind the reference; no
        // alignment is asked.
        unsafe {
            (
                _mm256_cvtph_ps(_mm_loadu_si128(from)),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(1))),
            )
        }
    }

    #[inline(always)]
    fn load_brain(self, from: &[bf16; LANES]) -> Pair {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY: `self` proves AVX2; sixteen bf16 (twice 16 bytes) lie behind the reference; no
        // alignment is asked.
        unsafe {
            let widen =
                |eight| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(eight)));
            (
                widen(_mm_loadu_si128(from)),
                widen(_mm_loadu_si128(from.add(1))),
            )
        }
    }

    #[inline(always)]
    fn load_codes(self, from: &[u8; LANES], shift: u32) -> Pair {
        // SAFETY: `self` proves AVX2; sixteen bytes lie behind the reference; no alignment is asked.
        unsafe {
            let (shift, mask) = (_mm_cvtsi32_si128(shift as i32), _mm256_set1_epi32(15));
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            (
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(low, shift), mask)),
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(high, shift), mask)),
            )
        }
    }

    #[inline(always)]
    fn store(self, value: Pair, into: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX2; sixteen f32 lie behind the reference; no alignment is asked.
        unsafe {
            _mm256_storeu_ps(into.as_mut_ptr(), value.0);
            _mm256_storeu_ps(into.as_mut_ptr().add(8), value.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, sum: Pair) -> Pair {
        // SAFETY: `self` proves FMA.
        unsafe {
            (
                _mm256_fmadd_ps(a.0, b.0, sum.0),
                _mm256_fmadd_ps(a.1, b.1, sum.1),
            )
        }
    }

    #[inline(always)]
    fn part<const P: usize>(self, value: Pair) -> __m256 {
        if P == 0 { value.0 } else { value.1 }
    }

    #[inline(always)]
    fn with_part<const P: usize>(self, value: Pair, part: __m256) -> Pair {
        if P == 0 {
            (part, value.1)
        } else {
            (value.0, part)
        }
    }

    #[inline(always)]
    fn fma_part(self, a: __m256, b: __m256, sum: __m256) -> __m256 {
        // SAFETY: `self` proves FMA.
        unsafe { _mm256_fmadd_ps(a, b, sum) }
    }

    #[inline(always)]
    fn sum(self, value: Pair) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let eight = _mm256_add_ps(value.0, value.1);
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sum_four(self, [a, b, c, d]: [Pair; 4]) -> [f32; 4] {
        // SAFETY: `self` proves AVX2; the array is four f32 and no alignment is asked.
        unsafe {
            let [a, b, c, d] = [a, b, c, d].map(|v| _mm256_add_ps(v.0, v.1));
            // Halves of 128 bits: the four lanes of a, and those of b.
            let ab = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
            );
            let cd = _mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(c, d),
                _mm256_permute2f128_ps::<0x31>(c, d),
            );
            // Two lanes each: (a, c) and (b, d).
            let two = _mm256_add_ps(
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
            );
            let one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
            let (ac, bd) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
            let acbd = _mm_shuffle_ps::<0b10_00_10_00>(ac, bd);
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), _mm_permute_ps::<0b11_01_10_00>(acbd));
            sums
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [Pair; LANES]) -> [Pair; LANES] {
        // The first eight rows and the others, of either half of the lanes.
        let mut quarters = [[[self.zero().0; EIGHT]; 2]; 2];
        for (index, row) in rows.into_iter().enumerate() {
            quarters[0][index / EIGHT][index % EIGHT] = row.0;
            quarters[1][index / EIGHT][index % EIGHT] = row.1;
        }
        let mut columns = rows;
        for (half, [upper, lower]) in quarters.into_iter().enumerate() {
            // SAFETY: `self` proves AVX2.
            let (upper, lower) = unsafe { (transpose_eight(upper), transpose_eight(lower)) };
            for lane in 0..EIGHT {
                columns[half * EIGHT + lane] = (upper[lane], lower[lane]);
            }
        }
        columns
    }
}

/// Eight rows of eight as columns.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn transpose_eight(rows: [__m256; EIGHT]) -> [__m256; EIGHT] {
    let [a, b, c, d, e, f, g, h] = rows;
    // SAFETY: the caller knows that there is AVX2.
    unsafe {
        // Lanes 0, 1 (4, 5) of two rows, and 2, 3 (6, 7).
        let (ab, ab2) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd, cd2) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        let (ef, ef2) = (_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
        let (gh, gh2) = (_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
        // Lanes i and i + 4 of four rows.
        let first = |x, y| _mm256_shuffle_ps::<0b01_00_01_00>(x, y);
        let second = |x, y| _mm256_shuffle_ps::<0b11_10_11_10>(x, y);
        let upper = [
            first(ab, cd),
            second(ab, cd),
            first(ab2, cd2),
            second(ab2, cd2),
        ];
        let lower = [
            first(ef, gh),
            second(ef, gh),
            first(ef2, gh2),
            second(ef2, gh2),
        ];
        let near = |i: usize| _mm256_permute2f128_ps::<0x20>(upper[i], lower[i]);
        let far = |i: usize| _mm256_permute2f128_ps::<0x31>(upper[i], lower[i]);
        [
            near(0),
            near(1),
            near(2),
            near(3),
            far(0),
            far(1),
            far(2),
            far(3),
        ]
    }
}
