//! A text in windows, which overlap so that each of its tokens is scored once.

use plimsoll_core::workload::Workload;

/// Windows of a text: of each, the first half is the prompt, and the first token after it comes out of
/// prefill; the others are scored. Each window begins as many tokens on as are scored.
#[derive(Debug, Clone, PartialEq)]
pub struct Windows {
    prompt_len: usize,
    windows: Vec<Vec<u32>>,
}

impl Windows {
    /// The fewest tokens that a window can have.
    pub const CONTEXT_MIN: u32 = 4;

    /// Those of a text, of `context` tokens each. What is left at its end is less than what a window
    /// scores, and is not scored; neither is what the first prompt has.
    pub fn of(ids: &[u32], context: u32) -> Windows {
        let context = context.max(Windows::CONTEXT_MIN) as usize;
        let prompt_len = context / 2;
        let windows = ids.windows(context).step_by(context - prompt_len - 1);
        Windows {
            prompt_len,
            windows: windows.map(<[u32]>::to_vec).collect(),
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether the text is shorter than a window.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// So many at a time.
    pub(super) fn groups(&self, size: usize) -> impl Iterator<Item = Windows> + '_ {
        self.windows.chunks(size).map(|windows| Windows {
            prompt_len: self.prompt_len,
            windows: windows.to_vec(),
        })
    }

    /// What is asked of an executor: a window is a sequence.
    pub(super) fn workload(&self) -> Workload {
        let context = self.windows.first().map_or(0, Vec::len);
        Workload {
            prompt_len: self.prompt_len as u32,
            gen_len: (context - self.prompt_len) as u32,
            num_prompts: Some(self.len() as u64),
        }
    }

    /// What is prefilled of each.
    pub(super) fn prompts(&self) -> Vec<Vec<u32>> {
        let prompts = self.windows.iter().map(|w| w[..self.prompt_len].to_vec());
        prompts.collect()
    }

    /// What each goes on with.
    pub(super) fn answers(&self) -> Vec<Vec<u32>> {
        let answers = self.windows.iter().map(|w| w[self.prompt_len..].to_vec());
        answers.collect()
    }

    /// The tokens that a step of decode predicts, a window each.
    pub(super) fn targets(&self, step: usize) -> Vec<u32> {
        let at = self.prompt_len + 1 + step;
        self.windows.iter().map(|window| window[at]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_behind_the_first_prompt_is_scored_once() {
        let ids: Vec<u32> = (0..30).collect();
        let windows = Windows::of(&ids, 9);
        // 4 in the prompt, 1 of prefill, 4 scored.
        assert_eq!(windows.workload().prompt_len, 4);
        assert_eq!(windows.workload().gen_len, 5);
        assert_eq!(windows.len(), 6);
        assert_eq!(windows.prompts()[1], [4, 5, 6, 7]);
        assert_eq!(windows.answers()[1], [8, 9, 10, 11, 12]);
        let groups = windows.groups(4);
        let mut scored: Vec<u32> = groups
            .flat_map(|group| (0..4).flat_map(move |step| group.targets(step)))
            .collect();
        scored.sort_unstable();
        // The last window ends with 28; one token is left.
        assert_eq!(scored, (5..29).collect::<Vec<u32>>());
    }

    #[test]
    fn a_text_shorter_than_a_window_has_none() {
        assert!(Windows::of(&[1, 2, 3], 4).is_empty());
        assert_eq!(Windows::of(&[1, 2, 3, 4], 4).targets(0), [4]);
    }
}
