//! Checkpoints in the safetensors format, whole or in shards.
//!
//! Files are read by offset, not mapped: a file that is cut while it is used is then an error and not a
//! signal. A tensor goes straight to where it lives; where the types differ, 64 Ki elements at a time. So
//! no more of a checkpoint is in memory than its tiers hold there, and a block that is on its way to the disk or a GPU, and one that is
//! larger than memory loads.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use plimsoll_core::Dtype;
use plimsoll_core::model::{ModelSpec, TensorRole, TensorSpec};
use safetensors::tensor::{Dtype as Stored, Metadata, TensorInfo};
use serde_json::Value;

use super::{WeightError, WeightSource, place_of};
use crate::kernels::ElementsMut;

/// Says which shard has which tensor.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// A longer header is a lie: the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes in front of the header: its length.
const LENGTH_BYTES: u64 = 8;
/// Ends of names of tensors that no token depends on: frequencies, which follow from config.json, and scales of a cache in 8 bits,
/// which is not kept here.
const SPARE: [&str; 5] = [
    ".inv_freq",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".output_scale",
];
/// Elements that are converted at a time.
const BLOCK: usize = 1 << 16;

/// A folder with `model.safetensors`, or with shards and `model.safetensors.index.json`.
#[derive(Debug)]
pub struct Safetensors {
    directory: PathBuf,
    shards: Vec<Shard>,
    /// The shard of each tensor.
    places: HashMap<String, usize>,
    optional_prefix: &'static str,
    /// Whether embedding and head are one tensor.
    tied: bool,
}

/// One file.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl Safetensors {
    /// Opens a model's checkpoint and reads its headers; tensors are read when they are asked for.
    ///
    /// # Errors
    /// A file that is absent, cut short, or that contradicts itself or the index.
    pub fn open(directory: &Path, model: &ModelSpec) -> Result<Safetensors, WeightError> {
        let index = directory.join(INDEX);
        let (shards, places) = if index.exists() {
            open_shards(directory, weight_map(&index)?)?
        } else {
            let shard = Shard::open(directory.join("model.safetensors"))?;
            let names = shard.metadata.offset_keys().into_iter();
            let places = names.map(|name| (name, 0)).collect();
            (vec![shard], places)
        };
        Ok(Safetensors {
            directory: directory.to_owned(),
            shards,
            places,
            optional_prefix: model.family.optional_prefix(),
            tied: model.tie_word_embeddings,
        })
    }

    /// That all tensors of a model are there, in their shapes and in types that are read, no further layer, and nothing of a layer
    /// that the model does not have. Only headers are looked at.
    ///
    /// # Errors
    /// The first that is not, or that should not be.
    pub fn check(&self, model: &ModelSpec) -> Result<(), WeightError> {
        let blocks = 0..model.num_blocks();
        let mut tensors = blocks.flat_map(|block| model.tensors(block));
        tensors.try_for_each(|tensor| self.stored(&tensor).map(|_| ()))?;
        let layers = model.num_hidden_layers;
        let deeper = ModelSpec {
            num_hidden_layers: layers + 1,
            ..model.clone()
        };
        let mut next = deeper.tensors(layers + 1).into_iter();
        match next.find_map(|tensor| self.find(&tensor)) {
            Some((shard, _, tensor)) => Err(WeightError::Deeper {
                file: shard.path.clone(),
                tensor,
                layers,
            }),
            None => self.unused(model).map_or(Ok(()), Err),
        }
    }

    /// The first tensor of a layer that the model does not use, but for those of [`SPARE`].
    fn unused(&self, model: &ModelSpec) -> Option<WeightError> {
        let tensors = (0..model.num_blocks()).flat_map(|block| model.tensors(block));
        let used: HashSet<String> = tensors.filter_map(|t| Some(self.find(&t)?.2)).collect();
        let of_first = model.tensors(1).first()?.name.to_string();
        let (layers, _) = of_first.split_once(".0.")?;
        let bare = layers.strip_prefix(self.optional_prefix).unwrap_or(layers);
        let is_of_layer = |name: &str| {
            let rest = name.strip_prefix(layers).or(name.strip_prefix(bare));
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        let is_unused = |name: &&String| {
            let is_spare = SPARE.iter().any(|end| name.ends_with(end));
            is_of_layer(name) && !used.contains(*name) && !is_spare
        };
        let tensor = self.places.keys().filter(is_unused).min()?;
        Some(WeightError::Unused {
            file: self.shards[self.places[tensor]].path.clone(),
            tensor: tensor.clone(),
            family: model.family,
        })
    }

    /// The tensor as it is stored, which is as the model needs it.
    fn stored(&self, tensor: &TensorSpec) -> Result<(&Shard, &TensorInfo, String), WeightError> {
        let missing = || WeightError::Missing {
            directory: self.directory.clone(),
            tensor: tensor.name.to_string(),
        };
        let (shard, info, name) = self.find(tensor).ok_or_else(missing)?;
        let expected = match tensor.is_vector() && info.shape.len() == 1 {
            true => vec![tensor.cols],
            false => vec![tensor.rows, tensor.cols],
        };
        let found = info.shape.iter().map(|n| *n as u64);
        if !found.eq(expected.iter().copied()) {
            return Err(WeightError::Shape {
                file: shard.path.clone(),
                tensor: name,
                expected,
                found: info.shape.clone(),
            });
        }
        match info.dtype {
            Stored::F32 | Stored::F16 | Stored::BF16 => Ok((shard, info, name)),
            other => Err(WeightError::Type {
                file: shard.path.clone(),
                tensor: name,
                found: other.to_string(),
            }),
        }
    }

    /// The tensor under its name, with or without the prefix that some checkpoints leave off. Where
    /// embedding and head are tied, a checkpoint has either's name.
    fn find(&self, tensor: &TensorSpec) -> Option<(&Shard, &TensorInfo, String)> {
        let full = tensor.name.to_string();
        let bare = full.strip_prefix(self.optional_prefix);
        let may_be_head = matches!(tensor.role, TensorRole::TokenEmbedding | TensorRole::LmHead);
        let head = (self.tied && may_be_head).then_some("lm_head.weight");
        let names = [Some(full.as_str()), bare, head];
        names.into_iter().flatten().find_map(|name| {
            let shard = &self.shards[*self.places.get(name)?];
            Some((shard, shard.metadata.info(name)?, name.to_owned()))
        })
    }
}

