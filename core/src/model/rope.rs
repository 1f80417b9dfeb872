//! Rotary positions: `rope_theta` and `rope_scaling`, or the later `rope_parameters`.

use serde::Deserialize;
use serde_json::Value;

use super::keys::Keys;
use super::{ModelError, Positions, RotaryPairs, RotaryScaling};

/// `rope_parameters`, or `rope_scaling` before it.
#[derive(Debug, Default, Deserialize)]
struct RopeWire {
    rope_type: Option<String>,
    /// Its older name, beside which the later one counts: files that were saved again have both.
    #[serde(rename = "type")]
    older_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<u32>,
}

/// Both ways to write the same thing, merged.
pub(super) struct Rope<'a, 'k> {
    keys: &'a Keys<'k>,
    /// The key that held the scaling, for messages.
    key: &'static str,
    wire: RopeWire,
}

impl<'a, 'k> Rope<'a, 'k> {
    /// Reads whichever of the two is there. Which one counts where both are depends on who reads them, so that is refused.
    pub(super) fn read(keys: &'a Keys<'k>) -> Result<Rope<'a, 'k>, ModelError> {
        let [new, old] = ["rope_parameters", "rope_scaling"].map(|key| keys.optional(&[key]));
        let (new, old): (Option<Value>, Option<Value>) = (new?, old?);
        if let Some((new, old)) = new.zip(old).filter(|(new, old)| new != old) {
            return Err(keys.invalid(
                "rope_scaling",
                &old.to_string(),
                format!("it must not differ from rope_parameters = {new}"),
                "keep the one that is meant in config.json",
            ));
        }
        let (key, wire) = match keys.optional(&["rope_parameters"])? {
            Some(wire) => ("rope_parameters", Some(wire)),
            None => ("rope_scaling", keys.optional(&["rope_scaling"])?),
        };
        let mut wire: RopeWire = wire.unwrap_or_default();
        wire.rope_type = wire.rope_type.or(wire.older_type.take());
        Ok(Rope { keys, key, wire })
    }

    /// Positions that rotate pairs of halves. `theta_keys` are the older top-level names of the
    /// base; `rotary_dim` follows from `default_fraction` where no fraction is stated.
    pub(super) fn halves(
        &self,
        head_dim: u32,
        theta_keys: &[&'static str],
        fraction_keys: &[&'static str],
        default_fraction: f64,
    ) -> Result<Positions, ModelError> {
        let theta = match self.wire.rope_theta {
            Some(theta) => theta,
            None => self.keys.optional(theta_keys)?.unwrap_or(10_000.0),
        };
        let fraction = match self.wire.partial_rotary_factor {
            Some(fraction) => fraction,
            None => self
                .keys
                .optional(fraction_keys)?
                .unwrap_or(default_fraction),
        };
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(self.keys.invalid(
                fraction_keys
                    .first()
                    .copied()
                    .unwrap_or("partial_rotary_factor"),
                &fraction.to_string(),
                "it must lie above 0 and not above 1".to_owned(),
                "correct it in config.json",
            ));
        }
        Ok(Positions::Rotary {
            rotary_dim: (f64::from(head_dim) * fraction) as u32,
            theta,
            pairs: RotaryPairs::Halves,
            scaling: self.scaling()?,
        })
    }

    fn scaling(&self) -> Result<Option<RotaryScaling>, ModelError> {
        match self.wire.rope_type.as_deref() {
            None | Some("default") => Ok(None),
            Some("linear") => Ok(Some(RotaryScaling::Linear {
                factor: self.required(self.wire.factor, "factor")?,
            })),
            Some("llama3") => Ok(Some(RotaryScaling::Llama3 {
                factor: self.required(self.wire.factor, "factor")?,
                low_freq_factor: self.required(self.wire.low_freq_factor, "low_freq_factor")?,
                high_freq_factor: self.required(self.wire.high_freq_factor, "high_freq_factor")?,
                original_max_position_embeddings: self.required(
                    self.wire.original_max_position_embeddings,
                    "original_max_position_embeddings",
                )?,
            })),
            Some(other) => {
                let supported = "default, linear, llama3; or none at all (delete the key), for texts that are no longer than the \
                                 model was trained for"
                    .to_owned();
                // Written as `type` by older configurations.
                let key = match self.key {
                    "rope_parameters" => "rope_parameters.rope_type",
                    _ => "rope_scaling.rope_type",
                };
                Err(self.keys.unsupported(key, other, supported))
            }
        }
    }

    fn required<T>(&self, value: Option<T>, part: &str) -> Result<T, ModelError> {
        value.ok_or_else(|| {
            let found = format!("without `{part}`");
            let rule = "this kind of scaling needs it".to_owned();
            self.keys
                .invalid(self.key, &found, rule, "add it in config.json")
        })
    }
}
