//! Constants fitted to measured runs: least squares on logarithms, robust and held to the profile.
//!
//! A constant's logarithm is normal around the profile's with a stated spread; a run's error is
//! normal with a stated noise, and larger ones count less (Huber). What the runs say of a constant is
//! how much narrower they make its spread.

use nalgebra::{DMatrix, DVector};
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_sim::{SimulateError, predict};

use super::score::made_to_fit;
use super::{Constant, Measured, RecordedRun};
use crate::parallel::on_all_processors;
use crate::stats::ErrorStats;

/// How to fit.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// The constants that may change.
    pub constants: Vec<Constant>,
    /// How far a constant is likely to be off: the spread of its logarithm.
    pub prior: f64,
    /// How far a run is likely to be off: the spread of its error's logarithm.
    pub noise: f64,
}

/// A constant before and after.
#[derive(Debug, Clone, PartialEq)]
pub struct FittedConstant {
    /// Which.
    pub constant: Constant,
    /// Its new value over its old one.
    pub factor: f64,
    /// The spread of its logarithm that is left, over the one before: near 1, the runs do not say.
    pub spread_left: f64,
}

/// Where this share of a constant's spread is left, the runs say nothing of it.
pub const SAYS_NOTHING: f64 = 0.9;

/// A constant that runs say nothing of stays, but for this.
const MOVED: f64 = 0.01;

impl FittedConstant {
    /// Whether it is left as the profile has it, to the last digit: runs say nothing of it.
    pub fn stays(&self) -> bool {
        self.spread_left >= SAYS_NOTHING && (self.factor - 1.0).abs() < MOVED
    }
}

/// A fitted profile and how well it does.
#[derive(Debug, Clone)]
pub struct Fit {
    /// The machine.
    pub profile: HardwareProfile,
    /// What changed.
    pub constants: Vec<FittedConstant>,
    /// Errors (predicted rate over measured, less one) of the runs that have a number, before.
    pub before: Vec<f64>,
    /// Errors after.
    pub after: Vec<f64>,
    /// Each run's error where the constants are fitted to those of other configurations.
    pub left_out: Vec<f64>,
}

/// Up to so many times the sizes of steps are decided anew.
const STEPS: usize = 12;

/// How far a constant is moved to see what it does, as a logarithm.
const NUDGE: f64 = 0.02;

/// Errors above so many times the noise count as if they grew linearly only.
const HUBER: f64 = 1.5;

/// No constant moves further than this, as a logarithm.
const FARTHEST: f64 = 2.0;

/// Fits a profile's constants to the runs that have a measured number.
///
/// # Errors
/// A run that means nothing for its model.
pub fn fit(
    base: &HardwareProfile,
    runs: &[RecordedRun],
    options: &FitOptions,
    progress: &dyn Fn(usize, usize),
) -> Result<Fit, SimulateError> {
    let runs: Vec<&RecordedRun> = runs.iter().filter(|run| run.has_number()).collect();
    let problem = Problem {
        base,
        runs,
        options,
    };
    let mut x = vec![0.0; options.constants.len()];
    let before = problem.residuals(&x)?;
    let mut at = before.clone();
    let mut slopes = DMatrix::zeros(0, 0);
    for step in 0..STEPS {
        progress(step, STEPS);
        slopes = problem.slopes(&x, &at)?;
        let (next, there) = problem.step(&x, &at, &slopes)?;
        let moved = x.iter().zip(&next).map(|(a, b)| (a - b).abs());
        let settled = moved.fold(0.0, f64::max) < 1e-3;
        (x, at) = (next, there);
        if settled {
            break;
        }
    }
    progress(STEPS, STEPS);
    let mut constants = problem.constants(&x, &problem.spread_left(&at, &slopes));
    // What stays is as it was in all that is said of the fit, too.
    for (index, fitted) in constants.iter_mut().enumerate() {
        if fitted.stays() {
            (x[index], fitted.factor) = (0.0, 1.0);
            slopes.column_mut(index).fill(0.0);
        }
    }
    at = problem.residuals(&x)?;
    Ok(Fit {
        profile: problem.profile(&x),
        constants,
        left_out: problem.left_out(&x, &at, &slopes)?,
        before: errors(&before),
        after: errors(&at),
    })
}

fn errors(logarithms: &[f64]) -> Vec<f64> {
    logarithms.iter().map(|r| r.exp_m1()).collect()
}

/// The measured number, as a throughput or one over a latency.
fn measured(run: &RecordedRun) -> Option<f64> {
    match run.measured? {
        Measured::ThroughputTokS(rate) => Some(rate),
        Measured::Latency(seconds) => Some(1.0 / seconds.0),
        Measured::OutOfMemory => None,
    }
}

struct Problem<'a> {
    base: &'a HardwareProfile,
    runs: Vec<&'a RecordedRun>,
    options: &'a FitOptions,
}

