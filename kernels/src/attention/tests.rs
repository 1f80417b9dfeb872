//! Against a naive form in f64, and bit for bit against itself: split, batched, prefilled, decoded.

use plimsoll_formats::Dtype;
use proptest::prelude::*;

use super::*;
use crate::groups;
use crate::simd::LANES;
use crate::storage::ElementsMut;

fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A cache of segments with the given bounds, in buffers of whole words.
struct Stored {
    bounds: Vec<usize>,
    stored: CacheType,
    padding: usize,
    head_dim: usize,
    buffers: Vec<Vec<u64>>,
}

impl Stored {
    fn new(spec: &AttentionSpec, bounds: &[usize], stored: CacheType, padding: usize) -> Stored {
        let words = |rows: usize| {
            let record = record_bytes(rows, spec.head_dim, stored) + padding;
            (record * spec.context_len).div_ceil(8)
        };
        let buffers = bounds
            .windows(2)
            .map(|ends| vec![u64::MAX; words(ends[1] - ends[0])]);
        let buffers = buffers.collect();
        Stored {
            bounds: bounds.to_vec(),
            stored,
            padding,
            head_dim: spec.head_dim,
            buffers,
        }
    }

    fn record(&self, index: usize) -> usize {
        let rows = self.bounds[index + 1] - self.bounds[index];
        record_bytes(rows, self.head_dim, self.stored) + self.padding
    }

    fn append(&mut self, spec: &AttentionSpec, k: &[f32], v: &[f32]) {
        for index in 0..self.buffers.len() {
            let record_bytes = self.record(index);
            let mut segment = KvSegmentMut {
                row_start: self.bounds[index],
                row_end: self.bounds[index + 1],
                record_bytes,
                bytes: bytemuck::cast_slice_mut(&mut self.buffers[index]),
                stored: self.stored,
            };
            append(&mut segment, spec, k, v).unwrap();
        }
    }

    fn attend(&self, set: InstructionSet, spec: &AttentionSpec, q: &[f32]) -> Vec<f32> {
        self.attend_in_pages(set, spec, q, (spec.context_len, 1))
    }

    /// With buffers cut into a page of `first` positions and pages of `further`.
    fn attend_in_pages(
        &self,
        set: InstructionSet,
        spec: &AttentionSpec,
        q: &[f32],
        (first, further): (usize, usize),
    ) -> Vec<f32> {
        let mut out = vec![f32::NAN; q.len()];
        let mut scratch = left_by_others();
        for index in 0..self.buffers.len() {
            let record_bytes = self.record(index);
            let bytes: &[u8] = bytemuck::cast_slice(&self.buffers[index]);
            let (page, rest) = bytes.split_at(bytes.len().min(first * record_bytes));
            let further = rest.chunks((further * record_bytes).max(1));
            let cut: Vec<&[u8]> = [page].into_iter().chain(further).collect();
            // Each somewhere else.
            let copies: Vec<Vec<u64>> = cut.iter().map(|page| words(page)).collect();
            let copies = copies.iter().zip(&cut);
            let pages: Vec<&[u8]> = copies
                .map(|(copy, page)| &bytemuck::cast_slice(copy)[..page.len()])
                .collect();
            let segment = KvSegment {
                row_start: self.bounds[index],
                row_end: self.bounds[index + 1],
                record_bytes,
                pages: &pages,
                stored: self.stored,
            };
            let rows = segment.row_start..segment.row_end;
            let attention = Attention {
                spec,
                rows,
                q,
                out: &mut out,
                scratch: &mut scratch,
                part: Part::Whole,
            };
            attention.run(set, &segment).unwrap();
        }
        out
    }
}

/// What a larger model left.
fn left_by_others() -> AttentionScratch {
    let line = Line([f32::NAN; LANES]);
    AttentionScratch {
        scores: vec![f32::NAN; 5000],
        keys: vec![f32::NAN; 5000],
        values: vec![f32::NAN; 5000],
        panels: vec![line; 5000],
        queries: vec![line; 500],
        ..AttentionScratch::default()
    }
}

