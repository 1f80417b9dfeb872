//! What all pictures share: fonts, colours, axes in logarithms, files.

use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, FontTransform, register_font};

use crate::files::write_atomically;

pub(super) const SIZE: (u32, u32) = (960, 720);
const FONT: &str = "sans-serif";

/// Okabe and Ito's colours, which colour-blind people tell apart.
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

pub(super) type Area<B> = DrawingArea<B, Shift>;
pub(super) type Failure = Box<dyn Error + Send + Sync>;

/// Something that is drawn alike on every kind of canvas.
pub trait Picture {
    /// Draws it on a white canvas whose font is there.
    ///
    /// # Errors
    /// Where the drawing fails.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), Box<dyn Error + Send + Sync>>
    where
        B::ErrorType: 'static;
}

/// The picture as an SVG text.
///
/// # Errors
/// Where the drawing fails.
pub fn picture_svg(picture: &impl Picture) -> io::Result<String> {
    let mut text = String::new();
    {
        let backend = SVGBackend::with_string(&mut text, SIZE);
        paint(picture, &backend.into_drawing_area()).map_err(io::Error::other)?;
    }
    Ok(text)
}

/// Writes the picture as a PNG.
///
/// # Errors
/// Where the drawing fails or the file cannot be written.
pub fn write_picture_png(path: &Path, picture: &impl Picture) -> io::Result<()> {
    let mut pixels = vec![0; 3 * SIZE.0 as usize * SIZE.1 as usize];
    {
        let backend = BitMapBackend::with_buffer(&mut pixels, SIZE);
        paint(picture, &backend.into_drawing_area()).map_err(io::Error::other)?;
    }
    write_atomically(path, |out| {
        encoded(out, &pixels).map_err(|error| match error {
            png::EncodingError::IoError(error) => error,
            other => io::Error::other(other),
        })
    })
}

fn encoded(out: impl io::Write, pixels: &[u8]) -> Result<(), png::EncodingError> {
    let mut encoder = png::Encoder::new(out, SIZE.0, SIZE.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header()?.write_image_data(pixels)
}

fn paint<B: DrawingBackend>(picture: &impl Picture, area: &Area<B>) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    load_font()?;
    area.fill(&WHITE).map_err(own)?;
    picture.draw(area)?;
    area.present().map_err(own)
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

pub(super) fn own<E: Error + Send + Sync + 'static>(error: DrawingAreaErrorKind<E>) -> Failure {
    error.to_string().into()
}

/// The title, in the middle above everything.
pub(super) fn draw_title<B: DrawingBackend>(area: &Area<B>, title: &str) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    let centre = (SIZE.0 as i32 / 2, 22);
    let title = words(title, centre, 19, (HPos::Center, VPos::Center));
    area.draw(&title).map_err(own)
}

/// An axis in logarithms.
pub(super) struct Axis {
    /// What it counts.
    pub name: &'static str,
    pub range: Range<f64>,
    /// How a tick is written.
    pub label: fn(f64) -> String,
}

/// A range with some room on both sides of all values; any range where there are none.
pub(super) fn range_of(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(0.0, f64::max);
    match low <= high {
        true => low / 1.5..high * 1.5,
        false => 0.1..10.0,
    }
}

/// Ticks, faint lines and names of both axes. `place` gives pixels.
pub(super) fn draw_axes<B: DrawingBackend>(
    area: &Area<B>,
    place: impl Fn((f64, f64)) -> (i32, i32),
    [x_axis, y_axis]: [&Axis; 2],
) -> Result<(), Failure>
where
    B::ErrorType: 'static,
{
    let (left, bottom) = place((x_axis.range.start, y_axis.range.start));
    let (right, top) = place((x_axis.range.end, y_axis.range.end));
    let faint = |line: [(i32, i32); 2]| PathElement::new(line.to_vec(), BLACK.mix(0.10));
    for tick in ticks(&x_axis.range) {
        let (x, _) = place((tick, y_axis.range.start));
        area.draw(&faint([(x, top), (x, bottom)])).map_err(own)?;
        let label = (x_axis.label)(tick);
        let below = words(&label, (x, bottom + 8), 14, (HPos::Center, VPos::Top));
        area.draw(&below).map_err(own)?;
    }
    for tick in ticks(&y_axis.range) {
        let (_, y) = place((x_axis.range.start, tick));
        area.draw(&faint([(left, y), (right, y)])).map_err(own)?;
        let label = (y_axis.label)(tick);
        let beside = words(&label, (left - 8, y + 2), 14, (HPos::Right, VPos::Center));
        area.draw(&beside).map_err(own)?;
    }
    let frame = Rectangle::new([(left, top), (right, bottom)], BLACK.mix(0.6));
    area.draw(&frame).map_err(own)?;
    let middle = ((left + right) / 2, bottom + 44);
    let name = words(x_axis.name, middle, 16, (HPos::Center, VPos::Center));
    area.draw(&name).map_err(own)?;
    let font = (FONT, 16).into_font().transform(FontTransform::Rotate270);
    let style = TextStyle::from(font).pos(Pos::new(HPos::Center, VPos::Center));
    let beside = Text::new(y_axis.name.to_owned(), (26, (top + bottom) / 2), style);
    area.draw(&beside).map_err(own)
}

pub(super) fn words(
    text: &str,
    at: (i32, i32),
    size: u32,
    place: (HPos, VPos),
) -> Text<'static, (i32, i32), String> {
    coloured_words(text, at, size, place, BLACK)
}

pub(super) fn coloured_words(
    text: &str,
    at: (i32, i32),
    size: u32,
    (h, v): (HPos, VPos),
    colour: RGBColor,
) -> Text<'static, (i32, i32), String> {
    let mut style = TextStyle::from((FONT, size).into_font());
    style.color = colour.to_backend_color();
    Text::new(text.to_owned(), at, style.pos(Pos::new(h, v)))
}

/// Round numbers: as few to a decade as still make four, and never more than ten.
pub(super) fn ticks(range: &Range<f64>) -> Vec<f64> {
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
pub(super) fn seconds_label(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 0.999e-3 => (s * 1e6, "us"),
        s if s < 0.999 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let rounded = format!("{value:.1}");
    format!("{} {unit}", rounded.strip_suffix(".0").unwrap_or(&rounded))
}

pub(super) fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let labels = [0.0002, 0.15, 1.0, 20.0].map(seconds_label);
        assert_eq!(labels, ["200 us", "150 ms", "1 s", "20 s"]);
    }
}
