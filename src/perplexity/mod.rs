//! What compression and sparse attention do to a model's predictions of a text, measured.
//!
//! The text is cut into windows, which are the sequences of a plan. The first half of each is prefilled; the
//! rest is decoded token by token, with the text's own token taken whatever the model makes likely. So a
//! packed cache is read back, and sparse attention picks, as when text is generated. Each setting is
//! executed on the same windows and compared with the first at the same positions.

mod execute;
mod memory;
mod setting;
mod tally;
mod windows;

use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::tiers::available_memory;
use plimsoll_backend::weights::WeightSource;
use plimsoll_core::model::ModelSpec;
use serde::Serialize;

use execute::each_step;
pub use memory::NoRoom;
use memory::together;
pub use setting::{Setting, settings};
use tally::Tally;
pub use windows::Windows;

/// How a setting predicts the text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// In words.
    pub setting: String,
    /// The exponential of the mean negative logarithm of what the text's tokens were given as probability.
    pub perplexity: f64,
    /// By what share perplexity is above the first setting's.
    pub change: f64,
    /// The mean Kullback-Leibler divergence from the first setting's predictions, in nats a token.
    pub kl_divergence: f64,
    /// At what share of the positions the likeliest token is the first setting's.
    pub same_token: f64,
    /// Positions.
    pub scored_tokens: u64,
}

/// A model and how it is executed.
pub struct Subject<'a> {
    /// Its shape.
    pub model: &'a ModelSpec,
    /// Its weights.
    pub source: &'a dyn WeightSource,
    /// How the device is emulated.
    pub cpu: &'a CpuOptions,
}

/// Executes all settings on all windows, a row each. `progress` is told how many windows of a setting are
/// done.
///
/// # Errors
/// A model that cannot be executed, [`NoRoom`], weights that cannot be had, an interruption.
pub fn measure(
    subject: &Subject<'_>,
    windows: &Windows,
    settings: &[Setting],
    progress: &mut dyn FnMut(u64),
) -> anyhow::Result<Vec<Row>> {
    let mut tallies = vec![Tally::default(); settings.len()];
    let mut done = 0;
    let size = together(
        subject.model,
        settings,
        windows.workload(),
        available_memory(),
    )?;
    for windows in windows.groups(size) {
        // Of the first setting, by step and then window.
        let mut plain: Vec<Vec<f32>> = Vec::new();
        for (index, (setting, tally)) in settings.iter().zip(&mut tallies).enumerate() {
            each_step(subject, setting, &windows, &mut |step, logits| {
                let targets = windows.targets(step);
                match index {
                    0 => {
                        tally.add(&logits, &logits, &targets)?;
                        plain.push(logits);
                        Ok(())
                    }
                    _ => tally.add(&plain[step], &logits, &targets),
                }
            })?;
            done += windows.len() as u64;
            progress(done);
        }
    }
    let first = tallies.first().map_or(0.0, Tally::perplexity);
    let rows = settings.iter().zip(&tallies);
    Ok(rows
        .map(|(setting, tally)| tally.row(setting, first))
        .collect())
}
