//! The CPU's kernels.

use plimsoll_core::Dtype;
use plimsoll_core::model::RotaryPairs;

use super::reference::{Checks, Expected, activated, decode, encode, normalised, weighed};
use super::{Outcome, Wrong};
use crate::kernels::activation::{Activation, activate, activate_gate};
use crate::kernels::argmax::argmax;
use crate::kernels::attention::{
    AttentionScratch, AttentionSpec, CacheType, KvSegment, KvSegmentMut, append, attend,
    record_bytes,
};
use crate::kernels::embed::{Table, embed};
use crate::kernels::groups::{Group, PackedMatrix, pack_matrix};
use crate::kernels::linear::{LinearShape, LinearWeight, linear};
use crate::kernels::norm::{NormWeight, layer_norm, rms_norm};
use crate::kernels::rotary::Rotary;
use crate::kernels::{Elements, KernelError, Matrix, residual};

type Test = fn(&mut Checks) -> Result<(), Wrong>;

const TESTS: [(&str, Test); 8] = [
    ("embedding", embedding),
    ("layer norm and RMSNorm", norms),
    ("rotary positions", rotary),
    ("activations and gates", activations),
    ("residual and argmax", ends),
    ("product", product),
    ("product, 4-bit weights", packed_product),
    ("attention", attention),
];

/// Tests all kernels. One that is wrong does not keep the others from being tested.
pub fn cpu() -> Vec<Outcome> {
    let outcome = |(name, test): (&'static str, Test)| {
        let mut checks = Checks::new();
        let wrong = test(&mut checks).err();
        Outcome {
            name,
            cases: checks.cases,
            worst: checks.worst,
            wrong,
        }
    };
    TESTS.map(outcome).to_vec()
}

/// Numbers behind a result that nobody may write.
const GUARD: usize = 16;

/// Holds a result against the reference; the room that `kernel` is given is NaNs.
fn check(
    checks: &mut Checks,
    case: &str,
    expected: &[Expected],
    kernel: impl FnOnce(&mut [f32]) -> Result<(), KernelError>,
) -> Result<(), Wrong> {
    checks.cases += 1;
    let mut room = vec![f32::NAN; expected.len() + GUARD];
    let (y, behind) = room.split_at_mut(expected.len());
    kernel(y)?;
    if behind.iter().any(|x| !x.is_nan()) {
        let what = "what lies behind the result was written".to_owned();
        let case = case.to_owned();
        return Err(Wrong::Bytes { case, what });
    }
    let found: Vec<f64> = y.iter().map(|x| f64::from(*x)).collect();
    checks.near(case, Dtype::F32, &found, expected)
}

/// Stored numbers: on an address that suits any type, and as they are.
struct Stored {
    words: Vec<u32>,
    bytes: usize,
    dtype: Dtype,
    numbers: Vec<f64>,
}

impl Stored {
    fn new(checks: &mut Checks, dtype: Dtype, count: usize, size: f32) -> Stored {
        let bytes = encode(dtype, &checks.numbers(count, size));
        let numbers = decode(dtype, &bytes);
        let mut words = vec![0; bytes.len().div_ceil(4)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(&bytes);
        Stored {
            words,
            bytes: bytes.len(),
            dtype,
            numbers,
        }
    }

    fn elements(&self) -> Result<Elements<'_>, KernelError> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        Elements::from_bytes(&bytes[..self.bytes], self.dtype)
    }
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(*x)).collect()
}

fn embedding(checks: &mut Checks) -> Result<(), Wrong> {
    for dtype in Dtype::ALL {
        for (count, width) in [(1, 64), (5, 77)] {
            let table = Stored::new(checks, dtype, 11 * width, 1.0);
            let tokens: Vec<u32> = (0..count).map(|_| checks.integer(11) as u32).collect();
            let at = |i: usize| tokens[i / width] as usize * width + i % width;
            let value = |i| Expected::plain(table.numbers[at(i)]);
            let expected: Vec<_> = (0..count * width).map(value).collect();
            let case = format!("{} {count} tokens of {width}", dtype.name());
            let matrix = table.elements()?.into();
            check(checks, &case, &expected, |y| {
                embed(&tokens, &vec![0; count], Table { matrix, width }, None, y)
            })?;
        }
    }
    Ok(())
}

