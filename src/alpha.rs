//! The alpha benchmark (HeteGen section 4.4): the share of a linear layer's outputs at which the CPU ends with
//! the link, found by measuring around the law's share and fitting curves through what was measured.

use nalgebra::{DMatrix, DVector};
use plimsoll_core::split::law::Times;
use plimsoll_core::split::{Module, PerModule};
use plimsoll_core::units::Seconds;
use serde::Serialize;

/// Times of a module's parts at a share of the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct At {
    /// The device's share.
    pub share: f64,
    /// The CPU's part, T_CPU.
    pub cpu_s: Seconds,
    /// Copies into page-locked memory, T_PIN.
    pub pin_s: Seconds,
    /// Moves to the device, T_TRANS.
    pub transfer_s: Seconds,
}

impl At {
    /// `max(T_PIN, T_TRANS)`.
    fn communication(&self) -> f64 {
        self.pin_s.0.max(self.transfer_s.0)
    }

    /// What the whole module would take of each, as if times were in proportion to rows.
    pub fn whole(&self) -> Times {
        Times {
            cpu: self.cpu_s.0 / (1.0 - self.share),
            device: 0.0,
            pin: self.pin_s.0 / self.share,
            transfer: self.transfer_s.0 / self.share,
        }
    }
}

/// Shares around a first one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// How far to each side, gamma.
    pub around: f64,
    /// From one to the next, lambda.
    pub step: f64,
}

impl Range {
    /// The offsets of the shares that are measured.
    pub fn offsets(&self) -> Vec<f64> {
        let steps = (self.around / self.step).round() as i32;
        (-steps..=steps).map(|i| f64::from(i) * self.step).collect()
    }
}

/// A share that can be measured: some rows for each.
pub fn within(share: f64) -> f64 {
    const LEAST: f64 = 0.02;
    share.clamp(LEAST, 1.0 - LEAST)
}

/// The degree of the polynomials; the paper does not say its own.
const DEGREE: usize = 2;

/// A polynomial's coefficients, the constant first.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Polynomial(Vec<f64>);

impl Polynomial {
    /// The one of a degree, or of a lower one where points are few, that is closest to points in squares; none
    /// without points.
    pub fn fit(points: &[(f64, f64)], degree: usize) -> Option<Polynomial> {
        let columns = (degree + 1).min(points.len());
        if columns == 0 {
            return None;
        }
        let power = |row: usize, column: usize| points[row].0.powi(column as i32);
        let matrix = DMatrix::from_fn(points.len(), columns, power);
        let values = DVector::from_iterator(points.len(), points.iter().map(|(_, y)| *y));
        let solved = matrix.svd(true, true).solve(&values, 1e-12).ok()?;
        Some(Polynomial(solved.iter().copied().collect()))
    }

    /// Its value.
    pub fn at(&self, x: f64) -> f64 {
        self.0.iter().rev().fold(0.0, |sum, c| sum * x + c)
    }
}

/// What the benchmark says of a module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// The share at which both curves meet (Eq. 10).
    pub share: f64,
    /// How far measured times around the curves may have moved it: a standard error; none where the points determine the curves.
    pub uncertainty: Option<f64>,
    /// The CPU's time there (Eq. 11).
    pub cpu_s: Seconds,
    /// The communication's (Eq. 12).
    pub communication_s: Seconds,
    /// Whether the curves meet in what was measured; else the end is given where they are nearest.
    pub meets: bool,
    /// F_CPU over the share, in seconds.
    pub cpu: Polynomial,
    /// F_COM.
    pub communication: Polynomial,
}

/// Fits curves through times at several shares and finds where they meet (Eq. 10); none without times.
pub fn balance(times: &[At]) -> Option<Balance> {
    let points = |time: fn(&At) -> f64| -> Vec<(f64, f64)> {
        times.iter().map(|at| (at.share, time(at))).collect()
    };
    let cpu = Polynomial::fit(&points(|at| at.cpu_s.0), DEGREE)?;
    let communication = Polynomial::fit(&points(At::communication), DEGREE)?;
    let shares = || times.iter().map(|at| at.share);
    let mut low = shares().fold(f64::MAX, f64::min);
    let mut high = shares().fold(f64::MIN, f64::max);
    // The CPU has less to do the larger the share, the link more.
    let waits = |share: f64| cpu.at(share) - communication.at(share);
    let meets = waits(low) >= 0.0 && waits(high) <= 0.0;
    if meets {
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            match waits(middle) > 0.0 {
                true => low = middle,
                false => high = middle,
            }
        }
    }
    let share = match waits(low).abs() <= waits(high).abs() {
        true => low,
        false => high,
    };
    Some(Balance {
        share,
        uncertainty: uncertainty(times, &waits, share),
        cpu_s: Seconds(cpu.at(share)),
        communication_s: Seconds(communication.at(share)),
        meets,
        cpu,
        communication,
    })
}

/// The scatter of measured waits around the curves' own, over how steeply those change with the share.
fn uncertainty(times: &[At], waits: &dyn Fn(f64) -> f64, share: f64) -> Option<f64> {
    const STEP: f64 = 0.01;
    let free = times
        .len()
        .checked_sub(DEGREE + 1)
        .filter(|free| *free > 0)?;
    let off = |at: &At| at.cpu_s.0 - at.communication() - waits(at.share);
    let squares: f64 = times.iter().map(|at| off(at).powi(2)).sum();
    let error = (squares / free as f64).sqrt() / (times.len() as f64).sqrt();
    let slope = (waits(share + STEP) - waits(share - STEP)) / (2.0 * STEP);
    (slope != 0.0).then(|| error / slope.abs())
}

