//! Which modules live on the device whole, where a split leaves memory free (HeteGen section 4.5).
//!
//! A module that is there costs no CPU time and no move any more, so it saves what it took in balance with the link,
//! T_CPU. HeteGen takes what saves most a byte first (Eq. 13), which is a greedy answer to a knapsack; the exact
//! answer says what that loses.

use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, constraint,
    microlp, variable,
};
use plimsoll_core::split::{Module, PerModule};
use plimsoll_core::units::{Bytes, Seconds};

use crate::planner::PlanError;

/// A module of which every layer has one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Which.
    pub module: Module,
    /// Layers that have it.
    pub layers: u32,
    /// Time of a layer's on the CPU and the device together, which it costs no more, T_CPU.
    pub saved: Seconds,
    /// Memory that a layer's takes on the device.
    pub bytes: Bytes,
}

impl Candidate {
    /// Seconds saved a byte (Eq. 13).
    pub fn gain(&self) -> f64 {
        self.saved.0 / self.bytes.as_f64()
    }
}

/// In how many layers each module lives on the device.
pub type Layers = PerModule<u32>;

/// Time that layers on the device save.
pub fn saved(candidates: &[Candidate], layers: &Layers) -> Seconds {
    let saved = |c: &Candidate| Seconds(c.saved.0 * f64::from(layers[c.module]));
    candidates.iter().map(saved).sum()
}

/// Memory that they take.
pub fn taken(candidates: &[Candidate], layers: &Layers) -> Bytes {
    let taken = |c: &Candidate| c.bytes * u64::from(layers[c.module]);
    candidates.iter().map(taken).sum()
}

/// What gains most goes to the device first, layer by layer, as long as one fits (HeteGen section 4.5). What does
/// not fit leaves room to what gains less and is smaller.
pub fn greedy(candidates: &[Candidate], room: Bytes) -> Layers {
    let mut by_gain: Vec<&Candidate> = candidates.iter().collect();
    by_gain.sort_by(|a, b| b.gain().total_cmp(&a.gain()));
    let mut layers = Layers::default();
    let mut left = room;
    for candidate in by_gain {
        let fit = left.0.checked_div(candidate.bytes.0);
        let fit = fit.map_or(candidate.layers, |fit| {
            fit.min(candidate.layers.into()) as u32
        });
        layers[candidate.module] = fit;
        left = left.saturating_sub(candidate.bytes * u64::from(fit));
    }
    layers
}

/// The layers that save most of all that fit: a bounded knapsack.
///
/// # Errors
/// The solver's.
pub fn exact(candidates: &[Candidate], room: Bytes) -> Result<Layers, PlanError> {
    let mut variables = ProblemVariables::new();
    let counts: Vec<Variable> = candidates
        .iter()
        .map(|c| variables.add(variable().integer().min(0).max(c.layers)))
        .collect();
    let most: f64 = candidates
        .iter()
        .map(|c| c.saved.0)
        .fold(f64::MIN_POSITIVE, f64::max);
    let both = || counts.iter().zip(candidates);
    // Near one, as the solver wants its coefficients.
    let saved: Expression = both().map(|(n, c)| *n * (c.saved.0 / most)).sum();
    let unit = room.as_f64().max(1.0);
    let taken: Expression = both().map(|(n, c)| *n * (c.bytes.as_f64() / unit)).sum();
    let model = variables.maximise(saved).using(microlp);
    let solved = model
        .with(constraint!(taken <= room.as_f64() / unit))
        .solve();
    let solved = solved.map_err(|error: ResolutionError| PlanError::Solver(error.to_string()))?;
    let mut layers = Layers::default();
    for (count, candidate) in both() {
        layers[candidate.module] = solved.value(*count).round() as u32;
    }
    // A solver's tolerance must not put more than fits.
    match taken_is_too_much(candidates, &layers, room) {
        true => Ok(greedy(candidates, room)),
        false => Ok(layers),
    }
}