fn norms(checks: &mut Checks) -> Result<(), Wrong> {
    for dtype in Dtype::ALL {
        for (rows, width) in [(1, 64), (3, 1000), (4, 5)] {
            let x = checks.numbers(rows * width, 3.0);
            let weight = Stored::new(checks, dtype, width, 2.0);
            let bias = Stored::new(checks, dtype, width, 1.0);
            let norm = NormWeight {
                weight: weight.elements()?,
                bias: Some(bias.elements()?),
                epsilon: 1e-5,
            };
            for centred in [true, false] {
                let row = |row: &[f32]| {
                    let epsilon = f64::from(norm.epsilon);
                    normalised(&wide(row), centred, epsilon, &weight.numbers, &bias.numbers)
                };
                let expected: Vec<_> = x.chunks(width).flat_map(row).collect();
                let case = format!("{} [{rows}, {width}]", dtype.name());
                check(checks, &case, &expected, |y| match centred {
                    true => layer_norm(&x, norm, y),
                    false => rms_norm(&x, norm, y),
                })?;
            }
        }
    }
    Ok(())
}

fn rotary(checks: &mut Checks) -> Result<(), Wrong> {
    let (theta, pairs) = (10_000.0, 16);
    for (count, heads, head_dim) in [(1, 1, 32), (3, 5, 80)] {
        let x = checks.numbers(count * heads * head_dim, 2.0);
        let positions: Vec<usize> = (0..count).map(|_| checks.integer(100)).collect();
        let of = Rotary::new(2 * pairs, theta, RotaryPairs::Halves, None);
        let element = |i: usize| {
            let (head, at) = (i / head_dim * head_dim, i % head_dim);
            if at >= 2 * pairs {
                return Expected::plain(f64::from(x[i]));
            }
            let pair = at % pairs;
            // Rounded to f32 where the model's own code rounds.
            let frequency = 1.0 / theta.powf(2.0 * pair as f64 / (2 * pairs) as f64) as f32;
            let angle = f64::from(positions[i / (heads * head_dim)] as f32 * frequency);
            let [a, b] = [x[head + pair], x[head + pair + pairs]].map(f64::from);
            match at < pairs {
                true => Expected::sum([a * angle.cos(), -b * angle.sin()]),
                false => Expected::sum([b * angle.cos(), a * angle.sin()]),
            }
        };
        let expected: Vec<_> = (0..x.len()).map(element).collect();
        let case = format!("{count} tokens, {heads} heads of {head_dim}");
        check(checks, &case, &expected, |y| {
            y.copy_from_slice(&x);
            of.turns(positions.iter().copied()).apply(y, head_dim)
        })?;
    }
    Ok(())
}

fn activations(checks: &mut Checks) -> Result<(), Wrong> {
    use Activation::{GeluErf, GeluTanh, Relu, Silu};
    for activation in [Relu, GeluTanh, GeluErf, Silu] {
        for count in [1, 16, 77] {
            let (x, up) = (checks.numbers(count, 6.0), checks.numbers(count, 2.0));
            let value = |x: f32| activated(Some(activation), f64::from(x));
            let size = |x: f32| f64::from(x.abs());
            let plain = x.iter().map(|x| Expected {
                value: value(*x),
                size: size(*x),
            });
            let plain: Vec<_> = plain.collect();
            let case = format!("{activation:?} of {count}");
            check(checks, &case, &plain, |y| {
                y.copy_from_slice(&x);
                activate(activation, y);
                Ok(())
            })?;
            let gated = x.iter().zip(&up).map(|(x, up)| Expected {
                value: value(*x) * f64::from(*up),
                size: size(*x) * size(*up),
            });
            let gated: Vec<_> = gated.collect();
            check(checks, &case, &gated, |y| {
                y.copy_from_slice(&x);
                activate_gate(activation, y, &up)
            })?;
        }
    }
    Ok(())
}

