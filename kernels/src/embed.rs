//! Rows of the token table and of the position table.

use super::error::expect;
use super::{KernelError, Matrix};

/// A table of rows of one width, stored row-major.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// [rows, width].
    pub matrix: Matrix<'a>,
    /// Columns.
    pub width: usize,
}

impl Table<'_> {
    fn row(&self, what: &'static str, index: usize, into: &mut [f32]) -> Result<(), KernelError> {
        let rows = self.matrix.len() / self.width.max(1);
        if index >= rows {
            return Err(KernelError::OutOfTable { what, index, rows });
        }
        self.matrix.load_row(index, into);
        Ok(())
    }
}

/// Positions that a model learns, added to the token's row.
#[derive(Debug, Clone, Copy)]
pub struct Positions<'a> {
    /// The learned table.
    pub table: Table<'a>,
    /// Added to each position before the look-up (2 for OPT, 0 for GPT-2).
    pub offset: usize,
}

/// Writes the token's row, plus the position's row where the model has one, for each token to `y`
/// [tokens, width]. `positions[i]` is the position of `tokens[i]` in its sequence.
///
/// # Errors
/// [`KernelError::Shape`] where lengths do not fit; [`KernelError::OutOfTable`] for a token or a
/// position outside of its table, with the rows before it already written.
pub fn embed(
    tokens: &[u32],
    positions: &[usize],
    table: Table<'_>,
    learned: Option<Positions<'_>>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    expect("the positions of tokens", tokens.len(), positions.len())?;
    expect(
        "the output of an embedding",
        tokens.len() * table.width,
        y.len(),
    )?;
    if let Some(learned) = learned {
        expect(
            "the width of the position table",
            table.width,
            learned.table.width,
        )?;
    }
    let mut place = vec![0.0; table.width];
    for (index, row) in y.chunks_exact_mut(table.width.max(1)).enumerate() {
        table.row("token", tokens[index] as usize, row)?;
        if let Some(learned) = learned {
            learned
                .table
                .row("position", positions[index] + learned.offset, &mut place)?;
            row.iter_mut()
                .zip(&place)
                .for_each(|(value, place)| *value += place);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::Elements;

    #[test]
    fn a_token_is_looked_up_at_its_shifted_position() {
        let tokens = [0.0_f32, 1.0, 10.0, 11.0, 20.0, 21.0];
        let places = [0.0, 0.0, 0.0, 0.0, 0.5, 0.25, 2.0, 4.0].map(f16::from_f32);
        let table = Table {
            matrix: Elements::F32(&tokens).into(),
            width: 2,
        };
        let learned = Positions {
            table: Table {
                matrix: Elements::F16(&places).into(),
                width: 2,
            },
            offset: 2,
        };
        let mut y = [0.0; 4];
        embed(&[2, 0], &[0, 1], table, Some(learned), &mut y).unwrap();
        assert_eq!(y, [20.5, 21.25, 2.0, 5.0]);
        embed(&[1, 1], &[0, 1], table, None, &mut y).unwrap();
        assert_eq!(y, [10.0, 11.0, 10.0, 11.0]);

        let error = embed(&[3], &[0], table, None, &mut y[..2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "token 3 lies outside of its table of 3 rows"
        );
        let error = embed(&[0], &[2], table, Some(learned), &mut y[..2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "position 4 lies outside of its table of 4 rows"
        );
    }
}
