//! Whether recorded results are what this version gives.

/// Numbers may differ by so much of themselves: processors round differently.
const DIFFERENCE_MAX: f64 = 1e-3;

/// Errors are differences of numbers that are alike, and may be near nothing themselves.
const ERROR_UNIT: f64 = 0.1;

/// The first line in which two tables (CSV) differ, and how; none where they are the same.
pub fn first_difference(recorded: &str, made: &str) -> Option<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (recorded.lines().collect(), made.lines().collect());
    let differs = |(a, b): (&&str, &&str)| !alike(a, b);
    if let Some(line) = old.iter().zip(&new).position(differs) {
        let (old, new) = (old[line], new[line]);
        return Some(format!("line {}: `{old}` is now `{new}`", line + 1));
    }
    let (before, now) = (old.len(), new.len());
    (before != now).then(|| format!("{before} lines are now {now}"))
}

fn alike(a: &str, b: &str) -> bool {
    let cells = |line: &str| -> Vec<String> { line.split(',').map(str::to_owned).collect() };
    let (a, b) = (cells(a), cells(b));
    let same = |(a, b): (&String, &String)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(x), Ok(y)) => (x - y).abs() <= DIFFERENCE_MAX * x.abs().max(y.abs()).max(ERROR_UNIT),
        _ => a == b,
    };
    a.len() == b.len() && a.iter().zip(&b).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_more_than_rounding_differs() {
        let recorded = "run,predicted\nopt,12.5\n";
        assert_eq!(first_difference(recorded, recorded), None);
        assert_eq!(
            first_difference(recorded, "run,predicted\nopt,12.501\n"),
            None
        );
        let said = first_difference(recorded, "run,predicted\nopt,12.6\n").unwrap();
        assert!(said.starts_with("line 2"), "{said}");
        let said = first_difference(recorded, "run,predicted\n").unwrap();
        assert_eq!(said, "2 lines are now 1");
    }
}
