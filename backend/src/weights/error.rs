//! Why weights cannot be had.

use std::io;
use std::path::PathBuf;

use plimsoll_core::model::Family;
use thiserror::Error;

use crate::kernels::KernelError;

/// Why weights cannot be had. Each message names the file, the tensor and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightError {
    /// A file cannot be opened or read.
    #[error("{}: {source}; give a folder that holds model.safetensors, or its shards with model.safetensors.index.json", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A safetensors file contradicts itself: cut short, or a header that is not true.
    #[error("{}: not a whole safetensors file ({why}); fetch it again", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The index of a sharded checkpoint is not one.
    #[error("{}: not the index of a sharded checkpoint ({source}); fetch it again", file.display())]
    Index {
        /// The file.
        file: PathBuf,
        /// What the JSON parser says.
        source: serde_json::Error,
    },
    /// A shard that the index names is not there.
    #[error("{}: {source}; {} names it: fetch the checkpoint completely", file.display(), super::checkpoint::INDEX)]
    NoShard {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A shard does not have what the index says.
    #[error("{}: no tensor `{tensor}`, which {} says is there; fetch both again", file.display(), super::checkpoint::INDEX)]
    NotInShard {
        /// The file.
        file: PathBuf,
        /// The name.
        tensor: String,
    },
    /// No file has the tensor.
    #[error("{}: no tensor `{tensor}`; the checkpoint is of another model, or a shard is missing: fetch it completely", directory.display())]
    Missing {
        /// Where it was looked for.
        directory: PathBuf,
        /// The name.
        tensor: String,
    },
    /// A layer has a tensor that the model does not.
    #[error("{}: tensor `{tensor}` has no place in the {family} that config.json describes, and tokens would be wrong without it; give the config.json that belongs to these weights", file.display())]
    Unused {
        /// The file.
        file: PathBuf,
        /// The name.
        tensor: String,
        /// The model's family.
        family: Family,
    },
    /// A layer after the model's last.
    #[error("{}: tensor `{tensor}` is of a layer after the {layers} of config.json; give the config.json that belongs to these weights", file.display())]
    Deeper {
        /// The file.
        file: PathBuf,
        /// The name.
        tensor: String,
        /// Layers that the model says it has.
        layers: u32,
    },
    /// The tensor has another shape than the model says.
    #[error("{}: tensor `{tensor}` has shape {found:?}, the model needs {expected:?}; give the config.json that belongs to these weights", file.display())]
    Shape {
        /// The file.
        file: PathBuf,
        /// The name.
        tensor: String,
        /// By the model.
        expected: Vec<u64>,
        /// In the file.
        found: Vec<usize>,
    },
    /// The tensor's elements are of a type that is not read.
    #[error("{}: tensor `{tensor}` is stored as {found}; convert the checkpoint to F32, F16 or BF16", file.display())]
    Type {
        /// The file.
        file: PathBuf,
        /// The name.
        tensor: String,
        /// The type in the file.
        found: String,
    },
    /// An element that the plan's type cannot hold, or that is no number.
    #[error("{}: tensor `{tensor}` holds an element that is not finite as {dtype}; {}", file.display(), if *dtype == "f16" { "plan with bf16 or f32, or fetch the file again" } else { "fetch the file again" })]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The name.
        tensor: String,
        /// The plan's type.
        dtype: &'static str,
    },
    /// The place that the tensor goes to does not have its size.
    #[error("tensor `{tensor}` does not fit its place: {source}")]
    Place {
        /// The name.
        tensor: String,
        /// How.
        source: KernelError,
    },
}

impl WeightError {
    /// The same, of a file that an index names.
    pub(super) fn of_shard(self) -> WeightError {
        match self {
            WeightError::Io { file, source } => WeightError::NoShard { file, source },
            other => other,
        }
    }
}
