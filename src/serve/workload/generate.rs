//! Requests made up: when they come, and how long they are.

use plimsoll_core::serve::Request;
use plimsoll_core::units::Seconds;
use statrs::distribution::{ContinuousCDF, Gamma};

use super::lengths::Lengths;
use super::read::LATEST_S;
use crate::files::split_mix;

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// All at time 0.
    AtOnce,
    /// Independently of each other, so many a second on average.
    Poisson {
        /// Requests a second.
        rate: f64,
    },
    /// Gaps by a gamma distribution: bursts where the coefficient of variation is above 1.
    Gamma {
        /// Requests a second.
        rate: f64,
        /// Deviation over mean of the gaps.
        cv: f64,
    },
}

/// A trace in a few words.
#[derive(Debug, Clone, PartialEq)]
pub struct Generator {
    /// When requests come.
    pub arrivals: Arrivals,
    /// Tokens of prompts.
    pub prompt: Lengths,
    /// Tokens of answers, drawn without regard to the prompt.
    pub output: Lengths,
    /// Tokens of both at most: what is longer is drawn again.
    pub total_max: Option<u32>,
    /// How many.
    pub requests: usize,
    /// The same seed, the same trace.
    pub seed: u64,
}

/// How often what is too long is drawn again before there is no such trace.
const DRAWS_MAX: usize = 1000;

/// Why there is no such trace.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum GenerateError {
    /// What was drawn was always too long.
    #[error(
        "of {DRAWS_MAX} draws none has at most {most} tokens of prompt and answer, and the shortest {shortest}"
    )]
    TooLong {
        /// Allowed.
        most: u32,
        /// Drawn.
        shortest: u32,
    },
    /// Requests come too far apart.
    #[error(
        "the last request comes after {seconds:e} s, and no trace has times after {LATEST_S:e} s"
    )]
    TooLate {
        /// When it comes.
        seconds: f64,
    },
}

/// Numbers of one kind, independent of those of other kinds with the same seed.
struct Draws(u64);

impl Draws {
    fn new(seed: u64, kind: u64) -> Draws {
        let mut state = seed ^ kind.rotate_left(32);
        Draws(split_mix(&mut state))
    }

