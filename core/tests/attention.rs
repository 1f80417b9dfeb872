//! What attention is counted as: the tokens that its queries see.

use plimsoll_core::Dtype;
use plimsoll_core::lower::Lowering;
use plimsoll_core::model::{ModelSpec, registry};
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{AttentionPart, Op};
use plimsoll_core::workload::Workload;
use proptest::prelude::*;

proptest! {
    #[test]
    fn operations_and_bytes_are_those_of_the_tokens_seen(
        (past, query_len) in (0_u32..50, 1_u32..50),
        window in 1_u32..120, share in 0.0_f64..=1.0,
        (rows, group, head_dim) in (1_u32..9, 1_u32..5, 1_u32..200),
    ) {
        let context_len = past + query_len;
        let seen_len = window.min(context_len);
        // Sparse attention is for one query.
        let values_of_one = ((f64::from(seen_len) * share) as u32).max(1);
        let value_len = if query_len == 1 { values_of_one } else { seen_len };
        let seen = |most: u32| -> u64 {
            (0..query_len).map(|t| u64::from((past + t + 1).min(most))).sum()
        };
        for (part, keys, values) in [
            (AttentionPart::Whole, seen_len, value_len),
            (AttentionPart::Scores, seen_len, 0),
            (AttentionPart::Values, 0, value_len),
        ] {
            let op = Op::Attention {
                part, rows, group, head_dim, query_len, context_len, seen_len, value_len,
                element_bytes: 2,
                compressed: false,
            };
            let products = (seen(keys) + seen(values)) * u64::from(rows * group * head_dim);
            prop_assert_eq!(op.attention_flops().map(|f| f.0), Some(2.0 * products as f64));
            let bytes = op.cache_bytes().map(|b| b.0);
            prop_assert_eq!(bytes, Some(2 * u64::from(rows * head_dim) * u64::from(keys + values)));
        }
    }
}

/// What the newest token of each decode step sees, and whose values it reads, by position.
fn seen(model: &ModelSpec, sparse_attention: f64) -> Vec<(u32, u32, u32)> {
    let policy = Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]);
    let plan = Plan::given(
        model.clone(),
        Dtype::Bf16,
        Workload {
            prompt_len: 4,
            gen_len: 7,
            num_prompts: None,
        },
        Policy {
            sparse_attention,
            ..policy.expect("a policy")
        },
    );
    let plan = plan.with_room().expect("a policy");
    let mut lowering = Lowering::new(&plan).expect("it fits");
    let mut found = Vec::new();
    while let Some(piece) = lowering.next_pass() {
        let attention = piece
            .tasks()
            .iter()
            .find_map(|task| match *piece.op_of(task) {
                Op::Attention {
                    query_len: 1,
                    context_len,
                    seen_len,
                    value_len,
                    ..
                } => Some((context_len, seen_len, value_len)),
                _ => None,
            });
        found.extend(attention);
    }
    found
}

#[test]
fn a_window_bounds_what_a_step_sees_and_picks() {
    let mistral = ModelSpec {
        sliding_window: Some(6),
        ..registry::find("mistral-7b").expect("registered")
    };
    let open = ModelSpec {
        sliding_window: None,
        ..mistral.clone()
    };
    let dense = [
        (5, 5, 5),
        (6, 6, 6),
        (7, 6, 6),
        (8, 6, 6),
        (9, 6, 6),
        (10, 6, 6),
    ];
    assert_eq!(seen(&mistral, 1.0), dense);
    let sparse = [
        (5, 5, 3),
        (6, 6, 4),
        (7, 6, 4),
        (8, 6, 4),
        (9, 6, 4),
        (10, 6, 4),
    ];
    assert_eq!(seen(&mistral, 0.5), sparse);
    let all: Vec<(u32, u32, u32)> = (5..=10).map(|n| (n, n, n)).collect();
    assert_eq!(seen(&open, 1.0), all);
}
