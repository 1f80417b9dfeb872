//! What a profile's lookup table of products does to predictions.

use plimsoll_core::Dtype;
use plimsoll_core::compression::{Compression, GROUP_BYTES, GROUP_ELEMENTS, Kept};
use plimsoll_core::hardware::{
    BesideProducts, Curve, DeviceKind, GemmCurve, HardwareProfile, ProductCurves, WeightRead,
    embedded,
};
use plimsoll_core::model::registry;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{Gemm, Gemms, Op, ResourceKind, Stage};
use plimsoll_core::serve::{Load, Shape};
use plimsoll_core::term::Term;
use plimsoll_core::units::BytesPerSecond;
use plimsoll_core::workload::Workload;
use plimsoll_sim::CostModel;

fn product(m: u32, [n, k]: [u32; 2], compressed: bool) -> Op {
    Op::Linear {
        stage: Stage::Finish,
        m,
        gemms: Gemms::new(&[Gemm { n, k }]),
        position: 0,
        reused: false,
        compressed,
        packed_elements: if compressed { u64::from(n * k) } else { 0 },
    }
}

fn seconds(profile: &HardwareProfile, op: &Op) -> f64 {
    let cost = CostModel::new(profile, Dtype::F16);
    cost.seconds(ResourceKind::Gpu, op).0
}

/// A T4 with a table for weights of one shape.
fn knowing(shape: [u32; 2]) -> HardwareProfile {
    let mut profile = embedded::profile("t4").expect("embedded");
    let source = profile.sources.keys().next().expect("a source").clone();
    let curve = |points: &[(f64, f64)]| Curve::new(points.to_vec(), source.clone(), Some(0.1));
    profile.compute.products = vec![ProductCurves {
        dtype: Dtype::F16,
        n: shape[0],
        k: shape[1],
        packed: false,
        biased: false,
        gemv: curve(&[(1.0, 1e9), (8.0, 2e9)]).expect("a curve"),
        flat: Some(curve(&[(1.0, 5e8), (8.0, 4e9), (64.0, 3e10)]).expect("a curve")),
        conventional: curve(&[(8.0, 1e9), (64.0, 6e10)]).expect("a curve"),
    }];
    profile.validate().expect("a table");
    profile
}

#[test]
fn a_product_of_a_measured_shape_takes_the_time_of_the_implementation_that_is_chosen() {
    let shape = [4096, 4096];
    let profile = knowing(shape);
    let launch = profile.compute.launch.value.0;
    // GEMV, the flat product from M1 = 8 on, the conventional one from M2 = 64 on.
    for (m, rate) in [(1, 1e9), (8, 4e9), (64, 6e10), (4096, 6e10)] {
        let expected = 2.0 * f64::from(m) * 4096.0 * 4096.0 / rate + launch;
        let found = seconds(&profile, &product(m, shape, false));
        assert!(
            (found / expected - 1.0).abs() < 1e-12,
            "{m}: {found} for {expected}"
        );
    }
}

/// A GPU computes prompts by the vendor's library, whatever its table says of fewer rows.
#[test]
fn no_table_of_a_gpu_reaches_beyond_its_rows() {
    let shape = [4096, 4096];
    let mut profile = knowing(shape);
    let source = profile.compute.products[0].gemv.source.clone();
    let slow = Curve::new(vec![(8.0, 1e9), (64.0, 1e9)], source, Some(0.1)).expect("a curve");
    profile.compute.products[0].flat = None;
    profile.compute.products[0].conventional = slow;
    let mut rate = |kind, m: u32| {
        profile.kind = kind;
        let launch = profile.compute.launch.value.0;
        let seconds = seconds(&profile, &product(m, shape, false)) - launch;
        (2.0 * f64::from(m) * 4096.0 * 4096.0 / seconds / 1e8).round()
    };
    let gpu = [128, 129].map(|m| rate(DeviceKind::Gpu, m));
    assert_eq!(gpu, [20.0, 10.0]);
    assert_eq!(rate(DeviceKind::Emulated, 129), 20.0);
}

