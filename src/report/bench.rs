//! What `bench` measured, beside the aims for GPUs.

mod picture;
mod rows;

use plimsoll_backend::bench::{AttentionTimes, Bench, LinkBound, ProductTimes};
use plimsoll_core::hardware::Implementation;
use plimsoll_core::units::{BytesPerSecond, Seconds};
use serde::Serialize;

use super::{Align, Table, three_digits};

pub use picture::BenchPicture;
pub use rows::BenchRow;

/// What was measured where, for machines to read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    /// `cuda` or `emulated`.
    pub backend: &'static str,
    /// What it is called.
    pub device: String,
    /// Whose shapes.
    pub model: String,
    /// Stored type.
    pub dtype: &'static str,
    /// Weights are in groups of 4-bit codes: on a GPU the conventional way unpacks them first.
    pub packed: bool,
    /// The device's memory.
    pub memory_bytes_per_s: f64,
    /// By shape and rows.
    pub products: Vec<ProductRow>,
    /// By positions and sequences.
    pub attention: Vec<AttentionRow>,
    /// Decode with weights on the host.
    pub link: LinkRow,
}

/// A figure, and the aim that it has on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// What was measured; none where it cannot be told.
    pub measured: Option<f64>,
    /// What it should be at least, or at most.
    pub aim: Option<f64>,
    /// Whether it is; none where there is nothing to say.
    pub met: Option<bool>,
}

impl Figure {
    fn new(measured: Option<f64>, aim: Option<Aim>) -> Figure {
        let measured = measured.filter(|measured| measured.is_finite());
        let pair = measured.zip(aim);
        Figure {
            measured,
            aim: aim.map(Aim::value),
            met: pair.map(|(measured, aim)| aim.is_met(measured)),
        }
    }

    /// The figure, and behind it what it should have been.
    fn text(&self, aim: &str) -> String {
        let measured = self.measured.map_or("-".to_owned(), three_digits);
        match (self.met, self.aim) {
            (Some(false), Some(value)) => format!("{measured} (not {aim} {value})"),
            _ => measured,
        }
    }
}

/// What a figure should be. All are shares and ratios.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Aim {
    AtLeast(f64),
    AtMost(f64),
}

impl Aim {
    fn value(self) -> f64 {
        match self {
            Aim::AtLeast(value) | Aim::AtMost(value) => value,
        }
    }

    fn is_met(self, measured: f64) -> bool {
        match self {
            Aim::AtLeast(value) => measured >= value,
            Aim::AtMost(value) => measured <= value,
        }
    }
}

/// Of what dispatch takes for so few rows, a share of the device's memory.
const OF_MEMORY: Aim = Aim::AtLeast(0.85);
const OF_MEMORY_ROWS_MAX: usize = 8;
/// What dispatch takes is never slower than the vendor's product.
const OVER_CONVENTIONAL: Aim = Aim::AtMost(1.0);
/// A unified maximum beside a running one.
const GAIN: Aim = Aim::AtLeast(1.1);
/// Of the link's bytes.
const OF_LINK: Aim = Aim::AtLeast(0.95);
/// Time over the busiest resource's.
const OVER_BUSIEST: Aim = Aim::AtMost(1.1);

/// A product.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)] // named as in `plimsoll_backend::bench`
pub struct ProductRow {
    pub n: usize,
    pub k: usize,
    /// Whether these are the columns of several products that are computed as one.
    pub joined: bool,
    pub rows: usize,
    pub gemv_s: Option<f64>,
    pub flat_s: Option<f64>,
    pub conventional_s: Option<f64>,
    pub dispatched: &'static str,
    pub bytes: u64,
    pub bytes_per_s: Option<f64>,
    /// Bytes/s over the device's memory.
    pub share_of_memory: Figure,
    /// The time of what was dispatched over that of the conventional product.
    pub over_conventional: Figure,
    pub apart: Option<f32>,
}

