//! `bench` as a picture: for each shape of weights what its implementations make of the device's memory, over rows, and the same
//! of the ways of attention, over positions.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::super::canvas::{
    Area, Failure, Picture, colour, coloured_words, draw_title, own, words,
};
use super::{BenchReport, BenchRow};

const LABEL: (&str, i32) = ("sans-serif", 13);
const HEAD_HEIGHT: u32 = 64;

/// Ways in the order of their colours, and what the legend calls them.
const WAYS: [(&str, &str); 6] = [
    ("gemv", "A: GEMV"),
    ("flat", "B: flat"),
    ("conventional", "C: conventional"),
    ("synchronised", "synchronised"),
    ("unified", "unified maximum"),
    ("two-launches", "in two launches"),
];

/// What is drawn of a report.
#[derive(Debug, Clone)]
pub struct BenchPicture<'a> {
    report: &'a BenchReport,
    rows: Vec<BenchRow>,
}

/// One chart; x is a logarithm to base 2.
struct Panel {
    title: String,
    x: &'static str,
    curves: Vec<Curve>,
    /// What dispatch takes.
    taken: Vec<(f64, f64)>,
    /// What is aimed at.
    aim: Vec<(f64, f64)>,
}

/// A way's shares.
struct Curve {
    way: usize,
    /// Beside its end, where a way has several.
    name: String,
    points: Vec<(f64, f64)>,
}

