//! Compiled kernels, CUBINs or PTX, in a folder: compiling all takes seconds, and the same sources, for the same GPUs and by the same compiler,
//! give the same kernels.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::CudaError;
use super::raw::{Compiler, OPTIONS};
use super::sources::{HEADERS, Source};
use crate::digest::digest;

/// What turns a source into a CUBIN.
pub trait Compile {
    /// Its version: major, minor.
    ///
    /// # Errors
    /// What it says.
    fn version(&self) -> Result<[i32; 2], CudaError>;
    /// Compiles a source for an architecture, such as `sm_80`.
    ///
    /// # Errors
    /// [`CudaError::Compile`] with its words.
    fn compile(&self, source: &Source, architecture: &str) -> Result<Vec<u8>, CudaError>;
}

impl Compile for Compiler {
    fn version(&self) -> Result<[i32; 2], CudaError> {
        Compiler::version(*self)
    }

    fn compile(&self, source: &Source, architecture: &str) -> Result<Vec<u8>, CudaError> {
        Compiler::compile(*self, source, architecture)
    }
}

/// Where CUBINs are kept. A file begins with the digest of what follows, so one that is cut short or changed is compiled again; and
/// whatever keeps a file from being read or written costs time and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelCache {
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// None are kept.
    pub const OFF: KernelCache = KernelCache { folder: None };

    /// In a folder, which is made with the first.
    pub fn in_folder(folder: impl Into<PathBuf>) -> KernelCache {
        KernelCache {
            folder: Some(folder.into()),
        }
    }

    /// The CUBIN of a source: as it was kept, else compiled, and kept from then on.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn cubin(
        &self,
        compiler: &dyn Compile,
        source: &Source,
        architecture: &str,
    ) -> Result<Vec<u8>, CudaError> {
        let Some(folder) = &self.folder else {
            return compiler.compile(source, architecture);
        };
        let name = name(source, architecture, compiler.version()?);
        let file = folder.join(name);
        if let Some(kept) = read(&file) {
            return Ok(kept);
        }
        let cubin = compiler.compile(source, architecture)?;
        // Who cannot keep it compiles it again.
        let _ = write(folder, &file, &cubin);
        Ok(cubin)
    }
}

/// The file of a CUBIN: by all that decides it.
fn name(source: &Source, architecture: &str, [major, minor]: [i32; 2]) -> String {
    let version = format!("{major}.{minor}");
    let texts = [source].into_iter().chain(&HEADERS);
    let texts = texts.flat_map(|source| [source.name, source.text]);
    let parts = texts.chain(OPTIONS).chain([architecture, &version]);
    let stem = source.name.trim_end_matches(".cu");
    format!("{stem}-{architecture}-{}.cubin", digest(parts))
}

/// A CUBIN behind its digest; none where that is not what was written.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    let length = digest([""; 0]).len();
    if bytes.len() < length {
        return None;
    }
    let cubin = bytes.split_off(length);
    (bytes == digest([&cubin]).as_bytes()).then_some(cubin)
}

/// Writes it beside its place first, so that nobody finds half of it there.
fn write(folder: &Path, file: &Path, cubin: &[u8]) -> io::Result<()> {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    fs::create_dir_all(folder)?;
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let beside = folder.join(format!(".{}-{number}", std::process::id()));
    let bytes = [digest([cubin]).as_bytes(), cubin].concat();
    let done = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, file));
    done.inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cuda::sources::SOURCES;

    /// A compiler whose CUBINs say what they are of.
    struct Counting {
        version: [i32; 2],
        compiled: Cell<usize>,
    }

    impl Compile for Counting {
        fn version(&self) -> Result<[i32; 2], CudaError> {
            Ok(self.version)
        }

        fn compile(&self, source: &Source, architecture: &str) -> Result<Vec<u8>, CudaError> {
            self.compiled.set(self.compiled.get() + 1);
            let text = format!("{} {architecture} {:?}", source.text, self.version);
            Ok(text.into_bytes())
        }
    }

    fn compiler(minor: i32) -> Counting {
        Counting {
            version: [13, minor],
            compiled: Cell::new(0),
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder");
        let mut files: Vec<_> = entries.map(|e| e.expect("a file").path()).collect();
        files.sort();
        files
    }

    #[test]
    fn what_decides_a_kernel_decides_which_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::in_folder(folder.path().join("made/when/needed"));
        let (one, newer) = (compiler(0), compiler(1));
        let changed = Source {
            text: "other",
            ..SOURCES[0]
        };
        let asked = [
            (&one, SOURCES[0], "sm_80"),
            (&one, SOURCES[1], "sm_80"),
            (&one, SOURCES[0], "sm_90"),
            (&one, changed, "sm_80"),
            (&newer, SOURCES[0], "sm_80"),
        ];
        for _ in 0..3 {
            for (compiler, source, architecture) in &asked {
                let found = cache
                    .cubin(*compiler, source, architecture)
                    .expect("a CUBIN");
                assert_eq!(found, compiler.compile(source, architecture).expect("one"));
            }
        }
        // The check above compiles each time; of the cache's own there is one each.
        assert_eq!(one.compiled.get() + newer.compiled.get(), 15 + 5);
        assert_eq!(files(&folder.path().join("made/when/needed")).len(), 5);
    }

    #[test]
    fn what_is_cut_short_or_changed_is_compiled_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::in_folder(folder.path());
        let compiler = compiler(0);
        let cubin = || {
            cache
                .cubin(&compiler, &SOURCES[0], "sm_80")
                .expect("a CUBIN")
        };
        let right = cubin();
        let file = &files(folder.path())[0];
        let kept = fs::read(file).expect("it was kept");
        let mut changed = kept.clone();
        *changed.last_mut().expect("not empty") ^= 1;
        for (count, wrong) in [&kept[..0], &kept[..40], &kept[..kept.len() - 1], &changed]
            .into_iter()
            .enumerate()
        {
            fs::write(file, wrong).expect("a file");
            assert_eq!(cubin(), right);
            assert_eq!(compiler.compiled.get(), count + 2);
            assert_eq!(fs::read(file).expect("whole again"), kept);
        }
        assert_eq!(files(folder.path()).len(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "no folder").expect("a file");
        let closed = folder.path().join("closed");
        fs::create_dir(&closed).expect("a folder");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).expect("its mode");
        for cache in [
            KernelCache::in_folder(file.join("in it")),
            KernelCache::in_folder(&closed),
            KernelCache::OFF,
        ] {
            let compiler = compiler(0);
            let found = cache.cubin(&compiler, &SOURCES[0], "sm_80");
            assert_eq!(found, compiler.compile(&SOURCES[0], "sm_80"));
        }
    }

    #[test]
    fn a_kernel_that_does_not_compile_is_not_kept() {
        struct Refusing;
        impl Compile for Refusing {
            fn version(&self) -> Result<[i32; 2], CudaError> {
                Ok([13, 0])
            }
            fn compile(&self, source: &Source, _: &str) -> Result<Vec<u8>, CudaError> {
                Err(CudaError::NoKernel(source.name.to_owned()))
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::in_folder(folder.path());
        assert!(cache.cubin(&Refusing, &SOURCES[0], "sm_80").is_err());
        assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    }
}
