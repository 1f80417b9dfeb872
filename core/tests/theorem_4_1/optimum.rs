//! The cheapest traversal of a small graph, by Dijkstra's search over all states.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::graph::{Graph, State};

/// What the cheapest of all schedules costs.
///
/// # Panics
/// Where memory does not suffice for one batch.
pub fn cheapest(graph: &Graph) -> u64 {
    let start = graph.start();
    let mut best: HashMap<State, u64> = HashMap::from([(start.clone(), 0)]);
    let mut open = BinaryHeap::from([(Reverse(0), start)]);
    while let Some((Reverse(cost), state)) = open.pop() {
        if graph.is_end(&state) {
            return cost;
        }
        if best[&state] < cost {
            continue;
        }
        for batch in 0..graph.batches {
            // Of batches that are equally far, and neither at hand, one stands for all.
            let alike = |other: usize| {
                state.done[other] == state.done[batch]
                    && state.at_hand != Some(other)
                    && state.at_hand != Some(batch)
            };
            if (0..batch).any(alike) {
                continue;
            }
            let Some((next, step)) = graph.compute(&state, batch) else {
                continue;
            };
            let next = sorted(next);
            let total = cost + step;
            let known = best.entry(next.clone()).or_insert(u64::MAX);
            if total < *known {
                *known = total;
                open.push((Reverse(total), next));
            }
        }
    }
    panic!("a batch fits by itself");
}

/// The same state with batches in order: they are all alike.
fn sorted(state: State) -> State {
    let at_hand = state.at_hand.map(|batch| state.done[batch]);
    let mut done = state.done;
    done.sort_unstable();
    State {
        at_hand: at_hand.and_then(|at| done.iter().position(|d| *d == at)),
        done,
        ..state
    }
}
