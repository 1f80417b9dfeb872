//! CSV files, of which what is wrong is said with its line.

use std::path::Path;

use csv::{ErrorKind, StringRecord};
use serde::de::DeserializeOwned;

use super::InputError;

/// A CSV file that was read: cells are trimmed, lines that begin with `#` are notes.
#[derive(Debug)]
pub struct CsvText<'a> {
    path: &'a Path,
    text: &'a str,
    /// What helps where a row is wrong.
    remedy: &'a str,
    rules: csv::ReaderBuilder,
}

/// The names of a file's columns.
#[derive(Debug)]
pub struct Header<'a> {
    path: &'a Path,
    names: StringRecord,
    line: u64,
}

impl<'a> CsvText<'a> {
    /// Text of a file, and what helps where a row is wrong.
    pub fn new(path: &'a Path, text: &'a str, remedy: &'a str) -> CsvText<'a> {
        let mut rules = csv::ReaderBuilder::new();
        rules.trim(csv::Trim::All).comment(Some(b'#'));
        CsvText {
            path,
            text,
            remedy,
            rules,
        }
    }

    /// The same where rows may have more or fewer cells than there are columns.
    #[must_use]
    pub fn flexible(mut self) -> CsvText<'a> {
        self.rules.flexible(true);
        self
    }

    /// The same where the first row is one as all others.
    #[must_use]
    pub fn without_header(mut self) -> CsvText<'a> {
        self.rules.has_headers(false);
        self
    }

    /// The first row.
    ///
    /// # Errors
    /// One that is no CSV.
    pub fn header(&self) -> Result<Header<'a>, InputError> {
        let mut reader = self.rules.from_reader(self.text.as_bytes());
        let names = reader.headers().map_err(|error| self.broken(&error))?;
        Ok(Header {
            path: self.path,
            line: line_of(self.text, names.position()),
            names: names.clone(),
        })
    }

    /// All other rows, each with its line. A quote that nothing closes, which makes one cell of all that is behind it, is wrong.
    pub fn rows(&self) -> impl Iterator<Item = Result<(u64, StringRecord), InputError>> {
        let rows = self.rules.from_reader(self.text.as_bytes()).into_records();
        let is_odd = !self.text.matches('"').count().is_multiple_of(2);
        rows.map(move |row| {
            let row = row.map_err(|error| self.broken(&error))?;
            let line = line_of(self.text, row.position());
            match is_odd && row.iter().any(|cell| cell.contains('\n')) {
                true => Err(self.wrong(line, "a quote is not closed")),
                false => Ok((line, row)),
            }
        })
    }

    /// The same, read as what they mean.
    ///
    /// # Errors
    /// A header that is no CSV.
    pub fn rows_of<T: DeserializeOwned>(
        &self,
    ) -> Result<impl Iterator<Item = Result<(u64, T), InputError>>, InputError> {
        let Header { names, .. } = self.header()?;
        Ok(self.rows().map(move |row| {
            let (line, row) = row?;
            let read = row.deserialize(Some(&names));
            let read = read.map_err(|error| self.misread(line, &error, &names))?;
            Ok((line, read))
        }))
    }

    /// What is wrong with a line.
    pub fn wrong(&self, line: u64, problem: impl AsRef<str>) -> InputError {
        InputError::bad_file(self.path, format!("line {line}"), problem, self.remedy)
    }

    fn broken(&self, error: &csv::Error) -> InputError {
        let line = line_of(self.text, error.position());
        match error.kind() {
            ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => self.wrong(line, format!("values: {len}, columns: {expected_len}")),
            _ => self.wrong(line, error.to_string()),
        }
    }

    /// A row that is none of what is asked for, by the name of its column where that is known.
    fn misread(&self, line: u64, error: &csv::Error, names: &StringRecord) -> InputError {
        let ErrorKind::Deserialize { err, .. } = error.kind() else {
            return self.wrong(line, error.to_string());
        };
        let column = err.field().and_then(|at| names.get(at as usize));
        let column = column.map_or(String::new(), |name| format!("{name}: "));
        self.wrong(line, format!("{column}{}", err.kind()))
    }
}

