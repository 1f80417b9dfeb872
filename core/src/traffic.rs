//! Background traffic: what others carry over a GPU's links while requests are served.
//!
//! While it lasts, traffic has its rate of a link, and moves have what it leaves them. Simulator and executors share this
//! definition; where moves are really made, the traffic's bytes are as well.

use std::str::FromStr;

use crate::program::ResourceKind;
use crate::units::{Bytes, BytesPerSecond, Seconds};

/// Which ways of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    /// To the device and from it, each at the traffic's rate.
    Both,
    /// To the device.
    H2d,
    /// From the device.
    D2h,
}

impl Ways {
    /// As flags and reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Ways::Both => "both ways",
            Ways::H2d => "h2d",
            Ways::D2h => "d2h",
        }
    }

    /// The links that it goes over.
    pub fn kinds(self) -> impl Iterator<Item = ResourceKind> {
        let all = [ResourceKind::H2d, ResourceKind::D2h].into_iter();
        all.filter(move |kind| self.has(*kind))
    }

    fn has(self, kind: ResourceKind) -> bool {
        match kind {
            ResourceKind::H2d => self != Ways::D2h,
            ResourceKind::D2h => self != Ways::H2d,
            _ => false,
        }
    }
}

/// Some traffic, by the clock of who serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// When it begins.
    pub from: Seconds,
    /// When it has ended.
    pub to: Seconds,
    /// What it carries each way.
    pub rate: BytesPerSecond,
    /// Where.
    pub ways: Ways,
}

/// All traffic of a run; none in most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Background(pub Vec<Traffic>);

impl Background {
    /// What goes over a link at a time.
    pub fn on(&self, kind: ResourceKind, at: Seconds) -> BytesPerSecond {
        let all = self.0.iter().filter(|it| it.ways.has(kind));
        let then = all.filter(|it| it.from <= at && at < it.to);
        BytesPerSecond(then.map(|it| it.rate.0).sum())
    }

    /// When something begins or ends next.
    pub fn change_after(&self, at: Seconds) -> Option<Seconds> {
        let ends = self.0.iter().flat_map(|it| [it.from, it.to]);
        let later = ends.filter(|end| *end > at);
        later.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// When so many bytes that begin to move at a time have gone over a link that carries `rate`; never, as infinity, where
    /// nothing is left to them.
    pub fn arrival(
        &self,
        kind: ResourceKind,
        (start, bytes): (Seconds, Bytes),
        rate: BytesPerSecond,
    ) -> Seconds {
        let (mut now, mut left) = (start, bytes.as_f64());
        loop {
            let pace = (rate.0 - self.on(kind, now).0).max(0.0);
            let end = now.0 + left / pace;
            match self.change_after(now) {
                // Nothing over nothing is no number: nothing is left to move.
                _ if left <= 0.0 => return now,
                Some(change) if change.0 < end => {
                    left -= (change - now).0 * pace;
                    now = change;
                }
                _ => return Seconds(end),
            }
        }
    }

    /// Whether a link that carries `rate` has something left for others at any time.
    ///
    /// # Errors
    /// Why not, and what would help.
    pub fn check(&self, kind: ResourceKind, rate: BytesPerSecond) -> Result<(), String> {
        let most = self.0.iter().map(|it| self.on(kind, it.from).0);
        let most = most.fold(0.0, f64::max);
        match most < rate.0 {
            true => Ok(()),
            false => Err(format!(
                "{} GB/s of traffic leave nothing of {}, which carries {}; give less",
                most / 1e9,
                kind.name(),
                rate
            )),
        }
    }
}

impl FromStr for Traffic {
    type Err = String;

    /// `FROM..TO:GB_S`, with `:h2d` or `:d2h` behind it for one way.
    fn from_str(text: &str) -> Result<Traffic, String> {
        let parsed = || {
            let mut parts = text.split(':');
            let (from, to) = parts.next()?.split_once("..")?;
            let gb_s = parts.next()?.parse::<f64>().ok()?;
            let ways = match (parts.next(), parts.next()) {
                (None, None) => Ways::Both,
                (Some("h2d"), None) => Ways::H2d,
                (Some("d2h"), None) => Ways::D2h,
                _ => return None,
            };
            let seconds = |text: &str| text.parse::<f64>().ok().map(Seconds);
            let traffic = Traffic {
                from: seconds(from)?,
                to: seconds(to)?,
                rate: BytesPerSecond(gb_s * 1e9),
                ways,
            };
            let in_order = 0.0 <= traffic.from.0 && traffic.from < traffic.to;
            (in_order && traffic.to.0.is_finite() && gb_s > 0.0 && gb_s.is_finite())
                .then_some(traffic)
        };
        parsed().ok_or_else(|| {
            "give FROM..TO:GB_S in seconds and GB/s, and :h2d or :d2h behind it for one way, such as 10..20:0.4".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: ResourceKind = ResourceKind::H2d;
    const LINK: BytesPerSecond = BytesPerSecond(1e9);

    fn background(all: &[&str]) -> Background {
        Background(all.iter().map(|it| it.parse().expect("right")).collect())
    }

    #[test]
    fn moves_have_what_traffic_leaves() {
        let it = background(&["1..3:0.75", "2..4:0.125:d2h"]);
        let arrival = |start: f64, gb: f64| {
            let bytes = Bytes((gb * 1e9) as u64);
            it.arrival(KIND, (Seconds(start), bytes), LINK).0
        };
        assert_eq!(arrival(0.0, 1.0), 1.0);
        assert_eq!(arrival(0.5, 0.75), 2.0);
        assert_eq!(arrival(0.5, 2.0), 4.0);
        assert_eq!(arrival(1.5, 0.0), 1.5);
        assert_eq!(it.on(ResourceKind::D2h, Seconds(2.5)).0, 0.875e9);
        assert_eq!(it.on(ResourceKind::Gpu, Seconds(2.5)).0, 0.0);
        assert_eq!(it.change_after(Seconds(2.0)), Some(Seconds(3.0)));
        assert_eq!(it.change_after(Seconds(4.0)), None);
    }

    #[test]
    fn traffic_that_leaves_nothing_is_refused_and_holds_moves_up() {
        let it = background(&["1..3:0.5", "2..4:0.5"]);
        assert!(it.check(KIND, BytesPerSecond(1.1e9)).is_ok());
        assert!(it.check(KIND, LINK).is_err());
        let bytes = Bytes(1_500_000_000);
        assert_eq!(it.arrival(KIND, (Seconds(0.5), bytes), LINK).0, 4.0);
    }

    #[test]
    fn what_is_no_traffic_is_refused() {
        for wrong in [
            "",
            "1..2",
            "2..1:1",
            "1..2:0",
            "1..2:x",
            "-1..2:1",
            "1..2:1:up",
            "1..inf:1",
            "1..2:1:h2d:d2h",
        ] {
            assert!(wrong.parse::<Traffic>().is_err(), "{wrong}");
        }
    }
}
