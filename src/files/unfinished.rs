//! Files that are filled before they have their name, in the folder where they will be.

use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use tempfile::NamedTempFile;

/// A new file is as any that is made, where a temporary one would be private.
const MODE: u32 = 0o666;

/// One that will take a path's place.
pub(super) enum Unfinished {
    /// Without a name: nothing is left of it where the process ends.
    Nameless(File),
    /// With one of its own, on file systems where there has to be one.
    Named(NamedTempFile),
}

impl Unfinished {
    pub(super) fn beside(path: &Path) -> io::Result<Unfinished> {
        match nameless(&folder(path)) {
            Some(file) => Ok(Unfinished::Nameless(file)),
            None => named(path).map(Unfinished::Named),
        }
    }

    pub(super) fn file(&mut self) -> &mut File {
        match self {
            Unfinished::Nameless(file) => file,
            Unfinished::Named(file) => file.as_file_mut(),
        }
    }

    /// Puts it into the path's place.
    pub(super) fn settle(self, path: &Path) -> io::Result<()> {
        let mut file = match self {
            Unfinished::Named(file) => return settle(file, path),
            Unfinished::Nameless(file) => file,
        };
        file.sync_all()?;
        // No file takes another's place but by its name; where it cannot get one, its contents can.
        match linked(&file, path) {
            Ok(linked) => linked.persist(path).map_err(|failed| failed.error),
            Err(_) => {
                let mut copy = named(path)?;
                file.rewind()?;
                io::copy(&mut file, copy.as_file_mut())?;
                settle(copy, path)
            }
        }
    }
}

/// A name beside a path for a file that has none.
fn linked(file: &File, path: &Path) -> io::Result<NamedTempFile<()>> {
    let link = |name: &Path| linkat(CWD, entry(file), CWD, name, AtFlags::SYMLINK_FOLLOW);
    let builder = &mut tempfile::Builder::new();
    builder
        .prefix(PREFIX)
        .make_in(folder(path), |name| Ok(link(name)?))
}

const PREFIX: &str = ".plimsoll-";

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Where the system shows an open file.
fn entry(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// None where the file system has no such files, or the system does not show them, so that they could not get a name.
fn nameless(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE.bits() as i32;
    let options = || {
        File::options()
            .read(true)
            .write(true)
            .mode(MODE)
            .custom_flags(flags)
            .open(folder)
    };
    options().ok().filter(|file| entry(file).exists())
}

/// One with a name.
pub(super) fn named(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(fs::Permissions::from_mode(MODE))
        .tempfile_in(folder(path))
}

/// Puts one with a name into a path's place.
fn settle(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_not_settled_leaves_nothing_and_what_is_takes_the_place_of_the_old() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plan.json");
        let names = || fs::read_dir(place.path()).unwrap().count();
        for (with_a_name, text) in [(true, "one"), (false, "two")] {
            let make = || match with_a_name {
                true => Unfinished::Named(named(&path).unwrap()),
                false => Unfinished::beside(&path).unwrap(),
            };
            let before = names();
            drop(make());
            assert_eq!(names(), before);
            let mut file = make();
            file.file().write_all(text.as_bytes()).unwrap();
            file.settle(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(), 1);
            let other = place.path().join("other");
            fs::write(&other, "").unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode(&path), mode(&other));
            fs::remove_file(other).unwrap();
        }
    }

    #[test]
    fn a_file_without_a_name_is_in_no_folder_while_it_is_filled() {
        let place = tempfile::tempdir().unwrap();
        let Some(mut file) = nameless(place.path()) else {
            eprintln!(
                "SKIPPED: the file system of {} has no files without names",
                place.path().display()
            );
            return;
        };
        file.write_all(b"a trace").unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
