//! Predicted against measured time, as a picture.

use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::element::ComposedElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, FontTransform, register_font};
use serde::{Deserialize, Serialize};

use crate::files::write_through_path;

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

const SIZE: (u32, u32) = (960, 720);
const FONT: &str = "sans-serif";
const LEGEND_WIDTH: u32 = 240;
/// The widest first, since the narrower is drawn over it.
const BANDS: [(f64, RGBColor, &str); 2] = [
    (0.25, RGBColor(232, 238, 246), "within 25%"),
    (0.10, RGBColor(202, 217, 236), "within 10%"),
];
/// Okabe and Ito's colours, which colour-blind people tell apart.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

type Area<B> = DrawingArea<B, Shift>;
type Disc = Circle<(i32, i32), i32>;
type Dot<B, C> = ComposedElement<C, B, Disc, Disc>;
type Failure = Box<dyn Error + Send + Sync>;

/// The picture as an SVG text.
///
/// # Errors
/// Where the drawing fails.
pub fn scatter_svg(scatter: &Scatter<'_>) -> io::Result<String> {
    let mut text = String::new();
    {
        let backend = SVGBackend::with_string(&mut text, SIZE);
        draw(&backend.into_drawing_area(), scatter).map_err(io::Error::other)?;
    }
    Ok(text)
}

/// Writes the picture as a PNG.
///
/// # Errors
/// Where the drawing fails or the file cannot be written.
pub fn write_scatter_png(path: &Path, scatter: &Scatter<'_>) -> io::Result<()> {
    write_through_path(path, |temporary| {
        let backend = BitMapBackend::new(temporary, SIZE);
        draw(&backend.into_drawing_area(), scatter).map_err(io::Error::other)
    })
}

fn load_font() -> Result<(), Failure> {
    static LOADED: OnceLock<bool> = OnceLock::new();
    let font = include_bytes!("../../assets/DejaVuSans.ttf");
    let loaded = LOADED.get_or_init(|| register_font(FONT, FontStyle::Normal, font).is_ok());
    match loaded {
        true => Ok(()),
        false => Err("the embedded font cannot be read".into()),
    }
}

fn draw<B: DrawingBackend>(area: &Area<B>, scatter: &Scatter<'_>) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    load_font()?;
    area.fill(&WHITE).map_err(own)?;
    let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let centre = (SIZE.0 as i32 / 2, 22);
    area.draw(&words(
        scatter.title,
        centre,
        19,
        (HPos::Center, VPos::Center),
    ))
    .map_err(own)?;
    let points: Vec<&Point> = scatter.points.iter().filter(|p| drawable(p)).collect();
    let mut groups: Vec<&str> = Vec::new();
    for point in &points {
        if !groups.contains(&point.group.as_str()) {
            groups.push(&point.group);
        }
    }
    draw_plot(area, &plot, &points, &groups)?;
    draw_legend(&legend, &groups)?;
    area.present().map_err(own)
}

fn own<E: Error + Send + Sync + 'static>(error: DrawingAreaErrorKind<E>) -> Failure {
    error.to_string().into()
}

fn drawable(point: &Point) -> bool {
    let positive = |s: f64| s > 0.0 && s.is_finite();
    positive(point.predicted_s) && positive(point.measured_s)
}

/// The same range for both axes, so that the diagonal is one.
fn range(points: &[&Point]) -> Range<f64> {
    let times = || points.iter().flat_map(|p| [p.predicted_s, p.measured_s]);
    let low = times().fold(f64::INFINITY, f64::min);
    let high = times().fold(0.0, f64::max);
    match low <= high {
        true => low / 1.5..high * 1.5,
        false => 0.1..10.0,
    }
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
    let range = range(points);
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
    draw_axes(whole, place, &range)?;
    let diagonal = LineSeries::new([(low, low), (high, high)], BLACK.stroke_width(1));
    chart.draw_series(diagonal).map_err(own)?;
    for (index, group) in groups.iter().enumerate() {
        let members = points.iter().filter(|p| p.group == *group);
        let dots = members.map(|p| dot((p.measured_s, p.predicted_s), index));
        chart.draw_series(dots).map_err(own)?;
    }
    Ok(())
}

