//! What measured runs say of how far predictions are off, as a profile keeps it.

use plimsoll_core::hardware::{HardwareProfile, Residuals, Source};

use crate::stats::quantile;

/// Puts the quantiles of logarithms of predicted over measured rate into a profile, one of each configuration that ran, with where they
/// come from. Of fewer than [`Residuals::RUNS_MIN`] none are worth it: the profile keeps what it had. Whether they were put in.
pub fn put_into(
    profile: &mut HardwareProfile,
    log_errors: &[f64],
    (name, source): (&str, Source),
) -> bool {
    if log_errors.len() < Residuals::RUNS_MIN {
        return false;
    }
    profile.sources.insert(name.to_owned(), source);
    profile.residuals = Some(Residuals {
        median_log_error: quantile(log_errors, 0.5),
        p05_log_error: quantile(log_errors, 0.05),
        p95_log_error: quantile(log_errors, 0.95),
        runs: u32::try_from(log_errors.len()).unwrap_or(u32::MAX),
        source: name.to_owned(),
        of: None,
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::hardware::{SourceKind, embedded};

    #[test]
    fn quantiles_of_enough_runs_are_kept_with_their_source() {
        let mut profile = embedded::profile("a10").expect("embedded");
        let source = || Source {
            kind: SourceKind::Measured,
            from: "a test".to_owned(),
            date: "2026".to_owned(),
        };
        assert!(!put_into(&mut profile, &[0.1, 0.2], ("runs", source())));
        assert_eq!(profile.residuals, None);
        let errors: Vec<f64> = (-50..=50).map(|e| f64::from(e) / 100.0).collect();
        assert!(put_into(&mut profile, &errors, ("runs", source())));
        let residuals = profile.residuals.as_ref().expect("there are enough");
        assert!(residuals.median_log_error.abs() < 1e-12 && residuals.runs == 101);
        assert!(
            (residuals.p05_log_error + 0.45).abs() < 0.01,
            "{residuals:?}"
        );
        assert!(
            (residuals.p95_log_error - 0.45).abs() < 0.01,
            "{residuals:?}"
        );
        profile.validate().expect("a valid profile");
    }
}
