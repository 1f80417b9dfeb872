//! `plimsoll models list|show`

use clap::Subcommand;
use plimsoll_core::Dtype;
use plimsoll_core::model::registry;

use super::Format;
use super::output::{complain, print, print_json};
use crate::files::{InputError, find_model};
use crate::report::models::{ModelRow, models_text};

/// What to do with models.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// All models that `--model` knows by name
    List {
        /// How to print them
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// One model
    Show {
        /// A name, a config.json of Hugging Face, or a folder that holds one
        model: String,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
}

/// A name is an argument here, and follows no flag.
fn without_flag(error: InputError) -> InputError {
    match error {
        InputError::UnknownName(line) => {
            InputError::UnknownName(line.replacen("--model", "models show", 1))
        }
        other => other,
    }
}

/// Lists or shows.
///
/// # Errors
/// A model that is not there or not right.
pub fn run(action: &Action) -> anyhow::Result<()> {
    match action {
        Action::List { format } => {
            let rows = registry::names()
                .map(|name| Ok(ModelRow::of(&find_model(name)?.spec, Dtype::F16)))
                .collect::<anyhow::Result<Vec<ModelRow>>>()?;
            match format {
                Format::Text => print(&models_text(&rows)),
                Format::Json => print_json(&rows),
            }
        }
        Action::Show { model, format } => {
            let found = find_model(model).map_err(without_flag)?;
            // A type that is not computed with here has a plan's refusal, and its model is known all the same.
            let dtype = found.dtype(None).unwrap_or_else(|_| {
                let stored = found.stored.as_deref().unwrap_or("none");
                complain(&format!(
                    "note: its config.json says dtype `{stored}`, which cannot be computed with here; sizes are of f16"
                ));
                Dtype::F16
            });
            let row = ModelRow::of(&found.spec, dtype);
            match format {
                Format::Text => print(&models_text(std::slice::from_ref(&row))),
                Format::Json => print_json(&row),
            }
        }
    }
}
