//! Every plan's program passes verification, and spends what the policy says.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::{Lowering, footprint};
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::plan::{ChosenBy, PLAN_SCHEMA_VERSION, Plan, Provenance};
use plimsoll_core::policy::{Granularity, Policy, Schedule};
use plimsoll_core::program::{Op, Program, ResourceKind};
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::Bytes;
use plimsoll_core::verify::Verifier;
use plimsoll_core::workload::Workload;
use proptest::prelude::*;

fn small_model() -> ModelSpec {
    ModelSpec {
        num_hidden_layers: 3,
        ..registry::find("opt-125m").expect("registered")
    }
}

fn plan(policy: Policy, workload: Workload) -> Plan {
    let mut plan = Plan {
        schema_version: PLAN_SCHEMA_VERSION,
        model: small_model(),
        dtype: Dtype::F16,
        workload,
        policy,
        capacity_bytes: PerTier::default(),
        prediction: None,
        provenance: Provenance {
            hardware: "none".into(),
            chosen_by: ChosenBy::Given,
            plimsoll_version: "0".into(),
        },
    };
    plan.capacity_bytes = footprint(&plan).expect("a policy");
    plan
}

fn pieces(plan: &Plan) -> Vec<Program> {
    let mut lowering = Lowering::new(plan).expect("fits its own footprint");
    std::iter::from_fn(|| lowering.next_pass()).collect()
}

fn verify(plan: &Plan) {
    let lowering = Lowering::new(plan).expect("fits its own footprint");
    let mut verifier = Verifier::new(plimsoll_core::control::Controller::machine(&lowering));
    for piece in pieces(plan) {
        if let Err(error) = verifier.check(&piece) {
            for (index, task) in piece.tasks().iter().enumerate() {
                eprintln!(
                    "{index} {:?} {:?} {:?}",
                    task.cell,
                    piece.op_of(task),
                    piece.args_at(index)
                );
            }
            for (index, buffer) in piece.buffers().iter().enumerate() {
                eprintln!("{index} {buffer:?}");
            }
            panic!("{error}\n{:#?}", plan.policy);
        }
    }
    verifier.finish().expect("nothing is left behind");
}

