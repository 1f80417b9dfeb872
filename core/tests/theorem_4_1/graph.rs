//! The graph of squares (GPU batch, layer, token) and what moving through it costs (FlexGen section 4.1
//! and appendix A.2).
//!
//! A GPU batch computes its squares in order: all layers for its first token, then all for its second.
//! The device holds one layer's weights; another layer's must be loaded. A square's cache is loaded and
//! stored whenever it is computed, so that this part is the same for all schedules; activations come and
//! go where the square before was another batch's. From its first square to its last, a batch holds the
//! caches of all its layers elsewhere: s + i - 1 tokens a layer while it is at token i, and what batches
//! hold together is limited.

/// One problem: batches are all alike.
#[derive(Debug, Clone, Copy)]
pub struct Graph {
    /// GPU batches.
    pub batches: usize,
    /// Layers, at least two: with one, the model would be on the device.
    pub layers: u8,
    /// Tokens that each batch generates.
    pub tokens: u8,
    /// Tokens in a prompt.
    pub prompt: u64,
    /// Tokens of cache that all batches together may hold, a layer.
    pub memory: u64,
    /// What loading costs.
    pub cost: Cost,
}

/// Input and output, in any unit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// To load a layer's weights.
    pub weights: u64,
    /// To load or to store a token's keys and values of a layer.
    pub cache: u64,
    /// To load or to store a token's activations.
    pub activations: u64,
}

/// How far everything is: the whole state of a traversal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    /// Squares computed of each batch.
    pub done: Vec<u8>,
    /// The layer whose weights the device holds.
    pub layer: Option<u8>,
    /// The batch whose activations it holds.
    pub at_hand: Option<usize>,
}

impl Graph {
    /// Squares of a batch.
    pub fn squares(&self) -> u8 {
        self.layers * self.tokens
    }

    /// Nothing computed, nothing loaded.
    pub fn start(&self) -> State {
        State {
            done: vec![0; self.batches],
            layer: None,
            at_hand: None,
        }
    }

    pub fn is_end(&self, state: &State) -> bool {
        state.done.iter().all(|done| *done == self.squares())
    }

    /// Tokens of cache a layer at token `i`, from 1 on.
    fn cache_len(&self, i: u8) -> u64 {
        self.prompt + u64::from(i) - 1
    }

    /// What a batch holds with so many squares computed.
    fn held(&self, done: u8) -> u64 {
        if done == 0 || done == self.squares() {
            return 0;
        }
        self.cache_len(done.div_ceil(self.layers))
    }

    /// The most that one batch holds.
    pub fn peak(&self) -> u64 {
        self.cache_len(self.tokens)
    }

    /// The layer of a batch's next square, and its token.
    pub fn next_square(&self, done: u8) -> (u8, u8) {
        (done % self.layers, done / self.layers + 1)
    }

    /// Computes a batch's next square, loading its layer's weights if others are there. None where
    /// the batch is done or memory does not suffice.
    pub fn compute(&self, state: &State, batch: usize) -> Option<(State, u64)> {
        let done = state.done[batch];
        if done == self.squares() {
            return None;
        }
        let (layer, token) = self.next_square(done);
        let held = state.done.iter().map(|done| self.held(*done)).sum::<u64>();
        // While the square is computed its batch holds this token's cache, whatever comes after.
        if held - self.held(done) + self.cache_len(token) > self.memory {
            return None;
        }
        let new = if token == 1 { self.prompt } else { 1 };
        let past = self.cache_len(token) - new;
        let mut cost = self.cost.cache * (past + new);
        if state.layer != Some(layer) {
            cost += self.cost.weights;
        }
        if state.at_hand != Some(batch) {
            cost += self.cost.activations * 2 * new;
        }
        let mut next = state.clone();
        next.done[batch] += 1;
        next.layer = Some(layer);
        next.at_hand = Some(batch);
        Some((next, cost))
    }
}
