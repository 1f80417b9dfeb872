//! NVRTC through our own calls of it, where it is: it needs no GPU.

use std::io::{self, Write};

use plimsoll_backend::cuda::raw::{Compiler, Library, cubin};
use plimsoll_backend::cuda::sources::{SOURCES, Source, source};
use plimsoll_backend::cuda::{Compile, CudaError, KernelCache};

fn compiler() -> Option<Compiler> {
    let found = Compiler::find();
    if let Err(missing) = &found {
        assert!(!Library::Compiler.is_present());
        let line = format!("SKIPPED: {missing}\n");
        // Past what the test harness keeps to itself of tests that pass.
        let _ = io::stderr().write_all(line.as_bytes());
    }
    found.ok()
}

#[test]
fn a_source_becomes_a_cubin() {
    let Some(compiler) = compiler() else { return };
    assert!(compiler.version().unwrap()[0] >= 11);
    // Shared memory that is stated and that is not, tensor cores, a header within a header.
    for stem in ["norm", "flat", "append"] {
        let cubin = compiler.compile(source(stem).unwrap(), "sm_80").unwrap();
        assert_eq!(&cubin[..4], b"\x7fELF", "{stem}");
        let name = format!("{stem}_f16").replace("norm_", "layer_norm_");
        let name = name.replace("flat_f16", "flat_f16_n64_e2");
        let holds = cubin
            .windows(name.len())
            .any(|bytes| bytes == name.as_bytes());
        assert!(holds, "{name} is not in {stem}");
        let kernels = cubin::kernels(&cubin);
        assert!(kernels.contains(&name.as_str()), "{kernels:?}");
    }
}

#[test]
fn a_source_becomes_ptx_for_a_gpu_that_the_compiler_does_not_know() {
    let Some(compiler) = compiler() else { return };
    let known = compiler.capabilities().unwrap();
    assert!(known.is_sorted() && known.contains(&90), "{known:?}");
    let norm = source("norm").unwrap();
    let ptx = compiler.compile(norm, "compute_90").unwrap();
    assert_eq!(ptx.last(), Some(&0));
    let text = String::from_utf8(ptx).unwrap();
    assert!(text.contains(".target sm_90") && text.contains("layer_norm_f16"));
}

#[test]
fn what_does_not_compile_is_said_with_the_compilers_words() {
    let Some(compiler) = compiler() else { return };
    let wrong = Source {
        name: "wrong.cu",
        text: "#include \"elements.cuh\"\nint nothing = no_such_thing;",
    };
    let error = compiler.compile(&wrong, "sm_80").unwrap_err();
    assert!(matches!(error, CudaError::Compile { .. }), "{error}");
    let said = error.to_string();
    assert!(
        said.starts_with("wrong.cu does not compile for sm_80"),
        "{said}"
    );
    assert!(said.contains("no_such_thing"), "{said}");
    let error = compiler.compile(&SOURCES[0], "sm_10").unwrap_err();
    assert!(error.to_string().contains("sm_10"), "{error}");
}

/// A compiler of some version that must not be needed.
struct Unneeded([i32; 2]);

impl Compile for Unneeded {
    fn version(&self) -> Result<[i32; 2], CudaError> {
        Ok(self.0)
    }

    fn compile(&self, source: &Source, _: &str) -> Result<Vec<u8>, CudaError> {
        panic!("{} is compiled again", source.name)
    }
}

#[test]
fn what_was_compiled_is_kept() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = KernelCache::in_folder(folder.path());
    let norm = source("norm").unwrap();
    let first = cache.cubin(&compiler, norm, "sm_80").unwrap();
    assert_eq!(&first[..4], b"\x7fELF");
    let unneeded = Unneeded(compiler.version().unwrap());
    assert_eq!(cache.cubin(&unneeded, norm, "sm_80").unwrap(), first);
}
