//! How a model is stored and computed.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::sparse::DENSE;

/// How a model is stored and computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The type of weights, cache and activations.
    pub dtype: Dtype,
    /// What is kept in 4 bits.
    pub compression: Compression,
    /// The share of past tokens whose values a step reads; none: all.
    pub sparse_attention: Option<f64>,
}

impl Setting {
    /// Nothing compressed, all values read.
    pub fn plain(dtype: Dtype) -> Setting {
        Setting {
            dtype,
            compression: Compression::default(),
            sparse_attention: None,
        }
    }

    /// The share as a policy has it.
    pub fn share(&self) -> f64 {
        self.sparse_attention.unwrap_or(DENSE)
    }

    /// In words.
    pub fn words(&self) -> String {
        let packed = self.compression.words();
        let packed = packed.map(|parts| format!("4-bit {parts}"));
        let share = self.sparse_attention;
        let sparse = share.map(|share| format!("sparse attention {share}"));
        let mut words: Vec<String> = packed.into_iter().chain(sparse).collect();
        if words.is_empty() {
            words.push("plain".to_owned());
        }
        format!("{}, {}", self.dtype.name(), words.join(", "))
    }
}

/// What is compared: the first type plain, which all else is compared with; the other types plain; and in the
/// first type each that is asked for, by itself and all together.
pub fn settings(dtypes: &[Dtype], asked: Compression, shares: &[f64]) -> Vec<Setting> {
    let mut settings: Vec<Setting> = dtypes.iter().map(|dtype| Setting::plain(*dtype)).collect();
    let Some(plain) = settings.first().copied() else {
        return settings;
    };
    let packed = asked.choices().into_iter().skip(1);
    settings.extend(packed.map(|compression| Setting {
        compression,
        ..plain
    }));
    let mut compressions = vec![Compression::default(), asked];
    compressions.dedup();
    for compression in compressions {
        settings.extend(shares.iter().map(|share| Setting {
            compression,
            sparse_attention: Some(*share),
            ..plain
        }));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(dtypes: &[Dtype], asked: Compression, shares: &[f64]) -> Vec<String> {
        let settings = settings(dtypes, asked, shares);
        settings.iter().map(Setting::words).collect()
    }

    #[test]
    fn each_is_compared_by_itself_and_all_together() {
        assert_eq!(
            words(
                &[Dtype::F32, Dtype::F16],
                Compression::of(true, true),
                &[0.1]
            ),
            [
                "f32, plain",
                "f16, plain",
                "f32, 4-bit cache",
                "f32, 4-bit weights",
                "f32, 4-bit weights and cache",
                "f32, sparse attention 0.1",
                "f32, 4-bit weights and cache, sparse attention 0.1",
            ]
        );
        let none = Compression::default();
        assert_eq!(words(&[Dtype::F16], none, &[]), ["f16, plain"]);
        assert_eq!(
            words(&[Dtype::F16], none, &[0.5, 0.2]),
            [
                "f16, plain",
                "f16, sparse attention 0.5",
                "f16, sparse attention 0.2"
            ]
        );
    }
}
