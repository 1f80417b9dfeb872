//! Rows of numbers that are ours alone or beside published ones, as a file and as a table.

use serde::Serialize;

use crate::report::{Align, Table, to_csv};

/// What an experiment finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// A line a row, all of it.
    pub csv: Vec<u8>,
    /// What the table's numbers are; may be empty.
    lead: String,
    /// What is shown of it.
    table: Table,
}

impl Study {
    /// Of rows, whose cells stand below those columns.
    ///
    /// # Errors
    /// Rows that hold more than texts and numbers.
    pub(super) fn of<R: Serialize, const COLUMNS: usize>(
        rows: &[R],
        lead: String,
        columns: [(&str, Align); COLUMNS],
        cells: impl Fn(&R) -> [String; COLUMNS],
    ) -> anyhow::Result<Study> {
        Ok(Study {
            csv: to_csv(rows)?,
            lead,
            table: table_of(rows, columns, cells),
        })
    }

    /// The table, below what is said of it.
    pub fn markdown(&self) -> String {
        match self.lead.is_empty() {
            true => self.table.markdown(),
            false => format!("{}\n\n{}", self.lead, self.table.markdown()),
        }
    }
}

/// A share, as the tables print them.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// A row a row, whose cells stand below those columns.
pub(super) fn table_of<R, const COLUMNS: usize>(
    rows: impl IntoIterator<Item = R>,
    columns: [(&str, Align); COLUMNS],
    cells: impl Fn(R) -> [String; COLUMNS],
) -> Table {
    let mut table = Table::new(&columns);
    for row in rows {
        table.row(cells(row));
    }
    table
}
