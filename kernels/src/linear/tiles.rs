//! Rows of input in tiles whose size the compiler knows.

/// Calls `$call` with `M` as a constant for each tile of at most `$most` rows, evenly cut. Tiles that are larger
/// than `$most`, a constant, are not compiled.
macro_rules! for_each_tile {
    ($rows:expr, $most:expr, |$row:ident, $m:ident| $call:expr) => {{
        let tiles = $rows.div_ceil($most);
        let mut $row = 0;
        for tile in 0..tiles {
            let rows = $rows / tiles + usize::from(tile < $rows % tiles);
            if $most == 1 || rows == 1 {
                const $m: usize = 1;
                $call
            } else if $most == 2 || rows == 2 {
                const $m: usize = 2;
                $call
            } else if $most == 3 || rows == 3 {
                const $m: usize = 3;
                $call
            } else if $most == 4 || rows == 4 {
                const $m: usize = 4;
                $call
            } else if $most == 5 || rows == 5 {
                const $m: usize = 5;
                $call
            } else if $most == 6 || rows == 6 {
                const $m: usize = 6;
                $call
            } else if $most == 7 || rows == 7 {
                const $m: usize = 7;
                $call
            } else {
                const $m: usize = 8;
                $call
            }
            $row += rows;
        }
    }};
}

pub(super) use for_each_tile;
