//! The constants of a profile that runs can be fitted by, each a factor on numbers of the profile.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Contention, Curve, HardwareProfile, Quantity, Source};
use plimsoll_core::program::ResourceKind::{self, Cpu, H2d};
use plimsoll_core::units::{BytesPerSecond, Seconds};
use plimsoll_sim::CostModel;

use super::RecordedRun;

/// Rates of matrix products.
const GEMM: &str = "compute.gemm";

/// The source that fitted constants name; behind it a number, where the profile has one of that name.
const FITTED: &str = "calibrated";

/// The name of a profile's next source of fitted constants: those of an earlier fit that stay keep theirs.
pub fn source_of_fit(profile: &HardwareProfile) -> String {
    let further = (2..).map(|count| format!("{FITTED}-{count}"));
    let mut names = std::iter::once(FITTED.to_owned()).chain(further);
    let free = names.find(|name| !profile.sources.contains_key(name));
    free.expect("names do not end")
}

/// What a factor multiplies.
enum Place<'a> {
    Rate(&'a mut Curve),
    Bandwidth(&'a mut BytesPerSecond, &'a mut String),
    Time(&'a mut Seconds, &'a mut String),
    /// A rate beside another engine, in (0, 1]; the factor is on what is lost.
    Kept(&'a mut f64, &'a mut String),
}

/// Where a constant is in a profile. Of one that each type of elements has curves of, only the given type's.
type Places = for<'a> fn(&'a mut HardwareProfile, Option<Dtype>) -> Vec<Place<'a>>;

/// A named constant: one key of a profile, or all curves under it.
#[derive(Clone, Copy)]
pub struct Constant {
    name: &'static str,
    places: Places,
}

/// All that can be fitted, in the order of the profile.
pub const CONSTANTS: [Constant; 18] = [
    constant("tiers.device_bandwidth", |profile, _| {
        let q = &mut profile.tiers.device_bandwidth;
        vec![Place::Bandwidth(&mut q.value, &mut q.source)]
    }),
    constant("links.h2d.page_locked", |profile, _| {
        one(&mut profile.links.h2d.page_locked)
    }),
    constant("links.h2d.pageable", |profile, _| {
        rates(&mut profile.links.h2d.pageable)
    }),
    constant("links.h2d.relayed", |profile, _| {
        rates(&mut profile.links.h2d.relayed)
    }),
    constant("links.d2h.page_locked", |profile, _| {
        one(&mut profile.links.d2h.page_locked)
    }),
    constant("links.d2h.pageable", |profile, _| {
        rates(&mut profile.links.d2h.pageable)
    }),
    constant("links.disk_read", |profile, _| {
        one(&mut profile.links.disk_read.rate)
    }),
    constant("links.disk_read.latency", |profile, _| {
        time(&mut profile.links.disk_read.latency)
    }),
    constant("links.disk_write", |profile, _| {
        one(&mut profile.links.disk_write.rate)
    }),
    constant("compute.launch", |profile, _| {
        let compute = &mut profile.compute;
        let embed = compute.embed.iter_mut().flat_map(time);
        time(&mut compute.launch).into_iter().chain(embed).collect()
    }),
    constant("compute.barrier", |profile, _| {
        time(&mut profile.compute.barrier)
    }),
    constant(GEMM, gemm),
    constant("compute.attention_prefill", |profile, _| {
        one(&mut profile.compute.attention_prefill)
    }),
    constant("compute.attention_decode", |profile, _| {
        one(&mut profile.compute.attention_decode)
    }),
    constant("compute.unpack", |profile, _| {
        let compute = &mut profile.compute;
        rates(compute.unpack.iter_mut().chain(&mut compute.pack))
    }),
    constant("compute.cpu_attention", |profile, _| {
        one(&mut profile.compute.cpu_attention)
    }),
    constant("contention.cpu.h2d", |profile, _| {
        kept(&mut profile.contention, Cpu, H2d)
    }),
    constant("contention.h2d.cpu", |profile, _| {
        kept(&mut profile.contention, H2d, Cpu)
    }),
];

const fn constant(name: &'static str, places: Places) -> Constant {
    Constant { name, places }
}

impl Constant {
    /// The constant of that name.
    pub fn named(name: &str) -> Option<Constant> {
        CONSTANTS.into_iter().find(|c| c.name == name)
    }

