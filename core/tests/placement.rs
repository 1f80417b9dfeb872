//! Where FlexGen's rule puts whole tensors.

use plimsoll_core::Dtype;
use plimsoll_core::model::{TensorRole, registry};
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::policy::{Granularity, Policy};
use plimsoll_core::tier::Tier;

/// Matrices of OPT-30B's first layer that are on the device, with such shares of weights on device and host.
fn on_device(device: f64, host: f64) -> Vec<TensorRole> {
    let model = registry::find("opt-30b").expect("registered");
    let percent = [device, host, 100.0, 0.0, 100.0, 0.0];
    let policy = Policy {
        granularity: Granularity::Layer,
        ..Policy::from_percent(1, 1, percent).expect("percentages")
    };
    let placed = WeightPlacement::new(&model, Dtype::F16, &policy);
    let tensors = placed.blocks[1].tensors.iter();
    let there = tensors.filter(|it| it.home == Tier::Device && it.spec.is_multiplied());
    there.map(|it| it.spec.role).collect()
}

/// The middle of an MLP's second matrix is at three quarters of it, less what stands behind: the norm. FlexGen's `init_weight_list`
/// leaves it on the host, or on disk.
#[test]
fn a_quarter_on_the_device_is_attentions_last_matrix() {
    for (device, host) in [(25.0, 75.0), (24.0, 76.0), (25.0, 0.0)] {
        assert_eq!(on_device(device, host), [TensorRole::OWeight]);
    }
    let more = on_device(26.0, 74.0);
    assert_eq!(more, [TensorRole::OWeight, TensorRole::DownWeight]);
}
