//! What no plan may exceed.

use std::fmt;

use plimsoll_core::tier::Tier;
use plimsoll_core::units::Bytes;
use serde::{Serialize, Serializer};

/// Memory of which a machine has so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// A tier.
    Tier(Tier),
    /// What of the host may be page-locked.
    PageLocked,
}

impl Bound {
    /// All of them.
    pub const ALL: [Bound; 4] = [
        Bound::Tier(Tier::Device),
        Bound::Tier(Tier::Host),
        Bound::Tier(Tier::Disk),
        Bound::PageLocked,
    ];

    /// The tier, if it is one.
    pub fn tier(self) -> Option<Tier> {
        match self {
            Bound::Tier(tier) => Some(tier),
            Bound::PageLocked => None,
        }
    }

    /// How much there is of it, in words.
    pub fn holds(self, capacity: Bytes) -> String {
        match self {
            Bound::Tier(tier) => format!("the {tier} tier holds {capacity}"),
            Bound::PageLocked => format!("{capacity} of the host may be page-locked"),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bound::Tier(tier) => tier.name(),
            Bound::PageLocked => "page-locked",
        })
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