    /// Its key in the profile.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Of a constant that each type of elements has curves of, the type whose curves it is: where runs have their
    /// rates from. What is known of others, runs do not say.
    pub fn dtype(self, profile: &HardwareProfile) -> Option<Dtype> {
        let of = RecordedRun::DTYPE;
        let known = || CostModel::new(profile, of).stand_in().unwrap_or(of);
        (self.name == GEMM).then(known)
    }

    /// Its key in the profile, and behind it the type.
    pub fn label(self, profile: &HardwareProfile) -> String {
        let dtype = self.dtype(profile).map(Dtype::name);
        dtype.map_or(self.name.to_owned(), |dtype| {
            format!("{}.{dtype}", self.name)
        })
    }

    /// Whether a profile states it.
    pub fn stands_in(self, profile: &HardwareProfile) -> bool {
        !self.places(&mut profile.clone()).is_empty()
    }

    /// Its value in a profile for people: the first of its numbers.
    pub fn value(self, profile: &HardwareProfile) -> Option<f64> {
        let mut profile = profile.clone();
        let value = match self.places(&mut profile).first()? {
            Place::Rate(curve) => curve.peak(),
            Place::Bandwidth(rate, _) => rate.0,
            Place::Time(time, _) => time.0,
            Place::Kept(kept, _) => **kept,
        };
        Some(value)
    }

    /// The profile with the constant that many times as large; times and losses as well as rates.
    pub fn scale(self, profile: &mut HardwareProfile, factor: f64) {
        for place in self.places(profile) {
            match place {
                Place::Rate(curve) => *curve = curve.slower(|_| 1.0 / factor),
                Place::Bandwidth(rate, _) => rate.0 *= factor,
                Place::Time(time, _) => time.0 *= factor,
                Place::Kept(kept, _) => *kept = 1.0 / (1.0 + factor * (1.0 / *kept - 1.0)),
            }
        }
    }

    /// Says in the profile that the constant was fitted, by the name of the source that says how.
    pub fn mark(self, profile: &mut HardwareProfile, name: &str, source: &Source) {
        for place in self.places(profile) {
            let said = match place {
                Place::Rate(curve) => &mut curve.source,
                Place::Bandwidth(_, said) | Place::Time(_, said) | Place::Kept(_, said) => said,
            };
            name.clone_into(said);
        }
        profile.sources.insert(name.to_owned(), source.clone());
    }

    fn places(self, profile: &mut HardwareProfile) -> Vec<Place<'_>> {
        let dtype = self.dtype(profile);
        (self.places)(profile, dtype)
    }
}

// A name has one row of the table.
impl PartialEq for Constant {
    fn eq(&self, other: &Constant) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for Constant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Rates of products of a type, and what has them in it.
fn gemm(profile: &mut HardwareProfile, dtype: Option<Dtype>) -> Vec<Place<'_>> {
    let compute = &mut profile.compute;
    let curves = compute.gemm.iter_mut();
    let curves = curves.filter(|gemm| Some(gemm.dtype) == dtype);
    let curves = curves.map(|gemm| &mut gemm.rate);
    let products = compute.products.iter_mut();
    let products = products.filter(|it| it.packed || Some(it.dtype) == dtype);
    let products = products.flat_map(|product| product.curves_mut());
    // Curves of whole parts of layers have this in them.
    let beside = compute.beside_products.iter_mut();
    let beside = beside.filter(|it| Some(it.dtype) == dtype);
    let beside = beside.map(|it| &mut it.rate);
    rates(curves.chain(products).chain(beside))
}

fn one(curve: &mut Curve) -> Vec<Place<'_>> {
    vec![Place::Rate(curve)]
}

fn rates<'a>(curves: impl IntoIterator<Item = &'a mut Curve>) -> Vec<Place<'a>> {
    curves.into_iter().map(Place::Rate).collect()
}

fn time(quantity: &mut Quantity<Seconds>) -> Vec<Place<'_>> {
    vec![Place::Time(&mut quantity.value, &mut quantity.source)]
}

fn kept(pairs: &mut [Contention], victim: ResourceKind, beside: ResourceKind) -> Vec<Place<'_>> {
    let this = pairs
        .iter_mut()
        .filter(|c| c.victim == victim && c.beside == beside);
    this.map(|c| Place::Kept(&mut c.rate.value, &mut c.rate.source))
        .collect()
}
