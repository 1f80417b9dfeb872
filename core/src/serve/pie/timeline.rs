//! The swapping policy by itself, in time of its own (Pie, Figure 4): what it can hide.

use super::moves::{Event, Moves, Pace};
use super::table::{MappingTable, Place, Swaps};

/// A layer's computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Pass over the layers, from 0 on.
    pub pass: u32,
    /// The layer that is computed.
    pub layer: u16,
    /// What began to move with it, or while it waited for its cache.
    pub began: Swaps,
    /// Layers that are on the GPU and stay, ascending.
    pub on_gpu: Vec<u16>,
    /// Layers on the host, first come first.
    pub on_cpu: Vec<u16>,
    /// Layers on their way to the host and to the GPU.
    pub moving: Swaps,
    /// How long it waited for its cache, in computations of a layer.
    pub waited: f64,
}

/// So much later than its time an arrival counts as in time: sums of times round.
const ROUNDING: f64 = 1e-9;

/// Layers with room for `slots` of their caches on the GPU, over some passes. Computing a layer takes 1, moving its
/// cache `swap`, either way.
pub fn timeline(layers: u16, slots: u16, swap: f64, passes: u32) -> Vec<Step> {
    let mut table = MappingTable::new(layers, slots);
    let mut on_cpu: Vec<u16> = (slots..layers).collect();
    let pace = Pace {
        seconds: [swap; 2],
        shares: [1.0; 2],
    };
    let mut moves = Moves::new(ROUNDING);
    let mut now = 0.0;
    let mut steps = Vec::new();
    for pass in 0..passes {
        for layer in 0..layers {
            let mut began = Swaps::default();
            let wanted = now;
            now = moves.reach((&mut table, layer), now, &pace, &mut |event| match event {
                Event::Gone(layer) => on_cpu.push(layer),
                Event::Began(swaps) => {
                    on_cpu.retain(|layer| swaps.back != Some(*layer));
                    began.out = began.out.or(swaps.out);
                    began.back = began.back.or(swaps.back);
                }
            });
            steps.push(Step {
                pass,
                layer,
                began,
                on_gpu: table.at(Place::Gpu).collect(),
                on_cpu: on_cpu.clone(),
                moving: moves.layers(),
                waited: now - wanted,
            });
            now += 1.0;
        }
    }
    steps
}

/// Whether computation never waits once the first passes are over.
pub fn hides(layers: u16, slots: u16, swap: f64) -> bool {
    let steps = timeline(layers, slots, swap, 24);
    let settled = steps.iter().filter(|step| step.pass >= 8);
    settled.map(|step| step.waited).sum::<f64>() < ROUNDING
}

/// The most layers off the GPU, two buffers on each side counted among them, with which computation never waits; none
/// where swapping frees nothing.
pub fn most_off(layers: u16, swap: f64) -> u16 {
    let all = (3..=layers).take_while(|off| hides(layers, super::slots(layers, *off), swap));
    all.last().unwrap_or(0)
}

/// The same by the paper's condition, `t_swap * m <= t_compute * n` (section 3.1).
pub fn most_off_by_rates(layers: u16, swap: f64) -> u16 {
    ((f64::from(layers) / swap + ROUNDING) as u16).min(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 4: nine layers, room for seven, a swap takes two computations. Each row: layer, what began to move out and
    /// back, what stays on the GPU, the host's queue; layers from 1 on, as there.
    const FIGURE_4: &str = include_str!("figure-4.csv");

    fn one_based(layers: &[u16]) -> String {
        let all: Vec<String> = layers.iter().map(|layer| (layer + 1).to_string()).collect();
        all.join(" ")
    }

    #[test]
    fn figure_4_comes_out_step_by_step() {
        let steps = timeline(9, 7, 2.0, 6);
        let mut rows = 0;
        for (step, expected) in steps.iter().zip(FIGURE_4.lines().skip(1)) {
            let one = |layer: Option<u16>| layer.map_or(String::new(), |l| (l + 1).to_string());
            let Step { began, moving, .. } = step;
            rows += 1;
            let found = [
                rows.to_string(),
                (step.pass + 1).to_string(),
                one(Some(step.layer)),
                one(began.out),
                one(began.back),
                one(moving.out),
                one(moving.back),
                one_based(&step.on_gpu),
                one_based(&step.on_cpu),
            ];
            assert_eq!(found.join(","), expected);
            assert_eq!(step.waited, 0.0);
        }
        assert_eq!(rows, 54);
        assert!(hides(9, 7, 2.0) && !hides(9, 6, 2.0));
    }

    #[test]
    fn it_hides_what_its_queue_has_time_for_and_never_more_than_rates_allow() {
        for layers in [6, 9, 32, 40, 48, 80] {
            for swap in [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0] {
                let (found, by_rates) = (most_off(layers, swap), most_off_by_rates(layers, swap));
                assert!(found <= by_rates, "{layers} {swap}: {found} {by_rates}");
                // A layer goes out when the next begins, and is wanted n - 1 computations later; each of those in the
                // queue takes whole computations, since moves begin with them.
                let queue = ((f64::from(layers) - 1.0) / f64::from(swap.ceil() as u16)) as u16;
                let queue = if queue < 3 { 0 } else { queue };
                assert_eq!(found, queue, "{layers} {swap}");
            }
        }
    }
}
