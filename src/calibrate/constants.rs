//! The constants of a profile that runs can be fitted by, each a factor on numbers of the profile.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{Contention, Curve, HardwareProfile, Quantity, Source};
use plimsoll_core::program::ResourceKind;
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

/// A named constant: one key of a profile, or all curves under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Constant(&'static str);

/// All that can be fitted, in the order of the profile.
pub const CONSTANTS: [Constant; 17] = [
    Constant("tiers.device_bandwidth"),
    Constant("links.h2d.page_locked"),
    Constant("links.h2d.pageable"),
    Constant("links.d2h.page_locked"),
    Constant("links.d2h.pageable"),
    Constant("links.disk_read"),
    Constant("links.disk_read.latency"),
    Constant("links.disk_write"),
    Constant("compute.launch"),
    Constant("compute.barrier"),
    Constant(GEMM),
    Constant("compute.attention_prefill"),
    Constant("compute.attention_decode"),
    Constant("compute.unpack"),
    Constant("compute.cpu_attention"),
    Constant("contention.cpu.h2d"),
    Constant("contention.h2d.cpu"),
];

impl Constant {
    /// The constant of that name.
    pub fn named(name: &str) -> Option<Constant> {
        CONSTANTS.into_iter().find(|c| c.0 == name)
    }

    /// Its key in the profile.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Of a constant that each type of elements has curves of, the type whose curves it is: where runs have their
    /// rates from. What is known of others, runs do not say.
    pub fn dtype(self, profile: &HardwareProfile) -> Option<Dtype> {
        let of = RecordedRun::DTYPE;
        let known = || CostModel::new(profile, of).stand_in().unwrap_or(of);
        (self.0 == GEMM).then(known)
    }

    /// Its key in the profile, and behind it the type.
    pub fn label(self, profile: &HardwareProfile) -> String {
        let dtype = self.dtype(profile).map(Dtype::name);
        dtype.map_or(self.0.to_owned(), |dtype| format!("{}.{dtype}", self.0))
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
        let (tiers, links) = (&mut profile.tiers, &mut profile.links);
        let (compute, pairs) = (&mut profile.compute, &mut profile.contention);
        let one = |curve| vec![Place::Rate(curve)];
        match self.0 {
            "tiers.device_bandwidth" => {
                let q = &mut tiers.device_bandwidth;
                vec![Place::Bandwidth(&mut q.value, &mut q.source)]
            }
            "links.h2d.page_locked" => one(&mut links.h2d.page_locked),
            "links.h2d.pageable" => links.h2d.pageable.iter_mut().map(Place::Rate).collect(),
            "links.d2h.page_locked" => one(&mut links.d2h.page_locked),
            "links.d2h.pageable" => links.d2h.pageable.iter_mut().map(Place::Rate).collect(),
            "links.disk_read" => one(&mut links.disk_read.rate),
            "links.disk_write" => one(&mut links.disk_write.rate),
            "links.disk_read.latency" => time(&mut links.disk_read.latency),
            "compute.launch" => {
                let embed = compute.embed.iter_mut().flat_map(time);
                time(&mut compute.launch).into_iter().chain(embed).collect()
            }
            "compute.barrier" => time(&mut compute.barrier),
            GEMM => {
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
                let all = curves.chain(products).chain(beside);
                all.map(Place::Rate).collect()
            }
            "compute.attention_prefill" => one(&mut compute.attention_prefill),
            "compute.attention_decode" => one(&mut compute.attention_decode),
            "compute.unpack" => {
                let both = compute.unpack.iter_mut().chain(&mut compute.pack);
                both.map(Place::Rate).collect()
            }
            "compute.cpu_attention" => one(&mut compute.cpu_attention),
            "contention.cpu.h2d" => kept(pairs, ResourceKind::Cpu, ResourceKind::H2d),
            _ => kept(pairs, ResourceKind::H2d, ResourceKind::Cpu),
        }
    }
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