impl<'a> Header<'a> {
    /// Its names, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter()
    }

    /// The column of a name; none where there is none.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names().position(|known| known == name)
    }

    /// What is wrong with it.
    pub fn wrong(&self, problem: impl AsRef<str>, remedy: impl AsRef<str>) -> InputError {
        InputError::bad_file(self.path, format!("line {}", self.line), problem, remedy)
    }

    /// That a file has no rows below it.
    pub fn nothing_below(&self, problem: &str, remedy: &str) -> InputError {
        let line = format!("line {}", self.line + 1);
        InputError::bad_file(self.path, line, problem, remedy)
    }

    /// That columns are there, and with them a way to see that cells are not parted by commas.
    ///
    /// # Errors
    /// The first that is missing.
    pub fn check_has(&self, needed: &[&str]) -> Result<(), InputError> {
        let Some(missing) = needed.iter().find(|name| self.place(name).is_none()) else {
            return Ok(());
        };
        if self.names.is_empty() {
            let remedy = format!("write a line with the columns {}", needed.join(", "));
            return Err(InputError::bad_whole_file(self.path, "is empty", remedy));
        }
        let problem = format!("the column `{missing}` is missing");
        Err(self.wrong(
            problem,
            self.or_commas(&format!("name the columns {}", needed.join(", "))),
        ))
    }

    /// What helps, or that commas do, where all names are in one cell.
    pub fn or_commas(&self, remedy: &str) -> String {
        let only = self.names.get(0).filter(|_| self.names.len() == 1);
        let other = |name: &str| [';', '\t', '|'].into_iter().find(|it| name.contains(*it));
        match only.and_then(other) {
            Some(other) => format!("put commas between cells, where there is {other:?}"),
            None => remedy.to_owned(),
        }
    }

    /// That of the columns that are read none is there twice; a reader's own notes may be.
    ///
    /// # Errors
    /// The first that is.
    pub fn check_once(&self, is_read: impl Fn(&str) -> bool) -> Result<(), InputError> {
        let mut seen = Vec::new();
        for name in self.names().filter(|name| is_read(name)) {
            if seen.contains(&name) {
                let problem = format!("the column `{name}` is there twice");
                return Err(self.wrong(problem, "keep one"));
            }
            seen.push(name);
        }
        Ok(())
    }
}

/// The line at which a record begins: the reader counts from the end of the record before, from which blank lines and comments lead
/// to it.
fn line_of(text: &str, position: Option<&csv::Position>) -> u64 {
    let (begun, line) = position.map_or((0, 1), |it| (it.byte() as usize, it.line()));
    let rest = &text.as_bytes()[begun.min(text.len())..];
    let skipped = rest.split(|byte| *byte == b'\n').take_while(|line| {
        let line = line.trim_ascii();
        line.is_empty() || line.starts_with(b"#")
    });
    line + skipped.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        let file = CsvText::new(Path::new("f.csv"), text, "mend it");
        let read = file.rows_of::<(u32, String)>();
        let wrong = read.and_then(|rows| rows.collect::<Result<Vec<_>, _>>());
        wrong.expect_err(text).to_string()
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_column() {
        for (text, expected) in [
            (
                "a,b\n# a note\n\n1,x\n?,y\n",
                "line 5: a: invalid digit found in string; mend it",
            ),
            ("a,b\n1\n", "line 2: values: 1, columns: 2; mend it"),
            (
                "a,b\n1,x\n2,\"y\n3,z\n",
                "line 3: a quote is not closed; mend it",
            ),
        ] {
            assert_eq!(said(text), format!("f.csv: {expected}"));
        }
        // Cells of several lines, and quotes in cells, are cells.
        for text in ["a,b\n1,\"x\ny\"\n2,z\n", "a,b\n1,5\" disk\n2,z\n"] {
            let file = CsvText::new(Path::new("f.csv"), text, "mend it");
            let rows = file.rows_of::<(u32, String)>().unwrap();
            assert_eq!(rows.filter(Result::is_ok).count(), 2, "{text}");
        }
    }

    #[test]
    fn a_header_is_told_by_its_line() {
        let file = |text| {
            CsvText::new(Path::new("f.csv"), text, "mend it")
                .header()
                .unwrap()
        };
        let notes = file("# a note\na,a,b,b\n");
        let twice = notes.check_once(|name| name == "b").unwrap_err();
        assert_eq!(
            twice.to_string(),
            "f.csv: line 2: the column `b` is there twice; keep one"
        );
        let missing = file("a;b\n").check_has(&["a", "b"]).unwrap_err();
        let expected = "f.csv: line 1: the column `a` is missing; put commas between cells, where there is ';'";
        assert_eq!(missing.to_string(), expected);
    }
}
