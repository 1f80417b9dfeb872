//! How a flat product is cut: a few rows take their weights straight from memory, more share tiles of them, of as many columns
//! as FlashDecoding++ says (section 4, Eq. 5).
//!
//! More columns do more arithmetic for each byte that is read; fewer give more blocks. So a block has as many as leave
//! a block for each multiprocessor, and where even the fewest do not, the fewest.

/// How a flat product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Weights go from memory to tensor cores; the warps of a block split k.
    Thin,
    /// They wait in tiles of so many columns for all rows of a block.
    Tiles(usize),
}

/// Rows that one reading of the weights is enough for without tiles.
pub const THIN_ROWS: usize = 16;

/// The cut that suits a GPU with so many multiprocessors.
pub fn cut(shape: [usize; 3], multiprocessors: usize) -> Cut {
    match shape[0] <= THIN_ROWS {
        true => Cut::Thin,
        false => Cut::Tiles(columns(shape, multiprocessors)),
    }
}

/// Widths of a block that kernels exist for.
pub const COLUMNS: [usize; 3] = [32, 64, 128];

/// Operations for each element that is read or written, by Eq. 5: `2 M K / (K + M K / B_N + M)`.
pub fn intensity(m: usize, k: usize, columns: usize) -> f64 {
    let [m, k, columns] = [m, k, columns].map(|size| size as f64);
    2.0 * m * k / (k + m * k / columns + m)
}

/// The columns of a block of a product of `n` columns, on a GPU with so many multiprocessors.
pub fn columns([m, n, k]: [usize; 3], multiprocessors: usize) -> usize {
    let fill = |columns: &usize| n.div_ceil(*columns) >= multiprocessors;
    let best = |a: &usize, b: &usize| intensity(m, k, *a).total_cmp(&intensity(m, k, *b));
    let widest = COLUMNS.into_iter().filter(fill).max_by(best);
    widest.unwrap_or(COLUMNS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eq. 5 as computed apart from this, for Figure 7's K.
    #[test]
    fn the_intensity_is_that_of_equation_5() {
        let golden = [
            (1, 4096, 32, 1.938_934_911),
            (1, 4096, 64, 1.968_757_510),
            (1, 4096, 128, 1.984_015_500),
            (1, 4096, 256, 1.991_733_528),
            (1, 4096, 512, 1.995_615_104),
            (1, 12288, 32, 1.939_240_906),
            (1, 12288, 64, 1.969_072_991),
            (1, 12288, 128, 1.984_335_890),
            (1, 12288, 256, 1.992_056_416),
            (1, 12288, 512, 1.995_939_251),
            (8, 4096, 32, 12.780_031_201),
            (8, 4096, 64, 14.197_573_657),
            (8, 4096, 128, 15.031_192_661),
            (8, 4096, 256, 15.485_822_306),
            (8, 4096, 512, 15.723_608_445),
            (8, 12288, 32, 12.793_336_804),
            (8, 12288, 64, 14.213_996_530),
            (8, 12288, 128, 15.049_601_960),
            (8, 12288, 256, 15.505_362_776),
            (8, 12288, 512, 15.743_754_004),
            (64, 4096, 32, 42.445_595_855),
            (64, 4096, 64, 63.503_875_969),
            (64, 4096, 128, 84.453_608_247),
            (64, 4096, 256, 101.135_802_469),
            (64, 4096, 512, 112.219_178_082),
            (64, 12288, 32, 42.592_720_971),
            (64, 12288, 64, 63.833_766_234),
            (64, 12288, 128, 85.038_062_284),
            (64, 12288, 256, 101.975_103_734),
            (64, 12288, 512, 113.253_456_221),
        ];
        for (m, k, columns, expected) in golden {
            let found = intensity(m, k, columns);
            assert!(
                (found - expected).abs() < 1e-8,
                "{m} {k} {columns}: {found}"
            );
        }
    }

    /// What is read by many rows is worth a place that is near.
    #[test]
    fn few_rows_need_no_tiles() {
        for n in [1024, 4096, 32000] {
            assert_eq!(cut([1, n, 4096], 132), Cut::Thin);
            assert_eq!(cut([16, n, 4096], 132), Cut::Thin);
            assert_eq!(
                cut([17, n, 4096], 132),
                Cut::Tiles(columns([17, n, 4096], 132))
            );
        }
    }

    /// Section 4: a small N is bound by parallelism, so that N / B_N tends to a constant near the number of
    /// multiprocessors; a large one by memory, so that B_N grows. An A100 has 108.
    #[test]
    fn small_products_are_cut_fine_and_large_ones_wide() {
        let columns_of = |n| columns([8, n, 4096], 108);
        assert_eq!(columns_of(1024), 32);
        assert_eq!(columns_of(4096), 32);
        assert_eq!(columns_of(8192), 64);
        assert_eq!(columns_of(11008), 64);
        assert_eq!(columns_of(16384), 128);
        assert_eq!(columns_of(262_144), 128);
    }
}
