//! Tokens that are given are taken whatever the logits say, and are decoded as if a prompt had held them.

mod common;

use std::sync::Arc;

use common::{Outcome, checkpoint, execute, model, plan, prompts};
use plimsoll_backend::cpu::{CpuError, CpuExecutor, CpuOptions};
use plimsoll_core::Dtype;
use plimsoll_core::lower::Lowering;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;

const PROMPT_LEN: u32 = 7;
const GEN_LEN: u32 = 5;
const PROMPTS: u32 = 5;

fn planned(prompt_len: u32, gen_len: u32, percent: [f64; 6]) -> Plan {
    // So that the last GPU batch, and the last round, are not full.
    let policy = Policy::from_percent(2, 2, percent).expect("a policy");
    let workload = Workload {
        prompt_len,
        gen_len,
        num_prompts: Some(u64::from(PROMPTS)),
    };
    plan(&model("tiny-llama"), Dtype::F32, policy, workload)
}

fn run(plan: &Plan, prompts: &[Vec<u32>], given: Option<&[Vec<u32>]>) -> Outcome {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CpuOptions {
        given: given.map(Arc::from),
        capture_logits: true,
        ..CpuOptions::new(dir.path())
    };
    execute(plan, &checkpoint("tiny-llama"), prompts, &options)
}

/// The logits of a pass, prompt by prompt.
fn logits(outcome: &Outcome, pass: u16) -> Vec<f32> {
    let mut found: Vec<_> = outcome.logits.iter().collect();
    found.retain(|captured| captured.cell.pass == pass);
    found.sort_by_key(|captured| (captured.cell.round, captured.cell.batch));
    found.iter().flat_map(|c| c.logits.clone()).collect()
}

#[test]
fn given_tokens_are_decoded_as_if_the_prompt_had_held_them() {
    let texts = prompts(PROMPTS, PROMPT_LEN + GEN_LEN, 160);
    let cut = |from: u32, to: u32| -> Vec<Vec<u32>> {
        let part = |text: &Vec<u32>| text[from as usize..to as usize].to_vec();
        texts.iter().map(part).collect()
    };
    let answers = cut(PROMPT_LEN, PROMPT_LEN + GEN_LEN);
    for percent in [[100.0, 0.0, 100.0, 0.0, 100.0, 0.0], [0.0; 6]] {
        let plan = planned(PROMPT_LEN, GEN_LEN, percent);
        let forced = run(&plan, &cut(0, PROMPT_LEN), Some(&answers));
        assert_eq!(forced.tokens, answers);
        for pass in 0..GEN_LEN {
            let prompt_len = PROMPT_LEN + pass;
            let whole = run(&planned(prompt_len, 1, percent), &cut(0, prompt_len), None);
            let (expected, found) = (logits(&whole, 0), logits(&forced, pass as u16));
            assert_eq!(expected.len(), 160 * PROMPTS as usize);
            let apart = expected.iter().zip(&found).map(|(a, b)| (a - b).abs());
            let worst = apart.fold(0.0, f32::max);
            assert!(worst < 1e-5, "pass {pass}: {worst}");
        }
    }
}

#[test]
fn the_tokens_of_a_run_given_back_to_it_change_nothing() {
    let plan = planned(PROMPT_LEN, GEN_LEN, [30.0, 40.0, 25.0, 40.0, 40.0, 30.0]);
    let prompts = prompts(PROMPTS, PROMPT_LEN, 160);
    let free = run(&plan, &prompts, None);
    let forced = run(&plan, &prompts, Some(&free.tokens));
    assert_eq!(forced.tokens, free.tokens);
    assert_eq!(logits(&forced, 4), logits(&free, 4));
}

#[test]
fn given_answers_that_do_not_fit_the_plan_are_refused() {
    let plan = planned(PROMPT_LEN, GEN_LEN, [0.0; 6]);
    let prompts = prompts(PROMPTS, PROMPT_LEN, 160);
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |answers: Vec<Vec<u32>>| {
        let lowering = Lowering::new(&plan).expect("it fits");
        let options = CpuOptions {
            given: Some(answers.into()),
            ..CpuOptions::new(dir.path())
        };
        let source = checkpoint("tiny-llama");
        let executor = CpuExecutor::new(&plan, lowering.placement(), &source, &options);
        match executor
            .expect("an executor")
            .set_prompts(lowering.texts(), &prompts)
        {
            Err(CpuError::Prompts { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    let answer = vec![5; GEN_LEN as usize];
    assert_eq!(refused(vec![answer.clone(); 4]), "given answers");
    let mut answers = vec![answer; PROMPTS as usize];
    answers[3].pop();
    assert_eq!(refused(answers.clone()), "tokens in a given answer");
    answers[3].push(160);
    assert_eq!(refused(answers), "the largest token id");
}
