//! What changes while requests are served: panels over a common time, as a picture.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::canvas::{Area, Failure, Picture, colour, coloured_words, draw_title, own};
use super::lines::Line;

/// Lines of one unit, from zero on.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Beside it.
    pub y: &'static str,
    /// The same runs in the same order as in all others.
    pub lines: Vec<Line>,
}

/// What is drawn; axes are straight and begin at zero.
#[derive(Debug, Clone, Copy)]
pub struct OverTime<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// One below the other.
    pub panels: &'a [Panel],
    /// Times that are shaded: from, to, in seconds.
    pub shaded: &'a [(f64, f64)],
}

const TITLE_HEIGHT: u32 = 64;
const LABEL: (&str, i32) = ("sans-serif", 14);

/// The largest of some numbers, with room above; 1 where there is none above 0.
fn top(values: impl Iterator<Item = f64>) -> f64 {
    match values.fold(0.0, f64::max) {
        0.0 => 1.0,
        most => most * 1.08,
    }
}

impl OverTime<'_> {
    fn draw_panel<B: DrawingBackend>(
        &self,
        panel: &Panel,
        area: &Area<B>,
        end: f64,
    ) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        let places = panel.lines.iter().flat_map(|line| &line.points);
        let top = top(places.map(|(_, y)| *y));
        let mut chart = ChartBuilder::on(area)
            .margin_right(24)
            .margin_left(8)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..end, 0.0..top)
            .map_err(own)?;
        let shades = self.shaded.iter().map(|(from, to)| {
            let corners = [(from.min(end), 0.0), (to.min(end), top)];
            Rectangle::new(corners, BLACK.mix(0.1).filled())
        });
        chart.draw_series(shades).map_err(own)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("seconds")
            .y_desc(panel.y)
            .y_labels(6)
            .label_style(LABEL)
            .axis_desc_style(LABEL)
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(own)?;
        for (index, line) in panel.lines.iter().enumerate() {
            let stroke = colour(index).stroke_width(2);
            let series = LineSeries::new(line.points.iter().copied(), stroke);
            chart.draw_series(series).map_err(own)?;
        }
        Ok(())
    }
}

impl Picture for OverTime<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        draw_title(area, self.title)?;
        let lines = || self.panels.iter().flat_map(|panel| &panel.lines);
        let end = top(lines().flat_map(|line| &line.points).map(|(x, _)| *x)) / 1.08;
        let (head, rest) = area.split_vertically(TITLE_HEIGHT);
        let names = self.panels.first().map_or(&[][..], |panel| &panel.lines);
        for (index, line) in names.iter().enumerate() {
            let place = (HPos::Left, VPos::Center);
            let at = (84 + 280 * index as i32, 48);
            let name = coloured_words(&line.name, at, 15, place, colour(index));
            head.draw(&name).map_err(own)?;
        }
        let areas = rest.split_evenly((self.panels.len().max(1), 1));
        for (panel, area) in self.panels.iter().zip(&areas) {
            self.draw_panel(panel, area, end)?;
        }
        Ok(())
    }
}
