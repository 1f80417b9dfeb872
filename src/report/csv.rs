//! Rows as CSV.

use serde::Serialize;

/// The rows with a header line; the columns are the row's fields.
///
/// # Errors
/// Rows that hold more than texts and numbers.
pub fn to_csv<T: Serialize>(rows: &[T]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    writer
        .into_inner()
        .map_err(|error| error.into_error().into())
}
