//! Writing files whole: to a temporary neighbour first, then renamed in one step.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes a file through `fill`. On an error the old file, if any, is untouched and nothing is left
/// beside it.
///
/// # Errors
/// What the system or `fill` says, with the path in front.
pub fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let attempt = || {
        let mut temporary = neighbour(path, "")?;
        let mut writer = BufWriter::with_capacity(1 << 18, temporary.as_file_mut());
        fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        settle(temporary, path)
    };
    attempt().map_err(|error| context(path, &error))
}

/// Writes a whole text.
///
/// # Errors
/// As [`write_atomically`].
pub fn write_text(path: &Path, text: &str) -> io::Result<()> {
    write_atomically(path, |out| out.write_all(text.as_bytes()))
}

/// The same for a writer that wants a path of its own; the temporary file keeps the extension.
///
/// # Errors
/// As [`write_atomically`].
pub fn write_through_path(
    path: &Path,
    fill: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let attempt = || {
        let extension = path.extension().map_or(String::new(), |extension| {
            format!(".{}", extension.to_string_lossy())
        });
        let temporary = neighbour(path, &extension)?;
        fill(temporary.path())?;
        settle(temporary, path)
    };
    attempt().map_err(|error| context(path, &error))
}

fn neighbour(path: &Path, suffix: &str) -> io::Result<tempfile::NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".plimsoll-").suffix(suffix);
    // A temporary file is private by default; what is renamed into place should be as any new file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

fn settle(temporary: tempfile::NamedTempFile, path: &Path) -> io::Result<()> {
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

fn context(path: &Path, error: &io::Error) -> io::Error {
    let line = format!("{}: cannot be written: {error}", path.display());
    io::Error::new(error.kind(), line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        write_text(&path, "old").unwrap();
        let failed = write_atomically(&path, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("disk full"))
        });
        assert!(failed.unwrap_err().to_string().contains("plan.json"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
