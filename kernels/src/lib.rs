//! The arithmetic of a decoder, in f32 over f32, f16, bf16 or 4-bit storage, on the calling thread.
//!
//! # One order of summation
//!
//! Every sum here has one stated order, which depends on nothing but the length of what is summed:
//! not on where the data lies, not on how many rows are computed together, not on how the cache is
//! split, not on the instruction set. So a row of a result is the same **bit for bit** in a batch of
//! one and of a hundred, in prefill and in decode, with AVX-512, AVX2 and without either.
//!
//! - A dot product runs over 16 lanes (`lane[i % 16] += a[i] * b[i]`, fused), in pieces of
//!   [`DOT_PIECE`] elements; lanes are added in a fixed tree, pieces from first to last.
//! - A weighted sum of rows (attention over V) runs from the first position to the last, fused.
//!
//! Weights and cache may be packed in groups of 4-bit codes ([`groups`]). They are unpacked in registers on
//! their way into these sums, so nothing else about them changes.
//!
//! [`simd`] says how the fast paths keep to it; `tests` at the foot of each file hold them to it.

pub mod activation;
pub mod argmax;
pub mod attention;
pub mod draw;
pub mod embed;
mod error;
mod exp;
pub mod groups;
pub mod linear;
mod many;
mod matrix;
pub mod norm;
pub mod residual;
pub mod rotary;
mod row;
pub mod simd;
pub mod softmax;
pub mod storage;
mod tile;

pub use error::KernelError;
pub use matrix::Matrix;
pub use storage::{Elements, ElementsMut};
pub use tile::DOT_PIECE;
