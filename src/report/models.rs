//! Models for people and programs.

use plimsoll_core::Dtype;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::units::Bytes;
use serde::Serialize;

use super::{Align, Table};

/// What a model weighs in a type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelRow {
    /// Its name.
    pub name: String,
    /// The architecture.
    pub family: &'static str,
    /// Distinct parameters.
    pub parameters: u64,
    /// Decoder layers.
    pub num_hidden_layers: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Query heads.
    pub num_attention_heads: u32,
    /// Key and value heads.
    pub num_key_value_heads: u32,
    /// The longest context, in tokens.
    pub max_position_embeddings: u32,
    /// The type that the bytes are counted in.
    pub dtype: &'static str,
    /// Bytes of all weights.
    pub weight_bytes: Bytes,
    /// Bytes of cache that a token takes, all layers together.
    pub kv_bytes_per_token: Bytes,
}

impl ModelRow {
    /// What a model weighs in a type.
    pub fn of(spec: &ModelSpec, dtype: Dtype) -> ModelRow {
        ModelRow {
            name: spec.name.clone(),
            family: spec.family.model_type(),
            parameters: spec.parameters(),
            num_hidden_layers: spec.num_hidden_layers,
            hidden_size: spec.hidden_size,
            num_attention_heads: spec.num_attention_heads,
            num_key_value_heads: spec.num_key_value_heads,
            max_position_embeddings: spec.max_position_embeddings,
            dtype: dtype.name(),
            weight_bytes: spec.weight_bytes(dtype),
            kv_bytes_per_token: spec.kv_bytes_per_token(dtype),
        }
    }
}

/// A line a model, all in one type.
pub fn models_text(rows: &[ModelRow]) -> String {
    let dtype = rows.first().map_or(Dtype::F16.name(), |row| row.dtype);
    let [weights, cache] = [format!("weights {dtype}"), format!("kv {dtype}/token")];
    let mut table = Table::new(&[
        ("name", Align::Left),
        ("family", Align::Left),
        ("parameters", Align::Right),
        ("layers", Align::Right),
        ("hidden", Align::Right),
        ("heads", Align::Right),
        ("kv heads", Align::Right),
        ("context", Align::Right),
        (&weights, Align::Right),
        (&cache, Align::Right),
    ]);
    for row in rows {
        table.row([
            row.name.clone(),
            row.family.to_owned(),
            grouped(row.parameters),
            row.num_hidden_layers.to_string(),
            row.hidden_size.to_string(),
            row.num_attention_heads.to_string(),
            row.num_key_value_heads.to_string(),
            row.max_position_embeddings.to_string(),
            row.weight_bytes.to_string(),
            row.kv_bytes_per_token.to_string(),
        ]);
    }
    table.to_string()
}

/// A count with its thousands apart (`175 B` parameters are exact to the unit).
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_234), "1,234");
        assert_eq!(grouped(125_239_296), "125,239,296");
    }
}
