//! What a language model is, as far as planning and running need it: its shapes, its tensors by
//! their published names, and where both come from (`config.json`, or the built-in registry).

mod error;
mod family;
mod hf;
mod keys;
pub mod registry;
mod rope;
mod spec;
mod tensors;
mod validate;

pub use error::ModelError;
pub use family::Family;
pub use plimsoll_formats::{RotaryPairs, RotaryScaling};
pub use spec::{Activation, ModelSpec, Norm, NormPosition, Positions, QkvLayout};
pub use tensors::{TensorName, TensorRole, TensorSpec};