fn taken_is_too_much(candidates: &[Candidate], layers: &Layers, room: Bytes) -> bool {
    taken(candidates, layers) > room
}

/// The share of the exact answer's saving that the greedy one loses, from 0 to 1.
///
/// # Errors
/// The solver's.
pub fn greedys_loss(candidates: &[Candidate], room: Bytes) -> Result<f64, PlanError> {
    let best = saved(candidates, &exact(candidates, room)?).0;
    let found = saved(candidates, &greedy(candidates, room)).0;
    Ok(match best > 0.0 {
        true => (1.0 - found / best).max(0.0),
        false => 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(module: Module, layers: u32, saved: f64, bytes: u64) -> Candidate {
        Candidate {
            module,
            layers,
            saved: Seconds(saved),
            bytes: Bytes(bytes),
        }
    }

    #[test]
    fn what_saves_most_a_byte_goes_first_and_the_rest_is_filled() {
        let candidates = [
            candidate(Module::Q, 4, 1.0, 10),
            candidate(Module::Up, 4, 6.0, 40),
            candidate(Module::Down, 4, 4.0, 40),
        ];
        let layers = greedy(&candidates, Bytes(135));
        // Three of 0.15 a byte, one of 0.1 that still fits beside them: 10 of 15 left.
        assert_eq!((layers.up, layers.q, layers.down), (3, 1, 0));
        assert_eq!(taken(&candidates, &layers), Bytes(130));
        assert_eq!(saved(&candidates, &layers), Seconds(19.0));
        let all = greedy(&candidates, Bytes(10_000));
        assert_eq!((all.q, all.up, all.down), (4, 4, 4));
        assert_eq!(greedy(&candidates, Bytes::ZERO), Layers::default());
    }

    #[test]
    fn the_exact_answer_knows_better_and_says_by_how_much() {
        // The best a byte leaves 40 of 100 empty; two of the others fill it.
        let candidates = [
            candidate(Module::Up, 1, 7.0, 60),
            candidate(Module::Down, 2, 5.0, 50),
        ];
        let best = exact(&candidates, Bytes(100)).expect("solved");
        assert_eq!((best.up, best.down), (0, 2));
        let loss = greedys_loss(&candidates, Bytes(100)).expect("solved");
        assert!((loss - 0.3).abs() < 1e-9, "{loss}");
        assert_eq!(greedys_loss(&candidates, Bytes(10)).expect("solved"), 0.0);
    }

    /// By looking at all.
    fn best_of_all(candidates: &[Candidate], room: Bytes) -> f64 {
        let Some((first, rest)) = candidates.split_first() else {
            return 0.0;
        };
        let fit = |n: &u64| first.bytes * *n <= room;
        let counts = (0..=u64::from(first.layers)).take_while(fit);
        let with = counts.map(|n| {
            let left = room.saturating_sub(first.bytes * n);
            first.saved.0 * n as f64 + best_of_all(rest, left)
        });
        with.fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn exact_is_the_best_of_all_and_greedy_never_more(
            kinds in proptest::collection::vec((1u32..4, 0.1..10.0f64, 1u64..50), 1..4),
            room in 0u64..200,
        ) {
            let modules = [Module::Q, Module::O, Module::Up];
            let candidates: Vec<Candidate> = kinds
                .iter()
                .zip(modules)
                .map(|((layers, saved, bytes), module)| candidate(module, *layers, *saved, *bytes))
                .collect();
            let room = Bytes(room);
            let best = best_of_all(&candidates, room);
            let layers = exact(&candidates, room).expect("solved");
            prop_assert!(taken(&candidates, &layers) <= room);
            let found = saved(&candidates, &layers).0;
            prop_assert!((found - best).abs() <= 1e-6 * best.max(1.0), "{found} {best}");
            let greedy = greedy(&candidates, room);
            prop_assert!(taken(&candidates, &greedy) <= room);
            prop_assert!(saved(&candidates, &greedy).0 <= best + 1e-9);
        }
    }
}