fn shares() -> impl Strategy<Value = (f64, f64)> {
    prop_oneof![
        Just((100.0, 0.0)),
        Just((0.0, 100.0)),
        Just((0.0, 0.0)),
        (0.0..100.0f64, 0.0..1.0f64).prop_map(|(d, h)| (d, (100.0 - d) * h)),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    let counts = (1u32..5, 1u32..6);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let schedule = prop_oneof![
        Just(Schedule::Row),
        Just(Schedule::ZigZag),
        Just(Schedule::Diagonal)
    ];
    let share = prop_oneof![Just(1.0), Just(1e-9), 0.01..1.0f64];
    let choices = (schedule, any::<bool>(), any::<bool>(), share);
    (counts, shares(), shares(), shares(), switches, choices).prop_map(
        |((gbs, count), w, c, h, (overlap, barrier, cpu_attention, spread), choices)| Policy {
            schedule: choices.0,
            compression: Compression::of(choices.1, choices.2 && !cpu_attention),
            sparse_attention: choices.3,
            granularity: if spread {
                Granularity::Spread
            } else {
                Granularity::Layer
            },
            overlap,
            barrier,
            cpu_attention,
            ..Policy::from_percent(gbs, count, [w.0, w.1, c.0, c.1, h.0, h.1]).expect("in range")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_lowering_verifies(
        policy in policies(),
        prompt_len in 1u32..20,
        gen_len in 1u32..8,
        prompts in proptest::option::of(1u64..30),
    ) {
        verify(&plan(policy, Workload { prompt_len, gen_len, num_prompts: prompts }));
    }
}

fn moved(plan: &Plan, kind: ResourceKind, pass: u16) -> u64 {
    let lowering = Lowering::new(plan).expect("fits");
    let machine = plimsoll_core::control::Controller::machine(&lowering).clone();
    let mut total = 0;
    for piece in pieces(plan) {
        for task in piece.tasks().iter().filter(|t| t.cell.pass == pass) {
            if machine.resources[task.resource.0 as usize].kind == kind
                && let Some(bytes) = piece.op_of(task).moved_bytes()
            {
                total += bytes.0;
            }
        }
    }
    total
}

#[test]
fn zigzag_reads_weights_once_a_pass_and_row_once_a_batch() {
    let workload = Workload {
        prompt_len: 8,
        gen_len: 3,
        num_prompts: None,
    };
    let zigzag = Policy::from_percent(2, 4, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0]).expect("policy");
    let row = Policy {
        schedule: Schedule::Row,
        ..zigzag
    };
    let zigzag = moved(&plan(zigzag, workload), ResourceKind::H2d, 1);
    let row = moved(&plan(row, workload), ResourceKind::H2d, 1);
    assert_eq!(row, 4 * zigzag);
    let plan = plan(
        Policy::from_percent(2, 4, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0]).expect("policy"),
        workload,
    );
    let weights = Lowering::new(&plan)
        .expect("fits")
        .placement()
        .bytes()
        .host
        .0;
    assert_eq!(zigzag, weights);
}

#[test]
fn a_diagonal_reads_weights_once_a_pass_and_admits_as_places_fall_free() {
    let workload = Workload {
        prompt_len: 8,
        gen_len: 6,
        num_prompts: Some(18),
    };
    let policy = Policy {
        schedule: Schedule::Diagonal,
        ..Policy::from_percent(2, 3, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0]).expect("policy")
    };
    let plan = plan(policy, workload);
    let lowering = Lowering::new(&plan).expect("fits");
    let weights = lowering.placement().bytes().host.0;
    let machine = plimsoll_core::control::Controller::machine(&lowering).clone();
    let mut read = 0;
    for piece in pieces(&plan) {
        for task in piece.tasks() {
            if machine.resources[task.resource.0 as usize].kind == ResourceKind::H2d
                && let Op::Move { bytes, .. } = piece.op_of(task)
                && bytes.0 > 8 * 2 * 4
            {
                read += bytes.0;
            }
        }
    }
    // Nine batches in three places, one admitted every second pass, six passes each.
    let passes = lowering.passes();
    assert_eq!(passes.count(), 8 * 2 + 6);
    assert_eq!(read, passes.count() * weights);
    let mut tokens = std::collections::BTreeMap::<(u32, u16), Vec<u32>>::new();
    for pass in 0..passes.count() {
        let turns = passes.turns(pass);
        assert!(turns.len() <= 3);
        let places: std::collections::BTreeSet<u16> = turns.iter().map(|t| t.batch).collect();
        assert_eq!(places.len(), turns.len(), "one batch a place");
        for turn in turns {
            tokens
                .entry((turn.round, turn.batch))
                .or_default()
                .push(turn.token);
        }
    }
    assert_eq!(tokens.len(), 9);
    assert!(tokens.values().all(|t| *t == [0, 1, 2, 3, 4, 5]));
    assert!(passes.turns(passes.count()).is_empty());
}

#[test]
fn a_diagonal_without_end_has_one_whole_stay_with_every_place_taken() {
    for (places, gen_len) in [(2, 6), (3, 6), (4, 6), (6, 3), (5, 1)] {
        let workload = Workload {
            prompt_len: 8,
            gen_len,
            num_prompts: None,
        };
        let policy = Policy {
            schedule: Schedule::Diagonal,
            ..Policy::from_percent(2, places, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("policy")
        };
        let plan = plan(policy, workload);
        let lowering = Lowering::new(&plan).expect("fits");
        let passes = lowering.passes();
        let stay = u64::from(gen_len);
        let mut admitted = 0;
        for pass in stay..2 * stay {
            let turns = passes.turns(pass);
            assert_eq!(turns.len(), places as usize, "{places} places, pass {pass}");
            for turn in &turns {
                assert_eq!(
                    passes.pass_of(turn.round, turn.batch, turn.token),
                    Some(pass)
                );
            }
            admitted += turns.iter().filter(|turn| turn.token == 0).count();
        }
        assert_eq!(admitted, places as usize, "as many come as leave");
    }
}

#[test]
fn cpu_attention_moves_queries_instead_of_the_cache() {
    let workload = Workload {
        prompt_len: 16,
        gen_len: 3,
        num_prompts: None,
    };
    let gpu = Policy::from_percent(2, 4, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0]).expect("policy");
    let cpu = Policy {
        cpu_attention: true,
        ..gpu
    };
    let model = small_model();
    let token = 2 * model.hidden_size as u64 * 2 * u64::from(model.num_hidden_layers);
    let batch = 8;
    assert_eq!(
        moved(&plan(gpu, workload), ResourceKind::H2d, 2),
        token * batch * 17
    );
    assert_eq!(
        moved(&plan(cpu, workload), ResourceKind::H2d, 2),
        token / 2 * batch
    );
}

