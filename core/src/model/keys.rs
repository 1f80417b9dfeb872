//! Reading the keys of a `config.json`, with errors that name the key.
//!
//! Such files carry many keys that do not matter here, so unknown ones are ignored; `null` is
//! read as absent, as Hugging Face's own classes do for nearly every key.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Family, ModelError, registry};

/// The keys of one `config.json`.
pub(super) struct Keys<'a> {
    pub(super) model: &'a str,
    pub(super) family: Family,
    map: Map<String, Value>,
}

impl<'a> Keys<'a> {
    /// Parses the text and finds its family.
    pub(super) fn parse(model: &'a str, json_text: &str) -> Result<Keys<'a>, ModelError> {
        let map = serde_json::from_str(json_text).map_err(|source| ModelError::InvalidJson {
            model: model.to_owned(),
            source,
        })?;
        let mut keys = Keys {
            model,
            family: Family::Opt, // until it is read
            map,
        };
        let Some(found) = keys.optional::<String>(&["model_type"])? else {
            return Err(keys.invalid(
                "model_type",
                "absent",
                format!("it must be one of {}", supported()),
                "add it, or fetch the complete config.json",
            ));
        };
        let Some(family) = Family::from_model_type(&found) else {
            let supported = match registry::is_mixture(&found) {
                true => format!("dense models, no mixtures of experts: {}", supported()),
                false => supported(),
            };
            return Err(keys.unsupported("model_type", &found, supported));
        };
        keys.family = family;
        keys.refuse_quantized()?;
        Ok(keys)
    }

    /// Checkpoints that are quantized already have other tensors, and other sizes.
    fn refuse_quantized(&self) -> Result<(), ModelError> {
        let Some(config) = self.optional::<Value>(&["quantization_config"])? else {
            return Ok(());
        };
        let method = config["quant_method"].as_str().unwrap_or("some method");
        let supported =
            "its checkpoint in f32, f16 or bf16, whose weights --compress-weight keeps in 4 bits";
        Err(self.unsupported("quantization_config", method, supported.to_owned()))
    }

    /// Whether the key stands there, even as null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The first of these keys that is there and not null.
    pub(super) fn optional<T: DeserializeOwned>(
        &self,
        names: &[&'static str],
    ) -> Result<Option<T>, ModelError> {
        let found = names
            .iter()
            .find_map(|name| Some((*name, self.map.get(*name).filter(|v| !v.is_null())?)));
        let Some((name, value)) = found else {
            return Ok(None);
        };
        serde_json::from_value(value.clone())
            .map(Some)
            .map_err(|source| ModelError::IllTypedKey {
                model: self.model.to_owned(),
                key: name.to_owned(),
                found: abbreviated(value),
                source,
            })
    }

    /// The same, and `default` where none is.
    pub(super) fn or<T: DeserializeOwned>(
        &self,
        name: &'static str,
        default: T,
    ) -> Result<T, ModelError> {
        Ok(self.optional(&[name])?.unwrap_or(default))
    }

    /// The same, and an error that names the first where none is.
    pub(super) fn required<T: DeserializeOwned>(
        &self,
        names: &[&'static str],
    ) -> Result<T, ModelError> {
        self.optional(names)?.ok_or_else(|| ModelError::MissingKey {
            model: self.model.to_owned(),
            key: names[0],
            model_type: self.family.model_type(),
        })
    }

    /// A required count that is at least 1.
    pub(super) fn count(&self, names: &[&'static str]) -> Result<u32, ModelError> {
        let count = self.required(names)?;
        self.nonzero(names[0], count)
    }

    /// A count that is at least 1 if it is there.
    pub(super) fn optional_count(&self, names: &[&'static str]) -> Result<Option<u32>, ModelError> {
        self.optional(names)?
            .map(|count| self.nonzero(names[0], count))
            .transpose()
    }

    /// Refuses a true (or false) flag that changes the arithmetic in a way not implemented.
    pub(super) fn refuse(
        &self,
        key: &'static str,
        default: bool,
        refused: bool,
    ) -> Result<(), ModelError> {
        if self.or(key, default)? == refused {
            return Err(self.unsupported(key, &refused.to_string(), (!refused).to_string()));
        }
        Ok(())
    }

    fn nonzero(&self, key: &'static str, count: u32) -> Result<u32, ModelError> {
        if count == 0 {
            let rule = "it must be at least 1".to_owned();
            return Err(self.invalid(key, "0", rule, "correct it in config.json"));
        }
        Ok(count)
    }

    /// A value that no model can have.
    pub(super) fn invalid(
        &self,
        key: &'static str,
        found: &str,
        rule: String,
        remedy: &'static str,
    ) -> ModelError {
        ModelError::InvalidValue {
            model: self.model.to_owned(),
            key,
            found: found.to_owned(),
            rule,
            remedy,
        }
    }

    /// A value that is not implemented.
    pub(super) fn unsupported(
        &self,
        key: &'static str,
        found: &str,
        supported: String,
    ) -> ModelError {
        ModelError::Unsupported {
            model: self.model.to_owned(),
            key,
            found: format!("`{found}`"),
            supported,
        }
    }
}

/// Every family, and which of them are executed.
fn supported() -> String {
    let names = |families: &mut dyn Iterator<Item = Family>| {
        let names: Vec<&str> = families.map(Family::model_type).collect();
        names.join(", ")
    };
    let executed = names(&mut Family::EXECUTED.into_iter());
    let is_executed = |family: &Family| Family::EXECUTED.contains(family);
    let others = names(&mut Family::ALL.into_iter().filter(|f| !is_executed(f)));
    format!("{executed}, which are executed, and {others}, which are planned and simulated only")
}

/// A value as it stands in the file, cut where it is long.
fn abbreviated(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return text;
    }
    text.chars().take(57).chain("...".chars()).collect()
}