/// Ticks, faint lines and names of both axes. `place` gives pixels.
fn draw_axes<B: DrawingBackend>(
    area: &Area<B>,
    place: impl Fn((f64, f64)) -> (i32, i32),
    range: &Range<f64>,
) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    let (left, bottom) = place((range.start, range.start));
    let (right, top) = place((range.end, range.end));
    for tick in ticks(range) {
        let (x, y) = place((tick, tick));
        let label = tick_label(tick);
        for line in [[(x, top), (x, bottom)], [(left, y), (right, y)]] {
            let line = PathElement::new(line.to_vec(), BLACK.mix(0.10));
            area.draw(&line).map_err(own)?;
        }
        let below = words(&label, (x, bottom + 8), 14, (HPos::Center, VPos::Top));
        area.draw(&below).map_err(own)?;
        let beside = words(&label, (left - 8, y + 2), 14, (HPos::Right, VPos::Center));
        area.draw(&beside).map_err(own)?;
    }
    let frame = Rectangle::new([(left, top), (right, bottom)], BLACK.mix(0.6));
    area.draw(&frame).map_err(own)?;
    let middle = ((left + right) / 2, bottom + 44);
    area.draw(&words("measured", middle, 16, (HPos::Center, VPos::Center)))
        .map_err(own)?;
    let font = (FONT, 16).into_font().transform(FontTransform::Rotate270);
    let style = TextStyle::from(font).pos(Pos::new(HPos::Center, VPos::Center));
    let beside = Text::new("predicted".to_owned(), (26, (top + bottom) / 2), style);
    area.draw(&beside).map_err(own)
}

fn words(
    text: &str,
    at: (i32, i32),
    size: u32,
    (h, v): (HPos, VPos),
) -> Text<'static, (i32, i32), String> {
    let style = TextStyle::from((FONT, size).into_font()).pos(Pos::new(h, v));
    Text::new(text.to_owned(), at, style)
}

/// Round times: as few to a decade as still make four, and never more than ten.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    const STEPS: [&[f64]; 4] = [
        &[1.0],
        &[1.0, 2.0, 5.0],
        &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        &[
            1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0,
        ],
    ];
    let decades = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let with = |steps: &[f64]| -> Vec<f64> {
        let all = decades.clone();
        let all = all.flat_map(|decade| steps.iter().map(move |s| s * 10_f64.powi(decade)));
        all.filter(|tick| range.contains(tick)).collect()
    };
    let mut ticks = Vec::new();
    for steps in STEPS {
        ticks = with(steps);
        if ticks.len() >= 4 {
            break;
        }
    }
    let skip = ticks.len().div_ceil(10).max(1);
    ticks.into_iter().step_by(skip).collect()
}

/// A round time without needless digits.
fn tick_label(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 0.999e-3 => (s * 1e6, "us"),
        s if s < 0.999 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let rounded = format!("{value:.1}");
    format!("{} {unit}", rounded.strip_suffix(".0").unwrap_or(&rounded))
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
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
        let svg = scatter_svg(&scatter).unwrap();
        for words in ["measured", "predicted", "within 10%", "all device", "mixed"] {
            assert!(svg.contains(words), "{words}");
        }
        assert_eq!(svg, scatter_svg(&scatter).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scatter.png");
        write_scatter_png(&path, &scatter).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn ticks_are_round_and_neither_few_nor_many() {
        for (low, high) in [
            (0.02, 60.0),
            (0.1, 0.31),
            (1e-4, 1e4),
            (0.9, 1.3),
            (3e-5, 4e-5),
        ] {
            let ticks = ticks(&(low..high));
            assert!(
                (2..=10).contains(&ticks.len()),
                "{low} to {high}: {ticks:?}"
            );
        }
        let labels = [0.0002, 0.15, 1.0, 20.0].map(tick_label);
        assert_eq!(labels, ["200 us", "150 ms", "1 s", "20 s"]);
    }

    #[test]
    fn no_points_still_make_a_picture() {
        let scatter = Scatter {
            title: "nothing",
            points: &[],
        };
        assert!(scatter_svg(&scatter).unwrap().contains("nothing"));
    }
}
