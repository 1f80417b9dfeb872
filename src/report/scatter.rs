//! Predicted against measured time, as a picture.

use plotters::element::ComposedElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use serde::{Deserialize, Serialize};

use super::canvas::{
    Area, Axis, COLOURS, Failure, Picture, SIZE, colour, draw_axes, draw_title, own, range_of,
    seconds_label, words,
};

/// One case: a dot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its name.
    pub case: String,
    /// What it is coloured by.
    pub group: String,
    /// What the simulator said.
    pub predicted_s: f64,
    /// What the executor took.
    pub measured_s: f64,
}

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Scatter<'a> {
    /// Above the picture.
    pub title: &'a str,
    /// The dots; those without two positive times are left out.
    pub points: &'a [Point],
}

const LEGEND_WIDTH: u32 = 240;
/// The widest first, since the narrower is drawn over it.
const BANDS: [(f64, RGBColor, &str); 2] = [
    (0.25, RGBColor(232, 238, 246), "within 25%"),
    (0.10, RGBColor(202, 217, 236), "within 10%"),
];
type Disc = Circle<(i32, i32), i32>;
type Dot<B, C> = ComposedElement<C, B, Disc, Disc>;
impl Picture for Scatter<'_> {
    fn draw<B: DrawingBackend>(&self, area: &Area<B>) -> Result<(), Failure>
    where
        B::ErrorType: 'static,
    {
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        draw_title(area, self.title)?;
        let points: Vec<&Point> = self.points.iter().filter(|p| drawable(p)).collect();
        let mut groups: Vec<&str> = Vec::new();
        for point in &points {
            if !groups.contains(&point.group.as_str()) {
                groups.push(&point.group);
            }
        }
        draw_plot(area, &plot, &points, &groups)?;
        draw_legend(&legend, &groups)
    }
}

fn drawable(point: &Point) -> bool {
    let positive = |s: f64| s > 0.0 && s.is_finite();
    positive(point.predicted_s) && positive(point.measured_s)
}

/// Draws the plot into its part of the whole picture.
fn draw_plot<B: DrawingBackend>(
    whole: &Area<B>,
    area: &Area<B>,
    points: &[&Point],
    groups: &[&str],
) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    // The same range for both axes, so that the diagonal is one.
    let range = range_of(points.iter().flat_map(|p| [p.predicted_s, p.measured_s]));
    let (low, high) = (range.start, range.end);
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .margin_top(44)
        .x_label_area_size(58)
        .y_label_area_size(92)
        .build_cartesian_2d(range.clone().log_scale(), range.clone().log_scale())
        .map_err(own)?;
    for (share, colour, _) in BANDS {
        let (over, under) = (1.0 + share, 1.0 - share);
        let corners = vec![
            (low, low),
            (low, (low * over).min(high)),
            (high / over, high),
            (high, high),
            (high, (high * under).max(low)),
            (low / under, low),
        ];
        let band = Polygon::new(corners, colour.filled());
        chart.draw_series([band]).map_err(own)?;
    }
    let place = |at| chart.plotting_area().map_coordinate(&at);
    let axis = |name| Axis {
        name,
        range: range.clone(),
        label: seconds_label,
    };
    draw_axes(whole, place, [&axis("measured"), &axis("predicted")])?;
    let diagonal = LineSeries::new([(low, low), (high, high)], BLACK.stroke_width(1));
    chart.draw_series(diagonal).map_err(own)?;
    for (index, group) in groups.iter().enumerate() {
        let members = points.iter().filter(|p| p.group == *group);
        let dots = members.map(|p| dot((p.measured_s, p.predicted_s), index));
        chart.draw_series(dots).map_err(own)?;
    }
    Ok(())
}

/// A dot, with a white heart where the colours begin again.
fn dot<B: DrawingBackend, C>(at: C, index: usize) -> Dot<B, C> {
    let colour = colour(index);
    let heart = match (index / COLOURS.len()).is_multiple_of(2) {
        true => colour.filled(),
        false => WHITE.filled(),
    };
    EmptyElement::at(at) + Circle::new((0, 0), 5, colour.filled()) + Circle::new((0, 0), 2, heart)
}

fn draw_legend<B: DrawingBackend>(area: &Area<B>, groups: &[&str]) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    let text = |text: &str, y: i32| words(text, (32, y + 2), 14, (HPos::Left, VPos::Center));
    let mut y = 56;
    for (index, group) in groups.iter().enumerate() {
        area.draw(&dot((16, y), index)).map_err(own)?;
        area.draw(&text(&shortened(group), y)).map_err(own)?;
        y += 24;
    }
    y += 12;
    for (_, colour, name) in BANDS.iter().rev() {
        let corners = [(6, y - 8), (26, y + 8)];
        area.draw(&Rectangle::new(corners, colour.filled()))
            .map_err(own)?;
        area.draw(&text(name, y)).map_err(own)?;
        y += 24;
    }
    let line = PathElement::new(vec![(6, y), (26, y)], BLACK);
    area.draw(&line).map_err(own)?;
    area.draw(&text("predicted = measured", y)).map_err(own)
}

/// What fits beside the plot.
fn shortened(words: &str) -> String {
    const LENGTH_MAX: usize = 26;
    if words.chars().count() <= LENGTH_MAX {
        return words.to_owned();
    }
    let head: String = words.chars().take(LENGTH_MAX - 1).collect();
    format!("{head}…")
}

#[cfg(test)]
mod tests {
    use super::super::canvas::{picture_svg, write_picture_png};
    use super::*;

    fn points() -> Vec<Point> {
        (0..24)
            .map(|i| {
                let measured_s = 0.05 * 1.3_f64.powi(i);
                Point {
                    case: format!("case {i}"),
                    group: ["all device", "all host", "disk", "mixed"][i as usize % 4].to_owned(),
                    predicted_s: measured_s * (1.0 + 0.06 * f64::from(i % 7 - 3)),
                    measured_s,
                }
            })
            .collect()
    }

    #[test]
    fn a_picture_has_its_words_and_is_drawn_twice_the_same() {
        let points = points();
        let scatter = Scatter {
            title: "Latency, predicted against measured",
            points: &points,
        };
        let svg = picture_svg(&scatter).unwrap();
        for words in ["measured", "predicted", "within 10%", "all device", "mixed"] {
            assert!(svg.contains(words), "{words}");
        }
        assert_eq!(svg, picture_svg(&scatter).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scatter.png");
        write_picture_png(&path, &scatter).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn no_points_still_make_a_picture() {
        let scatter = Scatter {
            title: "nothing",
            points: &[],
        };
        assert!(picture_svg(&scatter).unwrap().contains("nothing"));
    }
}
