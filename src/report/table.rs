//! Tables of plain text.

use std::fmt;

/// To which side a column keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Columns of text, each as wide as its widest cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let columns = columns
            .iter()
            .map(|(name, align)| ((*name).to_owned(), *align));
        Table {
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row<I>(&mut self, cells: I)
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The same in Markdown (GitHub's tables).
    pub fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<&str> = cells.collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = self.columns.iter().map(|(_, align)| match align {
            Align::Left => "---",
            Align::Right => "--:",
        });
        let rule: Vec<&str> = rule.collect();
        let mut text = line(&mut self.columns.iter().map(|(name, _)| &**name));
        text.push_str(&format!("|{}|\n", rule.join("|")));
        for row in &self.rows {
            text.push_str(&line(&mut row.iter().map(|cell| &**cell)));
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let head = self.columns.iter().map(|(name, _)| name.chars().count());
        let mut widths: Vec<usize> = head.collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(widths).zip(&self.columns) {
            match align {
                Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                Align::Right => line.push_str(&format!("{cell:>width$}  ")),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let head: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        if head.iter().any(|name| !name.is_empty()) {
            writeln!(f, "{}", self.line(&head, &widths))?;
        }
        for row in &self.rows {
            writeln!(f, "{}", self.line(row, &widths))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("", Align::Left), ("host", Align::Right)]);
        table.row(["weights", "9%"]);
        table.row(["kv", "100%"]);
        assert_eq!(
            table.to_string(),
            "         host\nweights    9%\nkv       100%\n"
        );
        assert_eq!(
            table.markdown(),
            "|  | host |\n|---|--:|\n| weights | 9% |\n| kv | 100% |\n"
        );
    }
}