#[test]
fn sparse_attention_moves_all_keys_and_a_share_of_the_values() {
    let workload = Workload {
        prompt_len: 19,
        gen_len: 3,
        num_prompts: None,
    };
    let dense = Policy::from_percent(2, 4, [100.0, 0.0, 0.0, 100.0, 100.0, 0.0]).expect("policy");
    let sparse = Policy {
        sparse_attention: 0.1,
        ..dense
    };
    let model = small_model();
    // Keys, or values, of a token of the block in all layers; the past is 20 tokens in pass 2.
    let token = model.hidden_size as u64 * 2 * u64::from(model.num_hidden_layers) * 8;
    let loaded = |policy| moved(&plan(policy, workload), ResourceKind::H2d, 2);
    assert_eq!(loaded(dense), token * (20 + 20));
    assert_eq!(loaded(sparse), token * (20 + 2));
    let stored = |policy| moved(&plan(policy, workload), ResourceKind::D2h, 2);
    let heads = u64::from(model.num_attention_heads) * u64::from(model.num_hidden_layers) * 8;
    assert_eq!(stored(sparse), stored(dense) + heads * 2 * 4, "positions");
    // A prompt is attended to densely.
    let prefill = |policy| moved(&plan(policy, workload), ResourceKind::D2h, 0);
    assert_eq!(prefill(sparse), prefill(dense));
    let program = |policy| format!("{:?}", pieces(&plan(policy, workload)));
    let all = Policy {
        sparse_attention: 1.0,
        ..dense
    };
    assert!(program(all) == program(dense), "a share of 1 is dense");
}

#[test]
fn rows_on_disk_are_read_whole_and_the_cpu_reads_a_share_in_place() {
    let workload = Workload {
        prompt_len: 19,
        gen_len: 3,
        num_prompts: None,
    };
    let dense = Policy::from_percent(2, 4, [100.0, 0.0, 0.0, 0.0, 100.0, 0.0]).expect("policy");
    let sparse = Policy {
        sparse_attention: 0.1,
        ..dense
    };
    let read = |policy| moved(&plan(policy, workload), ResourceKind::DiskRead, 2);
    assert_eq!(read(sparse), read(dense));
    let on_cpu = Policy {
        cpu_attention: true,
        ..sparse
    };
    let plan = plan(on_cpu, workload);
    let mut attended = 0;
    for piece in pieces(&plan) {
        for op in piece.ops() {
            assert!(!matches!(op, Op::Gather { .. } | Op::MoveParts { .. }));
            if let Op::Attention {
                query_len: 1,
                context_len,
                value_len,
                rows,
                head_dim,
                ..
            } = *op
            {
                attended += 1;
                assert_eq!(value_len, 3, "two of the past, and the newest");
                let tokens = u64::from(context_len) + 3;
                let elements = u64::from(rows) * tokens * u64::from(head_dim);
                assert_eq!(op.cache_bytes(), Some(Bytes(2 * elements)));
                let flops = op.attention_flops().expect("an attention").0;
                assert_eq!(flops, 2.0 * elements as f64, "one query head a row");
            }
        }
    }
    assert_eq!(attended, 2, "one shape a decode pass");
}

#[test]
fn a_tier_that_is_too_small_is_named() {
    let workload = Workload {
        prompt_len: 8,
        gen_len: 3,
        num_prompts: None,
    };
    let policy = Policy::from_percent(2, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("policy");
    let mut plan = plan(policy, workload);
    plan.capacity_bytes.device = Bytes(plan.capacity_bytes.device.0 - 1);
    let error = Lowering::new(&plan).expect_err("one byte short");
    assert!(
        error.to_string().starts_with("the device tier needs"),
        "{error}"
    );
}