impl<'a> BenchPicture<'a> {
    /// The picture of a report.
    pub fn new(report: &'a BenchReport) -> BenchPicture<'a> {
        let rows = report.rows();
        BenchPicture { report, rows }
    }

    /// A panel a shape, and one of attention where there is any.
    fn panels(&self) -> Vec<Panel> {
        let mut shapes: Vec<(usize, usize)> = Vec::new();
        for row in &self.report.products {
            if !shapes.contains(&(row.n, row.k)) {
                shapes.push((row.n, row.k));
            }
        }
        let products = shapes.into_iter().map(|shape| self.product(shape));
        let attention = (!self.report.attention.is_empty()).then(|| self.attention());
        products.chain(attention).collect()
    }

    /// The ways in which some rows were computed, a curve each.
    fn curves(&self, name: &str, is_in: impl Fn(&BenchRow) -> Option<usize>) -> Vec<Curve> {
        let curve = |(way, (word, _)): (usize, &(&str, &str))| {
            let rows = self.rows.iter().filter(|row| row.way == *word);
            let points = rows.filter_map(|row| Some((log2(is_in(row)?), row.share_of_peak)));
            Curve {
                way,
                name: name.to_owned(),
                points: points.collect(),
            }
        };
        let all = WAYS.iter().enumerate().map(curve);
        all.filter(|curve| !curve.points.is_empty()).collect()
    }

    fn product(&self, (n, k): (usize, usize)) -> Panel {
        let is_in = |row: &BenchRow| row.rows.filter(|_| (row.n, row.k) == (Some(n), Some(k)));
        let taken = self.rows.iter().filter(|row| row.dispatched == Some(true));
        let of_shape = self.report.products.iter();
        let of_shape = of_shape.filter(|row| (row.n, row.k) == (n, k));
        Panel {
            title: format!("{n} x {k}"),
            x: "rows",
            curves: self.curves("", is_in),
            taken: taken
                .filter_map(|row| Some((log2(is_in(row)?), row.share_of_peak)))
                .collect(),
            aim: of_shape
                .filter_map(|row| Some((log2(row.rows), row.share_of_memory.aim?)))
                .collect(),
        }
    }

    fn attention(&self) -> Panel {
        let mut batches: Vec<usize> = self.report.attention.iter().map(|r| r.sequences).collect();
        batches.sort_unstable();
        batches.dedup();
        let curves = batches.into_iter().flat_map(|batch| {
            self.curves(&batch.to_string(), |row: &BenchRow| {
                row.context.filter(|_| row.sequences == Some(batch))
            })
        });
        Panel {
            title: "attention of a decode step, by sequences".to_owned(),
            x: "positions",
            curves: curves.collect(),
            taken: Vec::new(),
            aim: Vec::new(),
        }
    }
}

fn log2(count: usize) -> f64 {
    (count as f64).log2()
}

/// A power of two, told by its exponent; nothing between two of them.
fn power_of_two(exponent: &f64) -> String {
    let whole = exponent.round();
    match (exponent - whole).abs() < 1e-6 {
        true => whole.exp2().to_string(),
        false => String::new(),
    }
}

impl Panel {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        let places = || self.curves.iter().flat_map(|curve| &curve.points);
        let left = places().map(|at| at.0).fold(f64::INFINITY, f64::min);
        let right = places().map(|at| at.0).fold(left, f64::max);
        let top = places().chain(&self.aim).map(|at| at.1);
        let top = top.fold(0.01, f64::max) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, LABEL)
            .margin_right(28)
            .margin_left(8)
            .x_label_area_size(38)
            .y_label_area_size(64)
            .build_cartesian_2d(left - 0.2..right + 0.2, 0.0..top)
            .map_err(own)?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc("of memory")
            .x_labels(9)
            .y_labels(5)
            .x_label_formatter(&power_of_two)
            .y_label_formatter(&|share| format!("{:.0}%", share * 100.0))
            .label_style(LABEL)
            .axis_desc_style(LABEL)
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(own)?;
        let aim = LineSeries::new(self.aim.iter().copied(), BLACK.mix(0.5));
        chart.draw_series(aim).map_err(own)?;
        for curve in &self.curves {
            let colour = colour(curve.way);
            let line = LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2));
            chart.draw_series(line).map_err(own)?;
            let dots = curve.points.iter();
            let dots = dots.map(|at| Circle::new(*at, 3, colour.filled()));
            chart.draw_series(dots).map_err(own)?;
            let font = LABEL.into_font().color(&colour);
            let name = |at: &(f64, f64)| {
                EmptyElement::at(*at) + Text::new(curve.name.clone(), (7, -7), font.clone())
            };
            let names = curve.points.last().into_iter().map(name);
            chart.draw_series(names).map_err(own)?;
        }
        let taken = self.taken.iter();
        let taken = taken.map(|at| Circle::new(*at, 6, BLACK.stroke_width(1)));
        chart.draw_series(taken).map_err(own)?;
        Ok(())
    }
}

impl Picture for BenchPicture<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        draw_title(
            area,
            &format!("{}: bytes/s, as shares of it", self.report.setting()),
        )?;
        let (head, rest) = area.split_vertically(HEAD_HEIGHT);
        let place = (HPos::Left, VPos::Center);
        let is_there = |way: &str| self.rows.iter().any(|row| row.way == way);
        let mut x = 72;
        for (index, (way, name)) in WAYS.into_iter().enumerate() {
            if is_there(way) {
                let word = coloured_words(name, (x, 50), 14, place, colour(index));
                head.draw(&word).map_err(own)?;
                x += 15 * name.len() as i32 / 2 + 20;
            }
        }
        let ring = Circle::new((x, 50), 6, BLACK.stroke_width(1));
        head.draw(&ring).map_err(own)?;
        head.draw(&words("what dispatch takes", (x + 12, 50), 14, place))
            .map_err(own)?;
        let panels = self.panels();
        let columns = panels.len().clamp(1, 2);
        let areas = rest.split_evenly((panels.len().div_ceil(columns).max(1), columns));
        for (panel, area) in panels.iter().zip(&areas) {
            panel.draw(area)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_are_written() {
        let labels = [0.0, 0.5, 3.0, 12.0].map(|exponent| power_of_two(&exponent));
        assert_eq!(labels, ["1", "", "8", "4096"]);
    }
}
