//! S3's Table 5 and Figure 6: what predictors' mistakes and their own time cost.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::ServeSummary;
use plimsoll_core::units::Bytes;

use super::offline::{AtOnce, Guesses, evictions};
use super::serving::{ServingRow, ServingTable};
use crate::parallel::on_all_processors;
use crate::serve::gpus::Gpus;

/// Classifiers beside one that is never wrong.
#[derive(Debug)]
pub struct Predictors {
    /// The machine.
    pub machine: HardwareProfile,
    /// What is served.
    pub models: Vec<ModelSpec>,
    /// What is asked.
    pub asked: AtOnce,
    /// Buckets by which they are wrong on average.
    pub distance: f64,
    /// Who predicts.
    pub predictors: Vec<Classifying>,
    /// The predictor of Figure 6, and what it and its mistakes take there, by the time of generating.
    pub published: (String, f64),
}

/// A classifier.
#[derive(Debug, Clone)]
pub struct Classifying {
    /// In the table.
    pub name: String,
    /// The share of answers whose bucket is right.
    pub accuracy: f64,
    /// To predict one answer.
    pub seconds: f64,
    /// What its accuracy is of, where that is not these answers.
    pub of: Option<String>,
}

/// A run with a predictor, in seconds.
struct Spent {
    generating: f64,
    moving: f64,
    predicting: f64,
}

impl Spent {
    /// Moves hold iterations up, so their time is in the duration; predictions run beside.
    fn of(it: &ServeSummary, predictor: &Classifying, machine: &HardwareProfile) -> Spent {
        let each_way = it.swapped_bytes as f64 / 2.0;
        let links = [&machine.links.h2d, &machine.links.d2h];
        let moving: f64 = links
            .map(|link| each_way / link.page_locked.peak())
            .iter()
            .sum();
        Spent {
            generating: it.duration_s - moving,
            moving,
            predicting: it.completed as f64 * predictor.seconds,
        }
    }

    /// Figure 6's penalty and overhead by its generation.
    fn beside_generating(&self) -> f64 {
        (self.moving + self.predicting) / self.generating
    }
}

impl Predictors {
    /// Two rows a model and predictor; for each predictor the average of the models.
    ///
    /// # Errors
    /// An error of ours.
    pub fn table(&self) -> anyhow::Result<ServingTable> {
        let perfect = Classifying {
            name: "never wrong".to_owned(),
            accuracy: 1.0,
            seconds: 0.0,
            of: None,
        };
        let all: Vec<&Classifying> = std::iter::once(&perfect).chain(&self.predictors).collect();
        let models = self.models.iter();
        let each = models.flat_map(|model| all.iter().map(move |predictor| (model, *predictor)));
        let runs = on_all_processors(each.collect(), &|(model, predictor)| {
            Ok((model, predictor, self.run(model, predictor)?))
        });
        let runs: Vec<_> = runs.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let mut rows = Vec::new();
        for of_model in runs.chunks(all.len()) {
            let best = of_model[0].2.output_tokens_per_s;
            for (model, predictor, it) in of_model {
                let name = format!("{}, {}", model.name, words(predictor));
                rows.extend(self.rows(&name, predictor, (it, best)));
            }
        }
        for predictor in &self.predictors {
            let its = runs
                .iter()
                .filter(|(_, other, _)| std::ptr::eq(*other, predictor));
            let spent =
                its.map(|(_, _, it)| Spent::of(it, predictor, &self.machine).beside_generating());
            rows.extend(self.average(predictor, &spent.collect::<Vec<_>>()));
        }
        Ok(rows.into())
    }

    fn run(&self, model: &ModelSpec, predictor: &Classifying) -> anyhow::Result<ServeSummary> {
        let left = Gpus::One.kv_left(&self.machine, model, Dtype::F16);
        let room = (Gpus::One, left.unwrap_or(Bytes::ZERO));
        let guesses = Guesses {
            accuracy: predictor.accuracy,
            distance: self.distance,
        };
        self.asked
            .serve_guessing((&self.machine, model), guesses, room)
    }

    fn rows(
        &self,
        name: &str,
        predictor: &Classifying,
        (it, best): (&ServeSummary, f64),
    ) -> Vec<ServingRow> {
        let row = |metric, ours| ServingRow::new(name, metric, ours, None);
        let rate = row("tokens/s", it.output_tokens_per_s).noted(evictions(it));
        if predictor.seconds == 0.0 {
            return vec![rate];
        }
        let spent = Spent::of(it, predictor, &self.machine);
        let note = format!(
            "{:.1} s of moves and {:.1} s of predictions beside {:.1} s",
            spent.moving, spent.predicting, spent.generating
        );
        let metric = "penalty and overhead over generation";
        vec![
            rate,
            row("tokens/s over never wrong", it.output_tokens_per_s / best),
            row(metric, spent.beside_generating()).noted(note),
        ]
    }

    /// Figure 6 is said to be the average.
    fn average(&self, predictor: &Classifying, spent: &[f64]) -> Option<ServingRow> {
        let (figure_6, published) = &self.published;
        let is_its = *figure_6 == predictor.name && predictor.of.is_none();
        let mean = spent.iter().sum::<f64>() / spent.len().max(1) as f64;
        let name = format!("average of the models, {}", words(predictor));
        let metric = "penalty and overhead over generation";
        Some(ServingRow::new(
            &name,
            metric,
            mean,
            is_its.then_some(*published),
        ))
    }
}

fn words(predictor: &Classifying) -> String {
    let percent = 100.0 * predictor.accuracy;
    match &predictor.of {
        None => format!("{} ({percent:.2}%)", predictor.name),
        Some(data) => format!("{}, as good as on {data} ({percent:.2}%)", predictor.name),
    }
}
