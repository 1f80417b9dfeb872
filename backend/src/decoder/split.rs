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

/// What of `range` falls into a part: where in the part, and where in `range`.
fn overlap(part: Range<usize>, range: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    let (from, to) = (range.start.max(part.start), range.end.min(part.end));
    let (inner, outer) = (part.start, range.start);
    (from < to).then(|| (from - inner..to - inner, from - outer..to - outer))
}

/// Copies elements out of parts as f32.
fn load<'a>(parts: impl Iterator<Item = Elements<'a>>, range: &Range<usize>, into: &mut [f32]) {
    let mut start = 0;
    for part in parts {
        if let Some((inner, outer)) = overlap(start..start + part.len(), range) {
            part.load(inner, &mut into[outer]);
        }
        start += part.len();
    }
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
        load(self.parts.iter().copied(), &range, into);
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

    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.as_elements().len())
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.lengths().sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pieces of so many elements one after another, as far as they reach.
    pub(super) fn cut(&mut self, lengths: impl Iterator<Item = usize>) -> Vec<SplitMut<'_>> {
        let mut parts = self.parts.iter_mut().map(ElementsMut::reborrowed);
        let mut begun = None;
        let piece = lengths.map(|mut left| {
            let mut piece = SplitMut::default();
            while left > 0
                && let Some(part) = begun.take().or_else(|| parts.next())
            {
                let length = part.as_elements().len();
                let (taken, rest) = part.split_at(left.min(length));
                begun = (length > left).then_some(rest);
                left -= left.min(length);
                piece.parts.push(taken);
            }
            piece
        });
        piece.collect()
    }

    /// Copies elements out as f32.
    pub(super) fn load(&self, range: Range<usize>, into: &mut [f32]) {
        load(
            self.parts.iter().map(ElementsMut::as_elements),
            &range,
            into,
        );
    }

    /// Copies elements in, rounded to the stored type.
    pub(super) fn store(&mut self, range: Range<usize>, from: &[f32]) {
        let mut start = 0;
        for part in &mut self.parts {
            let length = part.as_elements().len();
            if let Some((inner, outer)) = overlap(start..start + length, &range) {
                part.store(inner, &from[outer]);
            }
            start += length;
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
        let mut pieces = split.cut([2, 3].into_iter());
        assert_eq!(pieces.iter().map(SplitMut::len).collect::<Vec<_>>(), [2, 3]);
        pieces[1].store(0..2, &[7.0, 8.0]);
        split.load(2..5, &mut out);
        assert_eq!(out, [7.0, 8.0, 4.0]);
    }

    #[test]
    fn a_part_that_is_too_short_is_refused() {
        let mut short = [0_u32; 3];
        let bytes = bytemuck::cast_slice_mut(&mut short);
        let error = SplitMut::default().push(bytes, 4, Dtype::F32).unwrap_err();
        assert!(error.to_string().contains("12"), "{error}");
    }
}
