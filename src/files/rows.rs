//! A file of rows that grows: each row is there whole, on disk, before the next is begun.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::write::{Place, context, open};

/// A file that nobody else writes rows to, from now until it or its [`Rows`] are dropped; what is in it stays until there are rows.
#[derive(Debug)]
pub struct Reserved {
    path: PathBuf,
    /// None for a pipe or a device, which may have several writers.
    file: Option<File>,
    /// Where it was made for this, which goes where it stays empty.
    made: Option<PathBuf>,
}

impl Reserved {
    /// Reserves a file, there or to be made.
    ///
    /// # Errors
    /// What the system says, with the path in front; [`ErrorKind::ResourceBusy`] where another program has reserved it.
    pub fn of(path: &Path) -> io::Result<Reserved> {
        let attempt = || {
            let Place::File(place) = Place::of(path)? else {
                return Ok((None, None));
            };
            let is_new = !place.exists();
            let file = loop {
                let file = File::options().append(true).create(true).open(&place)?;
                lock(&file)?;
                // Whoever had reserved it may have removed it before it was locked here.
                if is_still(&file, &place) {
                    break file;
                }
            };
            Ok((Some(file), is_new.then_some(place)))
        };
        let (file, made) = attempt().map_err(|error| context(path, error))?;
        Ok(Reserved {
            path: path.to_owned(),
            file,
            made,
        })
    }

    /// As it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins to write behind the first `kept` bytes; what comes after them goes.
    ///
    /// # Errors
    /// What the system says, with the path in front.
    pub fn rows(mut self, kept: u64) -> io::Result<Rows> {
        self.made = None;
        let mut attempt = || match self.file.take() {
            Some(file) => {
                file.set_len(kept)?;
                Ok((file, Some(kept)))
            }
            None => match Place::of(&self.path)? {
                Place::Stream(file) => Ok((file, None)),
                Place::File(_) | Place::Pipe => Ok((open(&self.path)?, None)),
            },
        };
        let (file, end) = attempt().map_err(|error| context(&self.path, error))?;
        Ok(Rows {
            path: std::mem::take(&mut self.path),
            file,
            end,
            sync: File::sync_data,
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let is_empty = |file: &File| file.metadata().is_ok_and(|there| there.len() == 0);
        if let (Some(made), Some(file)) = (&self.made, &self.file)
            && is_empty(file)
        {
            // An empty file is no harm.
            let _ = fs::remove_file(made);
        }
    }
}

/// Rows that are written as they come.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    file: File,
    /// Where the last whole row ends; none for a pipe or a device.
    end: Option<u64>,
    /// What brings it to the disk.
    sync: fn(&File) -> io::Result<()>,
}

impl Rows {
    /// Writes whole rows, each with its line end. Says how many of them are there, which on an error are
    /// those that fitted, and what the error is, with the path in front.
    pub fn push(&mut self, rows: &str) -> (usize, io::Result<()>) {
        let written = self.file.write_all(rows.as_bytes());
        let there = match &written {
            Ok(()) => rows,
            Err(_) => self.whole(rows).unwrap_or_default(),
        };
        let settled = self.settle(there.len() as u64);
        let count = settled.as_ref().map_or(0, |()| there.lines().count());
        let outcome = written.and(settled);
        (count, outcome.map_err(|error| context(&self.path, error)))
    }

    /// Of rows that could not all be written, leaves those that are whole. Where that fails as well, none
    /// count; a torn row is found when it is read again, too.
    fn whole<'a>(&self, rows: &'a str) -> Option<&'a str> {
        let end = self.end?;
        let arrived = self.file.metadata().ok()?.len().checked_sub(end)?;
        let arrived = &rows.as_bytes()[..rows.len().min(arrived as usize)];
        let whole = arrived.iter().rposition(|byte| *byte == b'\n');
        let whole = &rows[..whole.map_or(0, |last| last + 1)];
        self.file.set_len(end + whole.len() as u64).ok()?;
        Some(whole)
    }

    /// Brings so many bytes behind the end to the disk, or takes them back. A second try would prove
    /// nothing: the system says only once that what it held did not get there.
    fn settle(&mut self, bytes: u64) -> io::Result<()> {
        let Some(end) = &mut self.end else {
            return Ok(());
        };
        if let Err(error) = (self.sync)(&self.file) {
            // Should that fail too, the rows are there and do not count.
            let _ = self.file.set_len(*end);
            return Err(error);
        }
        *end += bytes;
        Ok(())
    }
}

/// Whether a path leads to an open file.
fn is_still(file: &File, path: &Path) -> bool {
    let of = |there: fs::Metadata| (there.dev(), there.ino());
    let open = file.metadata().map(of);
    fs::metadata(path).map(of).ok() == open.ok()
}

/// File systems without locks have none to be held.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(ErrorKind::ResourceBusy.into()),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(path: &Path, kept: u64) -> Rows {
        Reserved::of(path).unwrap().rows(kept).unwrap()
    }

    #[test]
    fn two_do_not_write_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let refused = || {
            let error = Reserved::of(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        };
        let reserved = Reserved::of(&path).unwrap();
        // From before there is a row.
        refused();
        let mut rows = reserved.rows(0).unwrap();
        rows.push("1\n").1.unwrap();
        refused();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        drop(rows);
        Reserved::of(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[test]
    fn a_file_that_gets_no_row_is_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        drop(Reserved::of(&path).unwrap());
        assert!(!path.exists());
        fs::write(&path, "").unwrap();
        drop(Reserved::of(&path).unwrap());
        assert!(path.exists());
    }

    #[test]
    fn rows_go_behind_what_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        fs::write(&path, "1\n2\n3 is to").unwrap();
        let mut rows = rows(&path, 4);
        for (text, count) in [("3\n", 1), ("4\n5\n", 2)] {
            let (there, written) = rows.push(text);
            written.unwrap();
            assert_eq!(there, count);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n2\n3\n4\n5\n");
        drop(rows);
        Reserved::of(&path).unwrap().rows(0).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn rows_that_did_not_reach_the_disk_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let mut rows = rows(&path, 0);
        rows.push("1\n").1.unwrap();
        rows.sync = |_| Err(io::Error::other("lost"));
        let (there, written) = rows.push("2\n3\n");
        assert_eq!(there, 0);
        assert!(written.unwrap_err().to_string().contains("lost"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[test]
    fn a_device_that_is_full_is_said_with_its_path() {
        let mut rows = rows(Path::new("/dev/full"), 0);
        let (there, written) = rows.push("1\n");
        assert_eq!(there, 0);
        let said = written.unwrap_err().to_string();
        assert!(
            said.starts_with("/dev/full: cannot be written: No space"),
            "{said}"
        );
    }
}
