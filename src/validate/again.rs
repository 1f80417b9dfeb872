//! Cases of an earlier validation, predicted again: what a change of the cost model makes of measurements that there are.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_core::hardware::HardwareProfile;
use serde::{Deserialize, Serialize};

use super::{Case, CaseError, Errors, Grid, Trial};
use crate::files::{CsvText, InputError, read_text};

/// The columns that a file has to have.
const COLUMNS: [&str; 3] = ["case", "measured_s", "error_as_profiled"];

const REMEDY: &str = "give the cases.csv that `plimsoll validate` wrote";

/// A case as it was measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Earlier {
    /// Its name in the grid.
    pub case: String,
    /// What tells its plan from others; none in older files.
    #[serde(default)]
    pub plan: Option<String>,
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
    /// Whether the file tells plans apart, and not cases by their names alone.
    pub by_plan: bool,
    /// Cases that are not compared.
    pub left_out: Vec<LeftOut>,
    /// Each case that both have, in the grid's order.
    pub cases: Vec<AgainRow>,
}

/// A case that is not compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub case: String,
    /// Why.
    pub why: &'static str,
}

const NOT_IN_FILE: &str = "only the grid has it";
const NOT_IN_GRID: &str = "only the file has it";
const ANOTHER: &str = "another plan was run under that name";
const UNTOLD: &str = "the planner chooses its plan, and the file does not tell which one was run";

/// Reads the `cases.csv` of an earlier validation.
///
/// # Errors
/// A file that is none.
pub fn read_earlier(path: &Path) -> Result<Vec<Earlier>, InputError> {
    let text = read_text(path)?;
    let file = CsvText::new(path, &text, REMEDY);
    let header = file.header()?;
    header.check_has(&COLUMNS)?;
    let mut rows: Vec<Earlier> = Vec::new();
    for row in file.rows_of::<Earlier>()? {
        let (line, row) = row?;
        let wrong = if !(row.measured_s > 0.0 && row.measured_s.is_finite()) {
            Some(format!(
                "measured_s is {}, which is no latency",
                row.measured_s
            ))
        } else if !row.error_as_profiled.is_finite() {
            Some("error_as_profiled is no number".to_owned())
        } else if rows.iter().any(|known| known.case == row.case) {
            Some(format!("`{}` is there for the second time", row.case))
        } else {
            None
        };
        if let Some(problem) = wrong {
            return Err(file.wrong(line, problem));
        }
        rows.push(row);
    }
    match rows.is_empty() {
        true => Err(header.nothing_below("no cases", REMEDY)),
        false => Ok(rows),
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
    let by_name = earlier.iter().map(|row| (row.case.as_str(), row));
    let mut measured: HashMap<&str, &Earlier> = by_name.collect();
    let (mut cases, mut left_out) = (Vec::new(), Vec::new());
    for case in &grid.cases {
        let compared = match measured.remove(case.name.as_str()) {
            Some(row) => compare(case, row, profile)?,
            None => Err(NOT_IN_FILE),
        };
        match compared {
            Ok(row) => cases.push(row),
            Err(why) => left_out.push((case.name.clone(), why)),
        }
    }
    let of_file = earlier.iter().map(|row| &row.case);
    let of_file = of_file.filter(|case| measured.contains_key(case.as_str()));
    left_out.extend(of_file.map(|case| (case.clone(), NOT_IN_GRID)));
    if cases.is_empty() {
        return Ok(None);
    }
    let now = cases.iter().map(|row| (row.predicted_s, row.measured_s));
    let then = |row: &AgainRow| (row.measured_s * (1.0 + row.error_then), row.measured_s);
    let left_out = left_out.into_iter();
    Ok(Some(Again {
        errors: Errors::of(now),
        errors_then: Errors::of(cases.iter().map(then)),
        by_plan: earlier.iter().all(|row| row.plan.is_some()),
        left_out: left_out.map(|(case, why)| LeftOut { case, why }).collect(),
        cases,
    }))
}

/// A case beside what was measured of it, or why it is not compared.
fn compare(
    case: &Case,
    row: &Earlier,
    profile: &HardwareProfile,
) -> Result<Result<AgainRow, &'static str>, CaseError> {
    if case.policy.is_none() && row.plan.is_none() {
        return Ok(Err(UNTOLD));
    }
    let trial = Trial::new(case, profile).map_err(|why| why.of(&case.name))?;
    if row
        .plan
        .as_ref()
        .is_some_and(|plan| *plan != trial.plan_digest())
    {
        return Ok(Err(ANOTHER));
    }
    Ok(Ok(AgainRow {
        case: case.name.clone(),
        group: case.group.clone(),
        predicted_s: trial.as_profiled_s,
        measured_s: row.measured_s,
        error: trial.as_profiled_s / row.measured_s - 1.0,
        error_then: row.error_as_profiled,
    }))
}
