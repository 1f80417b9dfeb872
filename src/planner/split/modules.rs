//! Which modules live on the device whole, where a split leaves memory free (HeteGen section 4.5).
//!
//! A module that is there costs no CPU time and no move any more, so it saves what it took in balance with the link,
//! T_CPU. HeteGen takes what saves most a byte first (Eq. 13), which is a greedy answer to a knapsack; the exact
//! answer says what that loses.

use plimsoll_core::split::{Module, PerModule};
use plimsoll_core::units::{Bytes, Seconds};

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

/// The layers that save most of all that fit: a bounded knapsack, by looking at every choice. Modules that are alike
/// (queries and the attention's output, say) are one kind, of which a model has three or four, so that choices are
/// few. (A branch and bound over the same integers does not end in minutes: many choices are nearly as good.)
pub fn exact(candidates: &[Candidate], room: Bytes) -> Layers {
    let kinds = kinds(candidates);
    let mut best = (f64::NEG_INFINITY, Vec::new());
    choose(&kinds, room, (0.0, &mut Vec::new()), &mut best);
    let mut layers = Layers::default();
    for (kind, mut count) in kinds.iter().zip(best.1) {
        for candidate in kind {
            layers[candidate.module] = count.min(candidate.layers);
            count -= layers[candidate.module];
        }
    }
    layers
}

/// Modules that save and take the same.
fn kinds(candidates: &[Candidate]) -> Vec<Vec<Candidate>> {
    let mut kinds: Vec<Vec<Candidate>> = Vec::new();
    for candidate in candidates {
        let alike = |kind: &&mut Vec<Candidate>| {
            kind.first()
                .is_some_and(|c| (c.saved, c.bytes) == (candidate.saved, candidate.bytes))
        };
        match kinds.iter_mut().find(alike) {
            Some(kind) => kind.push(*candidate),
            None => kinds.push(vec![*candidate]),
        }
    }
    kinds
}

/// Tries each number of the first kind; of the last one as many as fit.
fn choose(
    kinds: &[Vec<Candidate>],
    room: Bytes,
    (saved, chosen): (f64, &mut Vec<u32>),
    best: &mut (f64, Vec<u32>),
) {
    let Some((kind, rest)) = kinds.split_first() else {
        if saved > best.0 {
            *best = (saved, chosen.clone());
        }
        return;
    };
    let (each, bytes) = (kind[0].saved.0, kind[0].bytes);
    let all: u32 = kind.iter().map(|c| c.layers).sum();
    let fit = room.0.checked_div(bytes.0);
    let most = fit.map_or(all, |fit| fit.min(all.into()) as u32);
    let least = if rest.is_empty() { most } else { 0 };
    for count in least..=most {
        let left = room.saturating_sub(bytes * u64::from(count));
        chosen.push(count);
        choose(rest, left, (saved + each * f64::from(count), chosen), best);
        chosen.pop();
    }
}

/// The share of the exact answer's saving that the greedy one loses, from 0 to 1.
pub fn greedys_loss(candidates: &[Candidate], room: Bytes) -> f64 {
    let best = saved(candidates, &exact(candidates, room)).0;
    let found = saved(candidates, &greedy(candidates, room)).0;
    match best > 0.0 {
        true => (1.0 - found / best).max(0.0),
        false => 0.0,
    }
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
        let best = exact(&candidates, Bytes(100));
        assert_eq!((best.up, best.down), (0, 2));
        let loss = greedys_loss(&candidates, Bytes(100));
        assert!((loss - 0.3).abs() < 1e-9, "{loss}");
        assert_eq!(greedys_loss(&candidates, Bytes(10)), 0.0);
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
            let layers = exact(&candidates, room);
            prop_assert!(taken(&candidates, &layers) <= room);
            let found = saved(&candidates, &layers).0;
            prop_assert!((found - best).abs() <= 1e-6 * best.max(1.0), "{found} {best}");
            let greedy = greedy(&candidates, room);
            prop_assert!(taken(&candidates, &greedy) <= room);
            prop_assert!(saved(&candidates, &greedy).0 <= best + 1e-9);
        }
    }
}
