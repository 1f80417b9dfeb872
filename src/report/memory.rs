//! Throughput against device memory, as a picture and as tables.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{
    Area, Axis, Failure, Picture, SIZE, colour, coloured_words, draw_axes, draw_title, own,
    range_of, words,
};
use super::{Align, Table, three_digits};
use crate::memory::{MemoryPoint, MemoryRange, ranges};

const LEGEND_WIDTH: u32 = 232;
const GREY: RGBColor = RGBColor(96, 96, 96);
const GIGABYTE: f64 = 1e9;

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub struct MemoryCurves<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// System by system.
    pub points: &'a [MemoryPoint],
}

/// Gigabytes that a system's plans take, and tokens a second: each once, memory ascending.
fn places(points: &[MemoryPoint]) -> Vec<(f64, f64)> {
    let places = points.iter().filter_map(MemoryPoint::place);
    let mut places: Vec<(f64, f64)> = places.map(|(b, rate)| (b / GIGABYTE, rate)).collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.dedup();
    places
}

/// What a system reaches with so much memory: until a plan for more fits, that of less.
fn steps(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for place in places {
        let before = steps.last().map(|last| last.1);
        steps.extend(before.map(|rate| (place.0, rate)));
        steps.push(*place);
    }
    steps
}

fn plain(number: f64) -> String {
    format!("{}", (number * 1e6).round() / 1e6)
}

impl Picture for MemoryCurves<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        draw_title(area, self.title)?;
        let systems: Vec<&[MemoryPoint]> =
            self.points.chunk_by(|a, b| a.system == b.system).collect();
        let all: Vec<(f64, f64)> = systems.iter().flat_map(|points| places(points)).collect();
        let axes = [
            Axis {
                name: "device memory that the plan takes (GB)",
                range: range_of(all.iter().map(|(memory, _)| *memory)),
                label: plain,
            },
            Axis {
                name: "throughput (tokens/s)",
                range: range_of(all.iter().map(|(_, rate)| *rate)),
                label: plain,
            },
        ];
        let mut chart = ChartBuilder::on(&plot)
            .margin(16)
            .margin_top(44)
            .x_label_area_size(58)
            .y_label_area_size(92)
            .build_cartesian_2d(
                axes[0].range.clone().log_scale(),
                axes[1].range.clone().log_scale(),
            )
            .map_err(own)?;
        let pixel = |at: (f64, f64)| chart.plotting_area().map_coordinate(&at);
        draw_axes(area, pixel, [&axes[0], &axes[1]])?;
        for (index, points) in systems.iter().enumerate() {
            let (colour, places) = (colour(index), places(points));
            let line = LineSeries::new(steps(&places), colour.stroke_width(2));
            chart.draw_series(line).map_err(own)?;
            let dots = places.into_iter();
            let dots = dots.map(|at| Circle::new(at, 4, colour.filled()));
            chart.draw_series(dots).map_err(own)?;
        }
        draw_legend(&legend, &systems, &ranges(self.points))
    }
}

fn draw_legend<B: DrawingBackend>(
    area: &Area<B>,
    systems: &[&[MemoryPoint]],
    ranges: &[MemoryRange],
) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    let place = (HPos::Left, VPos::Center);
    let mut y = 56;
    for (index, points) in systems.iter().enumerate() {
        let (colour, name) = (colour(index), points[0].system);
        let line = PathElement::new(vec![(4, y), (28, y)], colour.stroke_width(2));
        area.draw(&line).map_err(own)?;
        area.draw(&Circle::new((16, y), 4, colour.filled()))
            .map_err(own)?;
        area.draw(&words(name, (32, y + 2), 14, place))
            .map_err(own)?;
        let said = match ranges.iter().find(|range| range.system == name) {
            Some(range) => format!("uses {}", gigabytes(range)),
            None => "out of memory".to_owned(),
        };
        y += 18;
        area.draw(&coloured_words(&said, (32, y + 2), 12, place, GREY))
            .map_err(own)?;
        y += 28;
    }
    Ok(())
}

/// The range in words.
fn gigabytes(range: &MemoryRange) -> String {
    let [least, most] = [range.least_bytes, range.most_bytes]
        .map(|bytes| format!("{:.2}", bytes as f64 / GIGABYTE));
    match least == most {
        true => format!("{least} GB"),
        false => format!("{least} to {most} GB"),
    }
}

/// A row a size of device memory, a column a system: tokens a second.
pub fn memory_table(points: &[MemoryPoint]) -> Table {
    let systems: Vec<&[MemoryPoint]> = points.chunk_by(|a, b| a.system == b.system).collect();
    let mut head = vec![("device GB", Align::Right)];
    head.extend(
        systems
            .iter()
            .map(|points| (points[0].system, Align::Right)),
    );
    let mut table = Table::new(&head);
    let Some(first) = systems.first() else {
        return table;
    };
    for (index, point) in first.iter().enumerate() {
        let size = point.device_capacity_bytes as f64 / GIGABYTE;
        let mut row = vec![format!("{size:.2}")];
        row.extend(systems.iter().map(|points| {
            let rate = points.get(index).and_then(|point| point.throughput_tok_s);
            rate.map_or("-".to_owned(), three_digits)
        }));
        table.row(row);
    }
    table
}

/// How much device memory each system's plans use, and what they reach.
pub fn ranges_table(ranges: &[MemoryRange]) -> Table {
    let mut table = Table::new(&[
        ("system", Align::Left),
        ("uses", Align::Left),
        ("least tok/s", Align::Right),
        ("most tok/s", Align::Right),
    ]);
    for range in ranges {
        table.row([
            range.system.to_owned(),
            gigabytes(range),
            three_digits(range.least_tok_s),
            three_digits(range.most_tok_s),
        ]);
    }
    table
}
