//! What a kernel is given: one structure, as C lays it out.

/// The bytes of a structure, member by member. Members must come in the order of the kernel's structure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Arguments {
    words: Vec<u64>,
    bytes: usize,
}

impl Arguments {
    /// None yet.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    fn put(mut self, bytes: &[u8]) -> Arguments {
        let start = self.bytes.next_multiple_of(bytes.len());
        self.bytes = start + bytes.len();
        self.words.resize(self.bytes.div_ceil(8), 0);
        bytemuck::cast_slice_mut(&mut self.words)[start..start + bytes.len()]
            .copy_from_slice(bytes);
        self
    }

    /// An address on the device, or another 8-byte integer.
    pub fn wide(self, value: u64) -> Arguments {
        self.put(&value.to_ne_bytes())
    }

    /// Addresses.
    pub fn wides(self, values: impl IntoIterator<Item = u64>) -> Arguments {
        values.into_iter().fold(self, Arguments::wide)
    }

    /// Counts.
    pub fn counts(self, values: impl IntoIterator<Item = usize>) -> Arguments {
        values.into_iter().fold(self, |arguments, value| {
            arguments.put(&u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes())
        })
    }

    /// A number.
    pub fn float(self, value: f32) -> Arguments {
        self.put(&value.to_ne_bytes())
    }

    /// As they lie, on an address that suits them.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The structure's size: as C has it, a multiple of its most demanding member's.
    pub fn size(&self) -> usize {
        self.words.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_lie_on_multiples_of_their_size() {
        let arguments = Arguments::new().counts([1]).wide(2).float(1.0).counts([3]);
        assert_eq!(arguments.size(), 24);
        let expected = [1, 2, u64::from(1.0_f32.to_bits()) | 3 << 32];
        assert_eq!(arguments.words(), expected);
    }
}