/// Sizes of the two parts of a layer interleave, but a cache holds what it does by the size of the layer.
#[test]
fn a_product_is_rated_by_what_was_measured_of_its_own_part_of_a_layer() {
    let mut profile = embedded::profile("t4").expect("embedded");
    let source = profile.sources.keys().next().expect("a source").clone();
    let curve = |stage, side, rate| GemmCurve {
        dtype: Dtype::F16,
        n: Some(side),
        k: Some(side),
        stage,
        reused: false,
        packed: false,
        rate: Curve::new(vec![(1.0, rate)], source.clone(), None).expect("a curve"),
    };
    profile.compute.gemm = vec![
        curve(Some(Stage::Finish), 64, 4e9),
        curve(Some(Stage::Project), 128, 1e9),
        curve(Some(Stage::Finish), 256, 4e9),
    ];
    profile.validate().expect("rates");
    let rate = |profile: &HardwareProfile, stage| {
        let mut op = product(1, [128, 128], false);
        if let Op::Linear { stage: own, .. } = &mut op {
            *own = stage;
        }
        let mut arithmetic = 0.0;
        CostModel::new(profile, Dtype::F16).parts(ResourceKind::Gpu, &op, &mut |part| {
            if part.number.contains("gemm") {
                arithmetic += part.seconds.0;
            }
        });
        (2.0 * 128.0 * 128.0 / arithmetic / 1e6).round()
    };
    assert_eq!(rate(&profile, Stage::Finish), 4000.0);
    assert_eq!(rate(&profile, Stage::Project), 1000.0);
    assert_eq!(rate(&profile, Stage::Mlp), 4000.0);
    // A part without curves of its own has those of all.
    assert_eq!(rate(&profile, Stage::Part), 1000.0);
    profile.compute.gemm.retain(|curve| curve.n != Some(128));
    assert_eq!(rate(&profile, Stage::Project), 4000.0);
}

/// FlashDecoding++'s shapes of Llama-2-7B: bytes of f16 weights, and the time that an A100 takes to read them.
#[test]
fn a_product_of_one_row_takes_the_time_of_reading_its_weights() {
    let mut a100 = embedded::profile("a100-80").expect("embedded");
    // The paper's data sheet; the profile has what was measured on one.
    a100.tiers.device_bandwidth.value = BytesPerSecond(2039e9);
    let launch = a100.compute.launch.value.0;
    for (shape, bytes, us) in [
        ([12288, 4096], 100_663_296, 49.369),
        ([4096, 4096], 33_554_432, 16.456),
        ([11008, 4096], 90_177_536, 44.226),
        ([4096, 11008], 90_177_536, 44.226),
    ] {
        assert_eq!(2 * u64::from(shape[0]) * u64::from(shape[1]), bytes);
        let found = 1e6 * (seconds(&a100, &product(1, shape, false)) - launch);
        // Its row of input and of output are read and written as well.
        assert!(
            found > us && found < us * 1.001,
            "{shape:?}: {found} for {us}"
        );
    }
}

#[test]
fn others_take_the_time_that_they_took_without_a_table() {
    let (plain, knowing) = (
        embedded::profile("t4").expect("embedded"),
        knowing([4096, 4096]),
    );
    for other in [[4096, 1024], [1024, 4096], [11008, 4096]] {
        for m in [1, 8, 64] {
            let op = product(m, other, false);
            assert_eq!(
                seconds(&plain, &op),
                seconds(&knowing, &op),
                "{m} {other:?}"
            );
        }
    }
    let bf16 = |profile| CostModel::new(profile, Dtype::Bf16);
    let op = product(8, [4096, 4096], false);
    let of = |profile| bf16(profile).seconds(ResourceKind::Gpu, &op).0;
    assert_eq!(of(&plain), of(&knowing));
}

/// Weights in 4 bits are unpacked apart on such a machine, and then multiplied as whole ones are.
#[test]
fn packed_weights_have_their_unpacking_added() {
    let shape = [4096, 4096];
    let profile = knowing(shape);
    let whole = seconds(&profile, &product(8, shape, false));
    let packed = seconds(&profile, &product(8, shape, true));
    let mut cost = Vec::new();
    let op = product(8, shape, true);
    CostModel::new(&profile, Dtype::F16).parts(ResourceKind::Gpu, &op, &mut |part| {
        cost.push((part.number, part.seconds.0));
    });
    assert_eq!(cost[0].0, "compute.products.f16");
    let unpacking: f64 = cost.iter().skip(2).map(|(_, seconds)| seconds).sum();
    assert!(unpacking > 0.0);
    assert!((packed - whole - unpacking).abs() < 1e-12 * packed);
}

