//! Sixteen f32 lanes in whatever registers the processor has, chosen at run time.
//!
//! A kernel is written once over [`Lanes`] and implements [`Kernel`]; [`dispatch`] compiles it for
//! each instruction set and runs the best that the processor has. All implementations give the same
//! bits: sixteen lanes everywhere, fused multiply-adds, and one tree for the sum of the lanes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

use half::{bf16, f16};

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Sixteen lanes and what can be done with them. A value of the implementing type is the proof that
/// the processor has the instructions.
pub trait Lanes: Copy {
    /// Sixteen f32.
    type V: Copy;
    /// One of the registers that a vector takes.
    type Part: Copy;
    /// How many registers a vector takes: 1 or 2.
    const PARTS: usize;
    /// Whether loops are worth being written out.
    const WRITTEN_OUT: bool;
    /// Rows of the left operand that a register tile of dot products holds at most (1 to 4).
    const TILE_M: usize;
    /// Rows of the right operand that such a tile holds (2, 3 or 6).
    const TILE_N: usize;
    /// The same where the left operand has one row: enough sums to hide how long each takes.
    const TILE_N_ALONE: usize;
    /// Rows of a left operand that meet the right one as it lies, narrow or not, at once (1 or 8).
    const TALL: usize;
    /// Vectors of rows of input, 1 to 4, and rows of weight (2 or 6) in a tile of many rows.
    const TILE_OF_MANY: (usize, usize);

    /// Asks for the cache line at an address, which need not be one of ours: a hint.
    fn prefetch(self, at: *const u8);
    /// All lanes zero.
    fn zero(self) -> Self::V;
    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::V;
    /// All lanes `value`, widened.
    fn splat_half(self, value: f16) -> Self::V;
    /// Sixteen f32.
    fn load(self, from: &[f32; LANES]) -> Self::V;
    /// Sixteen f16, widened.
    fn load_half(self, from: &[f16; LANES]) -> Self::V;
    /// Sixteen bf16, widened.
    fn load_brain(self, from: &[bf16; LANES]) -> Self::V;
    /// Sixteen 4-bit codes: those that lie `shift` (0 or 4) bits up in each byte.
    fn load_codes(self, from: &[u8; LANES], shift: u32) -> Self::V;
    /// Writes the lanes.
    fn store(self, value: Self::V, into: &mut [f32; LANES]);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + sum`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, sum: Self::V) -> Self::V;
    /// The first register of a vector (P = 0), or its second.
    fn part<const P: usize>(self, value: Self::V) -> Self::Part;
    /// The vector with this one in the place of its own.
    fn with_part<const P: usize>(self, value: Self::V, part: Self::Part) -> Self::V;
    /// [`Lanes::fma`] of parts.
    fn fma_part(self, a: Self::Part, b: Self::Part, sum: Self::Part) -> Self::Part;
    /// The sum of the lanes: lane i with i + 8, then i + 4, i + 2, i + 1.
    fn sum(self, value: Self::V) -> f32;
    /// [`Lanes::sum`] of four.
    fn sum_four(self, values: [Self::V; 4]) -> [f32; 4];
    /// For each lane, what sixteen vectors have there.
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES];
    /// [`Lanes::transpose`] of vectors in memory.
    #[inline(always)]
    fn transpose_from(self, rows: [&[f32; LANES]; LANES]) -> [Self::V; LANES] {
        let mut loaded = [self.zero(); LANES];
        for i in 0..LANES {
            loaded[i] = self.load(rows[i]);
        }
        self.transpose(loaded)
    }
}

/// What a value is stored as in an operand.
pub trait Stored: Copy + Send + Sync + 'static {
    /// Whether a kernel that reads an operand often had better widen it first.
    const NARROW: bool;
    /// Zero.
    const ZERO: Self;
    /// Sixteen of them, widened.
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::V;
    /// One of them, widened.
    fn widen(self) -> f32;
    /// Themselves, where they are f32.
    #[inline(always)]
    fn singles(_: &[Self]) -> Option<&[f32]> {
        None
    }
}

impl Stored for f32 {
    const NARROW: bool = false;
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[f32; LANES]) -> L::V {
        lanes.load(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn singles(all: &[f32]) -> Option<&[f32]> {
        Some(all)
    }
}

impl Stored for f16 {
    const NARROW: bool = true;
    const ZERO: f16 = f16::ZERO;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[f16; LANES]) -> L::V {
        lanes.load_half(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Stored for bf16 {
    const NARROW: bool = true;
    const ZERO: bf16 = bf16::ZERO;

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[bf16; LANES]) -> L::V {
        lanes.load_brain(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// A computation written over [`Lanes`]. `run`, and what it calls, must be `#[inline(always)]`, or it
/// is compiled without the instructions that it was dispatched for.
pub trait Kernel {
    /// Does it.
    fn run<L: Lanes>(self, lanes: L);
}

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionSet {
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// Whatever the target has at least.
    Plain,
}

impl InstructionSet {
    /// All, best first.
    pub const ALL: [InstructionSet; 3] = [
        InstructionSet::Avx512,
        InstructionSet::Avx2,
        InstructionSet::Plain,
    ];