fn ends(checks: &mut Checks) -> Result<(), Wrong> {
    for (rows, width) in [(1, 1), (3, 100)] {
        let (x, added) = (
            checks.numbers(rows * width, 9.0),
            checks.numbers(rows * width, 9.0),
        );
        let sum = |(x, y): (&f32, &f32)| Expected::sum([f64::from(*x), f64::from(*y)]);
        let expected: Vec<_> = x.iter().zip(&added).map(sum).collect();
        let case = format!("[{rows}, {width}]");
        check(checks, &case, &expected, |y| {
            y.copy_from_slice(&x);
            residual::add(y, &added)
        })?;
        let coarse: Vec<f32> = x.iter().map(|x| x.round()).collect();
        let first = |row: &[f32]| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter().position(|x| *x == largest).unwrap_or(0) as u32
        };
        let expected: Vec<u32> = coarse.chunks(width).map(first).collect();
        let found = argmax(&coarse, width)?;
        if found != expected {
            let what = format!("{found:?} were chosen, and should be {expected:?}");
            return Err(Wrong::Bytes { case, what });
        }
    }
    Ok(())
}

const PRODUCTS: [[usize; 3]; 4] = [[1, 9, 64], [3, 5, 100], [8, 33, 77], [19, 70, 513]];

fn products(x: &[f32], [n, k]: [usize; 2], weights: &[f64], bias: &[f64]) -> Vec<Expected> {
    let mut expected = Vec::new();
    for row in x.chunks(k) {
        for column in 0..n {
            let weights = &weights[column * k..(column + 1) * k];
            let terms = row.iter().zip(weights).map(|(x, w)| f64::from(*x) * w);
            expected.push(Expected::sum(terms.chain([bias[column]])));
        }
    }
    expected
}

fn product(checks: &mut Checks) -> Result<(), Wrong> {
    for dtype in Dtype::ALL {
        for [m, n, k] in PRODUCTS {
            let x = checks.numbers(m * k, 1.0);
            let weights = Stored::new(checks, dtype, n * k, 1.0);
            let bias = Stored::new(checks, dtype, n, 1.0);
            let weight = LinearWeight {
                weight: weights.elements()?.into(),
                bias: Some(bias.elements()?),
            };
            let expected = products(&x, [n, k], &weights.numbers, &bias.numbers);
            let case = format!("{} [m, n, k] [{m}, {n}, {k}]", dtype.name());
            check(checks, &case, &expected, |y| {
                linear(LinearShape { m, n, k }, &x, weight, y)
            })?;
        }
    }
    Ok(())
}

fn packed_product(checks: &mut Checks) -> Result<(), Wrong> {
    for [m, n, k] in PRODUCTS {
        let (x, plain) = (checks.numbers(m * k, 1.0), checks.numbers(n * k, 1.0));
        let mut room = vec![0_u16; n.div_ceil(64) * k * 18];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
        pack_matrix(Elements::F32(&plain), k, bytes)?;
        let mut unpacked = vec![0.0; n * k];
        for (column, band) in (0..k).flat_map(|c| (0..n.div_ceil(64)).map(move |b| (c, b))) {
            let rows = band * 64..n.min(band * 64 + 64);
            let group: Vec<f32> = rows.clone().map(|row| plain[row * k + column]).collect();
            let elements = Group::quantise(&group).elements();
            for (row, element) in rows.zip(elements) {
                unpacked[row * k + column] = f64::from(element);
            }
        }
        let weight = LinearWeight {
            weight: Matrix::Packed(PackedMatrix::new(bytes, n, k)?),
            bias: None,
        };
        let expected = products(&x, [n, k], &unpacked, &vec![0.0; n]);
        let case = format!("[m, n, k] [{m}, {n}, {k}]");
        check(checks, &case, &expected, |y| {
            linear(LinearShape { m, n, k }, &x, weight, y)
        })?;
    }
    Ok(())
}

/// Sequences, key/value heads, queries a head, elements a head; queries a sequence, positions.
const ATTENTIONS: [([usize; 4], [usize; 2]); 4] = [
    ([1, 1, 1, 64], [1, 1]),
    ([2, 2, 1, 64], [1, 131]),
    ([1, 2, 4, 128], [5, 70]),
    ([2, 1, 5, 80], [1, 57]),
];

