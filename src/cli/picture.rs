//! Files that hold a picture, or the rows that it is drawn from.

use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

use super::exit::{Exit, Failure};
use crate::files::{write_atomically, write_text};
use crate::report::{Picture, picture_svg, to_csv, write_picture_png};

/// What a file is to be, by its extension.
#[derive(Debug, Clone, Copy)]
pub(super) enum FileKind {
    Svg,
    Png,
    Csv,
}

impl FileKind {
    /// What a file is to be.
    ///
    /// # Errors
    /// An ending that says nothing.
    pub(super) fn of(path: &Path) -> Result<FileKind, Failure> {
        let known = ".svg, .png or .csv (JSON is what --format json prints)";
        FileKind::by_extension(path).ok_or_else(|| FileKind::not_known(path, known))
    }

    /// That an ending says nothing, and which ones do.
    pub(super) fn not_known(path: &Path, known: &str) -> Failure {
        let file = path.display();
        let line = format!("--output {file}: it is not known what to write; end it in {known}");
        Failure::new(Exit::Usage, line)
    }

    /// What an extension says, if anything.
    pub(super) fn by_extension(path: &Path) -> Option<FileKind> {
        match path.extension()?.to_str()? {
            "svg" => Some(FileKind::Svg),
            "png" => Some(FileKind::Png),
            "csv" => Some(FileKind::Csv),
            _ => None,
        }
    }

    /// Draws the picture, or writes a line for each row.
    pub(super) fn write(
        self,
        path: &Path,
        picture: &impl Picture,
        rows: &[impl Serialize],
    ) -> anyhow::Result<()> {
        self.write_or(path, picture, || to_csv(rows))
    }

    /// Draws the picture, or writes these rows.
    pub(super) fn write_or(
        self,
        path: &Path,
        picture: &impl Picture,
        rows: impl FnOnce() -> Result<Vec<u8>, csv::Error>,
    ) -> anyhow::Result<()> {
        match self {
            FileKind::Svg => write_text(path, &picture_svg(picture)?)?,
            FileKind::Png => write_picture_png(path, picture)?,
            FileKind::Csv => {
                let csv = rows()?;
                write_atomically(path, |out| out.write_all(&csv))?;
            }
        }
        Ok(())
    }
}
