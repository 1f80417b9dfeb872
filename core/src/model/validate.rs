//! What must hold of every model, wherever its spec was read.

use super::{ModelError, ModelSpec, Positions, RotaryScaling};

/// More layers than this is a mistake in the file, not a model.
const LAYERS_MAX: u32 = 60_000;

/// More parameters than this is a mistake in the file; below it, no count of bytes overflows.
const PARAMETERS_MAX: u64 = 1 << 53;

impl ModelSpec {
    /// Whether the numbers agree with each other. `from_hf_config` has asked this already; a spec
    /// that was read from elsewhere (a plan's JSON) has not.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.validate_counts()?;
        self.validate_heads()?;
        self.validate_positions()?;
        if self.num_hidden_layers > LAYERS_MAX {
            let rule = format!("no model has more than {LAYERS_MAX} layers");
            return Err(self.invalid("num_hidden_layers", self.num_hidden_layers, rule));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            let rule = "it must lie between 0 and 1".to_owned();
            return Err(self.invalid("norm_eps", self.norm_eps, rule));
        }
        self.validate_family()?;
        let parameters = self.parameters();
        if parameters > PARAMETERS_MAX {
            let rule = format!("no model has more than {PARAMETERS_MAX}");
            return Err(self.invalid("parameters", parameters, rule));
        }
        Ok(())
    }

    fn validate_counts(&self) -> Result<(), ModelError> {
        let counts = [
            ("num_hidden_layers", self.num_hidden_layers),
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("intermediate_size", self.intermediate_size),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("embedding_size", self.embedding_size),
            ("sliding_window", self.sliding_window.unwrap_or(1)),
        ];
        match counts.into_iter().find(|(_, count)| *count == 0) {
            Some((key, _)) => Err(self.invalid(key, 0, "it must be at least 1".to_owned())),
            None => Ok(()),
        }
    }

    fn validate_heads(&self) -> Result<(), ModelError> {
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        if !heads.is_multiple_of(kv_heads) {
            let rule = format!("it must divide num_attention_heads = {heads}");
            return Err(self.invalid("num_key_value_heads", kv_heads, rule));
        }
        Ok(())
    }

    fn validate_positions(&self) -> Result<(), ModelError> {
        let Positions::Rotary {
            rotary_dim,
            theta,
            scaling,
            ..
        } = self.positions
        else {
            return Ok(());
        };
        if rotary_dim == 0 || rotary_dim > self.head_dim || !rotary_dim.is_multiple_of(2) {
            let rule = format!(
                "it must be even, and from 2 to head_dim = {}",
                self.head_dim
            );
            return Err(self.invalid("rotary_dim", rotary_dim, rule));
        }
        if !(theta > 0.0 && theta.is_finite()) {
            let rule = "it must be a number above 0".to_owned();
            return Err(self.invalid("rope_theta", theta, rule));
        }
        scaling.map_or(Ok(()), |scaling| self.validate_scaling(scaling))
    }

    fn validate_scaling(&self, scaling: RotaryScaling) -> Result<(), ModelError> {
        let (RotaryScaling::Linear { factor } | RotaryScaling::Llama3 { factor, .. }) = scaling;
        if !(factor > 0.0 && factor.is_finite()) {
            let rule = "it must be a number above 0".to_owned();
            return Err(self.invalid("rope_scaling.factor", factor, rule));
        }
        if let RotaryScaling::Llama3 {
            low_freq_factor: low,
            high_freq_factor: high,
            ..
        } = scaling
            && !(low < high && high.is_finite())
        {
            let rule = format!("it must be a number above low_freq_factor = {low}");
            return Err(self.invalid("rope_scaling.high_freq_factor", high, rule));
        }
        Ok(())
    }

    /// Every tensor that the numbers ask for is one that the family has a name for.
    fn validate_family(&self) -> Result<(), ModelError> {
        let nameless = [0, 1, self.num_hidden_layers + 1]
            .into_iter()
            .flat_map(|block| self.tensors(block))
            .find(|tensor| tensor.name.is_missing());
        match nameless {
            Some(tensor) => {
                let rule = format!("that family has no {} tensor", tensor.role);
                Err(self.invalid("family", self.family, rule))
            }
            None => Ok(()),
        }
    }

    fn invalid(&self, key: &'static str, found: impl ToString, rule: String) -> ModelError {
        ModelError::InvalidValue {
            model: self.name.clone(),
            key,
            found: found.to_string(),
            rule,
            remedy: "correct the model's configuration",
        }
    }
}
