//! Why a model could not be described.

use thiserror::Error;

/// Why a model could not be described. Each message says which model, which key and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The text is not a JSON object.
    #[error(
        "model `{model}`: the configuration is not a JSON object ({source}); \
         give the `config.json` that stands next to the weights"
    )]
    InvalidJson {
        /// The model, as the caller names it.
        model: String,
        /// What the JSON parser says.
        source: serde_json::Error,
    },

    /// A key that the family cannot do without is absent or null.
    #[error(
        "model `{model}`: config.json has no key `{key}`; \
         a `{model_type}` model needs it: add it, or fetch the complete config.json"
    )]
    MissingKey {
        /// The model, as the caller names it.
        model: String,
        /// The absent key.
        key: &'static str,
        /// The family's `model_type`.
        model_type: &'static str,
    },

    /// A key holds a value of another type than it should.
    #[error(
        "model `{model}`: key `{key}` of config.json is {found}: {}; correct it",
        plain(source)
    )]
    IllTypedKey {
        /// The model, as the caller names it.
        model: String,
        /// The key.
        key: String,
        /// The value found, as JSON.
        found: String,
        /// What the JSON parser says.
        source: serde_json::Error,
    },

    /// A key has the right type, and a value that no model can have.
    #[error("model `{model}`: `{key}` is {found}, but {rule}; {remedy}")]
    InvalidValue {
        /// The model, as the caller names it.
        model: String,
        /// The key or field.
        key: &'static str,
        /// The value found.
        found: String,
        /// The rule that it breaks.
        rule: String,
        /// What to do.
        remedy: &'static str,
    },

    /// A value that is legal on the hub, but that this program does not implement.
    #[error(
        "model `{model}`: `{key}` = {found} is not implemented; supported: {supported}; \
         choose another model"
    )]
    Unsupported {
        /// The model, as the caller names it.
        model: String,
        /// The key.
        key: &'static str,
        /// The value found.
        found: String,
        /// The values that are supported.
        supported: String,
    },

    /// The registry has no such model.
    #[error(
        "no model is called `{name}`; {known}; or for another model give the path of its config.json"
    )]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// The question whether a known name was meant, or all of them.
        known: String,
    },
}

/// What the JSON parser says, with plain names for types.
fn plain(error: &serde_json::Error) -> String {
    let said = error.to_string();
    // An integer that is one, and does not fit.
    let whole = match said.starts_with("invalid value: integer") {
        true => "expected one from 0 to 4294967295",
        false => "expected a whole number",
    };
    let names = [
        ("expected u32", whole),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a string", "expected a text"),
    ];
    let known = names.iter().find(|(name, _)| said.ends_with(name));
    known.map_or(said.clone(), |(name, words)| said.replace(name, words))
}
