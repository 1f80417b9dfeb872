//! How much of a linear layer the device computes so that nobody waits (HeteGen section 3.2, Eq. 2 to 9).
//!
//! A linear layer's outputs are split: the device computes the share alpha of them, once their weights have
//! come over the link, and the CPU the rest, where its weights lie. Here are rates of the three, or times of
//! the whole layer on each, and nothing else: any unit serves, as long as it is one.

/// Rates at which a layer's parameters are computed and moved, in one unit of parameters a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// The CPU's computing, V_CPU.
    pub cpu: f64,
    /// The device's computing, V_GPU.
    pub device: f64,
    /// The link to the device, V_COM.
    pub link: f64,
}

impl Rates {
    /// The share that the device computes, where the CPU is to end when the device does (Eq. 4 and 5):
    /// `1 / (V_CPU / V_COM + V_CPU / V_GPU + 1)`.
    ///
    /// (So says the first line of Eq. 5; its second line is printed with a misplaced fraction bar.)
    pub fn share(&self) -> f64 {
        1.0 / (self.cpu / self.link + self.cpu / self.device + 1.0)
    }

    /// The same where the device computes in no time: `V_COM / (V_COM + V_CPU)` (Eq. 6).
    pub fn share_of_fast_device(&self) -> f64 {
        self.link / (self.link + self.cpu)
    }

    /// Time of a unit of parameters at [`Rates::share`]: either side of Eq. 4.
    pub fn time(&self) -> f64 {
        (1.0 - self.share()) / self.cpu
    }
}

/// Times of a whole layer, T': all its parameters computed by the CPU, copied into page-locked memory, moved
/// over the link; in one unit of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Computed by the CPU, T'_CPU.
    pub cpu: f64,
    /// Computed by the device, T'_GPU; 0 to disregard it, as Eq. 6, 7 and 9 do.
    pub device: f64,
    /// Copied into page-locked memory, T'_PIN; 0 where it lies there.
    pub pin: f64,
    /// Moved from there to the device, T'_TRANS.
    pub transfer: f64,
}

impl Times {
    /// Communication where copies into page-locked memory and moves from it go on side by side (Eq. 8):
    /// `max(T'_PIN, T'_TRANS)`.
    pub fn communication(&self) -> f64 {
        self.pin.max(self.transfer)
    }

    /// The share that the device computes, by Eq. 8: `T'_CPU / (T'_CPU + T'_GPU + T'_COM)`. Without T'_GPU it is
    /// Eq. 7 with Eq. 9's T'_COM.
    pub fn share(&self) -> f64 {
        self.cpu / (self.cpu + self.device + self.communication())
    }

    /// The same where the host's memory may not do for all that goes on side by side, of which the paper says nothing. Where what
    /// the device computes takes it more, the less that is the better: until the CPU ends when the memory does.
    pub fn share_of(&self, memory: &Memory) -> f64 {
        let by_law = self.share();
        let does = memory.time_at(by_law) <= (1.0 - by_law) * self.cpu;
        if does || memory.device <= memory.cpu {
            return by_law;
        }
        let left = (self.cpu - memory.cpu).max(0.0);
        match left / (left + memory.device) {
            share if share < SHARE_LEAST => 0.0,
            share => share.min(by_law),
        }
    }
}

/// Less is not worth the copies.
const SHARE_LEAST: f64 = 0.01;

/// Times in which a host's memory moves what a whole layer needs of it, in the unit of its [`Times`]. Of a memory that does for all: 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    /// Computed by the CPU.
    pub cpu: f64,
    /// Computed by the device: page-locked, if it is, and moved.
    pub device: f64,
}

