//! The greedy choice of a token.

use super::KernelError;
use super::error::expect;

/// The column of the largest logit of each row of `logits` [rows, vocabulary], the first among
/// equals.
///
/// # Errors
/// [`KernelError::Shape`] where `logits` is no whole number of rows, or a row is empty;
/// [`KernelError::NotANumber`] where a row holds a NaN.
pub fn argmax(logits: &[f32], vocabulary: usize) -> Result<Vec<u32>, KernelError> {
    if vocabulary == 0 {
        return expect("the vocabulary of logits", 1, 0).map(|()| Vec::new());
    }
    expect(
        "logits",
        logits.len().next_multiple_of(vocabulary),
        logits.len(),
    )?;
    logits
        .chunks_exact(vocabulary)
        .enumerate()
        .map(|(row, logits)| largest(row, logits))
        .collect()
}

fn largest(row: usize, logits: &[f32]) -> Result<u32, KernelError> {
    let mut best = 0;
    for (column, logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return Err(KernelError::NotANumber { row, column });
        }
        if *logit > logits[best] {
            best = column;
        }
    }
    Ok(best as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals_wins() {
        let logits = [
            1.0,
            3.0,
            3.0,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
        ];
        assert_eq!(argmax(&logits, 3), Ok(vec![1, 0]));
    }

    #[test]
    fn a_nan_is_an_error() {
        let error = argmax(&[0.0, 1.0, 0.0, f32::NAN], 2).unwrap_err();
        assert_eq!(error, KernelError::NotANumber { row: 1, column: 1 });
        let said = error.to_string();
        assert!(
            said.starts_with("logit 1 of row 1 is not a number"),
            "{said}"
        );
    }

    #[test]
    fn a_cut_row_is_an_error() {
        assert!(argmax(&[0.0; 3], 2).is_err());
        assert!(argmax(&[], 0).is_err());
    }
}