/// What is new in a cache is packed at a rate of its own where a profile has one, and what lies there is unpacked.
#[test]
fn packing_has_a_rate_of_its_own() {
    let t4 = embedded::profile("t4").expect("embedded");
    let source = t4.tiers.device_bandwidth.source.clone();
    let mut told = t4.clone();
    told.compute.pack = Some(Curve::new(vec![(1.0, 1e6)], source, None).expect("a curve"));
    // A projection whose new elements are packed, and with weights that are unpacked besides.
    let op = |compressed: bool| {
        let mut op = product(2, [64, 64], compressed);
        if let Op::Linear {
            packed_elements, ..
        } = &mut op
        {
            *packed_elements = 1000;
        }
        op
    };
    let parts = |profile: &HardwareProfile, op: &Op| {
        let mut seconds = [0.0; 2];
        CostModel::new(profile, Dtype::F16).parts(ResourceKind::Gpu, op, &mut |part| match part
            .number
        {
            "compute.pack" => seconds[0] += part.seconds.0,
            "compute.unpack" => seconds[1] += part.seconds.0,
            _ => {}
        });
        seconds
    };
    let unpack = t4.compute.unpack.as_ref().expect("FlexGen's").at(1.0);
    let near = |found: [f64; 2], expected: [f64; 2]| {
        let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        assert!(
            off.fold(0.0, f64::max) < 1e-12,
            "{found:?}, not {expected:?}"
        );
    };
    near(parts(&t4, &op(false)), [0.0, 1000.0 / unpack]);
    near(parts(&told, &op(false)), [1e-3, 0.0]);
    near(parts(&told, &op(true)), [1e-3, 4096.0 / unpack]);
}

/// Where parts of layers are summed up, and products with weights in 4 bits were measured, those are what is added up.
#[test]
fn a_sum_of_products_has_those_of_packed_weights() {
    let shape = [4096, 4096];
    let mut profile = knowing(shape);
    let whole_curves = profile.compute.products[0].clone();
    let source = whole_curves.gemv.source.clone();
    let curve = |rate| Curve::new(vec![(1.0, rate)], source.clone(), None).expect("a curve");
    profile.compute.beside_products = vec![BesideProducts {
        dtype: Dtype::F16,
        stage: Stage::Finish,
        biased: false,
        width: shape[1],
        rate: curve(1e9),
    }];
    let packed = Op::Linear {
        stage: Stage::Finish,
        m: 8,
        gemms: Gemms::new(&[Gemm { n: 4096, k: 4096 }]),
        position: 0,
        reused: false,
        compressed: true,
        packed_elements: 0,
    };
    let apart = seconds(&profile, &packed);
    // Whatever the type was that they were measured beside.
    profile.compute.products.push(ProductCurves {
        dtype: Dtype::Bf16,
        packed: true,
        biased: false,
        gemv: curve(5e12),
        flat: None,
        conventional: curve(1e12),
        ..whole_curves
    });
    profile.validate().expect("numbers");
    let op = product(8, shape, false);
    let whole = seconds(&profile, &op);
    let found = seconds(&profile, &packed);
    let flops = 2.0 * 8.0 * 4096.0 * 4096.0;
    let known = &profile.compute.products[0];
    let of_whole = flops / known.on_gpu(&known.inflections(), 8).at(8.0);
    let expected = whole - of_whole + flops / 5e12;
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    assert_ne!(apart, found);
    // It is the same unpacking that a term takes away.
    let without = profile
        .without(&[Term::Unpacking])
        .expect("it has the term");
    assert!((seconds(&without, &packed) - whole).abs() < 1e-9 * whole);
}

/// What the attention gives may be wider than the layer, whose norms and residuals are as wide as it.
#[test]
fn halves_of_a_layers_end_have_what_it_does_beside_its_products_between_them() {
    let mut profile = knowing([4096, 4096]);
    let source = profile.compute.products[0].gemv.source.clone();
    let beside = |width: u32, rate: f64| BesideProducts {
        dtype: Dtype::F16,
        stage: Stage::Finish,
        biased: false,
        width,
        rate: Curve::new(vec![(1.0, rate)], source.clone(), None).expect("a curve"),
    };
    profile.compute.beside_products = vec![beside(1024, 1e9), beside(4096, 5e8)];
    let of = |stage: Stage, gemms: &[Gemm]| Op::Linear {
        stage,
        m: 1,
        gemms: Gemms::new(gemms),
        position: 0,
        reused: false,
        compressed: false,
        packed_elements: 0,
    };
    // 32 heads of 128 in a layer of 1024.
    let all = [(1024, 4096), (3072, 1024), (1024, 3072)].map(|(n, k)| Gemm { n, k });
    let seconds = |stage, gemms: &[Gemm]| {
        seconds(&profile, &of(stage, gemms)) - profile.compute.launch.value.0
    };
    let halves = seconds(Stage::Output, &all[..1]) + seconds(Stage::Mlp, &all[1..]);
    let whole = seconds(Stage::Finish, &all);
    assert!((halves / whole - 1.0).abs() < 1e-9, "{halves} and {whole}");
}

