//! Elements that are one sequence to a stage and lie in several buffers.

use std::ops::Range;

use plimsoll_core::Dtype;

use super::DecoderError;
use crate::kernels::{Elements, ElementsMut};

/// Elements in several places, to read.
#[derive(Debug, Default)]
pub struct Split<'a> {
    parts: Vec<Elements<'a>>,
}

/// Elements in several places, to read and write.
#[derive(Debug, Default)]
pub struct SplitMut<'a> {
    parts: Vec<ElementsMut<'a>>,
}

/// The parts of `range` that fall into each of the parts of these lengths: part, range in the part,
/// range in `range`.
fn overlaps(
    lengths: impl Iterator<Item = usize>,
    range: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let mut start = 0;
    lengths.enumerate().filter_map(move |(index, length)| {
        let from = range.start.max(start);
        let to = range.end.min(start + length);
        let found = (from < to).then(|| {
            let inner = from - start..to - start;
            (index, inner, from - range.start..to - range.start)
        });
        start += length;
        found
    })
}

impl<'a> Split<'a> {
    /// Puts the first `elements` of a buffer behind what is there.
    ///
    /// # Errors
    /// Where the buffer is too short.
    pub fn push(
        &mut self,
        bytes: &'a [u8],
        elements: usize,
        dtype: Dtype,
    ) -> Result<(), DecoderError> {
        let part = Elements::from_bytes(bytes, dtype)?;
        super::error::at_least("a part of an operand", elements, part.len())?;
        self.parts.push(part.slice(0..elements));
        Ok(())
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Elements::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies elements out as f32.
    pub(super) fn load(&self, range: Range<usize>, into: &mut [f32]) {
        for (part, inner, outer) in overlaps(self.parts.iter().map(Elements::len), range) {
            self.parts[part].load(inner, &mut into[outer]);
        }
    }
}

impl<'a> SplitMut<'a> {
    /// Puts the first `elements` of a buffer behind what is there.
    ///
    /// # Errors
    /// Where the buffer is too short.
    pub fn push(
        &mut self,
        bytes: &'a mut [u8],
        elements: usize,
        dtype: Dtype,
    ) -> Result<(), DecoderError> {
        let bytes_needed = elements * dtype.size_bytes() as usize;
        super::error::at_least("a part of an operand, in bytes", bytes_needed, bytes.len())?;
        let bytes = &mut bytes[..bytes_needed];
        self.parts.push(ElementsMut::from_bytes(bytes, dtype)?);
        Ok(())
    }

    fn lengths(&self) -> std::vec::IntoIter<usize> {
        let lengths = self.parts.iter().map(|part| part.as_elements().len());
        lengths.collect::<Vec<_>>().into_iter()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.lengths().sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies elements out as f32.
    pub(super) fn load(&self, range: Range<usize>, into: &mut [f32]) {
        for (part, inner, outer) in overlaps(self.lengths(), range) {
            self.parts[part].as_elements().load(inner, &mut into[outer]);
        }
    }

    /// Copies elements in, rounded to the stored type.
    pub(super) fn store(&mut self, range: Range<usize>, from: &[f32]) {
        for (part, inner, outer) in overlaps(self.lengths(), range) {
            self.parts[part].store(inner, &from[outer]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_may_cross_parts() {
        let (mut a, mut b) = ([0_u32; 3], [0_u32; 4]);
        let mut split = SplitMut::default();
        let parts: [&mut [u32]; 2] = [&mut a, &mut b];
        for (part, elements) in parts.into_iter().zip([3, 2]) {
            let bytes = bytemuck::cast_slice_mut(part);
            split.push(bytes, elements, Dtype::F32).expect("it fits");
        }
        assert_eq!(split.len(), 5);
        split.store(1..5, &[1.0, 2.0, 3.0, 4.0]);
        let mut out = [9.0; 3];
        split.load(2..5, &mut out);
        assert_eq!(out, [2.0, 3.0, 4.0]);
        split.load(0..3, &mut out);
        assert_eq!(out, [0.0, 1.0, 2.0]);
    }

    #[test]
    fn a_part_that_is_too_short_is_refused() {
        let mut short = [0_u32; 3];
        let bytes = bytemuck::cast_slice_mut(&mut short);
        let error = SplitMut::default().push(bytes, 4, Dtype::F32).unwrap_err();
        assert!(error.to_string().contains("12"), "{error}");
    }
}
