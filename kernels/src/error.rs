//! What can be wrong with the operands of a kernel.

use plimsoll_formats::Dtype;

/// Operands that a kernel refuses. Nothing has been written when it is returned, unless it says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// An operand has another length than its shape says.
    #[error("{what}: {found} given, {expected} needed")]
    Shape {
        /// Which operand, and in what it is counted.
        what: &'static str,
        /// What the shape asks for.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// Bytes that cannot be seen as elements of the type: their address or their length does not fit.
    #[error("{bytes} bytes at an address that is {misaligned_by} past a multiple of {} cannot be seen as {}", dtype.size_bytes(), dtype.name())]
    Cast {
        /// The type asked for.
        dtype: Dtype,
        /// The length of the bytes.
        bytes: usize,
        /// The address modulo the size of an element.
        misaligned_by: usize,
    },
    /// A row of logits holds a NaN, so no token is the largest.
    #[error("logit {column} of row {row} is not a number")]
    NotANumber {
        /// The row of logits.
        row: usize,
        /// The first column that is not a number.
        column: usize,
    },
    /// An index lies outside of its table.
    #[error("{what} {index} lies outside of its table of {rows} rows")]
    OutOfTable {
        /// What is looked up: a token or a position.
        what: &'static str,
        /// The row asked for.
        index: usize,
        /// The rows of the table.
        rows: usize,
    },
}

/// An error unless `found` is `expected`.
pub(crate) fn expect(what: &'static str, expected: usize, found: usize) -> Result<(), KernelError> {
    if expected == found {
        Ok(())
    } else {
        Err(KernelError::Shape {
            what,
            expected,
            found,
        })
    }
}
