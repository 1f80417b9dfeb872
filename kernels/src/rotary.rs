//! Rotary positions: pairs of a head's elements are turned by angles that grow with the position
//! (Su et al. 2021, "RoFormer", section 3.2.2).
//!
//! Frequencies and angles are rounded to f32 as `transformers` rounds them: far into a long context
//! that decides the angle. Cosine and sine are then those of the rounded angle.

use std::f64::consts::TAU;

use plimsoll_formats::{RotaryPairs, RotaryScaling};

use super::KernelError;
use super::error::expect;

/// How heads are turned.
#[derive(Debug, Clone)]
pub struct Rotary {
    pairs: RotaryPairs,
    /// Radians a position, for each pair of elements.
    frequencies: Vec<f32>,
}

/// The angles of some tokens.
#[derive(Debug, Clone)]
pub struct Turns<'a> {
    rotary: &'a Rotary,
    tokens: usize,
    /// Cosine and sine, `[token][pair]`.
    angles: Vec<(f32, f32)>,
}

impl Rotary {
    /// Turns the first `rotary_dim` elements of each head; pair `i` by `theta^(-2i / rotary_dim)`
    /// radians a position, unless that is scaled.
    pub fn new(
        rotary_dim: usize,
        theta: f64,
        pairs: RotaryPairs,
        scaling: Option<RotaryScaling>,
    ) -> Rotary {
        let frequency = |pair: usize| {
            let exponent = (2 * pair) as f64 / rotary_dim as f64;
            let plain = 1.0 / (libm::pow(theta, exponent) as f32);
            scaling.map_or(plain, |scaling| scaled(plain, scaling))
        };
        Rotary {
            pairs,
            frequencies: (0..rotary_dim / 2).map(frequency).collect(),
        }
    }

    /// Pairs of a head's elements that are turned.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Whether the elements of a pair are neighbours.
    pub fn is_adjacent(&self) -> bool {
        self.pairs == RotaryPairs::Adjacent
    }

    /// Cosines, then sines, of all positions before `end`: `[position][pair]` each.
    pub fn tables(&self, end: usize) -> [Vec<f32>; 2] {
        let angles = self.turns(0..end).angles;
        [
            angles.iter().map(|(cosine, _)| *cosine).collect(),
            angles.iter().map(|(_, sine)| *sine).collect(),
        ]
    }

    /// The angles of tokens at these positions of their texts.
    pub fn turns(&self, positions: impl ExactSizeIterator<Item = usize>) -> Turns<'_> {
        let tokens = positions.len();
        let of_token = |position: usize| {
            self.frequencies.iter().map(move |frequency| {
                let angle = position as f32 * frequency;
                let (sin, cos) = libm::sincos(f64::from(angle));
                (cos as f32, sin as f32)
            })
        };
        Turns {
            rotary: self,
            tokens,
            angles: positions.flat_map(of_token).collect(),
        }
    }
}

/// A frequency for contexts that are longer than those first trained for.
fn scaled(plain: f32, scaling: RotaryScaling) -> f32 {
    let frequency = f64::from(plain);
    let stretched = match scaling {
        RotaryScaling::Linear { factor } => frequency / factor,
        RotaryScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            // How often the pair goes round in the original context.
            let rounds = f64::from(original_max_position_embeddings) * frequency / TAU;
            let kept = (rounds - low_freq_factor) / (high_freq_factor - low_freq_factor);
            let kept = kept.clamp(0.0, 1.0);
            (1.0 - kept) * frequency / factor + kept * frequency
        }
    };
    stretched as f32
}

impl Turns<'_> {
    /// Turns all heads of the tokens, `[token][head][head_dim]`.
    ///
    /// # Errors
    /// [`KernelError::Shape`] where there are not whole heads for as many tokens.
    pub fn apply(&self, heads: &mut [f32], head_dim: usize) -> Result<(), KernelError> {
        let pairs = self.rotary.frequencies.len();
        expect("elements of a head", head_dim.max(2 * pairs), head_dim)?;
        let token = (self.tokens * head_dim).max(1);
        expect(
            "elements that are turned",
            heads.len().next_multiple_of(token),
            heads.len(),
        )?;
        if self.tokens == 0 || pairs == 0 || heads.is_empty() {
            return Ok(());
        }
        let tokens = heads.chunks_exact_mut(heads.len() / self.tokens);
        for (heads, angles) in tokens.zip(self.angles.chunks_exact(pairs)) {
            for head in heads.chunks_exact_mut(head_dim) {
                turn(self.rotary.pairs, &mut head[..2 * pairs], angles);
            }
        }
        Ok(())
    }
}