/// Where nobody measured it, weights in 4 bits are read as they are, as fast as memory or f32 arithmetic allows, or unpacked first.
#[test]
fn packed_weights_are_guessed_to_be_read_in_the_faster_way() {
    let profile = embedded::profile("rtx4090").expect("embedded");
    let bandwidth = profile.tiers.device_bandwidth.value.0;
    let launch = profile.compute.launch.value.0;
    let elements = 8192.0 * 8192.0;
    let of = |m, packed| {
        let mut op = product(m, [8192, 8192], packed);
        // No new keys and values.
        if let Op::Linear {
            packed_elements, ..
        } = &mut op
        {
            *packed_elements = 0;
        }
        seconds(&profile, &op) - launch
    };
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-9;
    // Read packed, and written whole.
    let [codes, unpacking] = [0.5625, 2.5625].map(|bytes| elements * bytes / bandwidth);
    let activations = |m: u32| 4.0 * f64::from(m) * 8192.0 / bandwidth;
    assert!(near(of(1, true), codes + activations(1)));
    // A code becomes a number for four rows at once.
    let f32 = 2.0 * 32.0 * elements * (2.25 / 4.0 + 1.5) / 55.6e12;
    assert!(near(of(32, true), f32), "{} {f32}", of(32, true));
    assert!(near(of(512, true), of(512, false) + unpacking));
}

/// A step of a model that is served: of a T4, where FlexGen's unpacking was measured, and of a card where nothing was.
#[test]
fn steps_with_packed_weights_unpack_all_of_them_or_read_less() {
    let model = registry::find("opt-6.7b").expect("registered");
    let load = Load {
        sequences: 4,
        tokens: 4,
        context_tokens: 400,
        ..Load::default()
    };
    let seconds = |machine: &str, packed: bool| {
        let kept = Kept {
            dtype: Dtype::F16,
            compression: Compression::of(packed, false),
        };
        let profile = embedded::profile(machine).expect("embedded");
        let cost = CostModel::of_model(&profile, &model, kept);
        let shape = Shape::of(&model, kept);
        cost.seconds(ResourceKind::Gpu, &shape.span(&load, 0, shape.layers))
            .0
    };
    let [whole, packed] = [false, true].map(|packed| seconds("t4", packed));
    let multiplied = (0..model.num_blocks()).flat_map(|block| model.tensors(block));
    let multiplied = multiplied.filter(|tensor| tensor.is_multiplied());
    let elements: u64 = multiplied.map(|tensor| tensor.elements()).sum();
    let t4 = embedded::profile("t4").expect("embedded");
    let unpack = t4.compute.unpack.expect("FlexGen's");
    let unpacking = elements as f64 / unpack.at(elements as f64);
    assert!(((packed - whole) / unpacking - 1.0).abs() < 1e-6);
    let [whole, packed] = [false, true].map(|packed| seconds("rtx4090", packed));
    assert!(packed < 0.4 * whole, "{packed} {whole}");
}

/// A T4 that reads f32 weights, of models that no cache holds, three times as fast as f16 ones.
fn reading_weights() -> HardwareProfile {
    let mut profile = embedded::profile("t4").expect("embedded");
    let source = profile.sources.keys().next().expect("a source").clone();
    let read = |dtype, slow: f64| WeightRead {
        dtype,
        rate: Curve::new(vec![(2e9, 2.0 * slow), (8e9, slow)], &*source, None).expect("a curve"),
    };
    profile.compute.weight_read = vec![read(Dtype::F32, 3e9), read(Dtype::F16, 1e9)];
    profile.validate().expect("a curve for each");
    profile
}

/// A registered model with all of it on the device.
fn on_device(model: &str, dtype: Dtype) -> Plan {
    let plan = Plan::given(
        registry::find(model).expect("registered"),
        dtype,
        Workload {
            prompt_len: 8,
            gen_len: 4,
            num_prompts: None,
        },
        Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("whole"),
    );
    plan.with_room().expect("a policy")
}