    /// The best that this processor has.
    pub fn best() -> InstructionSet {
        InstructionSet::ALL
            .into_iter()
            .find(|set| set.available())
            .unwrap_or(InstructionSet::Plain)
    }

    /// Whether this processor has it.
    pub fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => avx512::Avx512::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => avx2::Avx2::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx512 | InstructionSet::Avx2 => false,
            InstructionSet::Plain => true,
        }
    }

    /// The name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            InstructionSet::Avx512 => "avx512",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Plain => "plain",
        }
    }
}

/// Runs `kernel` with the best instruction set.
pub fn dispatch<K: Kernel>(kernel: K) {
    dispatch_to(InstructionSet::best(), kernel);
}

/// Runs `kernel` with `set`, or with plain instructions where the processor lacks it.
pub fn dispatch_to<K: Kernel>(set: InstructionSet, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    match set {
        InstructionSet::Avx512 => {
            if let Some(lanes) = avx512::Avx512::detect() {
                return lanes.run(kernel);
            }
        }
        InstructionSet::Avx2 => {
            if let Some(lanes) = avx2::Avx2::detect() {
                return lanes.run(kernel);
            }
        }
        InstructionSet::Plain => {}
    }
    let _ = set;
    kernel.run(plain::Plain);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Input {
        single: [f32; LANES],
        half: [f16; LANES],
        brain: [bf16; LANES],
        codes: [u8; LANES],
    }

    struct Sums<'a>(Input, &'a mut [f32; 85]);

    impl Kernel for Sums<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let Sums(input, into) = self;
            let (a, b) = (lanes.load(&input.single), lanes.load_half(&input.half));
            let c = lanes.fma(a, b, lanes.splat(0.3));
            let (each, rest) = into.as_chunks_mut::<LANES>();
            lanes.store(c, &mut each[0]);
            lanes.store(lanes.load_codes(&input.codes, 0), &mut each[1]);
            lanes.store(lanes.load_codes(&input.codes, 4), &mut each[2]);
            lanes.store(lanes.splat_half(f16::MIN), &mut each[3]);
            lanes.store(lanes.load_brain(&input.brain), &mut each[4]);
            rest[0] = lanes.sum(c);
            rest[1..].copy_from_slice(&lanes.sum_four([a, b, c, lanes.zero()]));
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let input = Input {
            single: std::array::from_fn(|i| (i as f32 * 1.7).sin() * 10.0),
            half: std::array::from_fn(|i| f16::from_f32((i as f32 * 0.9).cos())),
            brain: std::array::from_fn(|i| bf16::from_bits((i * 4001) as u16)),
            codes: std::array::from_fn(|i| (i * 89 + 3) as u8),
        };
        let codes = input.codes;
        let mut expected = [0.0; 85];
        dispatch_to(InstructionSet::Plain, Sums(input, &mut expected));
        assert_eq!(expected[16..32], codes.map(|byte| f32::from(byte % 16)));
        assert_eq!(expected[32..48], codes.map(|byte| f32::from(byte / 16)));
        assert_eq!(expected[48..64], [f16::MIN.to_f32(); LANES]);
        assert_eq!(expected[64..80], input.brain.map(bf16::to_f32));
        let mut lanes: Vec<f32> = expected[..16].to_vec();
        while lanes.len() > 1 {
            let half = lanes.len() / 2;
            lanes = (0..half).map(|i| lanes[i] + lanes[i + half]).collect();
        }
        assert_eq!(expected[80], lanes[0]);
        assert_eq!(expected[80], expected[83]);
        for set in InstructionSet::ALL {
            let mut found = [0.0; 85];
            dispatch_to(set, Sums(input, &mut found));
            assert_eq!(
                found.map(f32::to_bits),
                expected.map(f32::to_bits),
                "{}",
                set.name()
            );
        }
    }
}
