use proptest::prelude::*;

use half::f16;

use super::*;
use crate::groups;
use crate::simd::InstructionSet;
use crate::tile::DOT_PIECE;

fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What weights are stored as.
const SINGLE: usize = 0;
const HALF: usize = 1;
const BRAIN: usize = 2;
const GROUPS: usize = 3;

fn packed(w: &[f32], n: usize, k: usize) -> Vec<f16> {
    let mut halves = vec![f16::NAN; n.div_ceil(groups::ELEMENTS) * k * groups::BYTES / 2];
    let bytes = bytemuck::cast_slice_mut(&mut halves);
    groups::pack_matrix(Elements::F32(w), k, bytes).unwrap();
    halves
}

fn check(shape: LinearShape, stored: usize, with_bias: bool, seed: u64) {
    let LinearShape { m, n, k } = shape;
    let (x, w) = (values(m * k, seed), values(n * k, seed + 1));
    let (w16, bias) = (to_half(&w), values(n, seed + 2));
    let (wb16, w4) = (to_brain(&w), packed(&w, n, k));
    let weight = LinearWeight {
        weight: match stored {
            SINGLE => Elements::F32(&w).into(),
            HALF => Elements::F16(&w16).into(),
            BRAIN => Elements::Bf16(&wb16).into(),
            _ => {
                Matrix::Packed(groups::PackedMatrix::new(bytemuck::cast_slice(&w4), n, k).unwrap())
            }
        },
        bias: with_bias.then_some(Elements::F32(&bias)),
    };
    let exact = linear_reference(shape, &x, weight);
    let mut first: Option<Vec<u32>> = None;
    for set in InstructionSet::ALL {
        let mut y = vec![f32::NAN; m * n];
        let ways = Ways::BUILT_IN;
        linear_with(How { set, ways }, shape, &x, weight, &mut y).unwrap();
        for (found, exact) in y.iter().zip(&exact) {
            let error = (f64::from(*found) - exact).abs();
            assert!(
                error < 1e-6 * (k as f64 + 10.0),
                "{set:?} {shape:?}: {found} for {exact}"
            );
        }
        let first = first.get_or_insert_with(|| bits(&y));
        assert_eq!(*first, bits(&y), "{set:?} {shape:?}");
    }
    // So has every way, for whatever rows it is taken.
    for (tile_from, panels_from) in [(usize::MAX, 1), (1, usize::MAX), (1, 1), (2, 13)] {
        let ways = Ways {
            tile_from,
            panels_from,
        };
        let mut y = vec![f32::NAN; m * n];
        linear_with(How::best(ways), shape, &x, weight, &mut y).unwrap();
        assert_eq!(first.as_ref(), Some(&bits(&y)), "{ways:?} {shape:?}");
    }
    // So have the same weights, widened before.
    let wide = weight.weight.to_vec(k);
    let widened = LinearWeight {
        weight: Elements::F32(&wide).into(),
        ..weight
    };
    let mut y = vec![0.0; m * n];
    linear(shape, &x, widened, &mut y).unwrap();
    assert_eq!(bits(&y), *first.as_ref().unwrap());
    // A row alone, shifted in memory, has the same bits.
    let row = seed as usize % m;
    let moved: Vec<f32> = [&[0.0; 3], &x[row * k..(row + 1) * k]].concat();
    let mut y = vec![0.0; n];
    linear(LinearShape { m: 1, ..shape }, &moved[3..], weight, &mut y).unwrap();
    assert_eq!(bits(&y), first.unwrap()[row * n..(row + 1) * n]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_path_agrees_with_the_reference_and_bit_for_bit_with_the_others(
        m in prop_oneof![1_usize..=9, 1_usize..120], n in prop_oneof![1_usize..8, 1_usize..120], k in 1_usize..300,
        stored in 0..=GROUPS, with_bias: bool, seed in 0_u64..1000,
    ) {
        check(LinearShape { m, n, k }, stored, with_bias, seed);
    }
}

#[test]
fn few_rows_to_which_pieces_stream_agree_too() {
    for (m, n, stored) in [
        (1, 9, BRAIN),
        (3, 5, BRAIN),
        (4, 13, HALF),
        (8, 2, HALF),
        (8, 7, BRAIN),
    ] {
        let k = 2 * DOT_PIECE + 37;
        check(LinearShape { m, n, k }, stored, true, 5);
    }
}

#[test]
fn several_pieces_and_several_row_blocks_agree_too() {
    check(
        LinearShape {
            m: ROW_BLOCK + 7,
            n: 13,
            k: 2 * DOT_PIECE + 37,
        },
        HALF,
        true,
        5,
    );
    check(
        LinearShape {
            m: 5,
            n: 9,
            k: 3 * DOT_PIECE,
        },
        SINGLE,
        false,
        6,
    );
    check(
        LinearShape {
            m: ROW_BLOCK + 1,
            n: 131,
            k: DOT_PIECE + 37,
        },
        GROUPS,
        true,
        7,
    );
}

#[test]
fn a_way_is_taken_from_its_rows_on_and_panels_for_no_fewer_than_they_take() {
    use Way::{Dots, Panels, Tile};
    let of = |tile_from, panels_from| {
        let ways = Ways {
            tile_from,
            panels_from,
        };
        [1, 2, 3, 5, 11, 12, 13, 128].map(|rows| ways.of(rows))
    };
    let built_in = [Dots, Dots, Tile, Tile, Tile, Tile, Panels, Panels];
    assert_eq!(of(3, 13), built_in);
    let early = [Tile, Tile, Tile, Tile, Tile, Panels, Panels, Panels];
    assert_eq!(of(1, 1), early);
    assert_eq!(of(usize::MAX, 1), [Dots; 8]);
}

#[test]
fn no_inputs_give_the_bias() {
    let weight = LinearWeight {
        weight: Elements::F32(&[]).into(),
        bias: Some(Elements::F16(&[f16::ONE, f16::NEG_ONE])),
    };
    let mut y = [9.0; 4];
    linear(LinearShape { m: 2, n: 2, k: 0 }, &[], weight, &mut y).unwrap();
    assert_eq!(y, [1.0, -1.0, 1.0, -1.0]);
}

#[test]
fn a_wrong_length_is_named() {
    let weight = LinearWeight {
        weight: Elements::F32(&[0.0; 5]).into(),
        bias: None,
    };
    let shape = LinearShape { m: 1, n: 2, k: 3 };
    let error = linear(shape, &[0.0; 3], weight, &mut [0.0; 2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the weight of a linear layer: 5 given, 6 needed"
    );
}
