//! What of a prompt may say how long its answer will be.

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHasher;

use crate::serve::Request;

/// Features are numbers below this: two may share one, and counts stay bounded.
const FEATURES: u64 = 1 << 18;

/// Words or tokens of a prompt that are looked at. What is asked stands at its start or its end, and long prompts would
/// outweigh what their lengths say.
const ENDS: usize = 64;

/// Hashed words or tokens of prompts, alone and in pairs, by request; and their lengths.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Features {
    texts: Arc<[Option<Box<[u32]>>]>,
}

impl Features {
    /// Of each request by its number, what [`of_text`](Features::of_text) or [`of_tokens`](Features::of_tokens) says;
    /// none where a prompt is not known.
    pub fn new(texts: Vec<Option<Box<[u32]>>>) -> Features {
        Features {
            texts: texts.into(),
        }
    }

    /// A prompt's words, without their case and what stands beside their letters and digits, and their pairs.
    pub fn of_text(text: &str) -> Box<[u32]> {
        let words = text
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(str::to_lowercase).collect();
        grams(&words)
    }

    /// A prompt's tokens and their pairs.
    pub fn of_tokens(ids: &[u32]) -> Box<[u32]> {
        grams(ids)
    }

    /// Requests whose prompts are known.
    pub fn texts(&self) -> usize {
        self.texts.iter().flatten().count()
    }

    /// What is known of a request, each once.
    pub(super) fn of(&self, id: u32, request: &Request) -> impl Iterator<Item = u32> {
        // Half octaves: a prompt of 10 tokens is not one of 15, and one of 1000 is one of 1010.
        let length = (2.0 * f64::from(request.prompt_len).log2()) as u32;
        let text = self.texts.get(id as usize).and_then(Option::as_deref);
        let grams = text.unwrap_or_default().iter().copied();
        std::iter::once(FEATURES as u32 + length).chain(grams)
    }
}

impl Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features of {} texts", self.texts())
    }
}

fn grams<T: Hash>(items: &[T]) -> Box<[u32]> {
    let (start, end) = match items.len() > 2 * ENDS {
        true => (&items[..ENDS], &items[items.len() - ENDS..]),
        false => (items, &items[..0]),
    };
    let of = |items: &[T]| -> Vec<u32> {
        let one = items.iter().map(|item| hashed(&(1_u8, item)));
        let two = items
            .windows(2)
            .map(|two| hashed(&(2_u8, &two[0], &two[1])));
        one.chain(two).collect()
    };
    let mut found = of(start);
    found.extend(of(end));
    found.sort_unstable();
    found.dedup();
    found.into()
}

fn hashed(of: &impl Hash) -> u32 {
    let mut hasher = FxHasher::default();
    of.hash(&mut hasher);
    (hasher.finish() % FEATURES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_words_and_pairs() {
        let of = |text: &str| Features::of_text(text);
        assert_eq!(of("Sum up: this").len(), 5);
        assert_eq!(of("Sum up: this"), of("sum UP, this!"));
        assert_ne!(of("sum up this"), of("this up sum"), "pairs have an order");
        assert_eq!(of("a a a a").len(), 2, "each once");
        assert_eq!(of("").len(), 0);
        assert_eq!(Features::of_tokens(&[5, 6]).len(), 3);
        let long: Vec<u32> = (0..100_000).collect();
        assert!(Features::of_tokens(&long).len() <= 4 * ENDS);
    }

    #[test]
    fn lengths_are_known_of_all() {
        let request = |prompt_len| Request {
            arrival: crate::units::Seconds::ZERO,
            prompt_len,
            output_len: 1,
        };
        let features = Features::new(vec![Some(Features::of_text("one"))]);
        let of = |id, len| features.of(id, &request(len)).collect::<Vec<u32>>();
        assert_eq!([of(0, 10).len(), of(1, 10).len()], [2, 1]);
        assert_eq!(of(1, 1000), of(1, 1010));
        assert_ne!(of(1, 10), of(1, 15));
        assert_eq!(features.texts(), 1);
    }
}
