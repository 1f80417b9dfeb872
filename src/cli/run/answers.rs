//! Answers: what came out for each prompt, written a row each as soon as it has ended.
//!
//! Rows are in the order of the prompts: a row waits for those before it. So the file is at any time the
//! beginning of the file of an uninterrupted run, however the plan puts prompts together.

use std::io;

use serde::Serialize;
use serde_json::Value;

use super::prepare::Prepared;
use crate::files::{Prompt, Reserved, Rows};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Finish {
    /// A token came that ends a text.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
}

/// A row.
#[derive(Debug, Serialize)]
pub(super) struct Answer<'a> {
    pub id: &'a Value,
    /// How many the prompt has.
    pub prompt_tokens: usize,
    /// With the token that ended it.
    pub generated_token_ids: Vec<u32>,
    /// None without a tokenizer.
    pub text: Option<String>,
    /// None where the run stopped before its end.
    pub finish_reason: Option<Finish>,
}

/// Tokens up to the first that ends an answer, and why it ended, if it has.
pub(super) fn ended(mut ids: Vec<u32>, stop: &[u32], gen_len: u32) -> (Vec<u32>, Option<Finish>) {
    let stopped = ids.iter().position(|id| stop.contains(id));
    if let Some(last) = stopped {
        ids.truncate(last + 1);
    }
    let finish = match stopped {
        Some(_) => Some(Finish::Stop),
        None => (ids.len() >= gen_len as usize).then_some(Finish::Length),
    };
    (ids, finish)
}

impl Prepared {
    /// The answer to a prompt, by all tokens that came out for it.
    pub fn answer<'a>(&self, prompt: &'a Prompt, ids: Vec<u32>) -> io::Result<Answer<'a>> {
        let (ids, finish_reason) = ended(ids, &self.choice.stop, self.plan.workload.gen_len);
        let tokenizer = self.tokenizer.as_ref();
        let text = tokenizer.map(|it| it.decode_after(&prompt.prompt_token_ids, &ids));
        Ok(Answer {
            id: &prompt.id,
            prompt_tokens: prompt.prompt_token_ids.len(),
            text: text.transpose().map_err(io::Error::other)?,
            generated_token_ids: ids,
            finish_reason,
        })
    }

    fn has_ended(&self, ids: &[u32]) -> bool {
        let gen_len = self.plan.workload.gen_len;
        ended(ids.to_vec(), &self.choice.stop, gen_len).1.is_some()
    }
}

/// Where answers go.
pub(super) struct Answers<'a> {
    pub prepared: &'a Prepared,
    /// None where nobody asked for them.
    output: Option<Output>,
    /// Prompts of this run whose rows are written.
    written: usize,
    /// Tokens in these rows.
    tokens: usize,
    /// The first answers that have ended, which are printed in the end: at most so many.
    shown: (usize, Vec<Vec<u32>>),
    /// Why rows could not be written; none are tried after that.
    failed: Option<io::Error>,
}

enum Output {
    /// There is no row yet: until then an earlier file stays as it is.
    Reserved(Reserved),
    Rows(Rows),
}

impl<'a> Answers<'a> {
    /// Keeps the tokens of the first answers, as many as are `shown`.
    pub fn new(prepared: &'a Prepared, output: Option<Reserved>, shown: usize) -> Answers<'a> {
        Answers {
            prepared,
            output: output.map(Output::Reserved),
            written: 0,
            tokens: 0,
            shown: (shown, Vec::new()),
            failed: None,
        }
    }

    /// Writes the rows that have ended since, `so_far` being what came out for a prompt of this run.
    pub fn take(&mut self, so_far: impl Fn(usize) -> Vec<u32>) {
        let next = self.written..self.prepared.prompts.len();
        let next = next.map(|at| (at, so_far(at)));
        let ended = next.take_while(|(_, ids)| self.prepared.has_ended(ids));
        self.put(ended.collect());
    }

    /// Writes, behind the rows that have ended in turn, all else that came out: a run that stopped has no
    /// better.
    pub fn take_rest(&mut self, so_far: impl Fn(usize) -> Vec<u32>) {
        self.take(&so_far);
        let rest = self.written..self.prepared.prompts.len();
        let rest = rest.map(|at| (at, so_far(at)));
        self.put(rest.filter(|(_, ids)| !ids.is_empty()).collect());
    }

    /// Takes prompts with what came out for them.
    fn put(&mut self, which: Vec<(usize, Vec<u32>)>) {
        if self.failed.is_some() || which.is_empty() {
            return;
        }
        let (most, shown) = &mut self.shown;
        let room = most.saturating_sub(shown.len());
        shown.extend(which.iter().take(room).map(|(_, ids)| ids.clone()));
        match self.write(&which) {
            Ok(()) => self.written += which.len(),
            Err(error) => self.failed = Some(error),
        }
    }

    fn write(&mut self, which: &[(usize, Vec<u32>)]) -> io::Result<()> {
        if self.output.is_none() {
            return Ok(());
        }
        let mut text = String::new();
        let mut tokens = Vec::new();
        for (at, ids) in which {
            let prompt = &self.prepared.prompts[*at];
            let answer = self.prepared.answer(prompt, ids.clone())?;
            tokens.push(answer.generated_token_ids.len());
            text.push_str(&serde_json::to_string(&answer)?);
            text.push('\n');
        }
        let mut rows = match self.output.take() {
            Some(Output::Rows(rows)) => rows,
            Some(Output::Reserved(file)) => self.prepared.kept.open(&self.prepared.record, file)?,
            None => return Ok(()),
        };
        // Of several rows those that fit are there, even where not all do.
        let (there, written) = rows.push(&text);
        self.output = Some(Output::Rows(rows));
        self.tokens += tokens[..there].iter().sum::<usize>();
        written
    }

    /// Why rows could not be written.
    pub fn failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// The same, unless it was `known` before.
    pub fn failure_after(&mut self, known: bool) -> Option<io::Error> {
        self.failed.take_if(|_| !known)
    }

    /// The tokens of the first answers, in the order of prompts.
    pub fn take_shown(&mut self) -> Vec<Vec<u32>> {
        std::mem::take(&mut self.shown.1)
    }

    /// Prompts of this run whose rows are written, or would be if somebody had asked for them.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Whether rows could not be written.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Tokens in the rows that this run has written.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_the_first_token_that_ends_a_text_or_is_long_enough() {
        let of = |ids: &[u32], stop: &[u32]| ended(ids.to_vec(), stop, 4);
        assert_eq!(of(&[5, 6], &[2]), (vec![5, 6], None));
        assert_eq!(of(&[5, 2, 6, 2], &[2]), (vec![5, 2], Some(Finish::Stop)));
        assert_eq!(of(&[5, 6, 7, 2], &[2, 9]).1, Some(Finish::Stop));
        assert_eq!(of(&[5, 6, 7, 8], &[2]).1, Some(Finish::Length));
        assert_eq!(
            of(&[5, 2, 7, 8], &[]),
            (vec![5, 2, 7, 8], Some(Finish::Length))
        );
    }
}