/// A decode step's attention in a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)] // as above
pub struct AttentionRow {
    pub context: usize,
    pub sequences: usize,
    pub bytes: u64,
    pub splits: usize,
    /// Two launches: partial softmax with a running maximum, and what puts it together.
    pub in_two_s: f64,
    /// The same in one.
    pub synchronised_s: f64,
    /// One with a unified maximum.
    pub unified_s: f64,
    /// How much faster that is than the two.
    pub gain: Figure,
    /// How much faster it is than what differs from it by the maximum only.
    pub gain_by_maximum: Figure,
    pub recomputed: u32,
    pub apart: f32,
}

/// Decode with weights on the host.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)] // as above
pub struct LinkRow {
    pub layers: u32,
    pub bytes_per_token: f64,
    pub seconds_per_token: f64,
    pub link_bytes_per_s: f64,
    pub share_of_link: Figure,
    pub busiest: &'static str,
    pub over_busiest: Figure,
}

fn name(implementation: Implementation) -> &'static str {
    match implementation {
        Implementation::Gemv => "gemv",
        Implementation::Flat => "flat",
        Implementation::Conventional => "conventional",
    }
}

impl ProductRow {
    fn of(times: &ProductTimes, memory: f64, on_gpu: bool) -> ProductRow {
        let rate = times.bytes_per_s();
        let is_narrow = times.rows <= OF_MEMORY_ROWS_MAX;
        let share = rate.map(|rate| rate / memory);
        ProductRow {
            n: times.weights.n,
            k: times.weights.k,
            joined: times.joined,
            rows: times.rows,
            gemv_s: times.seconds_of(Implementation::Gemv),
            flat_s: times.seconds_of(Implementation::Flat),
            conventional_s: times.seconds_of(Implementation::Conventional),
            dispatched: name(times.dispatched),
            bytes: times.bytes,
            bytes_per_s: rate,
            share_of_memory: Figure::new(share, (on_gpu && is_narrow).then_some(OF_MEMORY)),
            over_conventional: Figure::new(
                times.over_conventional(),
                // The vendor's has no launch for several matrices, but one for as large a matrix.
                (on_gpu && !times.joined && times.dispatched != Implementation::Conventional)
                    .then_some(OVER_CONVENTIONAL),
            ),
            apart: times.apart,
        }
    }
}

impl AttentionRow {
    fn of(times: &AttentionTimes) -> AttentionRow {
        AttentionRow {
            context: times.context,
            sequences: times.sequences,
            bytes: times.bytes,
            splits: times.splits,
            in_two_s: times.in_two_s,
            synchronised_s: times.synchronised_s,
            unified_s: times.unified_s,
            // Only GPUs have these ways.
            gain: Figure::new(Some(times.gain()), Some(GAIN)),
            gain_by_maximum: Figure::new(Some(times.gain_by_maximum()), None),
            recomputed: times.recomputed,
            apart: times.apart,
        }
    }
}

impl LinkRow {
    fn of(link: &LinkBound, on_gpu: bool) -> LinkRow {
        LinkRow {
            layers: link.layers,
            bytes_per_token: link.bytes_per_token,
            seconds_per_token: link.seconds_per_token,
            link_bytes_per_s: link.link_bytes_per_s,
            share_of_link: Figure::new(Some(link.share_of_link()), on_gpu.then_some(OF_LINK)),
            busiest: link.busiest,
            over_busiest: Figure::new(Some(link.over_busiest()), on_gpu.then_some(OVER_BUSIEST)),
        }
    }
}

