//! How much more cache there seems to be than the GPU has (Pie, sections 3.1 and 3.3).

/// With two buffers on each side: `(n + 4) / (n - m + 2)` of `n` layers, of which `m` are off the GPU, which is what Pie
/// calls expansion. At `m = 0` this is above 1, although nothing swaps.
pub fn with_buffers(layers: u16, off_gpu: u16) -> f64 {
    f64::from(layers + 4) / f64::from(layers - off_gpu + 2)
}

/// Caches of a layer that the GPU has room for when `m` of `n` layers are off it, two of them as buffers. With two
/// layers and fewer buffers would take more than swapping frees, so then nothing swaps.
pub fn slots(layers: u16, off_gpu: u16) -> u16 {
    match off_gpu {
        0..=2 => layers,
        some => layers - some.min(layers) + 2,
    }
}

/// What the host's part of the cache is of the GPU's, when `m` of `n` layers are off the GPU: theirs, two of them as buffers.
pub fn on_host(layers: u16, off_gpu: u16) -> f64 {
    match off_gpu {
        0..=2 => 0.0,
        some => f64::from(some) / f64::from(slots(layers, some)),
    }
}

/// Layers off the GPU at most, of so many, where the host has room for so many times the GPU's part of the cache; none where
/// fewer than swap would already be too much.
pub fn layers_off_at_most(layers: u16, host: f64) -> u16 {
    let most = (3..=layers).rev().find(|off| on_host(layers, *off) <= host);
    most.unwrap_or(0)
}

/// The layers off the GPU whose expansion, buffers counted, is nearest to the one that is asked for; none at 1.
pub fn layers_off(layers: u16, expansion: f64) -> u16 {
    let distance = |off: &u16| match off {
        0 => (expansion - 1.0).abs(),
        off => (with_buffers(layers, *off) - expansion).abs(),
    };
    let all = std::iter::once(0).chain(3..=layers);
    all.min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansions_are_those_of_the_paper() {
        // n, m, (n + 4) / (n - m + 2); the first row is Figure 4's, the second section 5.6's 2.08.
        for (layers, off, buffered) in [
            (9, 2, 1.444444444),
            (48, 25, 2.080000000),
            (48, 0, 1.04),
            (40, 20, 2.0),
            (40, 21, 2.095238095),
            (40, 11, 1.419354839),
            (40, 15, 1.629629630),
            (6, 2, 1.666666667),
        ] {
            assert!((with_buffers(layers, off) - buffered).abs() < 1e-9);
        }
        assert_eq!([on_host(48, 25), on_host(40, 0)], [1.0, 0.0]);
        assert_eq!(layers_off(48, 2.08), 25);
        // 25 off the GPU take as much of the host as is left there; 3 take a sixteenth of it.
        assert_eq!(
            [1.0, 0.07, 0.06].map(|host| layers_off_at_most(48, host)),
            [25, 3, 0]
        );
        assert_eq!([layers_off(40, 1.0), layers_off(40, 1.6)], [0, 14]);
        assert_eq!(
            [slots(48, 0), slots(48, 2), slots(48, 3), slots(48, 25)],
            [48, 48, 47, 25]
        );
    }
}
