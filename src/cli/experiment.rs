//! `plimsoll experiment`: a folder's published tables and figures, predicted again.

use std::path::{Path, PathBuf};

use super::exit::{Exit, Failure};
use super::output::print;
use super::profile::today;
use super::progress::Progress;
use crate::experiment::{
    Definition, Kind, Outcome, first_difference, make, read_folder, results_text,
};
use crate::files::{read_text, write_text};
use crate::report::{
    Frontier, Lines, MemoryCurves, Picture, picture_svg, to_csv, write_picture_png,
};

/// An experiment and where its results go.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder with one TOML file for each table or figure, as experiments/flexgen
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Where results are written, or are recorded [default: FOLDER/results]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Write nothing, and say whether the recorded tables are what this version gives
    #[arg(long)]
    check: bool,
}

/// Predicts all, then writes or compares.
///
/// # Errors
/// Input that is wrong, or recorded results that are not these.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let definitions = read_folder(&args.folder)?;
    let dir = match &args.output {
        Some(dir) => dir.clone(),
        None => args.folder.join("results"),
    };
    if !args.check {
        std::fs::create_dir_all(&dir).map_err(|error| {
            let line = format!(
                "--output {}: cannot be made: {error}; give another folder",
                dir.display()
            );
            Failure::new(Exit::Usage, line)
        })?;
    }
    let bar = Progress::new("tables", definitions.len() as u64);
    let outcomes = make(&definitions, &|done, next| {
        bar.begin(&format!("tables: {}", next.name), done as u64);
    })?;
    drop(bar);
    if args.check {
        return check(&dir, &definitions, &outcomes);
    }
    for (definition, outcome) in definitions.iter().zip(&outcomes) {
        let path = dir.join(format!("{}.csv", definition.name));
        write_text(&path, &csv(outcome)?)?;
        draw(&dir, definition, outcome)?;
    }
    let folder = args.folder.display();
    let made = format!(
        "Made by `plimsoll experiment {folder}` (plimsoll {}) on {}. All predictions are simulated.",
        env!("CARGO_PKG_VERSION"),
        today()
    );
    let text = results_text(&definitions, &outcomes, &made);
    write_text(&dir.join("RESULTS.md"), &text)?;
    print(&text)
}

fn csv(outcome: &Outcome) -> anyhow::Result<String> {
    let bytes = match outcome {
        Outcome::Runs(table) => to_csv(&table.rows)?,
        Outcome::Frontier(points) => to_csv(points)?,
        Outcome::Study(study) => study.csv.clone(),
        Outcome::Serving(table) => to_csv(&table.rows)?,
        Outcome::Memory(points) => to_csv(points)?,
    };
    Ok(String::from_utf8(bytes)?)
}

fn draw(dir: &Path, definition: &Definition, outcome: &Outcome) -> anyhow::Result<()> {
    let title = &definition.title;
    match (outcome, &definition.kind) {
        (Outcome::Frontier(points), Kind::Pareto { published, .. }) => {
            let picture = Frontier {
                title,
                points,
                published,
            };
            draw_both(dir, &definition.name, &picture)
        }
        (Outcome::Memory(points), _) => {
            draw_both(dir, &definition.name, &MemoryCurves { title, points })
        }
        (Outcome::Serving(table), _) => table.pictures.iter().try_for_each(|it| {
            let title = format!("{title}{}", it.of);
            let picture = Lines {
                title: &title,
                x: it.x,
                y: it.y,
                lines: &it.lines,
            };
            draw_both(dir, &format!("{}{}", definition.name, it.suffix), &picture)
        }),
        _ => Ok(()),
    }
}

/// As SVG and as PNG.
fn draw_both(dir: &Path, name: &str, picture: &impl Picture) -> anyhow::Result<()> {
    let file = |extension: &str| dir.join(format!("{name}.{extension}"));
    write_text(&file("svg"), &picture_svg(picture)?)?;
    write_picture_png(&file("png"), picture)?;
    Ok(())
}

fn check(dir: &Path, definitions: &[Definition], outcomes: &[Outcome]) -> anyhow::Result<()> {
    for (definition, outcome) in definitions.iter().zip(outcomes) {
        let path = dir.join(format!("{}.csv", definition.name));
        let recorded = read_text(&path)?;
        let made = csv(outcome)?;
        if let Some(difference) = first_difference(&recorded, &made) {
            let line = format!(
                "{}: {difference}; if that is meant, run without --check and record it",
                path.display()
            );
            return Err(Failure::new(Exit::OutOfTolerance, line).into());
        }
    }
    print(&format!(
        "{}: {} tables and figures are as recorded\n",
        dir.display(),
        definitions.len()
    ))
}
