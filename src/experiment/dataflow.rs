//! What FlashDecoding++'s three techniques are worth: a token's linear layers by each product alone and by the table, and
//! attention with and without a unified maximum, as `bench` measured them on a GPU.

use std::collections::BTreeSet;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Curve, Implementation, Inflections, ProductCurves};
use plimsoll_core::model::ModelSpec;
use serde::Deserialize;

use super::serving::{LinePicture, ServingRow, ServingTable};
use crate::report::{Line, percent};

/// A model's parts as they were measured, and what was published of such.
#[derive(Debug)]
pub struct Dataflow {
    /// Whose.
    pub model: ModelSpec,
    /// Its products, a shape once, in the order of a token.
    pub products: Vec<Measured>,
    /// Attention in one layer.
    pub attention: Vec<Attention>,
    /// Tokens that each sequence has behind it.
    pub context: u32,
    /// Sequences that get a token together.
    pub sequences: Vec<u32>,
    /// What was published.
    pub published: PublishedDataflow,
}

/// The numbers of FlashDecoding++, all of an A100.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedDataflow {
    /// Rows from which the flat product is better than GEMV.
    pub m1: u32,
    /// Speed of the vendor's product over GEMV's, for a row.
    pub vendor_over_gemv: f64,
    /// Speed of GEMV over that on tensor cores, for four rows.
    pub gemv_over_tensor_cores: f64,
    /// The share of attention that goes to synchronising its parts.
    pub synchronising: f64,
    /// Decode over that with the vendor's products and synchronised attention, on average.
    pub gain: f64,
}

/// Weights of a shape, and seconds of each implementation over rows.
#[derive(Debug)]
pub struct Measured {
    /// Outputs.
    pub n: u32,
    /// Inputs.
    pub k: u32,
    /// How often a token is multiplied with such.
    pub times: u32,
    /// Rows and seconds, by [`Implementation::ALL`]; rows ascend.
    pub seconds: [Vec<(u32, f64)>; 3],
}

/// Attention of sequences over their contexts in one layer, seconds.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Tokens that each sees.
    pub context: u32,
    /// Sequences.
    pub sequences: u32,
    /// Parts by themselves, put together by a second launch (FlashDecoding).
    pub two_launches: f64,
    /// With a running maximum, in one launch.
    pub synchronised: f64,
    /// With a unified maximum, in one launch.
    pub unified: f64,
}

impl Measured {
    /// Seconds of an implementation for so many rows.
    fn of(&self, implementation: Implementation, rows: u32) -> Option<f64> {
        let at = Implementation::ALL
            .iter()
            .position(|it| *it == implementation)?;
        let found = self.seconds[at].iter().find(|(m, _)| *m == rows)?;
        Some(found.1)
    }

    /// The table's row: the decision flow of Figure 9(b) over what was measured.
    fn inflections(&self) -> Inflections {
        let curve = |seconds: &Vec<(u32, f64)>| {
            let points = seconds
                .iter()
                .map(|(m, s)| (f64::from(*m), f64::from(*m) / s));
            Curve::new(points.collect(), "bench", None)
                .expect("the reader refuses what is no curve")
        };
        let [gemv, flat, conventional] = self.seconds.each_ref().map(curve);
        let curves = ProductCurves {
            dtype: Dtype::F16,
            n: self.n,
            k: self.k,
            packed: false,
            biased: false,
            gemv,
            flat: Some(flat),
            conventional,
        };
        curves.inflections()
    }
}

impl Dataflow {
    /// Rows of each shape, then of each number of sequences; a picture of a token's linear layers.
    pub fn table(&self) -> ServingTable {
        let shapes = self.products.iter().flat_map(|it| self.of_shape(it));
        let tokens = self.sequences.iter().flat_map(|it| self.of_token(*it));
        ServingTable {
            rows: shapes.chain(tokens).collect(),
            pictures: vec![self.picture()],
        }
    }

