//! Layers one after another where it is known beforehand how long moves take.

use super::table::{MappingTable, Place, Swaps};

/// How long moves take, each way by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    /// To the host, and back.
    pub seconds: [f64; 2],
    /// What each keeps of its pace while the other runs.
    pub shares: [f64; 2],
}

/// A layer that moves.
#[derive(Debug, Clone, Copy)]
struct Move {
    layer: u16,
    /// When it arrives, at the pace that it has.
    end: f64,
    /// Of the pace that it has alone.
    share: f64,
}

/// What has happened to a layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// It began to move.
    Began(Swaps),
    /// It is on the host.
    Gone(u16),
}

/// Moves under way: to the host, and back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moves {
    ways: [Option<Move>; 2],
    /// So much later than its time an arrival counts as in time.
    rounding: f64,
}

const OUT: usize = 0;
const BACK: usize = 1;

impl Moves {
    /// None yet.
    pub fn new(rounding: f64) -> Moves {
        Moves {
            ways: [None; 2],
            rounding,
        }
    }

    /// Layers on their way.
    pub fn layers(&self) -> Swaps {
        let [out, back] = self.ways.map(|way| way.map(|it| it.layer));
        Swaps { out, back }
    }

    /// A layer is to be computed from `now` on: what has arrived lands, and what the table says begins to move, until the
    /// layer's cache is there. Returns when that is.
    pub fn reach(
        &mut self,
        (table, layer): (&mut MappingTable, u16),
        mut now: f64,
        pace: &Pace,
        see: &mut impl FnMut(Event),
    ) -> f64 {
        loop {
            self.land(table, now, pace, see);
            let swaps = table.swaps(layer);
            let began = swaps != Swaps::default();
            if began {
                self.begin(OUT, (swaps.out, now), pace);
                self.begin(BACK, (swaps.back, now), pace);
                see(Event::Began(swaps));
            }
            if table.place(layer) == Place::Gpu {
                return now;
            }
            // What has begun may have changed what is best.
            if !began {
                now = self.awaited(table, pace, see).max(now);
            }
        }
    }

    /// When the layer arrives that is waited for: the one that comes, else the one whose room is needed.
    fn awaited(
        &mut self,
        table: &mut MappingTable,
        pace: &Pace,
        see: &mut impl FnMut(Event),
    ) -> f64 {
        let way = if self.ways[BACK].is_some() { BACK } else { OUT };
        let end = |it: &Moves, way: usize| it.ways[way].map(|it| it.end);
        let awaited = end(self, way).expect("what is not there comes, or waits for room");
        match end(self, OUT) {
            // Then it has the link for itself.
            Some(other) if way == BACK && other < awaited => {
                self.land(table, other, pace, see);
                end(self, way).unwrap_or(other)
            }
            _ => awaited,
        }
    }

    fn begin(&mut self, way: usize, (layer, now): (Option<u16>, f64), pace: &Pace) {
        let Some(layer) = layer else {
            return;
        };
        self.ways[way] = Some(Move {
            layer,
            end: now + pace.seconds[way],
            share: 1.0,
        });
        self.retime(now, pace);
    }

    /// What has arrived by now lands, the earlier first.
    pub fn land(
        &mut self,
        table: &mut MappingTable,
        now: f64,
        pace: &Pace,
        see: &mut impl FnMut(Event),
    ) {
        loop {
            let end = |way: usize| self.ways[way].map_or(f64::INFINITY, |it| it.end);
            let first = if end(BACK) < end(OUT) { BACK } else { OUT };
            let arrived = |it: &mut Move| it.end <= now + self.rounding;
            let Some(it) = self.ways[first].take_if(arrived) else {
                return;
            };
            match first {
                OUT => {
                    table.gone(it.layer);
                    see(Event::Gone(it.layer));
                }
                _ => table.come(it.layer),
            }
            self.retime(it.end, pace);
        }
    }

    /// What moves goes on at the pace that it has from now on.
    fn retime(&mut self, now: f64, pace: &Pace) {
        let both = self.ways.iter().all(Option::is_some);
        for (way, share) in self.ways.iter_mut().zip(pace.shares) {
            let share = if both { share } else { 1.0 };
            if let Some(it) = way
                && it.share != share
            {
                it.end = now + (it.end - now) * it.share / share;
                it.share = share;
            }
        }
    }
}
