//! Elements as they are stored: f32, f16 or bf16, seen through the bytes of a tier.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use plimsoll_formats::Dtype;

use super::KernelError;

/// A read view of stored elements.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// Stored as binary32.
    F32(&'a [f32]),
    /// Stored as binary16.
    F16(&'a [f16]),
    /// Stored as bfloat16.
    Bf16(&'a [bf16]),
}

/// A view of stored elements that can be written.
#[derive(Debug)]
pub enum ElementsMut<'a> {
    /// Stored as binary32.
    F32(&'a mut [f32]),
    /// Stored as binary16.
    F16(&'a mut [f16]),
    /// Stored as bfloat16.
    Bf16(&'a mut [bf16]),
}

fn cast_error(bytes: &[u8], dtype: Dtype) -> KernelError {
    let size = dtype.size_bytes() as usize;
    KernelError::Cast {
        dtype,
        bytes: bytes.len(),
        misaligned_by: bytes.as_ptr().addr() % size,
    }
}

/// Sees `bytes` as f32, without a copy.
pub(super) fn singles(bytes: &[u8]) -> Result<&[f32], KernelError> {
    bytemuck::try_cast_slice(bytes).map_err(|_| cast_error(bytes, Dtype::F32))
}

/// Sees `bytes` as f16, without a copy.
pub(super) fn halves(bytes: &[u8]) -> Result<&[f16], KernelError> {
    bytemuck::try_cast_slice(bytes).map_err(|_| cast_error(bytes, Dtype::F16))
}

/// Sees `bytes` as bf16, without a copy.
pub(super) fn brains(bytes: &[u8]) -> Result<&[bf16], KernelError> {
    bytemuck::try_cast_slice(bytes).map_err(|_| cast_error(bytes, Dtype::Bf16))
}

impl<'a> Elements<'a> {
    /// Sees `bytes` as elements of `dtype`, without a copy.
    ///
    /// # Errors
    /// [`KernelError::Cast`] where the address or the length is no multiple of the element's size.
    pub fn from_bytes(bytes: &'a [u8], dtype: Dtype) -> Result<Self, KernelError> {
        match dtype {
            Dtype::F32 => singles(bytes).map(Elements::F32),
            Dtype::F16 => halves(bytes).map(Elements::F16),
            Dtype::Bf16 => brains(bytes).map(Elements::Bf16),
        }
    }

    /// The type of storage.
    pub fn dtype(&self) -> Dtype {
        match self {
            Elements::F32(_) => Dtype::F32,
            Elements::F16(_) => Dtype::F16,
            Elements::Bf16(_) => Dtype::Bf16,
        }
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(values) => values.len(),
            Elements::F16(values) => values.len(),
            Elements::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// Where `range` reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Elements<'a> {
        match self {
            Elements::F32(values) => Elements::F32(&values[range]),
            Elements::F16(values) => Elements::F16(&values[range]),
            Elements::Bf16(values) => Elements::Bf16(&values[range]),
        }
    }

    /// Element `index` as f32.
    ///
    /// # Panics
    /// Where `index` is past the end.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Elements::F32(values) => values[index],
            Elements::F16(values) => values[index].to_f32(),
            Elements::Bf16(values) => values[index].to_f32(),
        }
    }

    /// Copies the elements of `range` to `into` as f32 (exact for all types).
    ///
    /// # Panics
    /// Where `range` reaches past the end, or `into` has another length.
    pub fn load(&self, range: Range<usize>, into: &mut [f32]) {
        match self {
            Elements::F32(values) => into.copy_from_slice(&values[range]),
            Elements::F16(values) => values[range].convert_to_f32_slice(into),
            Elements::Bf16(values) => values[range].convert_to_f32_slice(into),
        }
    }

    /// All elements as f32.
    pub fn to_vec(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.load(0..self.len(), &mut values);
        values
    }
}

impl<'a> ElementsMut<'a> {
    /// Sees `bytes` as elements of `dtype`, without a copy.
    ///
    /// # Errors
    /// [`KernelError::Cast`] where the address or the length is no multiple of the element's size.
    pub fn from_bytes(bytes: &'a mut [u8], dtype: Dtype) -> Result<Self, KernelError> {
        let error = cast_error(bytes, dtype);
        let seen = match dtype {
            Dtype::F32 => bytemuck::try_cast_slice_mut(bytes).map(ElementsMut::F32),
            Dtype::F16 => bytemuck::try_cast_slice_mut(bytes).map(ElementsMut::F16),
            Dtype::Bf16 => bytemuck::try_cast_slice_mut(bytes).map(ElementsMut::Bf16),
        };
        seen.map_err(|_| error)
    }

    /// The same elements, for a while.
    pub fn reborrowed(&mut self) -> ElementsMut<'_> {
        match self {
            ElementsMut::F32(values) => ElementsMut::F32(values),
            ElementsMut::F16(values) => ElementsMut::F16(values),
            ElementsMut::Bf16(values) => ElementsMut::Bf16(values),
        }
    }

    /// The first elements, and the others.
    ///
    /// # Panics
    /// Where there are not so many.
    pub fn split_at(self, count: usize) -> (Self, Self) {
        match self {
            ElementsMut::F32(values) => {
                let (first, others) = values.split_at_mut(count);
                (ElementsMut::F32(first), ElementsMut::F32(others))
            }
            ElementsMut::F16(values) => {
                let (first, others) = values.split_at_mut(count);
                (ElementsMut::F16(first), ElementsMut::F16(others))
            }
            ElementsMut::Bf16(values) => {
                let (first, others) = values.split_at_mut(count);
                (ElementsMut::Bf16(first), ElementsMut::Bf16(others))
            }
        }
    }

    /// The same elements, to read.
    pub fn as_elements(&self) -> Elements<'_> {
        match self {
            ElementsMut::F32(values) => Elements::F32(values),
            ElementsMut::F16(values) => Elements::F16(values),
            ElementsMut::Bf16(values) => Elements::Bf16(values),
        }
    }

    /// Writes `values` to the elements of `range`, rounded to nearest even where they are narrower.
    ///
    /// # Panics
    /// Where `range` reaches past the end, or `values` has another length.
    pub fn store(&mut self, range: Range<usize>, values: &[f32]) {
        match self {
            ElementsMut::F32(elements) => elements[range].copy_from_slice(values),
            ElementsMut::F16(elements) => elements[range].convert_from_f32_slice(values),
            ElementsMut::Bf16(elements) => elements[range].convert_from_f32_slice(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_value_is_loaded_again() {
        for dtype in Dtype::ALL {
            let mut words = [0_u64; 8];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            let mut elements = ElementsMut::from_bytes(bytes, dtype).unwrap();
            elements.store(3..6, &[1.5, -2.0, 0.25]);
            let elements = elements.as_elements();
            assert_eq!(elements.dtype(), dtype);
            assert_eq!(elements.len() as u64, 64 / dtype.size_bytes());
            assert_eq!(elements.to_vec()[2..7], [0.0, 1.5, -2.0, 0.25, 0.0]);
            assert_eq!(elements.slice(3..6).get(1), -2.0);
        }
    }

    #[test]
    fn bytes_that_do_not_fit_are_refused() {
        let words = [0_u64; 2];
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        let error = Elements::from_bytes(&bytes[1..5], Dtype::F32).unwrap_err();
        assert_eq!(
            error,
            KernelError::Cast {
                dtype: Dtype::F32,
                bytes: 4,
                misaligned_by: 1
            }
        );
        let error = Elements::from_bytes(&bytes[..3], Dtype::F16).unwrap_err();
        assert_eq!(
            error.to_string(),
            "3 bytes at an address that is 0 past a multiple of 2 cannot be seen as f16"
        );
    }
}
