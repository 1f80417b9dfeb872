//! Finding a hardware profile: a path, a name in `hw-profiles/`, or one that is compiled in.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_core::did_you_mean;
use plimsoll_core::hardware::{HardwareProfile, ProfileError, embedded};

use super::{InputError, read_text};

/// Where profiles are looked for by name, in the current directory.
const FOLDER: &str = "hw-profiles";

/// A profile that can be asked for by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name to give to `--hw`.
    pub name: String,
    /// The file, or none where it is compiled in.
    pub file: Option<PathBuf>,
}

/// The profile that `--hw` names.
///
/// # Errors
/// A name that no profile has, or a file that is not a profile.
pub fn find_profile(wanted: &str) -> Result<HardwareProfile, InputError> {
    if let Some(file) = file_of_profile(wanted) {
        return read_profile(&file);
    }
    // As vendors write them: T4, RTX3090.
    let name = without_end(wanted).to_lowercase();
    if let Some(text) = embedded::text(&name) {
        let origin = format!("{name}.toml");
        return Ok(HardwareProfile::parse(text, &origin, &embedded::parent)?);
    }
    Err(not_found(wanted, &name))
}

/// The file that such words stand for: a path, with its end or without, or a name in the folder. None of an embedded profile.
pub fn file_of_profile(wanted: &str) -> Option<PathBuf> {
    let name = without_end(wanted);
    let with_end = match is_plain(name) {
        true => Path::new(FOLDER).join(format!("{name}.toml")),
        false => PathBuf::from(format!("{name}.toml")),
    };
    let files = [PathBuf::from(wanted), with_end];
    files.into_iter().find(|file| file.is_file())
}

fn without_end(wanted: &str) -> &str {
    wanted.strip_suffix(".toml").unwrap_or(wanted)
}

/// All profiles that have a name: those of the folder hide embedded ones of the same name.
pub fn list_profiles() -> Vec<Listed> {
    let mut found: BTreeMap<String, Option<PathBuf>> = embedded::names()
        .map(|name| (name.to_owned(), None))
        .collect();
    let entries = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let named = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".toml"));
        // What others extend is no machine of its own.
        let base = |name: &str| embedded::text(name).is_some() && !found.contains_key(name);
        if let Some(name) = named.filter(|name| !base(name)) {
            found.insert(name.to_owned(), Some(path.clone()));
        }
    }
    found
        .into_iter()
        .map(|(name, file)| Listed { name, file })
        .collect()
}

fn read_profile(path: &Path) -> Result<HardwareProfile, InputError> {
    let text = read_text(path)?;
    let origin = path.display().to_string();
    let ancestors = Ancestors(RefCell::new(Some(path.to_owned())));
    let parent = |wanted: &str| ancestors.text(wanted);
    Ok(HardwareProfile::parse(&text, &origin, &parent)?)
}

/// Finds the profiles that others extend, one after another, from the file that the youngest of them is in; none where it is
/// compiled in.
struct Ancestors(RefCell<Option<PathBuf>>);

impl Ancestors {
    /// The text of the profile that the one before extends: a neighbour, one of the folder, or an embedded one. What is embedded
    /// extends what is: no file that happens to have a parent's name changes its numbers.
    fn text(&self, name: &str) -> Result<String, ProfileError> {
        let name = name.strip_suffix(".toml").unwrap_or(name);
        let name = name.strip_prefix("./").unwrap_or(name);
        let child = self.0.take();
        if let Some(path) = child.and_then(|child| file_of_parent(&child, name)) {
            let text = read_text(&path).map_err(|error| ProfileError {
                origin: String::new(),
                key: "extends".to_owned(),
                problem: error.to_string(),
                remedy: "name a profile that can be read".to_owned(),
            });
            self.0.replace(Some(path));
            return text;
        }
        let known = list_profiles();
        let names = known.iter().map(|listed| listed.name.as_str());
        let text = embedded::text(name).map(str::to_owned);
        text.ok_or_else(|| ProfileError::no_such_profile(name, names))
    }
}

/// The file of the profile that another one's file extends, if there is one. A file extends the embedded profile of its own name.
fn file_of_parent(child: &Path, name: &str) -> Option<PathBuf> {
    let is_own = child.file_stem().is_some_and(|stem| stem == name);
    if !is_plain(name) || (is_own && embedded::text(name).is_some()) {
        return None;
    }
    let neighbours = child.parent().unwrap_or(Path::new(""));
    let files = [neighbours, Path::new(FOLDER)].map(|folder| folder.join(format!("{name}.toml")));
    files.into_iter().find(|path| path.is_file())
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\']) && name != ".."
}

fn not_found(wanted: &str, name: &str) -> InputError {
    if Path::new(wanted).is_dir() {
        let line = format!("--hw {wanted}: is a folder; give the file of a profile in it");
        return InputError::BadFile(line);
    }
    if !is_plain(name) {
        let path = Path::new(wanted);
        let missing = || std::io::ErrorKind::NotFound.into();
        let error = std::fs::metadata(path).err().unwrap_or_else(missing);
        return InputError::unreadable(path, &error);
    }
    let known = list_profiles();
    let names = || known.iter().map(|listed| listed.name.as_str());
    let file = format!("{wanted}.toml");
    let near = match Path::new(&file).is_file() {
        true => Some(format!("did you mean `{file}`?")),
        false => did_you_mean(name, names()),
    };
    let near = near.map_or(String::new(), |near| near + " ");
    let all = names().collect::<Vec<_>>().join(", ");
    let remedy = format!("{near}give the path of a profile, or one of: {all}");
    let line = format!("--hw {wanted}: there is no such file and no such profile; {remedy}");
    // `x.toml` was meant as a file, `x` as a name.
    if name == wanted {
        InputError::UnknownName(line)
    } else {
        InputError::BadFile(line)
    }
}
