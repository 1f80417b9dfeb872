//! The residual stream.

use super::KernelError;
use super::error::expect;

/// `x += delta`, element by element.
///
/// # Errors
/// [`KernelError::Shape`] where the lengths differ.
pub fn add(x: &mut [f32], delta: &[f32]) -> Result<(), KernelError> {
    expect("what is added to the residual stream", x.len(), delta.len())?;
    x.iter_mut().zip(delta).for_each(|(x, delta)| *x += delta);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_adds_or_refuses() {
        let mut x = [1.0, 2.0];
        add(&mut x, &[0.5, -2.0]).unwrap();
        assert_eq!(x, [1.5, 0.0]);
        assert!(add(&mut x, &[1.0]).is_err());
    }
}