fn turn(pairs: RotaryPairs, head: &mut [f32], angles: &[(f32, f32)]) {
    let turned =
        |(x, y): (f32, f32), (cos, sin): (f32, f32)| (x * cos - y * sin, y * cos + x * sin);
    match pairs {
        RotaryPairs::Halves => {
            let (first, second) = head.split_at_mut(angles.len());
            for ((x, y), angle) in first.iter_mut().zip(second).zip(angles) {
                (*x, *y) = turned((*x, *y), *angle);
            }
        }
        RotaryPairs::Adjacent => {
            for ([x, y], angle) in head.as_chunks_mut().0.iter_mut().zip(angles) {
                (*x, *y) = turned((*x, *y), *angle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rotation as a complex product in f64, element by element.
    fn reference(
        x: &[f32],
        (heads, head_dim, rotary_dim): (usize, usize, usize),
        (theta, pairs): (f64, RotaryPairs),
        positions: &[usize],
    ) -> Vec<f64> {
        let mut out: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (token, position) in positions.iter().enumerate() {
            for head in 0..heads {
                let start = (token * heads + head) * head_dim;
                for i in 0..rotary_dim / 2 {
                    let (a, b) = match pairs {
                        RotaryPairs::Halves => (start + i, start + i + rotary_dim / 2),
                        RotaryPairs::Adjacent => (start + 2 * i, start + 2 * i + 1),
                    };
                    let angle = *position as f64 / theta.powf(2.0 * i as f64 / rotary_dim as f64);
                    let (x, y) = (f64::from(x[a]), f64::from(x[b]));
                    out[a] = x * angle.cos() - y * angle.sin();
                    out[b] = x * angle.sin() + y * angle.cos();
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn pairs_are_turned_by_their_angles_and_nothing_else_changes(
            heads in 1_usize..4, half in 1_usize..20, unturned in 0_usize..9,
            theta in 100.0_f64..1e6, adjacent: bool,
            positions in prop::collection::vec(0_usize..500, 1..5), seed in 0_u32..1000,
        ) {
            let (rotary_dim, head_dim) = (2 * half, 2 * half + unturned);
            let pairs = if adjacent { RotaryPairs::Adjacent } else { RotaryPairs::Halves };
            let element = |i: u32| ((i + seed).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
            let x: Vec<f32> = (0..(positions.len() * heads * head_dim) as u32).map(element).collect();
            let rotary = Rotary::new(rotary_dim, theta, pairs, None);
            let mut found = x.clone();
            rotary.turns(positions.iter().copied()).apply(&mut found, head_dim).unwrap();
            let shape = (heads, head_dim, rotary_dim);
            for (found, exact) in found.iter().zip(reference(&x, shape, (theta, pairs), &positions)) {
                // An angle of 500 radians is rounded by some 3e-5.
                prop_assert!((f64::from(*found) - exact).abs() < 1e-4, "{found} for {exact}");
            }
            // A token alone has the same bits as among others.
            let width = heads * head_dim;
            for (token, position) in positions.iter().enumerate() {
                let mut alone = x[token * width..(token + 1) * width].to_vec();
                rotary.turns([*position].into_iter()).apply(&mut alone, head_dim).unwrap();
                prop_assert_eq!(&alone, &found[token * width..(token + 1) * width]);
            }
        }
    }

    #[test]
    fn frequencies_are_stretched_as_published() {
        let of = |scaling| Rotary::new(8, 10_000.0, RotaryPairs::Halves, scaling).frequencies;
        let plain = of(None);
        assert_eq!(plain, [1.0, 0.1, 0.01, 0.001]);
        let linear = of(Some(RotaryScaling::Linear { factor: 4.0 }));
        assert_eq!(linear, [0.25, 0.025, 0.0025, 0.00025]);
        // 64 positions are 10.2 rounds, 1.02, 0.102, 0.0102: kept, between, divided, divided.
        let llama = of(Some(RotaryScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64,
        }));
        assert_eq!([llama[0], llama[2], llama[3]], [1.0, 0.00125, 0.000_125]);
        let kept = (6.4 / TAU - 1.0) / 3.0;
        let between = 0.1 * kept + 0.1 / 8.0 * (1.0 - kept);
        assert!((f64::from(llama[1]) - between).abs() < 1e-8, "{llama:?}");
    }

    #[test]
    fn heads_that_are_cut_short_are_refused() {
        let rotary = Rotary::new(4, 10_000.0, RotaryPairs::Halves, None);
        let turns = rotary.turns([3, 4].into_iter());
        let error = turns.apply(&mut [0.0; 12], 4).unwrap_err();
        assert_eq!(
            error.to_string(),
            "elements that are turned: 12 given, 16 needed"
        );
        let error = turns.apply(&mut [0.0; 6], 3).unwrap_err();
        assert_eq!(error.to_string(), "elements of a head: 3 given, 4 needed");
    }
}
