//! What people and spreadsheets read: text tables, CSV, scatter plots.

mod bench;
pub mod bottleneck;
mod canvas;
mod certainty;
mod csv;
mod frontier;
pub mod hardware;
mod lines;
mod memory;
pub mod models;
mod over_time;
pub mod plan;
pub mod run;
mod scatter;
pub mod serve;
mod table;

pub use bench::{AttentionRow, BenchPicture, BenchReport, BenchRow, Figure, LinkRow, ProductRow};
pub use canvas::{Picture, picture_svg, write_picture_png};
pub use certainty::{
    beyond_text, extrapolation_text, held_text, packed_note, rates_note, rates_text,
};
pub use csv::to_csv;
pub use frontier::{Frontier, POLICY_LEGEND, frontier_table};
pub use lines::{Line, Lines};
pub use memory::{MemoryCurves, memory_table, ranges_table};
pub use over_time::{OverTime, Panel};
pub use scatter::{Point, Scatter};
pub use table::{Align, Table};

/// A number to three significant digits: models and machines do not agree further than that.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        a if a >= 99.95 => format!("{value:.0}"),
        a if a >= 9.995 => format!("{value:.1}"),
        a if a >= 0.9995 => format!("{value:.2}"),
        a if a >= 1e-3 => {
            let digits = 2 - a.log10().floor() as i32;
            format!("{value:.*}", digits as usize)
        }
        _ => format!("{value:.2e}"),
    }
}

/// A share as a whole percentage, with what lies between 0 and 1 told apart from 0.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p > 0.0 && p < 1.0 => "<1%".to_owned(),
        p if p < 100.0 && p > 99.0 => ">99%".to_owned(),
        p => format!("{p:.0}%"),
    }
}

/// So many of something ("1 prompt", "2 prompts").
pub fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A signed percentage (`+3.4%`).
pub fn signed_percent(share: f64) -> String {
    format!("{:+.1}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(three_digits(1234.5), "1234");
        assert_eq!(three_digits(0.6912), "0.691");
        assert_eq!(three_digits(0.001), "0.00100");
        assert_eq!(three_digits(0.0000123), "1.23e-5");
        assert_eq!(percent(0.004), "<1%");
        assert_eq!(percent(0.999), ">99%");
        assert_eq!(percent(1.0), "100%");
    }
}