/// What a cache keeps of a small model it does not keep of a large one; a product of many rows has time to wait for it.
#[test]
fn a_model_of_more_weights_than_a_cache_holds_is_read_as_fast_as_memory() {
    let profile = reading_weights();
    let launch = profile.compute.launch.value.0;
    let of = |model: &str, op: &Op| {
        let cost = CostModel::of_plan(&profile, &on_device(model, Dtype::F16));
        cost.seconds(ResourceKind::Gpu, op).0
    };
    let one = product(1, [4096, 4096], false);
    let bytes = 4096.0 * 4096.0 * 2.0;
    // Beyond the largest that was read memory is no slower.
    let large = of("opt-6.7b", &one);
    assert!((large - launch - bytes / 1e9).abs() < 1e-9, "{large}");
    let without = profile.without(&[Term::DeviceMemory]).expect("a term");
    let cost = CostModel::of_plan(&without, &on_device("opt-6.7b", Dtype::F16));
    let t4 = embedded::profile("t4").expect("embedded");
    let of_t4 = t4.without(&[Term::DeviceMemory]).expect("a term");
    assert_eq!(
        cost.seconds(ResourceKind::Gpu, &one).0,
        seconds(&of_t4, &one)
    );
    assert_eq!(of("opt-125m", &one), seconds(&profile, &one));
    // A few rows wait as long beyond what they took; many have time to.
    let few = product(2, [4096, 4096], false);
    let waits = of("opt-6.7b", &few) - seconds(&profile, &few);
    assert!((waits - (large - seconds(&profile, &one))).abs() < 1e-9);
    let many = product(1 << 20, [4096, 4096], false);
    let waits = of("opt-6.7b", &many) / seconds(&profile, &many) - 1.0;
    assert!((0.0..2e-3).contains(&waits), "{waits}");
    let mut again = one;
    if let Op::Linear { reused, .. } = &mut again {
        *reused = true;
    }
    assert_eq!(of("opt-6.7b", &again), seconds(&profile, &again));
}

/// Types that are widened on the way are read more slowly, so a plan goes by the curve of its own.
#[test]
fn weights_are_read_as_fast_as_weights_of_their_type() {
    let profile = reading_weights();
    let launch = profile.compute.launch.value.0;
    let one = product(1, [4096, 4096], false);
    // Nobody measured bf16, which is widened as f16 is.
    for (dtype, rate) in [(Dtype::F32, 3e9), (Dtype::F16, 1e9), (Dtype::Bf16, 1e9)] {
        let read = 4096.0 * 4096.0 * dtype.size_bytes() as f64 / rate;
        let plan = on_device("opt-6.7b", dtype);
        let planned = CostModel::of_plan(&profile, &plan);
        let served = CostModel::of_model(&profile, &plan.model, dtype);
        for cost in [planned, served] {
            let found = cost.seconds(ResourceKind::Gpu, &one).0 - launch;
            assert!((found / read - 1.0).abs() < 1e-9, "{dtype:?}: {found}");
        }
    }
}

#[test]
fn weights_of_a_type_that_was_not_read_wait_for_nothing() {
    let plan = on_device("opt-6.7b", Dtype::F32);
    let of = |profile: &HardwareProfile, cost: fn(&HardwareProfile, &Plan) -> CostModel| {
        let one = product(1, [4096, 4096], false);
        cost(profile, &plan).seconds(ResourceKind::Gpu, &one)
    };
    let planned = CostModel::of_plan;
    let served = |profile: &HardwareProfile, plan: &Plan| {
        CostModel::of_model(profile, &plan.model, plan.dtype)
    };
    let mut knowing = reading_weights();
    knowing.compute.weight_read.remove(0);
    let none = embedded::profile("t4").expect("embedded");
    assert_eq!(of(&knowing, planned), of(&none, planned));
    assert_eq!(of(&knowing, served), of(&none, served));
    // It is the type alone that was missing.
    knowing.compute.weight_read[0].dtype = Dtype::F32;
    assert!(of(&knowing, planned) > of(&none, planned));
    assert!(of(&knowing, served) > of(&none, served));
}

/// What is read of weights in 4 bits are their codes, at the rate of the type that they are computed in.
#[test]
fn packed_weights_are_read_as_they_are_stored() {
    let profile = reading_weights();
    let op = product(1, [4096, 4096], true);
    let bytes = 4096.0 * 4096.0 * GROUP_BYTES as f64 / GROUP_ELEMENTS as f64;
    for (dtype, rate) in [(Dtype::F32, 3e9), (Dtype::F16, 1e9)] {
        // In 4 bits as well there are more of them than the curve's last point has.
        let mut plan = on_device("opt-30b", dtype);
        plan.policy.compression = Compression::of(true, false);
        let reading = CostModel::of_plan(&profile, &plan);
        let mut found = 0.0;
        reading.parts(ResourceKind::Gpu, &op, &mut |part| {
            let is_of_product = !part.number.contains("unpack") && !part.number.contains("launch");
            found += if is_of_product { part.seconds.0 } else { 0.0 };
        });
        assert!(
            (found * rate / bytes - 1.0).abs() < 1e-9,
            "{dtype:?}: {found}"
        );
    }
}