impl BenchReport {
    /// What was measured of a model's shapes on a device; aims are for GPUs.
    pub fn new(
        bench: &Bench,
        (backend, device): (&'static str, String),
        (model, dtype, packed): (String, &'static str, bool),
        on_gpu: bool,
    ) -> BenchReport {
        let memory = bench.memory_bytes_per_s;
        let products = bench.products.iter();
        BenchReport {
            backend,
            device,
            model,
            dtype,
            packed,
            memory_bytes_per_s: memory,
            products: products
                .map(|times| ProductRow::of(times, memory, on_gpu))
                .collect(),
            attention: bench.attention.iter().map(AttentionRow::of).collect(),
            link: LinkRow::of(&bench.link, on_gpu),
        }
    }

    fn figures(&self) -> impl Iterator<Item = &Figure> {
        let products = self.products.iter();
        let of_products = products.flat_map(|row| [&row.share_of_memory, &row.over_conventional]);
        let of_attention = self.attention.iter().map(|row| &row.gain);
        let of_link = [&self.link.share_of_link, &self.link.over_busiest];
        of_products.chain(of_attention).chain(of_link)
    }

    /// Whose shapes on which device, in a line.
    fn setting(&self) -> String {
        format!(
            "{} in {}{} on {}; its memory: {}",
            self.model,
            self.dtype,
            if self.packed {
                " (weights in 4 bits)"
            } else {
                ""
            },
            self.device,
            BytesPerSecond(self.memory_bytes_per_s)
        )
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n{}", self.setting(), self.products_table());
        if !self.attention.is_empty() {
            text += &format!("\n{}", self.attention_table());
        }
        text += &format!("\n{}", self.link_table());
        let judged: Vec<bool> = self.figures().filter_map(|figure| figure.met).collect();
        if !judged.is_empty() {
            let met = judged.iter().filter(|met| **met).count();
            text += &format!("\n{met} of {} aims are met\n", judged.len());
        }
        text
    }

    fn products_table(&self) -> Table {
        let mut table = Table::new(&[
            ("weights", Align::Left),
            ("rows", Align::Right),
            ("A: GEMV", Align::Right),
            ("B: flat", Align::Right),
            ("C: conventional", Align::Right),
            ("dispatched", Align::Left),
            ("of memory", Align::Left),
            ("over C", Align::Left),
        ]);
        let time = |s: Option<f64>| s.map_or("-".to_owned(), |s| Seconds(s).to_string());
        for row in &self.products {
            table.row([
                format!(
                    "{} x {}{}",
                    row.n,
                    row.k,
                    if row.joined { ", joined" } else { "" }
                ),
                row.rows.to_string(),
                time(row.gemv_s),
                time(row.flat_s),
                time(row.conventional_s),
                row.dispatched.to_owned(),
                row.share_of_memory.text("at least"),
                row.over_conventional.text("at most"),
            ]);
        }
        table
    }

    fn attention_table(&self) -> Table {
        let mut table = Table::new(&[
            ("attention: context", Align::Right),
            ("sequences", Align::Right),
            ("in two launches", Align::Right),
            ("synchronised", Align::Right),
            ("unified maximum", Align::Right),
            ("over two launches", Align::Left),
            ("over synchronised", Align::Left),
            ("computed again", Align::Right),
        ]);
        for row in &self.attention {
            table.row([
                row.context.to_string(),
                row.sequences.to_string(),
                Seconds(row.in_two_s).to_string(),
                Seconds(row.synchronised_s).to_string(),
                Seconds(row.unified_s).to_string(),
                row.gain.text("at least"),
                row.gain_by_maximum.text("at least"),
                row.recomputed.to_string(),
            ]);
        }
        table
    }

    fn link_table(&self) -> Table {
        let row = &self.link;
        let mut table = Table::new(&[
            ("weights on the host", Align::Left),
            ("a token", Align::Right),
            ("the link", Align::Right),
            ("of the link", Align::Left),
            ("over the busiest", Align::Left),
        ]);
        table.row([
            super::count(u64::from(row.layers), "layer"),
            Seconds(row.seconds_per_token).to_string(),
            BytesPerSecond(row.link_bytes_per_s).to_string(),
            row.share_of_link.text("at least"),
            format!("{}, {}", row.over_busiest.text("at most"), row.busiest),
        ]);
        table
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_backend::dispatch::Weights;
    use plimsoll_core::Dtype;

    use super::*;
    use Implementation::{Conventional, Gemv};

    fn bench(gain: f64) -> Bench {
        let product = |rows, gemv| ProductTimes {
            weights: Weights {
                dtype: Dtype::F16,
                n: 64,
                k: 32,
                packed: false,
                biased: false,
            },
            joined: false,
            rows,
            seconds: vec![(Gemv, gemv), (Conventional, 1e-3)],
            dispatched: Gemv,
            bytes: 900_000,
            apart: None,
        };
        Bench {
            memory_bytes_per_s: 1e9,
            products: vec![product(8, 1e-3), product(16, 2e-3)],
            attention: vec![AttentionTimes {
                context: 256,
                sequences: 2,
                bytes: 1,
                splits: 1,
                in_two_s: gain,
                synchronised_s: 1.01,
                unified_s: 1.0,
                recomputed: 0,
                apart: 0.0,
            }],
            link: LinkBound {
                layers: 1,
                bytes_per_token: 9.0,
                seconds_per_token: 1.0,
                link_bytes_per_s: 10.0,
                busiest: "h2d",
                busiest_share: 0.5,
            },
        }
    }

    fn report(gain: f64, on_gpu: bool) -> BenchReport {
        let device = ("cuda", "a card".to_owned());
        BenchReport::new(&bench(gain), device, ("m".to_owned(), "f16", false), on_gpu)
    }

    #[test]
    fn what_misses_its_aim_says_so() {
        let report = report(1.05, true);
        let met: Vec<_> = report.figures().map(|figure| figure.met).collect();
        // 0.9 of memory and as fast as C; no aim for 16 rows and slower than C; then attention, link and the busiest.
        let expected = [Some(true), Some(true), None, Some(false), Some(false)];
        assert_eq!(met[..5], expected);
        assert_eq!(met[5..], [Some(false), Some(false)]);
        let text = report.text();
        for line in [
            "1.05 (not at least 1.1)",
            "  1.01 ",
            "2.00 (not at most 1)",
            "0.900 (not at least 0.95)",
            "2.00 (not at most 1.1), h2d",
            "2 of 6 aims are met",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
    }

    #[test]
    fn a_row_for_each_way_says_what_it_makes_of_the_peak() {
        let rows = report(1.25, true).rows();
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.way, row.rows.or(row.context), row.share_of_peak))
            .collect();
        let expected = [
            ("gemv", Some(8), 0.9),
            ("conventional", Some(8), 0.9),
            ("gemv", Some(16), 0.45),
            ("conventional", Some(16), 0.9),
            ("two-launches", Some(256), 0.8e-9),
            ("synchronised", Some(256), 1e-9 / 1.01),
            ("unified", Some(256), 1e-9),
            ("weights", None, 0.9),
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!((found.0, found.1), (expected.0, expected.1));
            assert!((found.2 / expected.2 - 1.0).abs() < 1e-9, "{found:?}");
        }
        assert_eq!(rows.len(), expected.len());
        assert_eq!(
            (rows[0].dispatched, rows[1].dispatched),
            (Some(true), Some(false))
        );
        let csv = String::from_utf8(crate::report::to_csv(&rows).unwrap()).unwrap();
        assert!(csv.starts_with(
            "part,n,k,rows,context,sequences,way,seconds,bytes,share_of_peak,dispatched\n"
        ));
    }

    #[test]
    fn a_picture_has_all_ways_of_attention_beside_products() {
        let report = report(1.25, true);
        let svg = crate::report::picture_svg(&BenchPicture::new(&report)).unwrap();
        for words in [
            "A: GEMV",
            "C: conventional",
            "unified maximum",
            "64 x 32",
            "positions",
        ] {
            assert!(svg.contains(words), "{words}");
        }
        assert!(!svg.contains("B: flat"));
    }

    #[test]
    fn what_is_no_gpu_has_no_aims() {
        let report = BenchReport {
            attention: Vec::new(),
            ..report(1.0, false)
        };
        assert!(report.figures().all(|f| f.aim.is_none() && f.met.is_none()));
        let text = report.text();
        assert!(!text.contains("aim") && !text.contains("not at"), "{text}");
    }
}
