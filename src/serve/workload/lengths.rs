//! Distributions of lengths: tables of quantiles, or a few parameters.

use std::str::FromStr;

use statrs::distribution::{ContinuousCDF, Exp, Gamma, LogNormal, Weibull};

/// How long texts are, in tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Lengths {
    /// Measured quantiles, straight in between: share and length, ascending.
    Table(Vec<(f64, f64)>),
    /// Each as likely.
    Uniform(f64, f64),
    /// One length.
    Constant(f64),
    /// By its mean.
    Exponential(Exp),
    /// By the mean and the deviation of logarithms.
    LogNormal(LogNormal),
    /// By shape and scale.
    Gamma(Gamma),
    /// By shape and scale.
    Weibull(Weibull),
}

const TABLES: &str = include_str!("quantiles.csv");

impl Lengths {
    /// The length that this share of texts does not exceed, at least 1.
    pub fn quantile(&self, share: f64) -> u32 {
        let length = match self {
            Lengths::Table(points) => interpolate(points, share),
            Lengths::Uniform(low, high) => low + (high - low) * share,
            Lengths::Constant(length) => *length,
            Lengths::Exponential(by) => by.inverse_cdf(share),
            Lengths::LogNormal(by) => by.inverse_cdf(share),
            Lengths::Gamma(by) => by.inverse_cdf(share),
            Lengths::Weibull(by) => by.inverse_cdf(share),
        };
        length.round().clamp(1.0, f64::from(u32::MAX / 4)) as u32
    }

    /// The tables that are compiled in.
    pub fn tables() -> impl Iterator<Item = &'static str> {
        rows().map(|(name, _)| name)
    }

    fn table(wanted: &str) -> Option<Lengths> {
        let (_, points) = rows().find(|(name, _)| *name == wanted)?;
        Some(Lengths::Table(points))
    }
}

/// Each table's name and its quantiles.
fn rows() -> impl Iterator<Item = (&'static str, Vec<(f64, f64)>)> {
    let mut lines = TABLES.lines().filter(|line| !line.starts_with('#'));
    let header = lines.next().unwrap_or_default().split(',').skip(2);
    let shares: Vec<f64> = header
        .filter_map(|name| name.strip_prefix('p')?.parse::<f64>().ok())
        .map(|percent| percent / 100.0)
        .collect();
    lines.filter_map(move |line| {
        let mut fields = line.split(',');
        let name = fields.next()?;
        let lengths = fields.skip(1).filter_map(|field| field.parse().ok());
        Some((name, shares.iter().copied().zip(lengths).collect()))
    })
}

fn interpolate(points: &[(f64, f64)], share: f64) -> f64 {
    let above = points.partition_point(|(at, _)| *at < share);
    let high = points[above.min(points.len() - 1)];
    let low = points[above.saturating_sub(1)];
    match high.0 > low.0 {
        true => low.1 + (high.1 - low.1) * (share - low.0) / (high.0 - low.0),
        false => high.1,
    }
}

impl FromStr for Lengths {
    type Err = String;

    /// A table's name, or a kind and its numbers (`lognormal:4.4,1.2`).
    fn from_str(text: &str) -> Result<Lengths, String> {
        let (kind, numbers) = text.split_once(':').unwrap_or((text, ""));
        if let Some(table) = Lengths::table(text) {
            return Ok(table);
        }
        let numbers: Option<Vec<f64>> = match numbers {
            "" => Some(Vec::new()),
            some => some.split(',').map(|n| n.trim().parse().ok()).collect(),
        };
        let known = || {
            let tables: Vec<&str> = Lengths::tables().collect();
            format!(
                "`{text}` is no distribution of lengths; give constant:N (1 or more), uniform:LOW,HIGH (in this order), exponential:MEAN, \
                 lognormal:MU,SIGMA, gamma:SHAPE,SCALE, weibull:SHAPE,SCALE, or one of {}",
                tables.join(", ")
            )
        };
        let given = numbers.ok_or_else(known)?;
        match (kind, given.as_slice()) {
            ("constant", [n]) if *n >= 1.0 => Some(Lengths::Constant(*n)),
            ("uniform", [low, high]) if *low >= 1.0 && high >= low => {
                Some(Lengths::Uniform(*low, *high))
            }
            ("exponential", [mean]) if *mean > 0.0 => {
                Exp::new(1.0 / mean).ok().map(Lengths::Exponential)
            }
            ("lognormal", [mu, sigma]) => LogNormal::new(*mu, *sigma).ok().map(Lengths::LogNormal),
            ("gamma", [shape, scale]) if *scale > 0.0 => {
                Gamma::new(*shape, 1.0 / scale).ok().map(Lengths::Gamma)
            }
            ("weibull", [shape, scale]) => Weibull::new(*shape, *scale).ok().map(Lengths::Weibull),
            _ => None,
        }
        .ok_or_else(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(of: &Lengths) -> f64 {
        let shares = (0..20_000).map(|i| (f64::from(i) + 0.5) / 20_000.0);
        shares.map(|s| f64::from(of.quantile(s))).sum::<f64>() / 20_000.0
    }

    #[test]
    fn tables_have_about_the_mean_that_was_measured() {
        for (name, measured) in [
            ("alpaca-output", 57.921),
            ("alpaca-output-bert", 56.172),
            ("alpaca-prompt", 17.949),
            ("azure-code-prompt", 2047.848),
            ("azure-conv-output", 211.126),
        ] {
            let found = mean(&name.parse().unwrap());
            assert!((found / measured - 1.0).abs() < 0.03, "{name}: {found}");
        }
        assert_eq!(Lengths::tables().count(), 7);
    }

    #[test]
    fn parameters_mean_what_they_say() {
        for (text, expected) in [
            ("constant:7", 7.0),
            ("uniform:10,20", 15.0),
            ("exponential:300", 300.0),
            ("gamma:2,100", 200.0),
            ("lognormal:5,0.5", (5.0_f64 + 0.125).exp()),
        ] {
            let found = mean(&text.parse().unwrap());
            assert!((found / expected - 1.0).abs() < 0.01, "{text}: {found}");
        }
        for wrong in [
            "",
            "alpaca",
            "constant:0",
            "gamma:1",
            "uniform:9,3",
            "lognormal:x,1",
        ] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
    }
}
