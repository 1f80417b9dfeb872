//! How tokens are chosen and when answers end: flags, else the checkpoint's `generation_config.json`.

use plimsoll_backend::kernels::draw::Sampling;
use plimsoll_core::model::ModelSpec;

use super::super::options::positive;
use crate::files::GenerationConfig;

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct ChoiceArgs {
    /// Draw tokens at this temperature; 0 takes the likeliest [default: generation_config.json, else 1 where
    /// --top-k or --top-p is given, else 0]
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Draw from so many of the likeliest tokens only
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top_k: Option<u32>,
    /// Draw from the fewest likeliest tokens only that together are this probable
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Go on to --gen-len tokens, whatever comes
    #[arg(long)]
    ignore_eos: bool,
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(0.0),
        _ => positive(text).map_err(|why| format!("{why}, or 0 for the likeliest token")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = positive(text).ok().filter(|share| *share <= 1.0);
    share.ok_or_else(|| "give a number above 0 and at most 1".to_owned())
}

/// How tokens are chosen and when answers end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    /// None: the likeliest is taken.
    pub sampling: Option<Sampling>,
    /// Tokens after which an answer ends.
    pub stop: Vec<u32>,
}

impl ChoiceArgs {
    /// What asks for nothing, in a line.
    pub fn idle(self) -> Option<&'static str> {
        let narrows = self.top_k.is_some() || self.top_p.is_some();
        (self.temperature == Some(0.0) && narrows).then_some(
            "--temperature 0 takes the likeliest token: --top-k and --top-p change nothing",
        )
    }

    /// Flags come before the checkpoint's file, and that before what the model's configuration says.
    pub fn resolve(self, seed: u64, checkpoint: &GenerationConfig, model: &ModelSpec) -> Choice {
        let asked = self.temperature.or(self.top_p).is_some() || self.top_k.is_some();
        let draws = (asked || checkpoint.do_sample) && self.temperature != Some(0.0);
        let sampling = Sampling {
            temperature: self.temperature.or(checkpoint.temperature).unwrap_or(1.0),
            top_k: self.top_k.or(checkpoint.top_k),
            top_p: self.top_p.or(checkpoint.top_p).unwrap_or(1.0),
            seed,
        };
        let stop = checkpoint.eos_token_ids.as_ref();
        let stop = stop.unwrap_or(&model.eos_token_ids).clone();
        Choice {
            sampling: draws.then_some(sampling),
            stop: if self.ignore_eos { Vec::new() } else { stop },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_FLAGS: ChoiceArgs = ChoiceArgs {
        temperature: None,
        top_k: None,
        top_p: None,
        ignore_eos: false,
    };

    fn resolved(flags: ChoiceArgs, checkpoint: &GenerationConfig) -> Choice {
        let model = plimsoll_core::model::registry::find("opt-125m").unwrap();
        flags.resolve(9, checkpoint, &model)
    }

    #[test]
    fn flags_come_before_the_checkpoint_and_greedy_is_the_default() {
        let plain = GenerationConfig::default();
        let greedy = resolved(NO_FLAGS, &plain);
        assert_eq!((greedy.sampling, greedy.stop), (None, vec![2]));
        let drawing = GenerationConfig {
            do_sample: true,
            temperature: Some(0.6),
            top_p: Some(0.9),
            eos_token_ids: Some(vec![5, 6]),
            ..plain
        };
        let drawn = resolved(NO_FLAGS, &drawing);
        let expected = Sampling {
            temperature: 0.6,
            top_k: None,
            top_p: 0.9,
            seed: 9,
        };
        assert_eq!((drawn.sampling, drawn.stop), (Some(expected), vec![5, 6]));
        let flags = ChoiceArgs {
            top_k: Some(3),
            temperature: Some(2.0),
            ignore_eos: true,
            ..NO_FLAGS
        };
        let drawn = resolved(flags, &drawing);
        let expected = Sampling {
            temperature: 2.0,
            top_k: Some(3),
            ..expected
        };
        assert_eq!((drawn.sampling, drawn.stop), (Some(expected), vec![]));
        let cold = ChoiceArgs {
            temperature: Some(0.0),
            ..NO_FLAGS
        };
        assert_eq!(resolved(cold, &drawing).sampling, None);
        assert_eq!((cold.idle(), flags.idle()), (None, None));
        let idle = ChoiceArgs {
            top_p: Some(0.9),
            ..cold
        };
        assert!(idle.idle().is_some());
    }
}
