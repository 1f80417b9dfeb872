//! Lines over a common axis, as a picture.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{
    Area, Axis, Failure, Picture, SIZE, colour, coloured_words, draw_axes, draw_title, own,
    range_of,
};

/// A line and its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// In the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// What is drawn; both axes are logarithms.
#[derive(Debug, Clone, Copy)]
pub struct Lines<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// Below it.
    pub x: &'static str,
    /// Beside it.
    pub y: &'static str,
    /// What it shows.
    pub lines: &'a [Line],
}

fn plain(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

impl Picture for Lines<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        const LEGEND_WIDTH: u32 = 232;
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        draw_title(area, self.title)?;
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let [x, y] = [
            (self.x, range_of(all().map(|(x, _)| *x))),
            (self.y, range_of(all().map(|(_, y)| *y))),
        ]
        .map(|(name, range)| Axis {
            name,
            // Less room than between decades: such lines span little.
            range: range.start * 1.3..range.end / 1.3,
            label: plain,
        });
        let mut chart = ChartBuilder::on(&plot)
            .margin(16)
            .margin_top(44)
            .x_label_area_size(58)
            .y_label_area_size(92)
            .build_cartesian_2d(x.range.clone().log_scale(), y.range.clone().log_scale())
            .map_err(own)?;
        let pixel = |at: &(f64, f64)| chart.plotting_area().map_coordinate(at);
        draw_axes(area, |at| pixel(&at), [&x, &y])?;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = colour(index);
            let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
            chart.draw_series(series).map_err(own)?;
            let dots = line
                .points
                .iter()
                .map(|at| Circle::new(*at, 4, colour.filled()));
            chart.draw_series(dots).map_err(own)?;
            let height = 64 + 24 * index as i32;
            let dot = Circle::new((10, height), 5, colour.filled());
            legend.draw(&dot).map_err(own)?;
            let place = (HPos::Left, VPos::Center);
            let name = coloured_words(&line.name, (22, height), 14, place, colour);
            legend.draw(&name).map_err(own)?;
        }
        Ok(())
    }
}