impl Problem<'_> {
    fn profile(&self, x: &[f64]) -> HardwareProfile {
        let mut profile = self.base.clone();
        let moved = self.options.constants.iter().zip(x);
        for (constant, x) in moved.filter(|(_, x)| **x != 0.0) {
            constant.scale(&mut profile, x.exp());
        }
        profile
    }

    fn constants(&self, x: &[f64], spread_left: &[f64]) -> Vec<FittedConstant> {
        let all = self.options.constants.iter().zip(x).zip(spread_left);
        all.map(|((constant, x), spread_left)| FittedConstant {
            constant: *constant,
            factor: x.exp(),
            spread_left: *spread_left,
        })
        .collect()
    }

    /// The logarithm of predicted over measured, of one run.
    fn residual(run: &RecordedRun, profile: &HardwareProfile) -> Result<f64, SimulateError> {
        let (plan, _) = made_to_fit(run.plan(profile))?;
        let summary = predict(&plan, profile)?;
        let predicted = match run.measured {
            Some(Measured::Latency(_)) => 1.0 / summary.latency_s.0,
            _ => summary.throughput_tok_s,
        };
        Ok((predicted / measured(run).unwrap_or(predicted)).ln())
    }

    fn residuals(&self, x: &[f64]) -> Result<Vec<f64>, SimulateError> {
        let profile = self.profile(x);
        let each = on_all_processors(self.runs.clone(), &|run| Self::residual(run, &profile));
        each.into_iter().collect()
    }

    /// How much each residual changes with each constant.
    fn slopes(&self, x: &[f64], at: &[f64]) -> Result<DMatrix<f64>, SimulateError> {
        let mut slopes = DMatrix::zeros(self.runs.len(), x.len());
        for column in 0..x.len() {
            let mut nudged = x.to_vec();
            nudged[column] += NUDGE;
            let there = self.residuals(&nudged)?;
            for (row, (there, here)) in there.iter().zip(at).enumerate() {
                slopes[(row, column)] = (there - here) / NUDGE;
            }
        }
        Ok(slopes)
    }

    /// Weights of the runs: one over the noise's square, less for large errors.
    fn weights(&self, at: &[f64]) -> Vec<f64> {
        let noise = self.options.noise;
        let weight = |r: &f64| (HUBER * noise / r.abs().max(1e-12)).min(1.0) / (noise * noise);
        at.iter().map(weight).collect()
    }

    /// The normal equations at a point, perhaps without one run and all like it: their matrix and right-hand side.
    fn normal(
        &self,
        x: &[f64],
        (at, slopes): (&[f64], &DMatrix<f64>),
        without: Option<&RecordedRun>,
    ) -> (DMatrix<f64>, DVector<f64>) {
        let prior = 1.0 / (self.options.prior * self.options.prior);
        let mut weights = self.weights(at);
        for (weight, run) in weights.iter_mut().zip(&self.runs) {
            if without.is_some_and(|without| run.is_alike(without)) {
                *weight = 0.0;
            }
        }
        let weights = DMatrix::from_diagonal(&DVector::from_vec(weights));
        let transposed = slopes.transpose() * weights;
        let matrix = &transposed * slopes + DMatrix::identity(x.len(), x.len()) * prior;
        let right =
            transposed * DVector::from_column_slice(at) + DVector::from_column_slice(x) * prior;
        (matrix, right)
    }

    /// What the fit makes small.
    fn loss(&self, x: &[f64], at: &[f64]) -> f64 {
        let (noise, prior) = (self.options.noise, self.options.prior);
        let huber = |r: &f64| {
            let r = r.abs() / noise;
            if r <= HUBER {
                r * r
            } else {
                HUBER * (2.0 * r - HUBER)
            }
        };
        let held: f64 = x.iter().map(|x| (x / prior).powi(2)).sum();
        at.iter().map(huber).sum::<f64>() + held
    }

    /// A Gauss-Newton step, halved until it helps.
    fn step(
        &self,
        x: &[f64],
        at: &[f64],
        slopes: &DMatrix<f64>,
    ) -> Result<(Vec<f64>, Vec<f64>), SimulateError> {
        let (matrix, right) = self.normal(x, (at, slopes), None);
        // The prior's part makes the matrix positive definite.
        let Some(delta) = matrix.cholesky().map(|c| c.solve(&right)) else {
            return Ok((x.to_vec(), at.to_vec()));
        };
        let now = self.loss(x, at);
        for halved in 0..6 {
            let size = 0.5_f64.powi(halved);
            let next = x.iter().zip(delta.iter());
            let next: Vec<f64> = next
                .map(|(x, d)| (x - size * d).clamp(-FARTHEST, FARTHEST))
                .collect();
            let there = self.residuals(&next)?;
            if self.loss(&next, &there) < now {
                return Ok((next, there));
            }
        }
        Ok((x.to_vec(), at.to_vec()))
    }

    fn spread_left(&self, at: &[f64], slopes: &DMatrix<f64>) -> Vec<f64> {
        let x = vec![0.0; slopes.ncols()];
        let (matrix, _) = self.normal(&x, (at, slopes), None);
        let Some(cholesky) = matrix.cholesky() else {
            return vec![1.0; x.len()];
        };
        let left = cholesky.inverse();
        (0..x.len())
            .map(|i| left[(i, i)].sqrt() / self.options.prior)
            .collect()
    }

    /// Leaves each run out, with those of its configuration: one step from the fit of all, then that run is simulated.
    fn left_out(
        &self,
        x: &[f64],
        at: &[f64],
        slopes: &DMatrix<f64>,
    ) -> Result<Vec<f64>, SimulateError> {
        let each = on_all_processors(self.runs.clone(), &|run| {
            let (matrix, right) = self.normal(x, (at, slopes), Some(run));
            let delta = matrix.cholesky().map(|c| c.solve(&right));
            let without: Vec<f64> = match delta {
                Some(delta) => x.iter().zip(delta.iter()).map(|(x, d)| x - d).collect(),
                None => x.to_vec(),
            };
            let residual = Self::residual(run, &self.profile(&without))?;
            Ok(residual.exp_m1())
        });
        each.into_iter().collect()
    }
}

/// Median and 90th percentile of the errors' sizes.
pub fn sizes(errors: &[f64]) -> (f64, f64) {
    let stats = ErrorStats::of(errors);
    (stats.median, stats.p90)
}