fn attention(checks: &mut Checks) -> Result<(), Wrong> {
    for stored in [
        CacheType::Whole(Dtype::F32),
        CacheType::Whole(Dtype::F16),
        CacheType::Packed,
    ] {
        for ([sequences, kv_heads, group, head_dim], [query_len, context_len]) in ATTENTIONS {
            let spec = AttentionSpec {
                heads: kv_heads * group,
                kv_heads,
                head_dim,
                query_len,
                context_len,
                window: None,
                scale: 1.0 / (head_dim as f32).sqrt(),
                picks: None,
            };
            attention_case(checks, stored, sequences, &spec)?;
        }
    }
    Ok(())
}

/// Numbers as a cache keeps them.
fn kept(stored: CacheType, numbers: &[f32], head_dim: usize) -> Vec<f64> {
    match stored {
        CacheType::Whole(dtype) => decode(dtype, &encode(dtype, numbers)),
        CacheType::Packed => {
            let groups = numbers.chunks(head_dim).flat_map(|head| head.chunks(64));
            wide(
                &groups
                    .flat_map(|g| Group::quantise(g).elements())
                    .collect::<Vec<_>>(),
            )
        }
    }
}

fn attention_case(
    checks: &mut Checks,
    stored: CacheType,
    sequences: usize,
    spec: &AttentionSpec,
) -> Result<(), Wrong> {
    let (rows, width) = (sequences * spec.kv_heads, spec.head_dim);
    let record = record_bytes(rows, width, stored);
    let mut room = vec![u32::MAX; (spec.context_len * record).div_ceil(4)];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
    let whole = AttentionSpec {
        query_len: spec.context_len,
        ..*spec
    };
    // `[sequence, position, head, element]`.
    let count = rows * spec.context_len * width;
    let (keys, values) = (checks.numbers(count, 2.0), checks.numbers(count, 2.0));
    let mut segment = KvSegmentMut {
        row_start: 0,
        row_end: rows,
        record_bytes: record,
        bytes: &mut *bytes,
        stored,
    };
    append(&mut segment, &whole, &keys, &values)?;
    let queries = checks.numbers(sequences * spec.query_len * spec.heads * width, 1.0);
    let (keys, values) = (kept(stored, &keys, width), kept(stored, &values, width));
    let mut expected = Vec::new();
    for (index, query) in queries.chunks(width).enumerate() {
        let (token, head) = (index / spec.heads, index % spec.heads);
        let (sequence, t) = (token / spec.query_len, token % spec.query_len);
        let seen = spec.start() + t + 1;
        let at = |p: usize| {
            ((sequence * spec.context_len + p) * spec.kv_heads + head / spec.group()) * width
        };
        let score = |p: usize| {
            let products = keys[at(p)..]
                .iter()
                .zip(query)
                .map(|(k, q)| k * f64::from(*q));
            products.sum::<f64>() * f64::from(spec.scale)
        };
        let scores: Vec<f64> = (0..seen).map(score).collect();
        expected.extend(weighed(&scores, width, |p, i| values[at(p) + i]));
    }
    let segment = KvSegment {
        row_start: 0,
        row_end: rows,
        record_bytes: record,
        pages: &[bytes],
        stored,
    };
    let case = format!("{stored:?}, {sequences} sequences, {spec:?}");
    check(checks, &case, &expected, |y| {
        attend(
            &queries,
            &segment,
            spec,
            0..rows,
            &mut AttentionScratch::default(),
            y,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_kernel_passes() {
        let outcomes = cpu();
        assert_eq!(outcomes.len(), TESTS.len());
        for outcome in outcomes {
            assert_eq!(outcome.wrong, None, "{}", outcome.name);
            assert!(outcome.cases > 0 && outcome.worst <= 1.0, "{outcome:?}");
        }
    }

    #[test]
    fn what_is_off_or_missing_or_too_much_is_wrong() {
        let mut checks = Checks::new();
        let expected = [Expected::plain(1.0), Expected::plain(2.0)];
        let off = check(&mut checks, "off", &expected, |y| {
            y.copy_from_slice(&[1.0, 2.001]);
            Ok(())
        });
        assert!(matches!(off, Err(Wrong::Value { index: 1, .. })), "{off:?}");
        let missing = check(&mut checks, "missing", &expected, |y| {
            y[1] = 2.0;
            Ok(())
        });
        assert!(
            matches!(missing, Err(Wrong::Value { index: 0, .. })),
            "{missing:?}"
        );
    }
}
