//! Schedules of section 4.2 and appendix A.2, written as the order of batches that compute, and priced by
//! the same graph as the optimum.

use crate::graph::Graph;

/// What an order costs; none where memory does not suffice for it.
fn price(graph: &Graph, order: impl IntoIterator<Item = usize>) -> Option<u64> {
    let mut state = graph.start();
    let mut total = 0;
    for batch in order {
        let (next, cost) = graph.compute(&state, batch)?;
        state = next;
        total += cost;
    }
    assert!(graph.is_end(&state), "an order computes all squares");
    Some(total)
}

/// One batch after another (figure 3a).
pub fn row_by_row(graph: &Graph) -> Option<u64> {
    let squares = usize::from(graph.squares());
    let order = (0..graph.batches).flat_map(|batch| std::iter::repeat_n(batch, squares));
    price(graph, order)
}

/// Batches that fit together at their last token go column by column, then the next (figure 3b).
pub fn zigzag(graph: &Graph) -> Option<u64> {
    let block = (graph.memory / graph.peak()) as usize;
    let batches: Vec<usize> = (0..graph.batches).collect();
    let blocks = batches.chunks(block.max(1));
    let order = blocks.flat_map(|block| block.repeat(graph.squares().into()));
    price(graph, order)
}

/// Each pass over the layers takes every batch that was admitted a token further. Batches are admitted
/// at even distances, as close as memory allows (figure 5).
pub fn diagonal(graph: &Graph) -> Option<u64> {
    (1..=graph.batches)
        .rev()
        .find_map(|at_a_time| price(graph, staggered(graph, at_a_time)))
}

/// The order where `at_a_time` batches are admitted in the time that one needs for its tokens.
fn staggered(graph: &Graph, at_a_time: usize) -> Vec<usize> {
    let tokens = usize::from(graph.tokens);
    let admitted = |batch: usize| batch * tokens / at_a_time;
    let passes = admitted(graph.batches - 1) + tokens;
    let mut order = Vec::new();
    for pass in 0..passes {
        for _layer in 0..graph.layers {
            let active =
                |batch: &usize| (admitted(*batch)..admitted(*batch) + tokens).contains(&pass);
            order.extend((0..graph.batches).filter(active));
        }
    }
    order
}