/// The files that an index names, each once, and the number of the one that has each tensor.
fn open_shards(
    directory: &Path,
    map: BTreeMap<String, String>,
) -> Result<(Vec<Shard>, HashMap<String, usize>), WeightError> {
    let mut shards = Vec::new();
    let mut numbers = HashMap::new();
    let mut places = HashMap::new();
    for (tensor, name) in map {
        let number = match numbers.get(&name) {
            Some(number) => *number,
            None => {
                shards.push(Shard::open(directory.join(&name)).map_err(WeightError::of_shard)?);
                let number = shards.len() - 1;
                numbers.insert(name, number);
                number
            }
        };
        let shard: &Shard = &shards[number];
        if shard.metadata.info(&tensor).is_none() {
            return Err(WeightError::NotInShard {
                file: shard.path.clone(),
                tensor,
            });
        }
        places.insert(tensor, number);
    }
    Ok((shards, places))
}

/// The file of each tensor, as an index says.
fn weight_map(index: &Path) -> Result<BTreeMap<String, String>, WeightError> {
    let text = fs::read_to_string(index).map_err(|source| WeightError::Io {
        file: index.to_owned(),
        source,
    })?;
    let parsed: Value = serde_json::from_str(&text).map_err(|source| WeightError::Index {
        file: index.to_owned(),
        source,
    })?;
    let damaged = || WeightError::Damaged {
        file: index.to_owned(),
        why: "it has no `weight_map` from tensors to files of this folder".to_owned(),
    };
    let map = parsed.get("weight_map").and_then(Value::as_object);
    let entries = map.ok_or_else(damaged)?.iter().map(|(tensor, name)| {
        let name = name.as_str().ok_or_else(damaged)?;
        match Path::new(name).file_name().is_some_and(|file| file == name) {
            true => Ok((tensor.clone(), name.to_owned())),
            false => Err(damaged()),
        }
    });
    entries.collect()
}

