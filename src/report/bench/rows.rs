//! `bench` as a table of one kind of row, for spreadsheets and for its picture.

use serde::Serialize;

use super::{AttentionRow, BenchReport, LinkRow, ProductRow};

/// A way to compute a part, and how long it takes. What a part does not have is empty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchRow {
    /// `product`, or `packed-product` where weights are in 4 bits; `attention` or `link`.
    pub part: &'static str,
    /// Outputs of a product.
    pub n: Option<usize>,
    /// Inputs of a product.
    pub k: Option<usize>,
    /// Rows of a product.
    pub rows: Option<usize>,
    /// Positions that attention sees.
    pub context: Option<usize>,
    /// Sequences that attend together.
    pub sequences: Option<usize>,
    /// `gemv`, `flat`, `conventional`; `two-launches`, `synchronised`, `unified`; of a link its layers' weights, `weights`.
    pub way: &'static str,
    /// Its time; of a link a token's.
    pub seconds: f64,
    /// What is read and written in that time.
    pub bytes: u64,
    /// Bytes a second over what the device's memory carries; of a link over what copies alone carry.
    pub share_of_peak: f64,
    /// Whether dispatch takes it, where there is a choice.
    pub dispatched: Option<bool>,
}

impl BenchRow {
    /// A row without sizes.
    fn new(part: &'static str, way: &'static str, (bytes, seconds, peak): (u64, f64, f64)) -> Self {
        BenchRow {
            part,
            n: None,
            k: None,
            rows: None,
            context: None,
            sequences: None,
            way,
            seconds,
            bytes,
            share_of_peak: bytes as f64 / seconds.max(1e-9) / peak,
            dispatched: None,
        }
    }
}

impl BenchReport {
    /// Products, attention and the link, in this order.
    pub fn rows(&self) -> Vec<BenchRow> {
        let memory = self.memory_bytes_per_s;
        let part = match self.packed {
            true => "packed-product",
            false => "product",
        };
        let products = self.products.iter();
        let products = products.flat_map(|row| of_product(part, row, memory));
        let attention = self.attention.iter();
        let attention = attention.flat_map(|row| of_attention(row, memory));
        products
            .chain(attention)
            .chain([of_link(&self.link)])
            .collect()
    }
}

fn of_product(part: &'static str, row: &ProductRow, memory: f64) -> impl Iterator<Item = BenchRow> {
    let ways = [
        ("gemv", row.gemv_s),
        ("flat", row.flat_s),
        ("conventional", row.conventional_s),
    ];
    ways.into_iter().filter_map(move |(way, seconds)| {
        Some(BenchRow {
            n: Some(row.n),
            k: Some(row.k),
            rows: Some(row.rows),
            dispatched: Some(way == row.dispatched),
            ..BenchRow::new(part, way, (row.bytes, seconds?, memory))
        })
    })
}

fn of_attention(row: &AttentionRow, memory: f64) -> impl Iterator<Item = BenchRow> {
    let ways = [
        ("two-launches", row.in_two_s),
        ("synchronised", row.synchronised_s),
        ("unified", row.unified_s),
    ];
    ways.into_iter().map(move |(way, seconds)| BenchRow {
        context: Some(row.context),
        sequences: Some(row.sequences),
        ..BenchRow::new("attention", way, (row.bytes, seconds, memory))
    })
}

fn of_link(row: &LinkRow) -> BenchRow {
    let bytes = row.bytes_per_token.round() as u64;
    let taken = (bytes, row.seconds_per_token, row.link_bytes_per_s);
    BenchRow::new("link", "weights", taken)
}
