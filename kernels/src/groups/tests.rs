//! Packed bytes against the plain form, for each instruction set; unpacked elements bit for bit.

use plimsoll_formats::Dtype;
use proptest::prelude::*;

use super::head::pack_heads_with;
use super::matrix::pack_matrix_with;
use super::*;
use crate::linear::{to_brain, to_half};
use crate::row::{Row, widen};
use crate::simd::{InstructionSet, Kernel, Lanes, dispatch_to};
use crate::{Elements, Matrix};

/// Elements of several magnitudes, some of them equal.
fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let magnitude = [1.0, 0.02, 300.0, 1e-5][seed as usize % 4];
    let steps = [1e6, 7.5, 1.0][seed as usize % 3];
    (0..count)
        .map(|_| (next() * steps).round() / steps * magnitude)
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

struct Widen<'a, R> {
    row: R,
    into: &'a mut [f32],
}

impl<R: Row> Kernel for Widen<'_, R> {
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        widen(lanes, self.row, self.into);
    }
}

/// A row as f32, by whole vectors and their rest, which agree with each element by itself.
fn widened<R: Row>(set: InstructionSet, row: R, length: usize) -> Vec<f32> {
    let mut all = vec![f32::NAN; length];
    let into = &mut all;
    dispatch_to(set, Widen { row, into });
    let each: Vec<f32> = (0..length).map(|i| row.element(i)).collect();
    assert_eq!(bits(&all), bits(&each));
    all
}

fn check_heads(heads: usize, head_dim: usize, seed: u64) {
    let elements = values(heads * head_dim, seed);
    let mut expected = Vec::new();
    for group in elements.chunks(head_dim).flat_map(|h| h.chunks(ELEMENTS)) {
        let group = Group::quantise(group);
        let code = |i: usize| group.codes.get(i).copied();
        // What is missing of a group is kept as its first element.
        let code = |i: usize| code(i).unwrap_or(group.codes[0]);
        expected.extend((0..32).map(|i| code(i) | code(i + 32) << 4));
        expected.extend(group.scale.to_le_bytes());
        expected.extend(group.minimum.to_le_bytes());
    }
    for set in InstructionSet::ALL {
        let mut bytes = vec![0xaa; heads * head_bytes(head_dim)];
        pack_heads_with(set, &elements, head_dim, &mut bytes).unwrap();
        assert_eq!(bytes, expected, "{set:?} {heads} x {head_dim}");
        let heads = bytes.chunks(head_bytes(head_dim));
        for (head, elements) in heads.zip(elements.chunks(head_dim)) {
            let groups = elements.chunks(ELEMENTS).map(Group::quantise);
            let expected: Vec<f32> = groups.flat_map(|group| group.elements()).collect();
            let found = widened(set, PackedHead::new(head), head_dim);
            assert_eq!(bits(&found), bits(&expected), "{set:?}");
        }
    }
}

