//! The latency of a block against throughput, as a picture and as a table.

use plimsoll_core::policy::Schedule;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{
    Area, Axis, Failure, Picture, SIZE, colour, coloured_words, draw_axes, draw_title, own,
    range_of, seconds_label, words,
};
use super::{Align, Table, three_digits};
use crate::pareto::Point;
use crate::published::Published;

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Frontier<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// Predictions, system by system.
    pub points: &'a [Point],
    /// What was published of the same model and workload.
    pub published: &'a [Published],
}

const LEGEND_WIDTH: u32 = 232;
const GREY: RGBColor = RGBColor(96, 96, 96);

/// A system's predictions, and where it stands among them.
struct Curve<'a> {
    name: &'a str,
    colour: RGBColor,
    points: Vec<&'a Point>,
    /// Latency, throughput.
    published: Vec<(f64, f64)>,
}

impl Curve<'_> {
    /// The places of the frontier, or of all other points.
    fn places(&self, on_frontier: bool) -> Vec<(f64, f64)> {
        let some = self.points.iter().filter(|p| p.on_frontier == on_frontier);
        some.filter_map(|point| point.place()).collect()
    }

    /// What it cannot hold any more.
    fn out_of_memory(&self) -> Option<String> {
        let point = self.points.iter().find(|point| point.exceeds.is_some())?;
        let (tier, ..) = point.out_of_memory()?;
        Some(format!(
            "out of memory at {} ({tier})",
            point.effective_batch
        ))
    }
}

impl Frontier<'_> {
    fn curves(&self) -> Vec<Curve<'_>> {
        let mut curves: Vec<Curve<'_>> = Vec::new();
        for point in self.points {
            match curves.last_mut() {
                Some(curve) if curve.name == point.system => curve.points.push(point),
                _ => curves.push(Curve {
                    name: point.system,
                    colour: colour(curves.len()),
                    points: vec![point],
                    published: self.published_of(point.system),
                }),
            }
        }
        // A larger block may answer sooner than a smaller one of another schedule.
        let latency = |point: &Point| point.latency_s.unwrap_or(f64::INFINITY);
        for curve in &mut curves {
            let points = &mut curve.points;
            points.sort_by(|a, b| latency(a).total_cmp(&latency(b)));
        }
        curves
    }

    fn published_of(&self, system: &str) -> Vec<(f64, f64)> {
        let its = self.published.iter().filter(|p| p.system.name() == system);
        let place = |p: &Published| Some((p.latency_s?.value, p.throughput_tok_s?.value));
        its.filter_map(place).collect()
    }
}

impl Picture for Frontier<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        draw_title(area, self.title)?;
        let curves = self.curves();
        let places = || {
            let all = curves.iter();
            let all = all.flat_map(|c| [c.places(true), c.places(false), c.published.clone()]);
            all.flatten().collect::<Vec<_>>()
        };
        let axes = [
            Axis {
                name: "latency of a block",
                range: range_of(places().iter().map(|(latency, _)| *latency)),
                label: seconds_label,
            },
            Axis {
                name: "throughput (tokens/s)",
                range: range_of(places().iter().map(|(_, rate)| *rate)),
                label: |rate| format!("{}", (rate * 1e6).round() / 1e6),
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
        let pixel = |at: &(f64, f64)| chart.plotting_area().map_coordinate(at);
        draw_axes(area, |at| pixel(&at), [&axes[0], &axes[1]])?;
        let mut taken: Vec<(i32, i32)> = places().iter().map(pixel).collect();
        for curve in &curves {
            let corners: Vec<(i32, i32)> = curve.places(true).iter().map(pixel).collect();
            taken.extend(corners.windows(2).flat_map(|ends| along(ends[0], ends[1])));
        }
        let right = pixel(&(axes[0].range.end, axes[1].range.end)).0;
        let mut names = Names { taken, right };
        let texts = curves.iter().flat_map(|curve| names.of(curve, pixel));
        let texts: Vec<_> = texts.collect();
        for curve in &curves {
            let line = LineSeries::new(curve.places(true), curve.colour.stroke_width(2));
            chart.draw_series(line).map_err(own)?;
            let dots = curve.places(true).into_iter();
            let dots = dots.map(|at| Circle::new(at, 5, curve.colour.filled()));
            chart.draw_series(dots).map_err(own)?;
            let rest = curve.places(false).into_iter();
            let rest = rest.map(|at| Circle::new(at, 3, curve.colour.mix(0.35).filled()));
            chart.draw_series(rest).map_err(own)?;
            let published = curve.published.iter();
            let published = published.map(|at| Cross::new(*at, 6, curve.colour.stroke_width(2)));
            chart.draw_series(published).map_err(own)?;
        }
        for (text, at, colour) in texts {
            let text = coloured_words(&text, at, 13, (HPos::Center, VPos::Center), colour);
            area.draw(&text).map_err(own)?;
        }
        draw_legend(&legend, &curves)
    }
}

/// Pixels along a line, near enough to see that a word is on it.
fn along(from: (i32, i32), to: (i32, i32)) -> impl Iterator<Item = (i32, i32)> {
    const STEP: i32 = 8;
    let length = (to.0 - from.0).abs().max((to.1 - from.1).abs());
    let steps = (length / STEP).max(1);
    (0..=steps).map(move |i| {
        let at = |a: i32, b: i32| a + (b - a) * i / steps;
        (at(from.0, to.0), at(from.1, to.1))
    })
}

