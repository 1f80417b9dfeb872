//! Writing files whole: beside their place first, then put into it in one step. What is no regular
//! file (a pipe, a device, our own output) is written straight into instead.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::unfinished::{Unfinished, named};

/// Writes a file through `fill`. On an error the old file, if any, is untouched and nothing is left
/// beside it.
///
/// # Errors
/// What the system or `fill` says, with the path in front.
pub fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    write_place(path, fill).map_err(|error| context(path, error))
}

fn write_place(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let filled = |file: &mut File| {
        let mut writer = BufWriter::with_capacity(1 << 18, file);
        fill(&mut writer)?;
        writer.flush()
    };
    match Place::of(path)? {
        Place::File(path) => {
            let mut unfinished = Unfinished::beside(&path)?;
            filled(unfinished.file())?;
            unfinished.settle(&path)
        }
        Place::Stream(mut stream) => filled(&mut stream),
        Place::Pipe => filled(&mut open(path)?),
    }
}

/// Writes a whole text.
///
/// # Errors
/// As [`write_atomically`].
pub fn write_text(path: &Path, text: &str) -> io::Result<()> {
    write_atomically(path, |out| out.write_all(text.as_bytes()))
}

/// Whether a file could be written now, as far as that can be told; leaves everything as it is.
///
/// # Errors
/// Why not.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match Place::of(path)? {
        Place::File(path) => named(&path)?.close(),
        Place::Stream(_) | Place::Pipe => Ok(()),
    }
}

/// Whether a path leads to a regular file, there or to be made: no pipe and no device.
pub fn is_file(path: &Path) -> bool {
    matches!(Place::of(path), Ok(Place::File(_)))
}

/// Whether what is written to a path goes where the program prints.
pub fn is_standard_output(path: &Path) -> bool {
    let is_it = |there: Metadata| is_open_as(&there, &io::stdout());
    path == Path::new("-") || fs::metadata(path).is_ok_and(is_it)
}

/// Whether two paths lead to one regular file, there or to be made, so that the second that is written
/// would take the place of the first.
pub fn same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| match Place::of(path) {
        Ok(Place::File(path)) => {
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(folder.join(path.file_name()?))
        }
        _ => None,
    };
    // Two names of one file, too.
    let number = |path: &Path| {
        fs::metadata(path)
            .ok()
            .map(|it| (it.is_file(), it.dev(), it.ino()))
    };
    let linked = number(one).is_some_and(|one| one.0 && number(other) == Some(one));
    linked || place(one).is_some_and(|one| place(other) == Some(one))
}

/// What a path leads to.
pub(super) enum Place {
    /// A regular file, there or to be made, behind all links.
    File(PathBuf),
    /// A device, or our own output, which `-` is, too.
    Stream(File),
    /// A named pipe: opening it waits for its reader, and closing it ends him.
    Pipe,
}

impl Place {
    pub(super) fn of(path: &Path) -> io::Result<Place> {
        if path == Path::new("-") {
            return copy_of(&io::stdout()).map(Place::Stream);
        }
        let there = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Place::File(end_of_links(path)));
            }
            there => there?,
        };
        if let Some(output) = own_output(&there) {
            return Ok(Place::Stream(output));
        }
        if there.is_file() {
            return fs::canonicalize(path).map(Place::File);
        }
        match there.file_type().is_fifo() {
            true => Ok(Place::Pipe),
            false => open(path).map(Place::Stream),
        }
    }
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// What will be there once it is made.
fn end_of_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    while let Ok(next) = fs::read_link(&path) {
        path = path.with_file_name(next);
    }
    path
}

/// Standard output or error, where this is it. A file opened a second time has a place of its own to
/// write at, so that what is printed would overwrite what is written.
fn own_output(there: &Metadata) -> Option<File> {
    let (out, err) = (io::stdout(), io::stderr());
    let copy = |stream: &dyn AsFd| copy_of(stream).ok();
    let streams: [&dyn AsFd; 2] = [&out, &err];
    let mut streams = streams.into_iter();
    streams
        .find(|stream| is_open_as(there, *stream))
        .and_then(copy)
}

/// Whether a file is what a stream of ours leads to.
fn is_open_as(there: &Metadata, stream: &dyn AsFd) -> bool {
    let same = |file: Metadata| (file.dev(), file.ino()) == (there.dev(), there.ino());
    copy_of(stream).is_ok_and(|file| file.metadata().is_ok_and(same))
}

fn copy_of(stream: &dyn AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

/// A file that could not be written; what the [`io::Error`]s of this module hold.
#[derive(Debug, Error)]
#[error("{}: cannot be written: {error}; {}", path.display(), remedy(error))]
pub struct Unwritten {
    path: PathBuf,
    error: io::Error,
}

impl Unwritten {
    /// Whether it is that nobody reads our own output any more.
    pub fn has_no_reader(&self) -> bool {
        self.error.kind() == ErrorKind::BrokenPipe && is_standard_output(&self.path)
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room, or give another file",
        ErrorKind::FileTooLarge => "allow larger files, or give another file",
        ErrorKind::PermissionDenied => "permit it, or give another file",
        _ => "give another file",
    }
}

pub(super) fn context(path: &Path, error: io::Error) -> io::Error {
    let path = path.to_owned();
    io::Error::new(error.kind(), Unwritten { path, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fifo(folder: &Path) -> PathBuf {
        let path = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        path
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_written() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("far")).unwrap();
        let (link, file) = (
            folder.path().join("link"),
            folder.path().join("far/plan.json"),
        );
        std::os::unix::fs::symlink("far/plan.json", &link).unwrap();
        for text in ["made", "changed"] {
            check_writable(&link).unwrap();
            write_text(&link, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_named_pipe_is_written_into() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = fifo(folder.path());
        let from = pipe.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(from).unwrap());
        check_writable(&pipe).unwrap();
        write_text(&pipe, "plan").unwrap();
        assert_eq!(reader.join().unwrap(), "plan");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    #[test]
    fn what_cannot_be_written_is_found_beforehand_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |path: &Path| check_writable(path).unwrap_err().kind();
        assert_eq!(kind(folder.path()), ErrorKind::IsADirectory);
        let nowhere = folder.path().join("nowhere/plan.json");
        assert_eq!(kind(&nowhere), ErrorKind::NotFound);
        let path = folder.path().join("plan.json");
        check_writable(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::write(&path, "old").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn two_paths_may_lead_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        std::os::unix::fs::symlink("x", path("link")).unwrap();
        for _ in ["to be made", "there"] {
            assert!(same_file(&path("x"), &path("sub/../x")));
            assert!(same_file(&path("x"), &path("link")));
            assert!(!same_file(&path("x"), &path("sub/x")));
            fs::write(path("x"), "").unwrap();
        }
        assert!(!same_file(Path::new("/dev/null"), Path::new("/dev/null")));
    }

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
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