/// Bytes in whole words.
fn words(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0; bytes.len().div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

/// Values as they are read again, packed or rounded head by head.
fn rounded(values: &[f32], head_dim: usize, stored: CacheType) -> Vec<f32> {
    let dtype = match stored {
        CacheType::Whole(dtype) => dtype,
        CacheType::Packed => {
            let groups = values
                .chunks(head_dim)
                .flat_map(|h| h.chunks(groups::ELEMENTS));
            return groups
                .flat_map(|g| groups::Group::quantise(g).elements())
                .collect();
        }
    };
    let mut bytes = vec![0_u64; values.len()];
    let bytes =
        &mut bytemuck::cast_slice_mut(&mut bytes)[..values.len() * dtype.size_bytes() as usize];
    let mut elements = ElementsMut::from_bytes(bytes, dtype).unwrap();
    elements.store(0..values.len(), values);
    elements.as_elements().to_vec()
}

/// Attention over k and v [batch, context_len, kv_heads, head_dim] in f64.
fn reference(spec: &AttentionSpec, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
    let mut out = Vec::with_capacity(q.len());
    for (index, query) in q.chunks_exact(spec.head_dim).enumerate() {
        let (token, head) = (index / spec.heads, index % spec.heads);
        let (sequence, t) = (token / spec.query_len, token % spec.query_len);
        let at = |p: usize| {
            let row = (sequence * spec.context_len + p) * spec.kv_heads + head / spec.group();
            row * spec.head_dim..(row + 1) * spec.head_dim
        };
        let score = |p: usize| {
            let products = query
                .iter()
                .zip(&k[at(p)])
                .map(|(a, b)| f64::from(*a) * f64::from(*b));
            products.sum::<f64>() * f64::from(spec.scale)
        };
        let scores: Vec<f64> = spec.seen(t).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let terms = |column: usize| {
            let weighted = spec.seen(t).zip(&weights);
            weighted.map(move |(p, w)| w * f64::from(v[at(p)][column]))
        };
        out.extend((0..spec.head_dim).map(|column| terms(column).sum::<f64>() / sum));
    }
    out
}

/// The last `count` tokens of each sequence of [batch, context, width].
fn last(tokens: &[f32], context: usize, width: usize, count: usize) -> Vec<f32> {
    let sequences = tokens.chunks_exact(context * width);
    sequences
        .flat_map(|sequence| sequence[(context - count) * width..].to_vec())
        .collect()
}

fn check(spec: AttentionSpec, batch: usize, cut: usize, stored: CacheType, padding: usize) {
    let context = spec.context_len;
    let (kv_width, q_width) = (spec.kv_heads * spec.head_dim, spec.heads * spec.head_dim);
    let k = values(batch * context * kv_width, 1);
    let v = values(batch * context * kv_width, 2);
    let q_all = values(batch * context * q_width, 3);
    let all = AttentionSpec {
        query_len: context,
        ..spec
    };
    let rows = batch * spec.kv_heads;
    let mut cache = Stored::new(&spec, &[0, rows], stored, padding);
    cache.append(&all, &k, &v);

    let q = last(&q_all, context, q_width, spec.query_len);
    let out = cache.attend(InstructionSet::Plain, &spec, &q);
    let read = |values: &[f32]| rounded(values, spec.head_dim, stored);
    for (found, exact) in out.iter().zip(reference(&spec, &q, &read(&k), &read(&v))) {
        assert!(
            (f64::from(*found) - exact).abs() < 2e-5,
            "{spec:?}: {found} for {exact}"
        );
    }
    for set in InstructionSet::ALL {
        assert_eq!(
            bits(&cache.attend(set, &spec, &q)),
            bits(&out),
            "{set:?} {spec:?}"
        );
        let pages = (cut % context, 1 + cut % 5);
        assert_eq!(
            bits(&cache.attend_in_pages(set, &spec, &q, pages)),
            bits(&out),
            "{set:?} {spec:?} in pages of {pages:?}"
        );
    }
    check_split(
        &spec,
        cut % (rows + 1),
        (stored, padding + 8),
        (&k, &v, &q),
        &out,
    );
    check_one_query(&spec, &cache, &q_all, &out);
}

/// Split at any row, and appended in two steps, it gives the same bits.
fn check_split(
    spec: &AttentionSpec,
    cut: usize,
    (stored, padding): (CacheType, usize),
    (k, v, q): (&[f32], &[f32], &[f32]),
    out: &[f32],
) {
    let (context, kv_width) = (spec.context_len, spec.kv_heads * spec.head_dim);
    let rows = k.len() / (context * spec.head_dim);
    let mut split = Stored::new(spec, &[0, cut, rows], stored, padding);
    let before = AttentionSpec {
        query_len: context - spec.query_len,
        context_len: context - spec.query_len,
        ..*spec
    };
    if before.query_len > 0 {
        let first = |tokens: &[f32]| -> Vec<f32> {
            let sequences = tokens.chunks_exact(context * kv_width);
            sequences
                .flat_map(|s| s[..before.query_len * kv_width].to_vec())
                .collect()
        };
        split.append(&before, &first(k), &first(v));
    }
    let fresh = |tokens: &[f32]| last(tokens, context, kv_width, spec.query_len);
    split.append(spec, &fresh(k), &fresh(v));
    assert_eq!(
        bits(&split.attend(InstructionSet::best(), spec, q)),
        bits(out),
        "{spec:?}"
    );
}

/// Decoding the last query and prefilling everything give it the same bits.
fn check_one_query(spec: &AttentionSpec, cache: &Stored, q_all: &[f32], out: &[f32]) {
    let (context, q_width) = (spec.context_len, spec.heads * spec.head_dim);
    let q = last(q_all, context, q_width, spec.query_len);
    let decode = AttentionSpec {
        query_len: 1,
        ..*spec
    };
    let all = AttentionSpec {
        query_len: context,
        ..*spec
    };
    let one = cache.attend(
        InstructionSet::best(),
        &decode,
        &last(&q, spec.query_len, q_width, 1),
    );
    let prefilled = cache.attend(InstructionSet::best(), &all, q_all);
    assert_eq!(
        bits(&one),
        bits(&last(&prefilled, context, q_width, 1)),
        "{spec:?}"
    );
    assert_eq!(
        bits(&one),
        bits(&last(out, spec.query_len, q_width, 1)),
        "{spec:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn attention_is_right_and_the_same_however_it_is_cut(
        kv_heads in 1_usize..4, group in 1_usize..7, head_dim in 1_usize..100,
        query_len in 1_usize..40, before in 0_usize..40,
        batch in 1_usize..4, cut in 0_usize..100, stored in 0_usize..4, padded: bool,
        window in prop::option::of(1_usize..60),
    ) {
        let spec = AttentionSpec {
            heads: kv_heads * group,
            kv_heads,
            head_dim,
            query_len,
            context_len: query_len + before,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window,
            picks: None,
        };
        let stored = [
            CacheType::Whole(Dtype::F32),
            CacheType::Whole(Dtype::F16),
            CacheType::Whole(Dtype::Bf16),
            CacheType::Packed,
        ][stored];
        check(spec, batch, cut, stored, if padded { 24 } else { 0 });
    }
}

#[test]
fn several_blocks_of_rows_and_positions() {
    let spec = AttentionSpec {
        heads: 8,
        kv_heads: 4,
        head_dim: 80,
        query_len: 1,
        context_len: 9001,
        scale: 0.1,
        window: None,
        picks: None,
    };
    let (k, v) = (values(2 * 9001 * 320, 1), values(2 * 9001 * 320, 2));
    let q = values(2 * 640, 3);
    let all = AttentionSpec {
        query_len: 9001,
        ..spec
    };
    let mut cache = Stored::new(&spec, &[0, 8], CacheType::Whole(Dtype::F32), 0);
    cache.append(&all, &k, &v);
    let out = cache.attend(InstructionSet::best(), &spec, &q);
    for (found, exact) in out.iter().zip(reference(&spec, &q, &k, &v)) {
        assert!(
            (f64::from(*found) - exact).abs() < 2e-5,
            "{found} for {exact}"
        );
    }
}

#[test]
fn only_the_asked_rows_are_written() {
    let spec = AttentionSpec {
        heads: 2,
        kv_heads: 2,
        head_dim: 4,
        query_len: 1,
        context_len: 1,
        scale: 1.0,
        window: None,
        picks: None,
    };
    let buffer = [0_u64; 16];
    let segment = KvSegment {
        row_start: 0,
        row_end: 4,
        record_bytes: 128,
        pages: &[bytemuck::cast_slice(&buffer)],
        stored: CacheType::Whole(Dtype::F32),
    };
    let (q, mut out) = ([1.0; 16], [7.0; 16]);
    let mut scratch = AttentionScratch::default();
    attend(&q, &segment, &spec, 1..3, &mut scratch, &mut out).unwrap();
    assert_eq!(out[..4], [7.0; 4]);
    assert_eq!(out[4..12], [0.0; 8]);
    assert_eq!(out[12..], [7.0; 4]);

    let short = KvSegment {
        pages: &[&segment.pages[0][..127]],
        ..segment
    };
    let error = attend(&q, &short, &spec, 0..4, &mut scratch, &mut out).unwrap_err();
    let expected = "the buffer of a segment, in bytes: 127 given, 128 needed";
    assert_eq!(error.to_string(), expected);
    let error = attend(&q, &segment, &spec, 3..5, &mut scratch, &mut out).unwrap_err();
    assert_eq!(error.to_string(), "rows in the segment: 1 given, 2 needed");
}

/// Attention in f64 with the values of these positions alone, the weights being those of all.
fn restricted(
    spec: &AttentionSpec,
    (q, k, v): (&[f32], &[f32], &[f32]),
    picks: &Picks,
) -> Vec<f64> {
    let (count, past) = (
        picks.positions.len() / (k.len() / (spec.context_len * spec.head_dim)),
        spec.start(),
    );
    let mut kept = vec![0.0_f32; v.len()];
    let row_of = |row: usize, position: usize| {
        let (sequence, head) = (row / spec.kv_heads, row % spec.kv_heads);
        let at = (sequence * spec.context_len + position) * spec.kv_heads + head;
        at * spec.head_dim..(at + 1) * spec.head_dim
    };
    for (row, positions) in picks.positions.chunks_exact(count).enumerate() {
        for position in positions.iter().map(|p| *p as usize).chain([past]) {
            kept[row_of(row, position)].copy_from_slice(&v[row_of(row, position)]);
        }
    }
    reference(spec, q, k, &kept)
}

/// The weights of all positions in f64, added up over the group, [row, context_len].
fn summed_weights(spec: &AttentionSpec, q: &[f32], k: &[f32]) -> Vec<Vec<f64>> {
    let rows = q.len() / (spec.group() * spec.head_dim);
    let value = |row: usize, position: usize| {
        let mut v = vec![0.0; k.len()];
        let (sequence, head) = (row / spec.kv_heads, row % spec.kv_heads);
        let at = (sequence * spec.context_len + position) * spec.kv_heads + head;
        v[at * spec.head_dim] = 1.0;
        let width = spec.group() * spec.head_dim;
        let out = reference(spec, q, k, &v);
        let heads = out[row * width..(row + 1) * width].chunks_exact(spec.head_dim);
        heads.map(|head| head[0]).sum::<f64>()
    };
    let of = |row| (0..spec.context_len).map(|p| value(row, p)).collect();
    (0..rows).map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn sparse_attention_is_dense_attention_with_the_largest_weights(
        kv_heads in 1_usize..3, group in 1_usize..6, head_dim in 1_usize..70,
        past in 1_usize..30, share in 0.0_f64..1.0, batch in 1_usize..3, stored in 0_usize..4,
        window in prop::option::of(2_usize..40),
    ) {
        let seen = past.min(window.map_or(past, |window| window - 1));
        let picks = ((seen as f64 * share).ceil() as usize).clamp(1, seen);
        let spec = AttentionSpec {
            heads: kv_heads * group,
            kv_heads,
            head_dim,
            query_len: 1,
            context_len: past + 1,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window,
            picks: Some(picks),
        };
        let stored = [
            CacheType::Whole(Dtype::F32),
            CacheType::Whole(Dtype::F16),
            CacheType::Whole(Dtype::Bf16),
            CacheType::Packed,
        ][stored];
        check_sparse(&spec, batch, stored);
    }
}

fn check_sparse(spec: &AttentionSpec, batch: usize, stored: CacheType) {
    let (context, kv_width) = (spec.context_len, spec.kv_heads * spec.head_dim);
    let dense = AttentionSpec {
        picks: None,
        ..*spec
    };
    let k = values(batch * context * kv_width, 1);
    let v = values(batch * context * kv_width, 2);
    let q = values(batch * spec.heads * spec.head_dim, 3);
    let rows = batch * spec.kv_heads;
    let mut cache = Stored::new(spec, &[0, rows], stored, 0);
    let all = AttentionSpec {
        query_len: context,
        ..dense
    };
    cache.append(&all, &k, &v);
    let out = cache.attend(InstructionSet::Plain, spec, &q);
    check_sets_and_pages(&cache, spec, &q, &out);

    let segment = KvSegment {
        row_start: 0,
        row_end: rows,
        record_bytes: cache.record(0),
        pages: &[bytemuck::cast_slice(&cache.buffers[0])],
        stored,
    };
    let (mut scratch, mut picks) = (AttentionScratch::default(), Picks::default());
    score(&q, &segment, spec, 0..rows, &mut scratch, &mut picks).unwrap();
    let read = |values: &[f32]| rounded(values, spec.head_dim, stored);
    let (k, v) = (read(&k), read(&v));
    let exact = restricted(spec, (&q, &k, &v), &picks);
    for (found, exact) in out.iter().zip(exact) {
        assert!(
            (f64::from(*found) - exact).abs() < 2e-5,
            "{found} for {exact}"
        );
    }
    let count = spec.value_len() - 1;
    for (row, weights) in summed_weights(spec, &q, &k).iter().enumerate() {
        let positions = &picks.positions[row * count..(row + 1) * count];
        assert!(positions.is_sorted_by(|a, b| a < b), "{positions:?}");
        let is_picked = |p: usize| positions.contains(&(p as u32));
        let past = spec.seen(0).start..spec.start();
        let least = past.clone().filter(|p| is_picked(*p)).map(|p| weights[p]);
        let left = past.filter(|p| !is_picked(*p)).map(|p| weights[p]);
        let (least, left) = (least.fold(f64::MAX, f64::min), left.fold(0.0, f64::max));
        assert!(least > left - 1e-6, "{least} was picked and {left} left");
    }

    // Collected at the first positions, the values give the same bits; so do all of them.
    let collected = collect(&cache, spec, &picks);
    let segment = KvSegment {
        pages: &[bytemuck::cast_slice(&collected)],
        ..segment
    };
    let mut apart = vec![f32::NAN; q.len()];
    weigh(&picks, &segment, spec, 0..rows, &mut scratch, &mut apart).unwrap();
    assert_eq!(bits(&apart), bits(&out), "{spec:?}");
    let whole = AttentionSpec {
        picks: Some(spec.seen(0).len() - 1),
        ..*spec
    };
    let [whole, dense] =
        [whole, dense].map(|spec| bits(&cache.attend(InstructionSet::best(), &spec, &q)));
    assert_eq!(whole, dense, "{spec:?}");
}

/// That every instruction set gives these bits, in one buffer and in pages.
fn check_sets_and_pages(cache: &Stored, spec: &AttentionSpec, q: &[f32], out: &[f32]) {
    let pages = (spec.context_len / 3, 2);
    for set in InstructionSet::ALL {
        assert_eq!(bits(&cache.attend(set, spec, q)), bits(out), "{set:?}");
        let in_pages = cache.attend_in_pages(set, spec, q, pages);
        assert_eq!(bits(&in_pages), bits(out), "{set:?} in pages of {pages:?}");
    }
}

/// The cache with the picked values at the first positions, the newest where it was and others no numbers.
fn collect(cache: &Stored, spec: &AttentionSpec, picks: &Picks) -> Vec<u64> {
    let head = cache.stored.head_bytes(spec.head_dim);
    let (record, rows) = (cache.record(0), cache.bounds[1]);
    let from: &[u8] = bytemuck::cast_slice(&cache.buffers[0]);
    let mut collected = vec![u64::MAX; cache.buffers[0].len()];
    let into: &mut [u8] = bytemuck::cast_slice_mut(&mut collected);
    let count = spec.value_len() - 1;
    for row in 0..rows {
        let positions = &picks.positions[row * count..(row + 1) * count];
        let newest = [(spec.start(), spec.start() as u32)];
        for (to, position) in positions.iter().copied().enumerate().chain(newest) {
            let at = |position: usize| position * record + (rows + row) * head;
            let value = &from[at(position as usize)..at(position as usize) + head];
            into[at(to)..at(to) + head].copy_from_slice(value);
        }
    }
    collected
}

#[test]
fn sparse_attention_is_for_one_query_and_the_past() {
    let spec = AttentionSpec {
        heads: 1,
        kv_heads: 1,
        head_dim: 4,
        query_len: 1,
        context_len: 3,
        scale: 1.0,
        window: None,
        picks: Some(3),
    };
    let buffer = [0_u64; 16];
    let segment = KvSegment {
        row_start: 0,
        row_end: 1,
        record_bytes: 32,
        pages: &[bytemuck::cast_slice(&buffer)],
        stored: CacheType::Whole(Dtype::F32),
    };
    let mut scratch = AttentionScratch::default();
    let mut said = |spec: &AttentionSpec| {
        let q = vec![1.0; spec.query_len * 4];
        let mut out = q.clone();
        let given = attend(&q, &segment, spec, 0..1, &mut scratch, &mut out);
        given.unwrap_err().to_string()
    };
    assert_eq!(said(&spec), "picked positions: 4 given, 3 needed");
    let many = AttentionSpec {
        query_len: 2,
        picks: Some(1),
        ..spec
    };
    assert_eq!(
        said(&many),
        "queries of sparse attention: 2 given, 1 needed"
    );
}