/// Numbers beside the first and the last point of each frontier, where there is room.
struct Names {
    /// The middles of what is there.
    taken: Vec<(i32, i32)>,
    right: i32,
}

impl Names {
    fn of(
        &mut self,
        curve: &Curve<'_>,
        pixel: impl Fn(&(f64, f64)) -> (i32, i32),
    ) -> Vec<(String, (i32, i32), RGBColor)> {
        let frontier = curve.points.iter().filter(|point| point.on_frontier);
        let frontier: Vec<&Point> = frontier.copied().collect();
        // Curves ascend: above their end and below their start they are not.
        const ABOVE: [(i32, i32); 5] = [(0, -16), (24, 0), (0, 17), (24, -12), (24, 12)];
        const BELOW: [(i32, i32); 5] = [(0, 17), (-22, 8), (22, 8), (0, 32), (-22, 22)];
        let ends = [(frontier.last(), ABOVE), (frontier.first(), BELOW)];
        let apart = if frontier.len() > 1 { 2 } else { 1 };
        let mut names = Vec::new();
        for (point, beside) in ends.into_iter().take(apart) {
            let Some((point, place)) = point.and_then(|point| Some((point, point.place()?))) else {
                continue;
            };
            let at = pixel(&place);
            let spots = beside.map(|(x, y)| (at.0 + x, at.1 + y));
            if let Some(spot) = spots.into_iter().find(|spot| self.is_free(*spot)) {
                self.taken.push(spot);
                names.push((point.effective_batch.to_string(), spot, curve.colour));
            }
        }
        names
    }

    fn is_free(&self, (x, y): (i32, i32)) -> bool {
        let apart = |(a, b): &(i32, i32)| (a - x).abs() > 18 || (b - y).abs() > 13;
        x + 16 < self.right && self.taken.iter().all(apart)
    }
}

fn draw_legend<B: DrawingBackend>(area: &Area<B>, curves: &[Curve<'_>]) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    let place = (HPos::Left, VPos::Center);
    let note = |text: &str, y: i32| coloured_words(text, (32, y + 2), 12, place, GREY);
    let mut y = 56;
    for curve in curves {
        let line = PathElement::new(vec![(4, y), (28, y)], curve.colour.stroke_width(2));
        area.draw(&line).map_err(own)?;
        area.draw(&Circle::new((16, y), 5, curve.colour.filled()))
            .map_err(own)?;
        area.draw(&words(curve.name, (32, y + 2), 14, place))
            .map_err(own)?;
        if let Some(said) = curve.out_of_memory() {
            y += 18;
            area.draw(&note(&said, y)).map_err(own)?;
        }
        y += 26;
    }
    y += 10;
    area.draw(&Circle::new((16, y), 3, GREY.mix(0.35).filled()))
        .map_err(own)?;
    area.draw(&note("predicted, not on the frontier", y))
        .map_err(own)?;
    if curves.iter().any(|curve| !curve.published.is_empty()) {
        y += 22;
        area.draw(&Cross::new((16, y), 6, GREY.stroke_width(2)))
            .map_err(own)?;
        area.draw(&note("published", y)).map_err(own)?;
    }
    y += 22;
    area.draw(&words("8", (16, y + 2), 13, (HPos::Center, VPos::Center)))
        .map_err(own)?;
    area.draw(&note("sequences in a block", y)).map_err(own)
}

/// A row a point; out of memory is said as such.
pub fn frontier_table(points: &[Point]) -> Table {
    let mut table = Table::new(&[
        ("system", Align::Left),
        ("batch", Align::Right),
        ("latency s", Align::Right),
        ("tok/s", Align::Right),
        ("frontier", Align::Left),
        ("policy", Align::Left),
    ]);
    for point in points {
        let number = |number: Option<f64>| number.map_or("-".to_owned(), three_digits);
        let frontier = match (point.on_frontier, point.exceeds) {
            (true, _) => "yes",
            (false, None) => "no",
            (false, Some(_)) => "OOM",
        };
        table.row([
            point.system.to_owned(),
            point.effective_batch.to_string(),
            number(point.latency_s),
            number(point.throughput_tok_s),
            frontier.to_owned(),
            policy(point),
        ]);
    }
    table
}

/// What the column says.
pub const POLICY_LEGEND: &str = "\
policy: sequences in a GPU batch x GPU batches, percent of weights, cache and activations on device and host each (wg wc cg cc hg hc; \
the rest is on disk), cpu where the CPU attends, split where it and the GPU share linear layers (hetegen), and the schedule where it is \
not zig-zag";

/// As FlexGen's tables print it, or what does not fit.
fn policy(point: &Point) -> String {
    if let Some((tier, needed, capacity)) = point.out_of_memory() {
        return format!("out of memory: {tier} needs {needed} and has {capacity}");
    }
    let percent = [point.wg, point.wc, point.cg, point.cc, point.hg, point.hc];
    let percent = percent.map(|p| format!("{:.0}", p.unwrap_or(0.0)));
    let cpu = match point.cpu_compute {
        Some(true) => " cpu",
        _ => "",
    };
    let split = match point.is_split {
        true => " split",
        false => "",
    };
    let schedule = match point.schedule {
        None | Some(Schedule::ZigZag) => String::new(),
        Some(Schedule::Row) => " row".to_owned(),
        Some(Schedule::Diagonal) => " diagonal".to_owned(),
    };
    format!(
        "{}x{} {}{cpu}{split}{schedule}",
        point.gpu_batch_size.unwrap_or(0),
        point.num_gpu_batches.unwrap_or(0),
        percent.join(" ")
    )
}