/// What is wrong with a header, without the names that a program has for its parts.
fn why_no_header(error: &serde_json::Error) -> String {
    let said = error.to_string();
    if !error.is_data() {
        format!("its header is no JSON: {said}")
    } else if said.starts_with("invalid type") || said.starts_with("missing field") {
        "its header does not give each tensor a dtype, a shape and data_offsets".to_owned()
    } else {
        format!("its header: {said}")
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Shard, WeightError> {
        let io_error = |source| WeightError::Io {
            file: path.clone(),
            source,
        };
        let damaged = |why: String| WeightError::Damaged {
            file: path.clone(),
            why,
        };
        let mut file = File::open(&path).map_err(io_error)?;
        let file_bytes = file.metadata().map_err(io_error)?.len();
        let mut length = [0; LENGTH_BYTES as usize];
        if file_bytes < LENGTH_BYTES {
            return Err(damaged(format!("it has {file_bytes} bytes")));
        }
        file.read_exact(&mut length).map_err(io_error)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > HEADER_BYTES_MAX.min(file_bytes - LENGTH_BYTES) {
            let why = format!("its header claims {header_bytes} of {file_bytes} bytes");
            return Err(damaged(why));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(io_error)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(why_no_header(&error)))?;
        let data_start = LENGTH_BYTES + header_bytes;
        let (found, needed) = (file_bytes - data_start, metadata.data_len() as u64);
        if found != needed {
            let why = format!("its header describes {needed} bytes of data, it has {found}");
            return Err(damaged(why));
        }
        Ok(Shard {
            path,
            file,
            metadata,
            data_start,
        })
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), WeightError> {
        let read = self.file.read_exact_at(into, self.data_start + at);
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => WeightError::Damaged {
                file: self.path.clone(),
                why: "it became shorter since it was opened".to_owned(),
            },
            _ => WeightError::Io {
                file: self.path.clone(),
                source,
            },
        })
    }
}

impl WeightSource for Safetensors {
    fn load(&self, tensor: &TensorSpec, dtype: Dtype, into: &mut [u8]) -> Result<(), WeightError> {
        let (shard, info, name) = self.stored(tensor)?;
        place_of(tensor, dtype, into)?;
        let start = info.data_offsets.0 as u64;
        let converter = Converter {
            shard,
            name: &name,
            dtype,
        };
        match (info.dtype, dtype) {
            (Stored::F32, Dtype::F32) | (Stored::F16, Dtype::F16) | (Stored::BF16, Dtype::Bf16) => {
                shard.read(start, into)?;
                converter.check(into)
            }
            (Stored::F32, _) => converter.convert(start, into, 4, widen_f32),
            (Stored::F16, _) => converter.convert(start, into, 2, widen_f16),
            // No other type is read.
            _ => converter.convert(start, into, 2, widen_bf16),
        }
    }
}

fn widen_f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().unwrap_or_default())
}

fn widen_f16(bytes: &[u8]) -> f32 {
    f16::from_le_bytes(bytes.try_into().unwrap_or_default()).to_f32()
}

fn widen_bf16(bytes: &[u8]) -> f32 {
    bf16::from_le_bytes(bytes.try_into().unwrap_or_default()).to_f32()
}

/// Brings one tensor from its type in the file to the plan's.
struct Converter<'a> {
    shard: &'a Shard,
    name: &'a str,
    dtype: Dtype,
}

impl Converter<'_> {
    fn not_finite(&self) -> WeightError {
        WeightError::NotFinite {
            file: self.shard.path.clone(),
            tensor: self.name.to_owned(),
            dtype: self.dtype.name(),
        }
    }

    fn place(&self, source: crate::kernels::KernelError) -> WeightError {
        WeightError::Place {
            tensor: self.name.to_owned(),
            source,
        }
    }

    /// That all elements are numbers: exponents that are all ones are infinities and NaNs.
    fn check(&self, stored: &[u8]) -> Result<(), WeightError> {
        let halves_without = |exponent: u16| {
            let mut elements = stored.as_chunks().0.iter();
            elements.all(|b| u16::from_le_bytes(*b) & exponent != exponent)
        };
        let finite = match self.dtype {
            Dtype::F32 => stored
                .as_chunks()
                .0
                .iter()
                .all(|b| f32::from_le_bytes(*b).is_finite()),
            Dtype::F16 => halves_without(0x7c00),
            Dtype::Bf16 => halves_without(0x7f80),
        };
        if finite {
            Ok(())
        } else {
            Err(self.not_finite())
        }
    }

    fn convert(
        &self,
        start: u64,
        into: &mut [u8],
        size: usize,
        widen: impl Fn(&[u8]) -> f32,
    ) -> Result<(), WeightError> {
        let target_size = self.dtype.size_bytes() as usize;
        let mut read = vec![0; BLOCK * size];
        let mut wide = vec![0.0; BLOCK];
        for (block, into) in into.chunks_mut(BLOCK * target_size).enumerate() {
            let count = into.len() / target_size;
            let read = &mut read[..count * size];
            self.shard
                .read(start + (block * BLOCK * size) as u64, read)?;
            for (wide, bytes) in wide.iter_mut().zip(read.chunks_exact(size)) {
                *wide = widen(bytes);
            }
            let mut elements =
                ElementsMut::from_bytes(into, self.dtype).map_err(|source| self.place(source))?;
            elements.store(0..count, &wide[..count]);
            self.check(into)?;
        }
        Ok(())
    }
}
