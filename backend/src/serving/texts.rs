//! Requests' prompts, and what came out for them so far.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use plimsoll_core::roster::Member;

use super::error::ServingError;

/// All texts, by request.
#[derive(Debug)]
pub(crate) struct Texts(RwLock<Vec<Text>>);

#[derive(Debug)]
struct Text {
    tokens: Vec<u32>,
    prompt_len: usize,
}

impl Texts {
    /// Prompts, in the order of the requests' numbers.
    pub(crate) fn new(prompts: Vec<Vec<u32>>) -> Texts {
        let texts = prompts.into_iter().map(|tokens| Text {
            prompt_len: tokens.len(),
            tokens,
        });
        Texts(RwLock::new(texts.collect()))
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Text>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the tokens that an iteration computes of a request to others.
    ///
    /// # Errors
    /// [`ServingError::NoPrompt`]; [`ServingError::Tokens`].
    pub(crate) fn add_new(&self, member: &Member, ids: &mut Vec<u32>) -> Result<(), ServingError> {
        let texts = self.read();
        let (cached, tokens) = (member.cached as usize, member.tokens as usize);
        let text = texts.get(member.request as usize);
        let text = text.ok_or(ServingError::NoPrompt {
            request: member.request,
            known: texts.len(),
        })?;
        if text.tokens.len() != cached + tokens {
            return Err(ServingError::Tokens {
                request: member.request,
                expected: cached + tokens,
                found: text.tokens.len(),
            });
        }
        ids.extend(&text.tokens[cached..]);
        Ok(())
    }

    /// The next tokens of requests, which an iteration has computed.
    pub(crate) fn go_on(&self, tokens: impl IntoIterator<Item = (u32, u32)>) {
        let mut texts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (request, token) in tokens {
            texts[request as usize].tokens.push(token);
        }
    }

    /// How many tokens came out so far.
    pub(crate) fn count(&self) -> u64 {
        let texts = self.read();
        let new = texts.iter().map(|text| text.tokens.len() - text.prompt_len);
        new.sum::<usize>() as u64
    }

    /// What came out for each request so far.
    pub(crate) fn generated(&self) -> Vec<Vec<u32>> {
        let texts = self.read();
        let answers = texts.iter().map(|text| &text.tokens[text.prompt_len..]);
        answers.map(<[u32]>::to_vec).collect()
    }
}
