//! Finding a model: a name of the registry, a `config.json`, or a folder that holds one.

use std::path::{Path, PathBuf};

use plimsoll_core::Dtype;
use plimsoll_core::model::{ModelError, ModelSpec, registry};

use super::{InputError, read_text};

/// A model and where it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundModel {
    /// Its shape.
    pub spec: ModelSpec,
    /// The folder of its configuration; none for a model of the registry.
    pub folder: Option<PathBuf>,
    /// What its config.json calls the type of its weights, if it says one.
    pub stored: Option<String>,
    /// Whether a folder was asked for, which is to be a checkpoint, and not a configuration alone.
    is_folder: bool,
}

impl FoundModel {
    /// The type to keep it in: what is asked, else what its config.json says, else f16.
    ///
    /// # Errors
    /// A config.json that says a type which is not known here, where none is asked.
    pub fn dtype(&self, asked: Option<Dtype>) -> Result<Dtype, InputError> {
        if let Some(dtype) = asked {
            return Ok(dtype);
        }
        let Some(stored) = &self.stored else {
            return Ok(Dtype::F16);
        };
        match stored.trim_start_matches("torch.") {
            "float16" | "half" => Ok(Dtype::F16),
            "bfloat16" => Ok(Dtype::Bf16),
            "float32" | "float" => Ok(Dtype::F32),
            _ => Err(InputError::BadFile(format!(
                "{}: its config.json says dtype `{stored}`, which cannot be computed with here; \
                 give --dtype f16, bf16 or f32",
                self.spec.name
            ))),
        }
    }

    /// The folder, where weights lie in it.
    ///
    /// # Errors
    /// A folder was asked for, and there are none.
    pub fn checkpoint(&self) -> Result<Option<&Path>, InputError> {
        let Some(folder) = self.folder.as_deref().filter(|_| self.is_folder) else {
            return Ok(None);
        };
        let weights = |name: &str| folder.join(name).is_file();
        if weights("model.safetensors") || weights("model.safetensors.index.json") {
            return Ok(Some(folder));
        }
        let problem = "has no weights (model.safetensors, or model.safetensors.index.json)";
        let remedy = match weights("pytorch_model.bin") || weights("pytorch_model.bin.index.json") {
            true => "convert pytorch_model.bin to safetensors",
            false => "fetch them, or give its config.json for synthetic weights",
        };
        Err(InputError::bad_file(folder, "--model", problem, remedy))
    }
}

/// The model that `--model` names.
///
/// # Errors
/// A name that no model has, or a file that describes none.
pub fn find_model(wanted: &str) -> Result<FoundModel, InputError> {
    let path = Path::new(wanted);
    if path.is_dir() {
        let config = path.join("config.json");
        if config.is_file() || registry::find(wanted).is_err() {
            if let Some(file) = gguf_in(path).filter(|_| !config.is_file()) {
                return Err(no_gguf(&file));
            }
            return Ok(FoundModel {
                is_folder: true,
                ..read_config(&config)?
            });
        }
    }
    if let Some(name) = hub_name(wanted).filter(|_| !path.exists()) {
        let said = format!(
            "--model {wanted}: there is no such folder, and nothing is downloaded; give the folder of the checkpoint, or \
             `{name}` for its shape alone"
        );
        return Err(InputError::UnknownName(said));
    }
    if path.is_file() && path.extension().is_some_and(|kind| kind == "safetensors") {
        let problem = "holds weights, and not what model they are of";
        let remedy = "give the folder that it lies in, with its config.json";
        return Err(InputError::bad_whole_file(path, problem, remedy));
    }
    if path.is_file() && is_gguf(path) {
        return Err(no_gguf(path));
    }
    if let Some(name) = hub_like(wanted).filter(|_| !path.exists())
        && let Some(near) = registry::instead_of(name)
    {
        let said = format!(
            "--model {wanted}: there is no such folder, and nothing is downloaded; give the folder of the checkpoint; as a name: {near}"
        );
        return Err(InputError::UnknownName(said));
    }
    if path.is_file() || wanted.contains(['/', '\\']) || wanted.ends_with(".json") {
        return read_config(path);
    }
    match registry::find(wanted) {
        Ok(spec) => Ok(FoundModel {
            spec,
            folder: None,
            stored: None,
            is_folder: false,
        }),
        Err(error) => Err(InputError::UnknownName(format!("--model: {error}"))),
    }
}

