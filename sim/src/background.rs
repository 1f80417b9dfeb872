//! Traffic of others on a machine's links, as the engine sees it.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::machine::Machine;
use plimsoll_core::program::ResourceKind;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::{BytesPerSecond, Seconds};

/// What traffic takes of each lane at a time.
#[derive(Debug, Default)]
pub(crate) struct OnLanes {
    background: Background,
    /// Links, and what each carries alone, in bytes a second.
    links: Vec<(usize, ResourceKind, f64)>,
    /// By lane, the share of its link that traffic has now. Empty where there is no traffic.
    taken: Vec<f64>,
    /// When that changes next; infinity where it does not.
    next: f64,
}

impl OnLanes {
    /// Traffic on a machine's links.
    pub fn new(background: &Background, machine: &Machine, profile: &HardwareProfile) -> OnLanes {
        let lanes = machine.resources.iter().enumerate();
        let links = lanes.filter_map(|(lane, resource)| match resource.kind {
            kind @ ResourceKind::H2d => Some((lane, kind, profile.links.h2d.page_locked.peak())),
            kind @ ResourceKind::D2h => Some((lane, kind, profile.links.d2h.page_locked.peak())),
            _ => None,
        });
        let links: Vec<_> = links.collect();
        for (_, kind, rate) in &links {
            let left = background.check(*kind, BytesPerSecond(*rate));
            left.expect("whoever has traffic has checked it");
        }
        let mut it = OnLanes {
            links,
            taken: match background.0.is_empty() {
                true => Vec::new(),
                false => vec![0.0; machine.resources.len()],
            },
            background: background.clone(),
            next: f64::INFINITY,
        };
        it.turn(0.0);
        it
    }

    /// None, ever.
    pub fn none() -> OnLanes {
        OnLanes {
            next: f64::INFINITY,
            ..OnLanes::default()
        }
    }

    /// Whether there is none, ever.
    pub fn is_none(&self) -> bool {
        self.background.0.is_empty()
    }

    /// When it changes next.
    #[inline]
    pub fn next(&self) -> f64 {
        self.next
    }

    /// Takes what goes over the links from a time on.
    pub fn turn(&mut self, now: f64) {
        if self.taken.is_empty() {
            return;
        }
        for (lane, kind, rate) in &self.links {
            self.taken[*lane] = self.background.on(*kind, Seconds(now)).0 / rate;
        }
        let next = self.background.change_after(Seconds(now));
        self.next = next.map_or(f64::INFINITY, |at| at.0);
    }

    /// The share of its link that a lane's own tasks keep.
    #[inline]
    pub fn left(&self, lane: usize) -> f64 {
        self.taken.get(lane).map_or(1.0, |taken| 1.0 - taken)
    }

    /// What traffic adds to a victim's delay, by its delays beside each lane, by links that have no task of their own: beside one
    /// that has, the link is busy anyway.
    pub fn delay(&self, beside: impl Fn(usize) -> f64, is_running: impl Fn(usize) -> bool) -> f64 {
        let taken = self.taken.iter().enumerate();
        let idle = taken.filter(|(lane, taken)| **taken > 0.0 && !is_running(*lane));
        idle.map(|(lane, taken)| taken * beside(lane)).sum()
    }
}
