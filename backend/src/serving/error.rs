//! What keeps requests from being served.

use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;
use thiserror::Error;

use crate::decoder::DecoderError;
use crate::tiers::TierError;

/// Why an iteration did not end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServingError {
    /// A tier refuses.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// A stage refuses.
    #[error(transparent)]
    Decoder(#[from] DecoderError),
    /// A KV manager gave away more blocks than there are.
    #[error(
        "request {request} needs {needed} blocks of the KV cache and {free} are free: the KV manager gave away more \
         than there is"
    )]
    CacheFull {
        /// Which request.
        request: u32,
        /// How many blocks it lacks.
        needed: usize,
        /// How many there are.
        free: usize,
    },
    /// A tier has no room for what is to be moved there.
    #[error(
        "{needed} of the KV cache are to be moved to the {tier}, which has room for {room}; give it more"
    )]
    TierFull {
        /// Which.
        tier: Tier,
        /// Keys and values.
        needed: Bytes,
        /// What is left.
        room: Bytes,
    },
    /// A request is to come back that was not moved out.
    #[error("request {request} is not on the host, from where it is to come back")]
    NotAway {
        /// Which request.
        request: u32,
    },
    /// A piece names a request that nobody gave.
    #[error("request {request} has no prompt; there are {known}")]
    NoPrompt {
        /// Which request.
        request: u32,
        /// How many there are.
        known: usize,
    },
    /// An iteration computes other tokens than a request has.
    #[error("request {request} has {found} tokens, and the iteration ends at {expected}")]
    Tokens {
        /// Which request.
        request: u32,
        /// Where the iteration ends.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A piece that does not say who takes part.
    #[error("the iteration does not say which requests it computes; describe them")]
    NoRoster,
}
