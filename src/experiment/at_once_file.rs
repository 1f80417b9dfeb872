//! What the TOML files of S3's tables say of requests that all come at once; and all of those about predictors and limits on latency.

use std::path::Path;

use plimsoll_core::model::ModelSpec;
use serde::Deserialize;

use super::definition::faulty;
use super::offline::AtOnce;
use super::predictors::{Classifying, Predictors};
use super::serving_file::lengths;
use super::slo::InTime;
use crate::files::{InputError, find_model, find_profile};

/// Requests that all come at once.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenAsked {
    prompt: String,
    output: String,
    requests: usize,
    output_tokens: u64,
    longest: u32,
    max_len: u32,
    buckets: u32,
    accuracy_above_first: f64,
    #[serde(default)]
    seed: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenPredictors {
    pub title: String,
    hw: String,
    models: Vec<String>,
    distance: f64,
    figure_6: String,
    penalty_and_overhead: f64,
    asked: WrittenAsked,
    predictor: Vec<WrittenPredictor>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPredictor {
    name: String,
    runtime_ms: f64,
    /// Percent, of these answers.
    accuracy: f64,
    /// Percent, of answers of other data sets.
    #[serde(default)]
    elsewhere: Vec<WrittenElsewhere>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenElsewhere {
    data: String,
    accuracy: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenInTime {
    pub title: String,
    hw: String,
    models: Vec<String>,
    slo_s_per_token: f64,
    gains: [f64; 2],
    asked: WrittenAsked,
}

impl WrittenAsked {
    pub(super) fn found(&self, path: &Path) -> Result<AtOnce, InputError> {
        Ok(AtOnce {
            answers: (self.requests, self.output_tokens, self.longest),
            lengths: lengths(path, &self.prompt, &self.output)?,
            max_len: self.max_len,
            buckets: self.buckets,
            accuracy: self.accuracy_above_first,
            seed: self.seed,
        })
    }
}

/// Models by their names.
pub(super) fn models(path: &Path, names: &[String]) -> Result<Vec<ModelSpec>, InputError> {
    let found = names
        .iter()
        .map(|name| find_model(name).map(|model| model.spec));
    found
        .collect::<Result<_, _>>()
        .map_err(faulty(path, "models"))
}

impl WrittenPredictor {
    /// Once for each data set of which its accuracy is known.
    fn each(&self) -> impl Iterator<Item = Classifying> + '_ {
        let of = |accuracy: f64, of: Option<&String>| Classifying {
            name: self.name.clone(),
            accuracy: accuracy / 100.0,
            seconds: self.runtime_ms / 1e3,
            of: of.cloned(),
        };
        let elsewhere = self.elsewhere.iter();
        std::iter::once(of(self.accuracy, None))
            .chain(elsewhere.map(move |it| of(it.accuracy, Some(&it.data))))
    }
}

impl WrittenPredictors {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<Predictors, InputError> {
        let all: Vec<Classifying> = self
            .predictor
            .iter()
            .flat_map(WrittenPredictor::each)
            .collect();
        let wrong =
            |key, problem| Err(InputError::bad_file(path, key, problem, "correct the file"));
        if !all.iter().all(|it| (0.0..=1.0).contains(&it.accuracy)) {
            return wrong("predictor.accuracy", "is no share in percent");
        }
        if !all.iter().any(|it| it.name == self.figure_6) {
            return wrong("figure_6", "is none of the predictors");
        }
        if self.distance.is_nan() || self.distance < 1.0 {
            return wrong("distance", "is below 1 bucket");
        }
        Ok(Predictors {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            models: models(path, &self.models)?,
            asked: self.asked.found(path)?,
            distance: self.distance,
            predictors: all,
            published: (self.figure_6.clone(), self.penalty_and_overhead),
        })
    }
}

impl WrittenInTime {
    /// With all that it names, in the file at `path`.
    pub(super) fn found(&self, path: &Path) -> Result<InTime, InputError> {
        Ok(InTime {
            machine: find_profile(&self.hw).map_err(faulty(path, "hw"))?,
            models: models(path, &self.models)?,
            asked: self.asked.found(path)?,
            slo_s: self.slo_s_per_token,
            published: self.gains,
        })
    }
}
