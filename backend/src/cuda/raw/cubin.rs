//! Which kernels a CUBIN holds: it is an ELF file, in which a kernel's code is a section `.text.NAME`.

/// Names of its kernels; none where it is something else, such as PTX.
pub fn kernels(cubin: &[u8]) -> Vec<&str> {
    names(cubin).unwrap_or_default()
}

fn names(cubin: &[u8]) -> Option<Vec<&str>> {
    if !cubin.starts_with(b"\x7fELF") {
        return None;
    }
    let (table, size) = (number::<8>(cubin, 0x28)?, number::<2>(cubin, 0x3a)?);
    let (count, of_names) = (number::<2>(cubin, 0x3c)?, number::<2>(cubin, 0x3e)?);
    let section = |index: usize| table.checked_add(index * size);
    let texts = cubin.get(number::<8>(cubin, section(of_names)? + 0x18)?..)?;
    let name = |index: usize| {
        let text = texts.get(number::<4>(cubin, section(index)?)?..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&text[..end]).ok()
    };
    let kernel = |index: usize| name(index)?.strip_prefix(".text.");
    Some((0..count).filter_map(kernel).collect())
}

/// A little-endian number of so many bytes.
fn number<const BYTES: usize>(cubin: &[u8], at: usize) -> Option<usize> {
    let mut wide = [0; 8];
    wide[..BYTES].copy_from_slice(cubin.get(at..at.checked_add(BYTES)?)?);
    usize::try_from(u64::from_le_bytes(wide)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_cubin_holds_no_kernels() {
        let text: &[u8] = b".version 8.4\n.target sm_90\n\0";
        let cut: &[u8] = b"\x7fELF\x02\x01";
        let far = [b"\x7fELF".as_slice(), &[0xff; 96]].concat();
        for bytes in [text, cut, &far, b""] {
            assert!(kernels(bytes).is_empty());
        }
    }
}
