//! The kernels' sources, which are part of the binary and compiled where a GPU is.

/// A source or a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Its file's name, under which others include it.
    pub name: &'static str,
    /// What is in it.
    pub text: &'static str,
}

macro_rules! source {
    ($name:literal) => {
        Source {
            name: $name,
            text: include_str!(concat!("kernels/", $name)),
        }
    };
}

/// What sources include.
pub const HEADERS: [Source; 12] = [
    source!("activated.cuh"),
    source!("elements.cuh"),
    source!("groups.cuh"),
    source!("mixed.cuh"),
    source!("product.cuh"),
    source!("prompt.cuh"),
    source!("ptx.cuh"),
    source!("reduce.cuh"),
    source!("split.cuh"),
    source!("stored.cuh"),
    source!("teams.cuh"),
    source!("warps.cuh"),
];

/// Each is compiled by itself.
pub const SOURCES: [Source; 17] = [
    source!("activation.cu"),
    source!("append.cu"),
    source!("argmax.cu"),
    source!("attention.cu"),
    source!("embed.cu"),
    source!("flat.cu"),
    source!("gemv.cu"),
    source!("groups.cu"),
    source!("norm.cu"),
    source!("packed.cu"),
    source!("parts.cu"),
    source!("prompt.cu"),
    source!("rotary.cu"),
    source!("scores.cu"),
    source!("tables.cu"),
    source!("thin.cu"),
    source!("tiles.cu"),
];

/// The source of this name, without its ending.
pub fn source(stem: &str) -> Option<&'static Source> {
    SOURCES
        .iter()
        .find(|source| source.name.strip_suffix(".cu") == Some(stem))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/kernels");
        let names = |ending: &str| {
            let files = fs::read_dir(&folder).unwrap();
            let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.filter(|name| name.ends_with(ending)).collect();
            names.sort();
            names
        };
        assert_eq!(names(".cu"), SOURCES.map(|source| source.name));
        assert_eq!(names(".cuh"), HEADERS.map(|source| source.name));
    }

    #[test]
    fn sources_need_no_toolkit() {
        for source in SOURCES.iter().chain(&HEADERS) {
            let foreign = source.text.lines().find(|line| line.contains("#include <"));
            assert_eq!(foreign, None, "{}", source.name);
        }
    }

    #[test]
    fn the_script_compiles_as_the_program_does() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/compile-kernels");
        let script = fs::read_to_string(script).unwrap();
        let options = crate::cuda::raw::OPTIONS.map(|option| format!("\"{option}\""));
        let line = format!("OPTIONS = [{}]", options.join(", "));
        assert!(script.lines().any(|found| found == line), "{line}");
    }
}
