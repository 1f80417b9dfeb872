//! Hardware profiles: what a machine can do, each number with its provenance.
//!
//! A profile is one TOML text; [`HardwareProfile::parse`] reads it, with what it `extends`, and
//! [`HardwareProfile::to_toml`] writes it. [`embedded`] holds the profiles that ship.

pub mod contention;
mod curve;
pub mod embedded;
mod entries;
mod error;
mod inherit;
mod pace;
mod products;
mod profile;
mod provenance;
mod reader;
mod residuals;
mod toml;
mod validate;
mod what_if;

pub use contention::Contention;
pub use curve::{Curve, CurveError};
pub use error::ProfileError;
pub use pace::{LinkPace, LinkSlowness, Pace, Slowness};
pub use products::{
    FLAT_DEPTH, GPU_ROWS_MOST, Implementation, Inflections, PACKED_DEPTH, ProductCurves,
    WeightsOnGpu,
};
pub use profile::{
    BesideProducts, Cluster, Compute, CopyLink, DEVICE_THREADS_MAX, DeviceKind, DiskLink,
    GemmCurve, HardwareProfile, Links, PeerLink, Tiers, WeightRead,
};
pub use provenance::{Quantity, Source, SourceKind};
pub use residuals::Residuals;
