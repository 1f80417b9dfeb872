//! Sequences that join and leave a batch, prompts beside decoding ones, get the tokens that each gets alone.

mod common;

use common::{checkpoint, execute, model, plan, prompts};
use plimsoll_backend::cpu::CpuOptions;
use plimsoll_backend::decoder::{Choice, Decoder, Mixed, PagesMut, Place};
use plimsoll_backend::serving::Resident;
use plimsoll_core::Dtype;
use plimsoll_core::compression::{Compression, Kept};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::policy::Policy;
use plimsoll_core::workload::Workload;

const GEN_LEN: usize = 6;
const PAGE: usize = 4;

/// A sequence that is served.
struct Sequence {
    /// The iteration in which it joins.
    joins: usize,
    /// Its prompt, then what came out.
    tokens: Vec<u32>,
    prompt: usize,
    cached: usize,
    /// By layer, then page.
    cache: Vec<Vec<Vec<u64>>>,
}

impl Sequence {
    fn has_ended(&self) -> bool {
        self.tokens.len() == self.prompt + GEN_LEN
    }

    fn place(&self) -> Place {
        Place {
            cached: self.cached,
            tokens: self.tokens.len() - self.cached,
        }
    }
}

/// One iteration over those that take part.
fn iterate(model: &ModelSpec, kept: Kept, weights: &Resident, batch: &mut [&mut Sequence]) {
    let Kept { dtype, compression } = kept;
    let decoder = Decoder::new(model, dtype, compression, 2).expect("a decoder");
    let mixed = Mixed::new(batch.iter().map(|sequence| sequence.place()).collect());
    let room = |bytes: usize| vec![0_u64; bytes.div_ceil(8)];
    let mut hidden = room(decoder.mixed_hidden_bytes(&mixed));
    let mut queries = room(decoder.mixed_query_bytes(&mixed));
    let hidden: &mut [u8] = bytemuck::cast_slice_mut(&mut hidden);
    let queries: &mut [u8] = bytemuck::cast_slice_mut(&mut queries);
    let new = batch
        .iter()
        .map(|sequence| &sequence.tokens[sequence.cached..]);
    let ids = new.collect::<Vec<_>>().concat();
    decoder
        .embed_mixed(&weights.block(0), &mixed, &ids, hidden)
        .expect("an embedding");
    let page_words = PAGE * decoder.token_bytes() / 8;
    let layers = model.num_hidden_layers as usize;
    for layer in 0..layers {
        let pages = batch.iter_mut().map(|sequence| {
            let (pages, count) = (
                &mut sequence.cache[layer],
                sequence.tokens.len().div_ceil(PAGE),
            );
            pages.resize_with(count, || vec![u64::MAX; page_words]);
            pages
                .iter_mut()
                .map(|page| bytemuck::cast_slice_mut(page))
                .collect()
        });
        let mut pages: Vec<PagesMut<'_>> = pages.collect();
        decoder
            .layer_mixed(
                &weights.block(layer + 1),
                &mixed,
                (hidden, queries),
                &mut pages,
            )
            .expect("a layer");
    }
    let head = weights.block(layers + 1);
    let chosen = decoder.head_mixed(&head, &mixed, hidden, Choice::Greedy);
    for (sequence, token) in batch.iter_mut().zip(chosen.expect("a head")) {
        sequence.cached = sequence.tokens.len();
        sequence.tokens.push(token);
    }
}

fn served(name: &str, kept: Kept) -> Vec<Vec<u32>> {
    let model = model(name);
    let weights = Resident::load(&model, kept, &checkpoint(name)).expect("weights");
    let mut sequences: Vec<Sequence> = requests(&model)
        .into_iter()
        .map(|(joins, tokens)| Sequence {
            joins,
            prompt: tokens.len(),
            cached: 0,
            cache: vec![Vec::new(); model.num_hidden_layers as usize],
            tokens,
        })
        .collect();
    for iteration in 0.. {
        if sequences.iter().all(Sequence::has_ended) {
            break;
        }
        let mut batch: Vec<&mut Sequence> = sequences
            .iter_mut()
            .filter(|sequence| sequence.joins <= iteration && !sequence.has_ended())
            .collect();
        iterate(&model, kept, &weights, &mut batch);
    }
    let answers = sequences.into_iter().map(|s| s.tokens[s.prompt..].to_vec());
    answers.collect()
}

/// When each joins, and its prompt.
fn requests(model: &ModelSpec) -> Vec<(usize, Vec<u32>)> {
    let lengths = [11, 1, 7, 4, 9];
    let prompts = prompts(lengths.len() as u32, 11, model.vocab_size).into_iter();
    let cut = prompts.zip(lengths).map(|(mut prompt, length)| {
        prompt.truncate(length);
        prompt
    });
    [0, 0, 2, 3, 5].into_iter().zip(cut).collect()
}

fn alone(name: &str, kept: Kept) -> Vec<Vec<u32>> {
    let (model, source) = (model(name), checkpoint(name));
    let dir = tempfile::tempdir().expect("a directory");
    let one = |(_, prompt): (usize, Vec<u32>)| {
        let percent = [100.0, 0.0, 100.0, 0.0, 100.0, 0.0];
        let policy = Policy {
            compression: kept.compression,
            ..Policy::from_percent(1, 1, percent).expect("a policy")
        };
        let workload = Workload {
            prompt_len: prompt.len() as u32,
            gen_len: GEN_LEN as u32,
            num_prompts: Some(1),
        };
        let plan = plan(&model, kept.dtype, policy, workload);
        let options = CpuOptions::new(dir.path());
        execute(&plan, &source, &[prompt], &options)
            .tokens
            .remove(0)
    };
    requests(&model).into_iter().map(one).collect()
}

#[test]
fn sequences_that_join_at_any_time_get_the_tokens_that_each_gets_alone() {
    for name in [
        "tiny-opt",
        "tiny-opt-projected",
        "tiny-llama",
        "tiny-llama-3",
        "tiny-mistral",
        "tiny-qwen2",
        "tiny-qwen3",
    ] {
        let in_4_bits = Kept {
            dtype: Dtype::F16,
            compression: Compression::of(true, false),
        };
        for kept in [Dtype::F32, Dtype::F16, Dtype::Bf16]
            .map(Kept::from)
            .into_iter()
            .chain([in_4_bits])
        {
            assert_eq!(served(name, kept), alone(name, kept), "{name}, {kept:?}");
        }
    }
}