    /// The next, strictly between 0 and 1.
    fn next(&mut self) -> f64 {
        ((split_mix(&mut self.0) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }
}

impl Generator {
    /// The requests, in the order in which they come.
    ///
    /// # Errors
    /// Lengths that are hardly ever so short; requests so far apart that nothing would read the trace.
    pub fn requests(&self) -> Result<Vec<Request>, GenerateError> {
        let mut gaps = Draws::new(self.seed, 1);
        let (mut prompts, mut outputs) = (Draws::new(self.seed, 2), Draws::new(self.seed, 3));
        let mut now = 0.0;
        let gap = Gap::of(self.arrivals);
        let mut requests = Vec::with_capacity(self.requests);
        for _ in 0..self.requests {
            now += gap.at(&mut gaps);
            let (prompt_len, output_len) = self.lengths(&mut prompts, &mut outputs)?;
            requests.push(Request {
                arrival: Seconds(now),
                prompt_len,
                output_len,
            });
        }
        match now <= LATEST_S {
            true => Ok(requests),
            false => Err(GenerateError::TooLate { seconds: now }),
        }
    }

    fn lengths(
        &self,
        prompts: &mut Draws,
        outputs: &mut Draws,
    ) -> Result<(u32, u32), GenerateError> {
        let most = self.total_max.unwrap_or(u32::MAX);
        let mut shortest = u32::MAX;
        for _ in 0..DRAWS_MAX {
            let prompt = self.prompt.quantile(prompts.next());
            let output = self.output.quantile(outputs.next());
            if prompt + output <= most {
                return Ok((prompt, output));
            }
            shortest = shortest.min(prompt + output);
        }
        Err(GenerateError::TooLong { most, shortest })
    }
}

/// Requests that all come at once, whose answers have so many tokens in all, the longest of them this many: lengths at
/// even shares of their distribution, scaled, in an order by the seed.
pub fn exact_trace(
    [prompt, output]: &[Lengths; 2],
    (requests, tokens, longest): (usize, u64, u32),
    seed: u64,
) -> Vec<Request> {
    let share = |index: usize| (index as f64 + 0.5) / requests as f64;
    let drawn: Vec<f64> = (0..requests)
        .map(|i| f64::from(output.quantile(share(i))))
        .collect();
    let others: f64 = drawn.iter().rev().skip(1).sum();
    let factor = (tokens as f64 - f64::from(longest)) / others.max(1.0);
    let cut = |length: f64| (length * factor).round().clamp(1.0, f64::from(longest)) as u32;
    let mut lengths: Vec<u32> = drawn.into_iter().map(cut).collect();
    if let Some(last) = lengths.last_mut() {
        *last = longest;
    }
    let mut missing = tokens as i64 - lengths.iter().map(|len| i64::from(*len)).sum::<i64>();
    // What rounding has left is spread over the longer half.
    for len in lengths.iter_mut().rev().skip(1).take(requests / 2) {
        let step = missing.signum();
        *len = (i64::from(*len) + step) as u32;
        missing -= step;
    }
    let (mut order, mut prompts) = (Draws::new(seed, 4), Draws::new(seed, 2));
    for index in (1..requests).rev() {
        lengths.swap(index, (order.next() * (index + 1) as f64) as usize);
    }
    let request = |output_len| Request {
        arrival: Seconds::ZERO,
        prompt_len: prompt.quantile(prompts.next()),
        output_len,
    };
    lengths.into_iter().map(request).collect()
}

/// The time between two arrivals.
enum Gap {
    None,
    Exponential(f64),
    Gamma(Gamma),
}

impl Gap {
    fn of(arrivals: Arrivals) -> Gap {
        match arrivals {
            Arrivals::AtOnce => Gap::None,
            Arrivals::Poisson { rate } => Gap::Exponential(rate),
            Arrivals::Gamma { rate, cv } => {
                let shape = 1.0 / (cv * cv);
                Gamma::new(shape, shape * rate).map_or(Gap::Exponential(rate), Gap::Gamma)
            }
        }
    }

    fn at(&self, draws: &mut Draws) -> f64 {
        match self {
            Gap::None => 0.0,
            Gap::Exponential(rate) => -draws.next().ln() / rate,
            Gap::Gamma(by) => by.inverse_cdf(draws.next()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(arrivals: Arrivals) -> Generator {
        Generator {
            arrivals,
            prompt: "alpaca-prompt".parse().unwrap(),
            output: "exponential:100".parse().unwrap(),
            total_max: Some(300),
            requests: 4000,
            seed: 3,
        }
    }

    #[test]
    fn rates_and_bursts_are_those_asked_for() {
        for (arrivals, rate, cv) in [
            (Arrivals::Poisson { rate: 5.0 }, 5.0, 1.0),
            (Arrivals::Gamma { rate: 2.0, cv: 3.0 }, 2.0, 3.0),
        ] {
            let trace = generator(arrivals).requests().unwrap();
            let gaps: Vec<f64> = trace
                .windows(2)
                .map(|two| two[1].arrival.0 - two[0].arrival.0)
                .collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * rate - 1.0).abs() < 0.12, "{mean}");
            assert!((square.sqrt() / mean / cv - 1.0).abs() < 0.12);
            assert!(gaps.iter().all(|gap| *gap >= 0.0));
        }
    }

    #[test]
    fn an_exact_trace_has_the_tokens_that_are_asked_for() {
        let lengths = ["alpaca-prompt", "alpaca-output-bert"].map(|name| name.parse().unwrap());
        let trace = exact_trace(&lengths, (10_000, 558_664, 989), 1);
        let tokens: u64 = trace.iter().map(|r| u64::from(r.output_len)).sum();
        let longest = trace.iter().map(|r| r.output_len).max();
        assert_eq!((trace.len(), tokens, longest), (10_000, 558_664, Some(989)));
        assert_ne!(trace, exact_trace(&lengths, (10_000, 558_664, 989), 2));
    }

    #[test]
    fn lengths_that_are_never_so_short_and_rates_that_no_trace_holds_are_refused() {
        let too_long = Generator {
            prompt: "constant:100".parse().unwrap(),
            output: "uniform:220,230".parse().unwrap(),
            ..generator(Arrivals::AtOnce)
        };
        let Err(GenerateError::TooLong { most, shortest }) = too_long.requests() else {
            panic!("it is at least 320")
        };
        assert!(most == 300 && (320..330).contains(&shortest), "{shortest}");
        let rare = generator(Arrivals::Poisson { rate: 1e-9 }).requests();
        assert!(matches!(rare, Err(GenerateError::TooLate { .. })));
    }

    #[test]
    fn a_seed_decides_all_and_nothing_is_too_long() {
        let all = generator(Arrivals::AtOnce);
        let trace = all.requests().unwrap();
        assert_eq!(Ok(&trace), all.requests().as_ref());
        let other = Generator { seed: 4, ..all }.requests();
        assert_ne!(Ok(&trace), other.as_ref());
        assert!(
            trace
                .iter()
                .all(|r| r.total_len() <= 300 && r.output_len >= 1)
        );
        assert!(trace.iter().all(|r| r.arrival == Seconds::ZERO));
    }
}
