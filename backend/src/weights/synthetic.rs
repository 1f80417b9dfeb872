//! Weights of no model: deterministic, fast, of the magnitudes that keep a decoder's numbers in range.

use plimsoll_core::Dtype;
use plimsoll_core::model::{TensorRole, TensorSpec};

use super::{WeightError, WeightSource, place_of};

/// Elements that are made before they are stored.
const BLOCK: usize = 4096;
/// Elements made from one hash.
const PER_HASH: usize = 4;

/// Random weights that depend on a seed and the tensor's name alone.
///
/// Matrices have a standard deviation of about 1 / sqrt(columns), so that a stage keeps the magnitude of
/// its input; norms are near 1 and biases near 0. Attention is sharp and weighs more than the MLP, half
/// of whose output is the same for all tokens, so that what is generated varies. A tied head has the
/// embedding's name, so its values too.
#[derive(Debug, Clone, Copy)]
pub struct Synthetic {
    /// Another seed, other weights.
    pub seed: u64,
}

/// The finaliser of splitmix64: each bit of the result depends on every bit of the counter.
#[inline]
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Centre and half width of a tensor's uniform distribution.
fn range(tensor: &TensorSpec) -> (f32, f32) {
    use TensorRole::{
        AttnNormWeight, DownWeight, EmbedNormWeight, FinalNormWeight, KNormWeight, KWeight,
        MlpNormWeight, OWeight, QNormWeight, QWeight, QkvWeight,
    };
    // A uniform distribution of half width sqrt(3) has a standard deviation of 1.
    let unit = (3.0 / tensor.cols as f64).sqrt() as f32;
    match tensor.role {
        AttnNormWeight | EmbedNormWeight | FinalNormWeight | MlpNormWeight | QNormWeight
        | KNormWeight => (1.0, 0.2),
        _ if tensor.is_vector() => (0.0, 0.05),
        QWeight | KWeight | QkvWeight | OWeight => (0.0, 2.0 * unit),
        DownWeight => (0.0, 0.5 * unit),
        _ => (0.0, unit),
    }
}

impl Synthetic {
    fn key(&self, name: &str) -> u64 {
        name.bytes()
            .fold(mix(self.seed ^ 0x706c_696d), |key, byte| {
                mix(key ^ u64::from(byte))
            })
    }
}

impl WeightSource for Synthetic {
    fn load(&self, tensor: &TensorSpec, dtype: Dtype, into: &mut [u8]) -> Result<(), WeightError> {
        let mut elements = place_of(tensor, dtype, into)?;
        let count = elements.as_elements().len();
        let (centre, half_width) = range(tensor);
        let (key, scale) = (self.key(&tensor.name.to_string()), half_width / 32768.0);
        let mut block = [0.0_f32; BLOCK];
        for start in (0..count).step_by(BLOCK) {
            let length = BLOCK.min(count - start);
            let first = (start / PER_HASH) as u64;
            for (hash, four) in block.chunks_exact_mut(PER_HASH).enumerate() {
                let bits = mix(key.wrapping_add(first + hash as u64));
                for (part, value) in four.iter_mut().enumerate() {
                    let uniform = f32::from((bits >> (16 * part)) as u16 as i16);
                    *value = uniform * scale + centre;
                }
            }
            elements.store(start..start + length, &block[..length]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(
        seed: u64,
        name: &'static str,
        role: TensorRole,
        (rows, cols): (u64, u64),
    ) -> Vec<f32> {
        let tensor = TensorSpec {
            role,
            name: name.into(),
            rows,
            cols,
        };
        let mut bytes = vec![0_u32; (rows * cols) as usize];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut bytes);
        Synthetic { seed }
            .load(&tensor, Dtype::F32, bytes)
            .expect("it fits");
        bytemuck::cast_slice(bytes).to_vec()
    }

    #[test]
    fn matrices_have_the_stated_spread_and_norms_are_near_one() {
        let matrix = values(1, "w", TensorRole::UpWeight, (64, 300));
        let mean = matrix.iter().sum::<f32>() / matrix.len() as f32;
        let square = matrix.iter().map(|x| x * x).sum::<f32>() / matrix.len() as f32;
        assert!(mean.abs() < 1e-3, "{mean}");
        assert!((square * 300.0 - 1.0).abs() < 0.05, "{square}");
        let norm = values(1, "n", TensorRole::MlpNormWeight, (1, 9000));
        assert!(norm.iter().all(|x| (0.8..=1.2).contains(x)));
    }

    #[test]
    fn seed_and_name_decide_all() {
        let of = |seed, name| values(seed, name, TensorRole::QWeight, (3, 3000));
        assert_eq!(of(1, "a"), of(1, "a"));
        assert_ne!(of(1, "a"), of(2, "a"));
        assert_ne!(of(1, "a"), of(1, "b"));
    }
}