fn check_matrix(rows: usize, columns: usize, dtype: Dtype, seed: u64) {
    let elements = values(rows * columns, seed);
    let (halves, brains) = (to_half(&elements), to_brain(&elements));
    let stored = match dtype {
        Dtype::F32 => Elements::F32(&elements),
        Dtype::F16 => Elements::F16(&halves),
        Dtype::Bf16 => Elements::Bf16(&brains),
    };
    let elements = stored.to_vec();
    let mut expected = vec![f32::NAN; rows * columns];
    for (column, first) in
        (0..columns).flat_map(|c| (0..rows).step_by(ELEMENTS).map(move |r| (c, r)))
    {
        let places: Vec<usize> = (first..rows.min(first + ELEMENTS))
            .map(|row| row * columns + column)
            .collect();
        let group: Vec<f32> = places.iter().map(|place| elements[*place]).collect();
        let unpacked = Group::quantise(&group).elements();
        places
            .iter()
            .zip(unpacked)
            .for_each(|(place, x)| expected[*place] = x);
    }
    let mut first: Option<Vec<u8>> = None;
    for set in InstructionSet::ALL {
        let mut packed = vec![f16::NAN; rows.div_ceil(ELEMENTS) * columns * BYTES / 2];
        let bytes = bytemuck::cast_slice_mut(&mut packed);
        pack_matrix_with(set, stored, columns, bytes).unwrap();
        let matrix = PackedMatrix::new(bytes, rows, columns).unwrap();
        let found: Vec<f32> = (0..rows)
            .flat_map(|row| widened(set, matrix.row(row, 0..columns), columns))
            .collect();
        assert_eq!(bits(&found), bits(&expected), "{set:?} {rows} x {columns}");
        let cut = seed as usize % rows;
        let rest = Matrix::Packed(matrix)
            .rows(cut..rows, columns)
            .to_vec(columns);
        assert_eq!(bits(&rest), bits(&expected[cut * columns..]));
        let same = first.get_or_insert_with(|| bytes.to_vec()) == bytes;
        assert!(same, "{set:?} {rows} x {columns}: other bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn packed_heads_are_the_plain_groups(
        heads in 1_usize..5, head_dim in 1_usize..200, seed in 0_u64..1000,
    ) {
        check_heads(heads, head_dim, seed);
    }

    #[test]
    fn a_packed_matrix_is_its_plain_groups(
        rows in 1_usize..150, columns in 1_usize..70,
        dtype in prop::sample::select(Dtype::ALL.to_vec()), seed in 0_u64..1000,
    ) {
        check_matrix(rows, columns, dtype, seed);
    }
}

#[test]
fn the_formula_is_the_papers() {
    let elements: Vec<f32> = (0..ELEMENTS).map(|i| i as f32 * 0.25 - 3.0).collect();
    let group = Group::quantise(&elements);
    assert_eq!(group.minimum.to_f32(), -3.0);
    assert_eq!(group.scale, f16::from_f32(15.75 / 15.0));
    assert_eq!(
        (group.codes[0], group.codes[32], group.codes[63]),
        (0, 8, 15)
    );
    check_round_trip(&elements);
}

/// How far an f16 may be from what it stands for: half a step, which is the same for all below its smallest normal number.
fn f16_rounding(value: f64) -> f64 {
    let steps_in_one = f64::powi(2.0, f16::MANTISSA_DIGITS as i32);
    value.abs().max(f16::MIN_POSITIVE.to_f64()) / steps_in_one
}

/// No element comes back further away than half a step, and what f16 makes of scale (15 times, at most) and minimum.
fn check_round_trip(elements: &[f32]) {
    let minimum = elements.iter().copied().fold(f32::INFINITY, f32::min);
    let maximum = elements.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let [minimum, maximum] = [minimum, maximum].map(f64::from);
    let codes = f64::from(CODE_MAX);
    let scale = (maximum - minimum) / codes;
    let kept = codes * f16_rounding(scale) + f16_rounding(minimum);
    // The arithmetic itself is f32's; of which 2^-149 is the smallest number.
    let arithmetic = (maximum.abs() + minimum.abs()) * f64::from(f32::EPSILON) + scale * 1e-5;
    let most = scale / 2.0 + kept + arithmetic + f64::powi(2.0, -149);
    let plain = Group::quantise(elements).elements();
    let packed = InstructionSet::ALL.map(|set| {
        let mut bytes = vec![0; head_bytes(elements.len())];
        pack_heads_with(set, elements, elements.len(), &mut bytes).unwrap();
        widened(set, PackedHead::new(&bytes), elements.len())
    });
    for found in std::iter::once(&plain).chain(&packed) {
        for (x, found) in elements.iter().zip(found) {
            let off = (f64::from(*x) - f64::from(*found)).abs();
            assert!(off <= most, "{x:e} {found:e}: {off:e}, at most {most:e}");
        }
    }
}

/// A group that begins anywhere within f16, of any range: constants, small ranges far from zero, and numbers below the
/// smallest normal ones of f16 and of f32.
fn any_group() -> impl Strategy<Value = Vec<f32>> {
    let size = || {
        prop_oneof![
            Just(0.0),
            (-45.0..4.4_f32).prop_map(|exponent| 10_f32.powf(exponent))
        ]
    };
    let sign = prop::sample::select(vec![-1.0_f32, 1.0]);
    let shares = proptest::collection::vec(0.0..=1.0_f32, 1..=ELEMENTS);
    (size(), sign, size(), shares).prop_map(|(offset, sign, range, shares)| {
        let element = |share: f32| sign * offset + range * share;
        shares.into_iter().map(element).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_comes_back_is_within_half_a_step_and_the_rounding_of_what_is_kept(group in any_group()) {
        check_round_trip(&group);
    }
}

#[test]
fn small_ranges_far_from_zero_constants_and_subnormals_come_back() {
    let ramp = |offset: f32, step: f32| (0..ELEMENTS).map(move |i| offset + step * i as f32);
    for (offset, step) in [
        (60_000.0, 0.01),
        (-2049.0, 0.125),
        (0.3, 0.0),
        (-65_504.0, 0.0),
        (0.0, 1e-9),
        (6e-8, 3e-8),
        (f32::MIN_POSITIVE, f32::from_bits(1)),
        (0.0, f32::from_bits(1)),
    ] {
        let group: Vec<f32> = ramp(offset, step).collect();
        check_round_trip(&group);
    }
}

#[test]
fn groups_of_one_value_and_of_huge_ones_are_kept_as_well_as_can_be() {
    for (x, expected) in [(0.0, 0.0), (-0.0, 0.0), (-1.5, -1.5), (1e9, 65504.0)] {
        check_heads_of(x);
        let found = Group::quantise(&[x; 7]).elements();
        assert_eq!(bits(&found), bits(&[expected; 7]));
    }
    check_heads_of(f32::MAX);
}

/// 80 elements, all the same but for one half that is the negative.
fn check_heads_of(x: f32) {
    let elements: Vec<f32> = (0..80).map(|i| if i < 40 { x } else { -x }).collect();
    let groups = elements.chunks(ELEMENTS).map(Group::quantise);
    let expected: Vec<f32> = groups.flat_map(|group| group.elements()).collect();
    for set in InstructionSet::ALL {
        let mut bytes = vec![0; head_bytes(80)];
        pack_heads_with(set, &elements, 80, &mut bytes).unwrap();
        let found = widened(set, PackedHead::new(&bytes), 80);
        assert_eq!(bits(&found), bits(&expected), "{x}");
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut elements = values(2 * ELEMENTS, 1);
        elements[ELEMENTS + 5] = odd;
        for set in InstructionSet::ALL {
            let mut bytes = vec![0; 2 * BYTES];
            pack_heads_with(set, &elements, 2 * ELEMENTS, &mut bytes).unwrap();
            let found = widened(set, PackedHead::new(&bytes), 2 * ELEMENTS);
            assert!(found[..ELEMENTS].iter().all(|x| x.is_finite()));
            assert!(found[ELEMENTS..].iter().all(|x| x.is_nan()), "{odd}");
        }
        let group = Group::quantise(&elements[ELEMENTS..]);
        assert!(group.elements().iter().all(|x| x.is_nan()));
    }
}
