//! `plimsoll replay --predictor`: who predicts the lengths of answers for S3.

use clap::ValueEnum;
use plimsoll_core::serve::predict::{Buckets, Features, Wrong};

use crate::cli::exit::{Exit, Failure};
use crate::serve::replay::Prediction;

/// Who predicts, and how well.
#[derive(Debug, clap::Args)]
pub(super) struct PredictArgs {
    /// s3: who predicts the lengths of answers [default: classifier with --accuracy, else oracle]
    #[arg(long, value_enum)]
    pub predictor: Option<PredictorName>,
    /// s3: the share of answers whose bucket the classifier predicts right; 1 is a perfect one
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub accuracy: Option<f64>,
    /// s3: by how many buckets the classifier is wrong about the others, on average; S3's own by 1.03 [default: 1]
    #[arg(long, value_name = "BUCKETS", value_parser = distance)]
    pub distance: Option<f64>,
    /// s3: which way it is wrong; always short concerns answers above the first bucket only [default: either]
    #[arg(long, value_enum)]
    pub wrong: Option<WrongName>,
    /// s3: buckets that --max-len is cut into [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub buckets: Option<u32>,
}

/// Who predicts the lengths of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PredictorName {
    /// Knows each exactly.
    Oracle,
    /// Says buckets, and is right as often as --accuracy says.
    Classifier,
    /// Learns buckets from each answer that ends, by the prompt's length, and its words or tokens where the trace has
    /// them; requests that all come at once teach it nothing.
    Learned,
}

/// Which way a classifier is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WrongName {
    /// Short or long, by chance.
    Either,
    /// Too little room: who outgrows it is sent away.
    Short,
    /// Too much room.
    Long,
}

impl PredictArgs {
    /// Who predicts, by the flags; no answer has more tokens than `max_len`.
    pub fn prediction(&self, max_len: u32) -> Result<Prediction, Failure> {
        let buckets = Buckets {
            max_len,
            count: self.buckets.unwrap_or(10),
        };
        let mistakes = [
            ("--distance", self.distance.is_some()),
            ("--wrong", self.wrong.is_some()),
        ];
        if let Some((flag, _)) = mistakes
            .iter()
            .find(|(_, given)| *given && self.accuracy.is_none())
        {
            let line = format!(
                "{flag}: only a classifier that is told how good it is goes by it; give --accuracy"
            );
            return Err(Failure::new(Exit::Usage, line));
        }
        let line = match (self.predictor, self.accuracy) {
            (None | Some(PredictorName::Oracle), None) => return Ok(Prediction::Oracle),
            (None | Some(PredictorName::Classifier), Some(accuracy)) => {
                return Ok(Prediction::Classifier {
                    buckets,
                    accuracy,
                    wrong: match self.wrong {
                        None | Some(WrongName::Either) => Wrong::Either,
                        Some(WrongName::Short) => Wrong::Short,
                        Some(WrongName::Long) => Wrong::Long,
                    },
                    distance: self.distance.unwrap_or(1.0),
                    seed: 0,
                });
            }
            (Some(PredictorName::Learned), None) => {
                return Ok(Prediction::Learner {
                    buckets,
                    features: Features::default(),
                });
            }
            (Some(PredictorName::Classifier), None) => {
                "--predictor classifier: how often is it right? give --accuracy, such as 0.986"
            }
            (Some(_), Some(_)) => {
                "--accuracy: only a classifier is told how good it is; leave it out, or give --predictor classifier"
            }
        };
        Err(Failure::new(Exit::Usage, line))
    }
}

/// A share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("give a share from 0 to 1, such as 0.986".to_owned()),
    }
}

/// Buckets, at least 1.
fn distance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(distance) if (1.0..=10_000.0).contains(&distance) => Ok(distance),
        _ => Err("give buckets, at least 1, such as 1.03".to_owned()),
    }
}
