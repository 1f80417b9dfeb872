//! Which rates a type has where a profile does not know it.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, embedded};
use plimsoll_core::program::{Gemm, Gemms, Op, ResourceKind, Stage};
use plimsoll_sim::CostModel;

/// The arithmetic of so many products that no memory is in its way.
fn seconds(profile: &HardwareProfile, dtype: Dtype) -> f64 {
    let op = Op::Linear {
        stage: Stage::Finish,
        m: 4096,
        gemms: Gemms::new(&[Gemm { n: 4096, k: 4096 }]),
        position: 0,
        reused: false,
        compressed: false,
        packed_elements: 0,
    };
    CostModel::new(profile, dtype)
        .seconds(ResourceKind::Gpu, &op)
        .0
}

/// A T4 with one curve for each of these types, the first as fast as it is, each further at half the rate
/// of the one before.
fn knowing(dtypes: &[Dtype]) -> HardwareProfile {
    let mut profile = embedded::profile("t4").expect("embedded");
    let curve = profile.compute.gemm[0].clone();
    let curves = dtypes.iter().zip([1.0, 2.0, 4.0]).map(|(dtype, slower)| {
        let mut curve = curve.clone();
        curve.dtype = *dtype;
        curve.rate = curve.rate.slower(|_| slower);
        curve
    });
    profile.compute.gemm = curves.collect();
    profile
}

#[test]
fn the_16_bit_types_stand_for_each_other_before_f32_does() {
    use Dtype::{Bf16, F16, F32};
    let all = knowing(&[F32, F16, Bf16]);
    let [f32, f16, bf16] = [F32, F16, Bf16].map(|dtype| seconds(&all, dtype));
    assert!(f32 < f16 && f16 < bf16, "{f32} {f16} {bf16}");

    let without_bf16 = knowing(&[F32, F16]);
    assert_eq!(seconds(&without_bf16, Bf16), f16);
    let without_f16 = knowing(&[F32, Bf16]);
    assert_eq!(seconds(&without_f16, F16), seconds(&without_f16, Bf16));
    let single = knowing(&[F32]);
    assert_eq!(seconds(&single, F16), f32);
    assert_eq!(seconds(&single, Bf16), f32);
    let brain = knowing(&[Bf16]);
    assert_eq!(seconds(&brain, F32), seconds(&brain, Bf16));
}