impl Memory {
    /// Where the device computes a share.
    fn time_at(&self, share: f64) -> f64 {
        (1.0 - share) * self.cpu + share * self.device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: f64 = 1e-9;

    fn rows<const N: usize>(text: &str) -> Vec<[f64; N]> {
        let row = |line: &str| -> [f64; N] {
            let numbers = line.split(',').map(|n| n.parse().expect("a number"));
            let numbers: Vec<f64> = numbers.collect();
            numbers.try_into().expect("as many columns")
        };
        text.lines().skip(1).map(row).collect()
    }

    #[test]
    fn shares_by_rates_are_the_golden_ones() {
        let golden = rows(include_str!("../../tests/data/hetegen/alpha.csv"));
        assert_eq!(golden.len(), 10);
        for [cpu, device, link, exact, fast, time] in golden {
            let rates = Rates { cpu, device, link };
            for (found, expected) in [
                (rates.share(), exact),
                (rates.share_of_fast_device(), fast),
                (rates.time(), time),
            ] {
                assert!((found - expected).abs() < EXACT, "{rates:?}: {found}");
            }
        }
    }

    #[test]
    fn shares_by_times_are_the_golden_ones() {
        let golden = rows(include_str!("../../tests/data/hetegen/alpha_pinned.csv"));
        assert_eq!(golden.len(), 6);
        for [cpu, pin, transfer, expected] in golden {
            let times = Times {
                cpu,
                device: 0.0,
                pin,
                transfer,
            };
            let found = times.share();
            assert!((found - expected).abs() < EXACT, "{times:?}: {found}");
        }
    }

    #[test]
    fn both_sides_end_together() {
        let rates = Rates {
            cpu: 65.1,
            device: 600.0,
            link: 30.0,
        };
        let device = rates.share() / rates.device + rates.share() / rates.link;
        assert!((rates.time() - device).abs() < EXACT);
        let times = Times {
            cpu: 3.0,
            device: 0.5,
            pin: 2.0,
            transfer: 4.0,
        };
        let share = times.share();
        let on_device = share * (times.device + times.communication());
        let waits = (1.0 - share) * times.cpu - on_device;
        assert!(waits.abs() < EXACT, "{waits}");
    }

    #[test]
    fn where_memory_is_short_the_cpu_ends_with_it() {
        let times = Times {
            cpu: 3.0,
            device: 0.0,
            pin: 0.5,
            transfer: 1.0,
        };
        let with = |cpu, device| times.share_of(&Memory { cpu, device });
        assert_eq!(with(0.0, 0.0), times.share());
        assert_eq!(with(0.9, 0.65), times.share());
        // Of all three a layer takes longest, and less for no other share.
        let longest = |share: f64, memory: Memory| {
            let (cpu, link) = ((1.0 - share) * times.cpu, share * times.transfer);
            cpu.max(link).max(memory.time_at(share))
        };
        for (cpu, device) in [(0.9, 2.7), (2.0, 2.5), (3.0, 9.0), (2.9, 3.0)] {
            let memory = Memory { cpu, device };
            let share = times.share_of(&memory);
            let best = longest(share, memory);
            let all = (0..=1000).map(|i| f64::from(i) / 1000.0);
            assert!(all.map(|s| longest(s, memory)).all(|t| t >= best - EXACT));
            assert!((best - memory.time_at(share)).abs() < EXACT, "{share}");
        }
        assert_eq!(with(3.0, 9.0), 0.0);
        assert_eq!(with(2.99, 9.0), 0.0);
        assert_eq!(with(3.0, 2.9), times.share());
    }

    #[test]
    fn rates_and_times_are_one_law() {
        let rates = Rates {
            cpu: 20.0,
            device: 40.0,
            link: 10.0,
        };
        let times = Times {
            cpu: 1.0 / rates.cpu,
            device: 1.0 / rates.device,
            pin: 0.0,
            transfer: 1.0 / rates.link,
        };
        assert!((rates.share() - times.share()).abs() < EXACT);
        let disregarded = Times {
            device: 0.0,
            ..times
        };
        assert!((disregarded.share() - rates.share_of_fast_device()).abs() < EXACT);
    }
}