/// A module with all that was measured of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Its name.
    pub module: &'static str,
    /// By the law, from the first measurement (Eq. 9).
    pub first_share: f64,
    /// By the curves; none where the parts took no time that can be measured.
    pub balance: Option<Balance>,
    /// Times at each share.
    pub times: Vec<At>,
}

/// Measures modules around the law's shares. `measure` gives the times of each module at its share.
///
/// # Errors
/// Those of `measure`.
pub fn benchmark<E>(
    range: Range,
    mut measure: impl FnMut(&PerModule<f64>) -> Result<Vec<(Module, At)>, E>,
) -> Result<Vec<Measured>, E> {
    const FIRST: f64 = 0.5;
    let first = measure(&PerModule::from_fn(|_| FIRST))?;
    let law = |module: Module| {
        // A module of few rows may not be split in halves.
        let halves = |at: &At| at.share > 0.0 && at.share < 1.0;
        let found = first.iter().find(|(of, at)| *of == module && halves(at));
        found.map_or(FIRST, |(_, at)| within(at.whole().share()))
    };
    let shares = PerModule::from_fn(law);
    let mut all: Vec<Measured> = first
        .iter()
        .map(|(module, _)| Measured {
            module: module.name(),
            first_share: shares[*module],
            balance: None,
            times: Vec::new(),
        })
        .collect();
    for offset in range.offsets() {
        let around = PerModule::from_fn(|module| within(shares[module] + offset));
        for (module, at) in measure(&around)? {
            let found = all.iter_mut().find(|m| m.module == module.name());
            found.into_iter().for_each(|m| m.times.push(at));
        }
    }
    for module in &mut all {
        module.balance = balance(&module.times);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn at(share: f64, [cpu, pin, transfer]: [f64; 3]) -> At {
        At {
            share,
            cpu_s: Seconds(cpu),
            pin_s: Seconds(pin),
            transfer_s: Seconds(transfer),
        }
    }

    #[test]
    fn a_polynomial_goes_through_its_own_points() {
        let truth = |x: f64| 3.0 - 2.0 * x + 0.5 * x * x;
        let points: Vec<(f64, f64)> = (0..7)
            .map(|i| f64::from(i) * 0.1)
            .map(|x| (x, truth(x)))
            .collect();
        let fitted = Polynomial::fit(&points, 2).expect("points");
        assert!((fitted.at(0.37) - truth(0.37)).abs() < 1e-9);
        assert_eq!(Polynomial::fit(&[], 2), None);
        let constant = Polynomial::fit(&[(0.3, 5.0)], 2).expect("a point");
        assert!((constant.at(0.9) - 5.0).abs() < 1e-9);
    }

    /// A machine whose times are not in proportion to rows: fixed costs, and a link that is faster the more it moves.
    fn machine(share: f64) -> At {
        let transfer = 0.2 + 4.0 * share - 0.6 * share * share;
        at(share, [0.1 + 2.0 * (1.0 - share), 2.5 * share, transfer])
    }

    fn truth() -> f64 {
        let wait = |share: f64| machine(share).cpu_s.0 - machine(share).communication();
        let shares = (0..10_000).map(|i| f64::from(i) * 1e-4);
        shares
            .min_by(|a, b| wait(*a).abs().total_cmp(&wait(*b).abs()))
            .expect("shares")
    }

    #[test]
    fn curves_meet_where_the_machine_is_in_balance_and_the_law_is_near() {
        let range = Range {
            around: 0.1,
            step: 0.02,
        };
        assert_eq!(range.offsets().len(), 11);
        let measure = |shares: &PerModule<f64>| {
            let times = [Module::Q, Module::Up].map(|m| (m, machine(shares[m])));
            Ok::<_, Infallible>(times.to_vec())
        };
        let Ok(all) = benchmark(range, measure);
        assert_eq!(all.len(), 2);
        for measured in all {
            assert_eq!(measured.times.len(), 11);
            let balance = measured.balance.expect("times");
            assert!(balance.meets);
            assert!((balance.share - truth()).abs() < 1e-3, "{}", balance.share);
            assert!((balance.cpu_s.0 - balance.communication_s.0).abs() < 1e-6);
            // Parabolas go through these times.
            assert!(balance.uncertainty.is_some_and(|off| off < 1e-6));
            let off = (measured.first_share - truth()).abs();
            assert!(off > 1e-3 && off < 0.1, "the law alone is off by {off}");
        }
    }

    #[test]
    fn curves_that_do_not_meet_give_the_nearest_end() {
        let slow_link = |share: f64| at(share, [0.1, 0.0, 1.0 + share]);
        let times: Vec<At> = [0.2, 0.3, 0.4].map(slow_link).to_vec();
        let balance = balance(&times).expect("times");
        assert!(!balance.meets);
        assert!((balance.share - 0.2).abs() < 1e-9);
        assert_eq!(super::balance(&[]), None);
    }

    #[test]
    fn the_slower_of_pin_and_move_decides() {
        let pins = |share: f64| at(share, [1.0 - share, 2.0 * share, share]);
        let times: Vec<At> = [0.2, 0.3, 0.4, 0.5].map(pins).to_vec();
        let balance = balance(&times).expect("times");
        assert!(
            (balance.share - 1.0 / 3.0).abs() < 1e-6,
            "{}",
            balance.share
        );
        assert!((times[0].whole().share() - 1.0 / 3.0).abs() < 1e-9);
    }
}
