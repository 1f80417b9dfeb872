//! Every plan's program passes verification, and spends what the policy says.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::{Lowering, cache_positions, footprint};
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::pipeline::{Comm, Pipeline};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, Policy, Schedule};
use plimsoll_core::program::{AttentionPart, Content, HostPages, Op, Program, ResourceKind, Stage};
use plimsoll_core::tier::{PerTier, Tier};
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
    let plan = Plan::given(small_model(), Dtype::F16, workload, policy);
    plan.with_room().expect("a policy")
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
    let steps = (any::<bool>(), any::<bool>());
    let choices = (schedule, any::<bool>(), any::<bool>(), share, steps);
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
            half_layers: choices.4.0,
            cache_workspace: choices.4.1,
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

fn pipelines() -> impl Strategy<Value = Pipeline> {
    let comm = prop_oneof![Just(Comm::Device), Just(Comm::Host)];
    let last = proptest::option::of(1u32..3);
    (1u32..4, 1u32..6, 1u32..4, comm, last).prop_map(
        |(stages, micro_batches, stages_per_host, comm, last)| {
            let pipeline = Pipeline {
                stages,
                micro_batches,
                stages_per_host,
                comm,
                last_stage_layers: last,
            };
            match pipeline.fills_stages(small_model().num_hidden_layers) {
                true => pipeline,
                false => Pipeline {
                    last_stage_layers: None,
                    ..pipeline
                },
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_pipeline_verifies(
        policy in policies(),
        pipeline in pipelines(),
        prompt_len in 1u32..20,
        gen_len in 1u32..6,
        prompts in proptest::option::of(1u64..60),
    ) {
        let policy = Policy { schedule: Schedule::ZigZag, pipeline, ..policy };
        let plan = plan(policy, Workload { prompt_len, gen_len, num_prompts: prompts });
        verify(&plan);
    }
}

/// Every pass of every micro-batch goes through every stage once, and through one after the other.
#[test]
fn each_stage_has_each_micro_batch_once_a_token() {
    for (stages, micro_batches, prompts) in [(3, 3, None), (2, 5, Some(19)), (3, 2, Some(4))] {
        let policy = Policy {
            pipeline: Pipeline {
                stages,
                micro_batches,
                ..Pipeline::default()
            },
            ..Policy::from_percent(1, 2, [100.0, 0.0, 100.0, 0.0, 0.0, 100.0]).expect("in range")
        };
        let workload = Workload {
            prompt_len: 4,
            gen_len: 3,
            num_prompts: prompts,
        };
        let plan = plan(policy, workload);
        let machine = plan.machine();
        let blocks = pipeline_blocks(&plan);
        let mut seen = std::collections::BTreeMap::new();
        for piece in pieces(&plan) {
            for task in piece.tasks() {
                let on = machine.resources[usize::from(task.resource.0)];
                if let Op::Linear { stage, .. } = piece.op_of(task)
                    && matches!(stage, Stage::Mlp | Stage::Head)
                {
                    assert!(blocks[usize::from(on.gpu)].contains(&u32::from(task.cell.block)));
                    let cell = (task.cell.round, task.cell.batch, task.cell.pass);
                    seen.entry(cell)
                        .or_insert_with(Vec::new)
                        .push(task.cell.block);
                }
            }
        }
        let sequences = prompts.unwrap_or(policy.block_size());
        assert_eq!(seen.len() as u64, sequences * 3, "one sequence a GPU batch");
        // Three layers and the head.
        assert!(seen.values().all(|blocks| *blocks == [1, 2, 3, 4]));
    }
}

fn pipeline_blocks(plan: &Plan) -> Vec<std::ops::Range<u32>> {
    let layers = plan.model.num_hidden_layers;
    plan.policy.pipeline.blocks(layers)
}

#[test]
fn more_stages_than_layers_are_refused() {
    let policy = Policy {
        pipeline: Pipeline {
            stages: 4,
            ..Pipeline::default()
        },
        ..Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("in range")
    };
    let workload = Workload {
        prompt_len: 4,
        gen_len: 3,
        num_prompts: None,
    };
    let plan = Plan {
        policy,
        ..plan(
            Policy::from_percent(1, 1, [100.0; 6].map(|p| p / 2.0)).expect("halves"),
            workload,
        )
    };
    let said = footprint(&plan).unwrap_err().to_string();
    assert!(
        said.starts_with("4 stages have not a layer each of the 3"),
        "{said}"
    );
}

/// The most bytes of cache homes that are taken and not given back, by tier, if tasks ran in the
/// program's order.
fn cache_peak(plan: &Plan) -> PerTier<u64> {
    let tiers = Tier::ALL;
    let mut sizes = Vec::new();
    let (mut now, mut peak) = (PerTier::<u64>::default(), PerTier::<u64>::default());
    for piece in pieces(plan) {
        sizes.extend(piece.buffers().iter().map(|buffer| {
            let tier = tiers[buffer.arena.0 as usize];
            let at_home = matches!(buffer.content, Content::Cache { home, .. } if home == tier);
            (tier, if at_home { buffer.bytes.0 } else { 0 })
        }));
        for index in 0..piece.tasks().len() {
            for taken in piece.takes_at(index) {
                let (tier, bytes) = sizes[taken.0 as usize];
                now[tier] += bytes;
                peak[tier] = now[tier].max(peak[tier]);
            }
            for given in piece.gives_at(index) {
                let (tier, bytes) = sizes[given.0 as usize];
                now[tier] -= bytes;
            }
        }
    }
    peak
}

fn diagonal(gbs: u32, places: u32, percent: [f64; 6]) -> Policy {
    Policy {
        schedule: Schedule::Diagonal,
        ..Policy::from_percent(gbs, places, percent).expect("a policy")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_diagonal_of_many_places_verifies_and_takes_no_more_than_a_zigzag(
        places in 1u32..14,
        (c, switches) in (shares(), prop::array::uniform3(any::<bool>())),
        (prompt_len, gen_len) in (1u32..20, 1u32..24),
        prompts in proptest::option::of(1u64..40),
    ) {
        let [overlap, barrier, cpu_attention] = switches;
        let policy = Policy {
            overlap,
            barrier,
            cpu_attention,
            // A copy is no home, and would count as one.
            cache_workspace: false,
            ..diagonal(1, places, [100.0, 0.0, c.0, c.1, 100.0, 0.0])
        };
        let plan = plan(policy, Workload { prompt_len, gen_len, num_prompts: prompts });
        verify(&plan);
        let zigzag = Policy { schedule: Schedule::ZigZag, ..policy };
        let endless = Workload { num_prompts: None, ..plan.workload };
        prop_assert!(cache_positions(&policy, &endless) <= cache_positions(&zigzag, &endless));
        let positions = cache_positions(&policy, &plan.workload);
        let (peak, record) = (cache_peak(&plan), record(&plan));
        for tier in Tier::ALL {
            prop_assert!(peak[tier] <= record[tier] * positions, "{}", tier);
        }
    }

    #[test]
    fn in_a_diagonal_completions_are_spread_evenly(places in 1u32..30, gen_len in 1u32..60) {
        let workload = Workload { prompt_len: 4, gen_len, num_prompts: None };
        let policy = diagonal(1, places, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]);
        let lowering = Lowering::new(&plan(policy, workload)).expect("fits");
        let passes = lowering.passes();
        let completed = |pass: u64| {
            let turns = passes.turns(pass);
            turns.iter().filter(|turn| turn.token + 1 == gen_len).count() as u64
        };
        let (stay, places) = (u64::from(gen_len), u64::from(places));
        let mut done = 0;
        for pass in 0..stay {
            done += completed(stay - 1 + pass);
            // A share of the stay has that share of the completions, but for the one under way.
            let even = (pass + 1) * places;
            prop_assert!(done * stay >= even && done * stay < even + stay, "{pass}");
        }
        prop_assert_eq!(done, places);
    }
}

/// Bytes of one position of all layers' cache of a GPU batch.
fn record(of: &Plan) -> PerTier<u64> {
    let policy = Policy {
        num_gpu_batches: 1,
        ..of.policy
    };
    // A second token, so that all layers hold the prompt at once.
    let two_tokens = Workload {
        gen_len: 2,
        num_prompts: None,
        ..of.workload
    };
    let peak = cache_peak(&plan(policy, two_tokens));
    peak.map(|bytes| bytes / u64::from(two_tokens.cache_len()))
}

/// FlexGen A.2.1: in the same memory a diagonal's block is larger by (2s + 2n) / (2s + n).
#[test]
fn a_diagonal_s_block_is_larger_by_flexgen_s_ratio() {
    for (prompt_len, gen_len) in [(64, 256), (64, 64), (128, 32), (512, 128), (1024, 32)] {
        let workload = Workload {
            prompt_len,
            gen_len,
            num_prompts: None,
        };
        let (s, n) = (f64::from(prompt_len), f64::from(gen_len));
        let ratio = (2.0 * s + 2.0 * n) / (2.0 * s + n);
        let set_aside = |schedule: Schedule, places: u32| {
            let policy = Policy {
                schedule,
                ..diagonal(1, places, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0])
            };
            cache_positions(&policy, &workload)
        };
        let most = |schedule, room: u64| {
            let fits = |places: &u32| set_aside(schedule, *places) <= room;
            f64::from((1..1000).take_while(fits).last().expect("one"))
        };
        for room in [30_000_u64, 60_000] {
            let found = most(Schedule::Diagonal, room) / most(Schedule::ZigZag, room);
            // A batch has at most eight pages, of which the last is half empty on average.
            let in_pages = (2.0 * s + 2.0 * n) / (2.0 * s + n * 9.0 / 8.0);
            let case = format!("{prompt_len}/{gen_len} in {room}: {found} for {ratio}");
            eprintln!("{case}");
            assert!(found <= 1.05 * ratio, "{case}");
            assert!(found >= 0.95 * in_pages, "{case}");
        }
    }
}

/// A block that a zig-zag cannot hold, with the bytes that its cache takes.
#[test]
fn a_diagonal_fits_where_a_zigzag_does_not() {
    let workload = Workload {
        prompt_len: 16,
        gen_len: 16,
        num_prompts: None,
    };
    for percent in [
        [100.0, 0.0, 100.0, 0.0, 100.0, 0.0],
        [100.0, 0.0, 0.0, 100.0, 100.0, 0.0],
        [100.0, 0.0, 0.0, 0.0, 100.0, 0.0],
    ] {
        let policy = diagonal(2, 8, percent);
        let plan = plan(policy, workload);
        verify(&plan);
        let zigzag = Policy {
            schedule: Schedule::ZigZag,
            ..policy
        };
        let mut other = plan.clone();
        other.policy = zigzag;
        assert!(Lowering::new(&other).is_err(), "{percent:?}");
        // First pages of 16 + 1 positions, and pages of 2: seven batches hold one to seven.
        assert_eq!(cache_positions(&policy, &workload), 8 * 17 + 28 * 2);
        assert_eq!(cache_positions(&zigzag, &workload), 8 * 31);
        let home = Tier::ALL.into_iter().find(|tier| policy.cache[*tier] > 0.0);
        let home = home.expect("a tier");
        let record = record(&plan)[home];
        assert_eq!(cache_peak(&plan)[home], record * (8 * 17 + 28 * 2));
        let saved = record * (8 * 31 - 8 * 17 - 28 * 2);
        // Homes begin at whole pages of memory.
        let more = footprint(&other).expect("a policy")[home].0 - plan.capacity_bytes[home].0;
        assert!(
            more.abs_diff(saved) < saved / 10,
            "{more} bytes for {saved}"
        );
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
    let zigzag = Policy {
        // Halves may share a page, which is then read twice.
        half_layers: false,
        ..Policy::from_percent(2, 4, [0.0, 100.0, 100.0, 0.0, 100.0, 0.0]).expect("policy")
    };
    let whole = zigzag;
    let row = Policy {
        schedule: Schedule::Row,
        ..zigzag
    };
    let zigzag = moved(&plan(zigzag, workload), ResourceKind::H2d, 1);
    let row = moved(&plan(row, workload), ResourceKind::H2d, 1);
    assert_eq!(row, 4 * zigzag);
    let plan = plan(whole, workload);
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
        half_layers: false,
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

/// What tasks of a plan do on one kind of resource.
fn ops_on(plan: &Plan, kind: ResourceKind) -> Vec<Op> {
    let machine = plan.machine();
    let on = |piece: &Program| -> Vec<Op> {
        let tasks = piece.tasks().iter();
        let tasks = tasks.filter(|t| machine.resources[usize::from(t.resource.0)].kind == kind);
        tasks.map(|task| *piece.op_of(task)).collect()
    };
    pieces(plan).iter().flat_map(on).collect()
}

#[test]
fn with_a_barrier_a_layer_is_two_steps_with_a_load_each() {
    let workload = Workload {
        prompt_len: 4,
        gen_len: 2,
        num_prompts: None,
    };
    let percent = [0.0, 100.0, 100.0, 0.0, 100.0, 0.0];
    let halves = Policy::from_percent(1, 2, percent).expect("in range");
    let whole = Policy {
        half_layers: false,
        ..halves
    };
    let free = Policy {
        barrier: false,
        ..halves
    };
    let of = |policy| {
        let plan = plan(policy, workload);
        let loads = ops_on(&plan, ResourceKind::H2d);
        let loads: Vec<Bytes> = loads.iter().filter_map(Op::moved_bytes).collect();
        let mlps = ops_on(&plan, ResourceKind::Gpu);
        let mlp = |op: &&Op| {
            matches!(
                op,
                Op::Linear {
                    stage: Stage::Mlp,
                    ..
                }
            )
        };
        let barriers = ops_on(&plan, ResourceKind::Sync).len();
        let moved: Bytes = loads.iter().copied().sum();
        (
            loads.len(),
            moved,
            mlps.iter().filter(mlp).count(),
            barriers,
        )
    };
    let (of_halves, of_whole, of_free) = (of(halves), of(whole), of(free));
    // Three layers, two batches, two passes.
    assert_eq!((of_halves.2, of_whole.2, of_free.2), (12, 0, 0));
    assert_eq!(of_halves.0, of_whole.0 + 6);
    assert_eq!(of_halves.3, of_whole.3 + 12);
    // Two halves may share a page of the slab.
    let more = of_halves.1 - of_whole.1;
    assert!(more <= Bytes(6 * 4096), "{more}");
}

#[test]
fn the_cpu_attends_to_a_copy_that_was_made_a_step_ahead() {
    let workload = Workload {
        prompt_len: 4,
        gen_len: 3,
        num_prompts: None,
    };
    let percent = [100.0, 0.0, 0.0, 100.0, 100.0, 0.0];
    let copies = Policy {
        cpu_attention: true,
        ..Policy::from_percent(1, 1, percent).expect("in range")
    };
    let in_place = Policy {
        cache_workspace: false,
        ..copies
    };
    let of = |policy| {
        let ops = ops_on(&plan(policy, workload), ResourceKind::Cpu);
        let part = |op: &Op| match op {
            Op::Attention { part, .. } => Some(*part),
            _ => None,
        };
        let parts: Vec<AttentionPart> = ops.iter().filter_map(part).collect();
        let moved: Vec<Bytes> = ops.iter().filter_map(Op::moved_bytes).collect();
        (parts, moved)
    };
    // Three layers, two decode steps; the new token's keys and values go home.
    let token = Bytes(2 * 768 * 2);
    let (parts, moved) = of(copies);
    assert_eq!(parts, [AttentionPart::Copied; 6]);
    let step = |past: u64| [token * past, token].repeat(3);
    assert_eq!(
        moved.iter().copied().sum::<Bytes>(),
        [step(4), step(5)].concat().into_iter().sum()
    );
    let (parts, moved) = of(in_place);
    assert_eq!(parts, [AttentionPart::Whole; 6]);
    assert!(moved.is_empty());
    assert!(attends_a_step_after_its_copy(&plan(copies, workload)));
}

/// Whether between the copy of a layer's past and the CPU's attention to it all resources meet.
fn attends_a_step_after_its_copy(plan: &Plan) -> bool {
    let pieces = pieces(plan);
    let tasks = pieces.iter().flat_map(|piece| {
        let tasks = piece.tasks().iter();
        tasks.map(|task| (piece.ops()[task.op.0 as usize], task.cell))
    });
    let mut copied = Vec::new();
    let mut met = true;
    for (op, cell) in tasks {
        match op {
            // The past is pageable, as activations are not, and of more than the one token that goes home.
            Op::Move {
                bytes,
                host: HostPages::Pageable,
                ..
            } if bytes > Bytes(2 * 768 * 2) => copied.push((cell, false)),
            Op::Barrier => copied.iter_mut().for_each(|(_, met)| *met = true),
            Op::Attention {
                part: AttentionPart::Copied,
                ..
            } => {
                let of_it = copied
                    .iter()
                    .rfind(|(of, _)| of.block == cell.block && of.pass == cell.pass);
                met &= of_it.is_some_and(|(_, met)| *met);
            }
            _ => {}
        }
    }
    met
}
