//! What an iteration's layers and moves take, where that is known beforehand.

use super::layers::{Iteration, Lanes};
use super::moves::{Moves, Pace};
use crate::executor::Times;
use crate::program::Op;

/// Times of tasks, and the moves that are under way by them.
#[derive(Debug)]
pub(super) struct Foreseen {
    times: Box<dyn Times>,
    lanes: Lanes,
    pub moves: Moves,
    /// From a move's end to the layer that was submitted behind it, in seconds.
    pub handoff: f64,
    /// The pace of moves with so many slots.
    pace: Option<(u16, Pace)>,
}

/// What each layer's computation takes, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Computed {
    first: f64,
    middle: f64,
    last: f64,
    layers: u16,
}

impl Computed {
    /// Of one of them.
    #[inline]
    pub fn of(&self, layer: u16) -> f64 {
        match layer {
            0 => self.first,
            layer if layer + 1 == self.layers => self.last,
            _ => self.middle,
        }
    }
}

impl Foreseen {
    /// None where computing and moving change each other's times: then an executor has to be asked.
    pub fn new(times: Box<dyn Times>, lanes: Lanes) -> Option<Foreseen> {
        let Lanes { gpu, h2d, d2h } = lanes;
        let pairs = [(gpu, h2d), (gpu, d2h), (h2d, gpu), (d2h, gpu)];
        let apart = pairs.iter().all(|(a, b)| times.share(*a, *b) == 1.0);
        apart.then(|| Foreseen {
            handoff: times.handoff(h2d, gpu).0,
            times,
            lanes,
            moves: Moves::new(0.0),
            pace: None,
        })
    }

    /// The pace of moves of a layer's cache, of which the GPU has room for `slots`.
    pub fn pace(&mut self, slots: u16, moved: &Op) -> Pace {
        let Lanes { h2d, d2h, .. } = self.lanes;
        match self.pace {
            Some((of, pace)) if of == slots => pace,
            _ => {
                let pace = Pace {
                    seconds: [d2h, h2d].map(|lane| self.times.seconds(lane, moved).0),
                    shares: [self.times.share(d2h, h2d), self.times.share(h2d, d2h)],
                };
                self.pace = Some((slots, pace));
                pace
            }
        }
    }

    /// What an iteration's layers take. All but the first and the last are alike.
    pub fn computed(&self, it: Iteration<'_>, layers: u16) -> Computed {
        let of = |layer: u16| {
            let op = it.shape.span(it.load, layer, 1);
            self.times.seconds(self.lanes.gpu, &op).0
        };
        let first = of(0);
        Computed {
            first,
            middle: if layers > 2 { of(1) } else { first },
            last: if layers > 1 { of(layers - 1) } else { first },
            layers,
        }
    }
}