/// The model that is known under the last part of a name on the Hugging Face Hub.
fn hub_name(wanted: &str) -> Option<String> {
    let (_, name) = wanted.split_once('/')?;
    registry::of_that_shape(name).map(str::to_owned)
}

/// The last part of a name like those of the Hub, which say whose and what.
fn hub_like(wanted: &str) -> Option<&str> {
    let (whose, name) = wanted.split_once('/')?;
    let is_name =
        |part: &str| !part.is_empty() && !part.starts_with(['.', '~']) && !part.contains('/');
    let is_file = name.ends_with(".json") || is_gguf(Path::new(name));
    (is_name(whose) && is_name(name) && !is_file).then_some(name)
}

fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|kind| kind.eq_ignore_ascii_case("gguf"))
}

fn gguf_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find(|path| is_gguf(path))
}

fn no_gguf(file: &Path) -> InputError {
    let problem = "is GGUF, which is not read";
    let remedy = "give the Hugging Face folder that it was made of (config.json, tokenizer.json, *.safetensors), or its config.json or a \
                  known name for the shape alone; --compress-weight keeps weights in 4 bits";
    InputError::bad_whole_file(file, problem, remedy)
}

/// What is read of a model's folder, or its configuration alone; nothing of a known name.
pub fn files_of_model(wanted: &str) -> Vec<PathBuf> {
    let path = Path::new(wanted);
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let is_read = |file: &PathBuf| {
        let name = file.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| {
            let known = ["config.json", "tokenizer.json", "generation_config.json"];
            known.contains(&&*name) || name.contains(".safetensors")
        })
    };
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_read).collect()
}

fn read_config(config: &Path) -> Result<FoundModel, InputError> {
    let text = read_text(config)?;
    let folder = config.parent().unwrap_or(Path::new("")).to_owned();
    let spec = ModelSpec::from_hf_config(&name_of(config), &text)
        .map_err(|error| bad_config(config, &error))?;
    Ok(FoundModel {
        spec,
        folder: Some(folder),
        stored: stored(&text),
        is_folder: false,
    })
}

/// The type that a config.json says: `dtype`, which was called `torch_dtype` before.
fn stored(config: &str) -> Option<String> {
    let keys: serde_json::Value = serde_json::from_str(config).ok()?;
    let mut said = ["dtype", "torch_dtype"].into_iter();
    said.find_map(|key| Some(keys.get(key)?.as_str()?.to_owned()))
}

/// The folder's name, or the file's where it is not called `config.json`.
fn name_of(config: &Path) -> String {
    let folder = || {
        let whole = std::path::absolute(config).ok()?;
        Some(whole.parent()?.file_name()?.to_string_lossy().into_owned())
    };
    let stem = config.file_stem().unwrap_or_default().to_string_lossy();
    match &*stem {
        "config" => folder().unwrap_or_else(|| stem.into_owned()),
        _ => stem.into_owned(),
    }
}

fn bad_config(config: &Path, error: &ModelError) -> InputError {
    InputError::BadFile(format!("{}: {error}", config.display()))
}

/// Keys that say most about a model come first where several differ.
const TELLING: [&str; 6] = [
    "family",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
];

/// Keys that change neither tensors nor arithmetic.
const NO_MATTER: [&str; 3] = ["name", "bos_token_id", "eos_token_ids"];

/// A key in which two models differ where it matters, with both values.
pub fn first_difference(a: &ModelSpec, b: &ModelSpec) -> Option<(String, String, String)> {
    let as_map = |spec| match serde_json::to_value(spec) {
        Ok(serde_json::Value::Object(map)) => map,
        _ => serde_json::Map::new(),
    };
    let (a, b) = (as_map(a), as_map(b));
    let mut keys = TELLING.into_iter().chain(a.keys().map(String::as_str));
    let key = keys.find(|key| !NO_MATTER.contains(key) && a.get(*key) != b.get(*key))?;
    let value = |map: &serde_json::Map<_, _>| {
        let value: &serde_json::Value = map.get(key).unwrap_or(&serde_json::Value::Null);
        value.to_string()
    };
    Some((key.to_owned(), value(&a), value(&b)))
}
