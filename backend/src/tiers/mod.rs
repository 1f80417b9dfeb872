//! Memory tiers.
