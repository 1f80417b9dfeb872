//! Cases of an earlier validation, predicted again: what a change of the cost model makes of measurements that there are.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_core::hardware::HardwareProfile;
use serde::{Deserialize, Serialize};

use super::{CaseError, Errors, Grid, Trial};
use crate::files::{InputError, line_of, read_text};

/// The columns of [`Earlier`].
const COLUMNS: [&str; 3] = ["case", "measured_s", "error_as_profiled"];

const REMEDY: &str = "give the cases.csv that `plimsoll validate` wrote";

/// A case as it was measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Earlier {
    /// Its name in the grid.
    pub case: String,
    /// Latency as executed.
    pub measured_s: f64,
    /// Predicted over measured latency then, less one, at the profile's own pace.
    pub error_as_profiled: f64,
}

/// A case as it was measured, beside what is predicted now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgainRow {
    /// The names of its parts.
    pub case: String,
    /// Its placement.
    pub group: String,
    /// Latency as simulated, at the profile's own pace.
    pub predicted_s: f64,
    /// Latency as executed.
    pub measured_s: f64,
    /// Predicted over measured, less one.
    pub error: f64,
    /// The same as it was when the case was measured.
    pub error_then: f64,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Again {
    /// As predicted now.
    pub errors: Errors,
    /// As predicted then.
    pub errors_then: Errors,
    /// Cases that one of the two does not have.
    pub left_out: Vec<String>,
    /// Each case that both have, in the grid's order.
    pub cases: Vec<AgainRow>,
}

/// Reads the `cases.csv` of an earlier validation.
///
/// # Errors
/// A file that is none.
pub fn read_earlier(path: &Path) -> Result<Vec<Earlier>, InputError> {
    let text = read_text(path)?;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let broken = |error: csv::Error| {
        let place = format!("line {}", line_of(&text, error.position()));
        InputError::bad_file(path, place, error.to_string(), REMEDY)
    };
    let header = reader.headers().map_err(broken)?;
    let has = |column: &&&str| header.iter().any(|known| known == **column);
    if let Some(missing) = COLUMNS.iter().find(|column| !has(column)) {
        let problem = format!("the column `{missing}` is missing");
        return Err(InputError::bad_file(path, "line 1", problem, REMEDY));
    }
    let rows = reader.deserialize().collect::<Result<Vec<Earlier>, _>>();
    let rows = rows.map_err(broken)?;
    let is_time = |row: &&Earlier| row.measured_s > 0.0 && row.measured_s.is_finite();
    match rows.iter().find(|row| !is_time(row)) {
        None => Ok(rows),
        Some(row) => {
            let problem = format!("{} s is no latency", row.measured_s);
            Err(InputError::bad_file(
                path,
                &row.case,
                problem,
                "write what was measured",
            ))
        }
    }
}

/// Predicts the cases of a grid that were measured. None where no case was.
///
/// # Errors
/// A case that has no plan or does not fit.
pub fn predict_again(
    grid: &Grid,
    profile: &HardwareProfile,
    earlier: &[Earlier],
) -> Result<Option<Again>, CaseError> {
    let mut measured: HashMap<&str, &Earlier> =
        earlier.iter().map(|row| (row.case.as_str(), row)).collect();
    let (mut cases, mut left_out) = (Vec::new(), Vec::new());
    for case in &grid.cases {
        let Some(row) = measured.remove(case.name.as_str()) else {
            left_out.push(case.name.clone());
            continue;
        };
        let trial = Trial::new(case, profile).map_err(|why| why.of(&case.name))?;
        cases.push(AgainRow {
            case: case.name.clone(),
            group: case.group.clone(),
            predicted_s: trial.as_profiled_s,
            measured_s: row.measured_s,
            error: trial.as_profiled_s / row.measured_s - 1.0,
            error_then: row.error_as_profiled,
        });
    }
    let of_file = earlier
        .iter()
        .filter(|row| measured.contains_key(row.case.as_str()));
    left_out.extend(of_file.map(|row| row.case.clone()));
    if cases.is_empty() {
        return Ok(None);
    }
    let measured_s = |row: &AgainRow| row.measured_s;
    let now = cases.iter().map(|row| (row.predicted_s, measured_s(row)));
    let then = cases.iter().map(|row| {
        let predicted_s = measured_s(row) * (1.0 + row.error_then);
        (predicted_s, measured_s(row))
    });
    Ok(Some(Again {
        errors: Errors::of(now),
        errors_then: Errors::of(then),
        left_out,
        cases,
    }))
}