    /// Linear layers over all rows that were measured.
    fn picture(&self) -> LinePicture {
        let measured = self.products.iter().flat_map(|it| &it.seconds[0]);
        let rows: BTreeSet<u32> = measured.map(|(rows, _)| *rows).collect();
        let line = |name: &str, choose: &dyn Fn(&Measured, u32) -> Implementation| {
            let points = rows.iter().filter_map(|rows| {
                let seconds = self.linear(&|it| choose(it, *rows), *rows)?;
                Some((f64::from(*rows), seconds * 1e3))
            });
            Line {
                name: name.to_owned(),
                points: points.collect(),
            }
        };
        let alone = Implementation::ALL
            .into_iter()
            .zip(["GEMV", "flat GEMM", "the vendor's"]);
        let alone = alone.map(|(implementation, name)| line(name, &|_, _| implementation));
        let by_table = line("by the table", &|it, rows| it.inflections().choose(rows));
        LinePicture {
            suffix: String::new(),
            of: String::new(),
            x: "sequences that get a token together",
            y: "linear layers of a token (ms)",
            lines: alone.chain([by_table]).collect(),
        }
    }

    fn of_shape(&self, of: &Measured) -> Vec<ServingRow> {
        use Implementation::{Conventional, Flat, Gemv};
        let case = format!("{} x {}", of.n, of.k);
        let published = self.published;
        let Inflections { m1, m2 } = of.inflections();
        let point = |metric, rows: Option<u32>, published: Option<u32>| {
            let rows = rows?;
            let published = published.map(f64::from);
            Some(ServingRow::new(&case, metric, f64::from(rows), published))
        };
        let speed = |metric, this: Option<f64>, than: Option<f64>, published| {
            let share = than? / this?;
            Some(ServingRow::new(&case, metric, share, Some(published)))
        };
        let tensor_cores = || Some(of.of(Flat, 4)?.min(of.of(Conventional, 4)?));
        [
            point("M1, rows", m1, Some(published.m1)),
            point("M2, rows", m2, None),
            speed(
                "vendor over GEMV, 1 row",
                of.of(Conventional, 1),
                of.of(Gemv, 1),
                published.vendor_over_gemv,
            ),
            speed(
                "GEMV over tensor cores, 4 rows",
                of.of(Gemv, 4),
                tensor_cores(),
                published.gemv_over_tensor_cores,
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Seconds of a token's linear layers and head.
    fn linear(&self, choose: &dyn Fn(&Measured) -> Implementation, rows: u32) -> Option<f64> {
        let all = self.products.iter();
        all.map(|it| Some(f64::from(it.times) * it.of(choose(it), rows)?))
            .sum()
    }

    /// What a token takes by each choice; nothing of sequences that were not measured.
    fn of_token(&self, sequences: u32) -> Vec<ServingRow> {
        let case = match sequences {
            1 => "a token of 1 sequence".to_owned(),
            many => format!("a token of {many} sequences"),
        };
        let row = |metric, seconds: f64| ServingRow::new(&case, metric, seconds * 1e3, None);
        let by_table = |it: &Measured| it.inflections().choose(sequences);
        let Some(dispatched) = self.linear(&by_table, sequences) else {
            return Vec::new();
        };
        let mut rows = vec![row("linear layers by the table, ms", dispatched)];
        for (implementation, metric) in Implementation::ALL.into_iter().zip(ALONE) {
            let alone = self.linear(&|_| implementation, sequences);
            rows.extend(alone.map(|alone| {
                let saved = 1.0 - dispatched / alone;
                row(metric, alone).noted(format!("the table saves {}", percent(saved)))
            }));
        }
        rows.extend(self.with_attention(&case, sequences, dispatched));
        rows
    }

    fn with_attention(&self, case: &str, sequences: u32, dispatched: f64) -> Vec<ServingRow> {
        let mut measured = self.attention.iter();
        let measured = measured.find(|it| it.sequences == sequences && it.context == self.context);
        let vendor = self.linear(&|_| Implementation::Conventional, sequences);
        let (Some(of), Some(vendor)) = (measured, vendor) else {
            return Vec::new();
        };
        let layers = f64::from(self.model.num_hidden_layers);
        let row = |metric, value, published| ServingRow::new(case, metric, value, published);
        let ms = |metric, seconds: f64| row(metric, layers * seconds * 1e3, None);
        let best = dispatched + layers * of.unified;
        let gain = (vendor + layers * of.two_launches) / best;
        vec![
            ms("attention in two launches, ms", of.two_launches),
            ms("attention synchronised in one launch, ms", of.synchronised),
            ms("attention with a unified maximum, ms", of.unified),
            row(
                "share of attention that synchronises",
                1.0 - of.unified / of.two_launches,
                Some(self.published.synchronising),
            ),
            row(
                "all three techniques, gain",
                gain,
                Some(self.published.gain),
            ),
        ]
    }
}

/// What a token's linear layers take by one implementation alone, by [`Implementation::ALL`].
const ALONE: [&str; 3] = [
    "linear layers by GEMV alone, ms",
    "linear layers by flat GEMM alone, ms",
    "linear layers by the vendor's alone, ms",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::find_model;

    const PUBLISHED: PublishedDataflow = PublishedDataflow {
        m1: 2,
        vendor_over_gemv: 0.8,
        gemv_over_tensor_cores: 0.5,
        synchronising: 0.2,
        gain: 1.5,
    };

    fn of(table: &ServingTable, case: &str, metric: &str) -> f64 {
        let mut rows = table.rows.iter();
        let row = rows.find(|row| row.case == case && row.metric == metric);
        row.unwrap_or_else(|| panic!("no {case}, {metric}")).ours
    }

    /// One shape, 10 times in a token, whose times are round numbers.
    #[test]
    fn a_token_is_the_sum_of_its_products_and_its_attention() {
        let seconds = |all: [f64; 3]| [1, 2, 4].into_iter().zip(all).collect();
        let attention = |sequences, two_launches| Attention {
            context: 100,
            sequences,
            two_launches,
            synchronised: 0.011,
            unified: 0.01,
        };
        let asked = Dataflow {
            model: find_model("llama-2-7b").unwrap().spec,
            products: vec![Measured {
                n: 64,
                k: 32,
                times: 10,
                seconds: [
                    seconds([0.1, 0.2, 0.4]),
                    seconds([0.12, 0.12, 0.2]),
                    seconds([0.2, 0.2, 0.25]),
                ],
            }],
            attention: vec![attention(1, 0.02), attention(4, 0.04)],
            context: 100,
            sequences: vec![1, 4, 8],
            published: PUBLISHED,
        };
        let table = asked.table();
        let of = |case, metric| of(&table, case, metric);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} {b}");
        near(of("64 x 32", "M1, rows"), 2.0);
        near(of("64 x 32", "vendor over GEMV, 1 row"), 0.5);
        near(of("64 x 32", "GEMV over tensor cores, 4 rows"), 0.5);
        near(
            of("a token of 1 sequence", "linear layers by the table, ms"),
            1e3,
        );
        near(
            of("a token of 4 sequences", "linear layers by the table, ms"),
            2e3,
        );
        near(of("a token of 4 sequences", ALONE[0]), 4e3);
        let share = "share of attention that synchronises";
        near(of("a token of 4 sequences", share), 0.75);
        // (10 x 0.25 + 32 x 0.04) / (10 x 0.2 + 32 x 0.01)
        let gain = "all three techniques, gain";
        near(of("a token of 4 sequences", gain), 3.78 / 2.32);
        assert_eq!(
            table.pictures[0].lines[3].points,
            vec![(1.0, 1e3), (2.0, 1.2e3), (4.0, 2e3)]
        );
        // Nobody measured eight rows, and the flat product is never given way to.
        assert!(table.rows.iter().all(|row| !row.case.contains('8')));
        assert!(table.rows.iter().all(|row| row.metric != "M2, rows"));
    }
}
