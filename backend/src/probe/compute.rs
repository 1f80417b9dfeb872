//! Small models run whole, with nothing beside the computation: each task's own time.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::LowerError;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::Policy;
use plimsoll_core::program::{Op, ResourceKind, Stage};
use plimsoll_core::units::Bytes;
use plimsoll_core::workload::Workload;

use super::samples::Timed;

/// Words of the calibration models' vocabulary.
const VOCABULARY: u32 = 4096;

/// A decoder that validation does not use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub hidden_size: u32,
    pub num_hidden_layers: u32,
    /// An OPT, whose products have biases, or else a Llama.
    pub biased: bool,
}

/// Calibration models, smallest first: their matrices span the sizes that fit in a probe's time.
pub(super) const SHAPES: [Shape; 3] = [
    Shape {
        hidden_size: 512,
        num_hidden_layers: 5,
        biased: true,
    },
    Shape {
        hidden_size: 896,
        num_hidden_layers: 3,
        biased: true,
    },
    Shape {
        hidden_size: 1664,
        num_hidden_layers: 1,
        biased: true,
    },
];

/// About how many bytes of weights models have from which on a last cache holds less and less of them, and of which most hold nothing.
pub(super) const LARGE_MODELS: [Bytes; 5] = [
    Bytes(50 << 20),
    Bytes(100 << 20),
    Bytes(200 << 20),
    Bytes(400 << 20),
    Bytes(800 << 20),
];

/// About how many bytes of weights are read of each, in all types together.
const READ_OF_EACH: Bytes = Bytes(3 << 30);

/// How many tokens are computed of a model of so many bytes, one of so many types. The first is the prompt's and tells nothing.
pub(super) fn tokens_of_read(bytes: Bytes, quick: bool, types: usize) -> u32 {
    let least = if quick { 4 } else { 10 };
    // Small models are soon read: as much of them as of the large ones.
    least.max((READ_OF_EACH.0 / bytes.0) as u32 / types as u32)
}

/// A model with layers of about so many bytes, as wide as the widest of [`SHAPES`] of which there are several: of narrow layers
/// threads spend as long handing over as reading, and large models are wide.
pub(super) fn of_bytes(bytes: Bytes, dtype: Dtype) -> Shape {
    let layers_of = |shape: Shape| {
        let width = u64::from(shape.hidden_size);
        let of_layer = 12 * width * width * dtype.size_bytes();
        (bytes.0 + of_layer / 2) / of_layer
    };
    let several = |shape: &Shape| layers_of(*shape) > 1;
    let shape = SHAPES.into_iter().rev().find(several).unwrap_or(SHAPES[0]);
    Shape {
        num_hidden_layers: layers_of(shape).max(1) as u32,
        ..shape
    }
}

/// The same for a GPU, on which smaller ones would measure launches.
pub(super) const SHAPES_OF_GPUS: [Shape; 4] = [
    Shape {
        hidden_size: 1024,
        num_hidden_layers: 3,
        biased: true,
    },
    Shape {
        hidden_size: 2304,
        num_hidden_layers: 2,
        biased: true,
    },
    Shape {
        hidden_size: 4608,
        num_hidden_layers: 1,
        biased: true,
    },
    Shape {
        hidden_size: 9216,
        num_hidden_layers: 1,
        biased: true,
    },
];

/// Models without biases: the others' products have kernels of their own for them.
pub(super) const UNBIASED_OF_GPUS: [Shape; 3] = [
    Shape {
        hidden_size: 1024,
        num_hidden_layers: 3,
        biased: false,
    },
    Shape {
        hidden_size: 2304,
        num_hidden_layers: 3,
        biased: false,
    },
    Shape {
        hidden_size: 9216,
        num_hidden_layers: 1,
        biased: false,
    },
];

/// Sequences and prompt lengths for them.
pub(super) const BATCHES_OF_GPUS: [(u32, u32); 9] = [
    (1, 16),
    (2, 64),
    (3, 192),
    (4, 96),
    (8, 256),
    (16, 96),
    (24, 64),
    (32, 192),
    (64, 96),
];

/// Sequences and prompt lengths that are run on each model.
pub(super) const BATCHES: [(u32, u32); 9] = [
    (1, 16),
    (2, 32),
    (3, 96),
    (4, 24),
    (6, 64),
    (8, 24),
    (12, 12),
    (16, 20),
    (24, 20),
];

/// Which of them are run with weights in 4 bits as well.
pub(super) const PACKED_WEIGHTS: [usize; 5] = [0, 2, 3, 5, 7];

/// Which are run with the cache in 4 bits.
pub(super) const PACKED_CACHES: [usize; 3] = [0, 3, 7];

/// What a calibration plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Everything on the device.
    OnDevice,
    /// The cache on the host, and attention beside it.
    CpuAttention,
    /// Everything on the device, some of it in 4 bits an element.
    Compressed(Compression),
}

pub(super) fn model(shape: Shape) -> ModelSpec {
    let config = if shape.biased {
        opt(shape)
    } else {
        llama(shape)
    };
    ModelSpec::from_hf_config("calibration", &config).expect("a well-formed configuration")
}

fn opt(shape: Shape) -> String {
    format!(
        r#"{{"model_type": "opt", "hidden_size": {h}, "num_hidden_layers": {l},
            "num_attention_heads": {heads}, "ffn_dim": {ffn}, "vocab_size": {VOCABULARY},
            "max_position_embeddings": 2048, "word_embed_proj_dim": {h}}}"#,
        h = shape.hidden_size,
        l = shape.num_hidden_layers,
        heads = shape.hidden_size / 64,
        ffn = 4 * shape.hidden_size,
    )
}

fn llama(shape: Shape) -> String {
    format!(
        r#"{{"model_type": "llama", "hidden_size": {h}, "num_hidden_layers": {l},
            "num_attention_heads": {heads}, "intermediate_size": {ffn}, "vocab_size": {VOCABULARY},
            "max_position_embeddings": 2048}}"#,
        h = shape.hidden_size,
        l = shape.num_hidden_layers,
        heads = shape.hidden_size / 128,
        // Eight thirds, as a Llama's is, in whole 128s.
        ffn = (shape.hidden_size * 8 / 3).next_multiple_of(128),
    )
}

/// Query heads a key head of the models that tell what is left of attention's rate: one, as many as kernels see together, and as many as
/// models have.
pub(super) const SHARED: [u32; 3] = [1, 4, 8];

/// Sequences and prompt lengths for them, on a CPU and beside a GPU: a layer's cache of 34 and 268 MB in two bytes an element, which
/// their caches do not hold.
const SHARED_BATCHES: [(u32, u32); 2] = [(32, 256), (128, 512)];

/// A plan of a model with as many key heads whatever its query heads are, for decode attention on the device or on the CPU.
pub(super) fn shared_plan(
    group: u32,
    on_card: bool,
    dtype: Dtype,
    kind: Kind,
) -> Result<Plan, LowerError> {
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "head_dim": 128,
            "num_attention_heads": {heads}, "num_key_value_heads": 8, "intermediate_size": 256,
            "vocab_size": {VOCABULARY}, "max_position_embeddings": 2048}}"#,
        heads = 8 * group,
    );
    let model = ModelSpec::from_hf_config("calibration", &config);
    let model = model.expect("a well-formed configuration");
    let batch = SHARED_BATCHES[usize::from(on_card)];
    plan_of(model, batch, 4, dtype, kind)
}

/// GPU batches of a calibration model: the first brings the weights, the others find them.
pub(super) fn plan(
    shape: Shape,
    batch: (u32, u32),
    gen_len: u32,
    dtype: Dtype,
    kind: Kind,
) -> Result<Plan, LowerError> {
    plan_of(model(shape), batch, gen_len, dtype, kind)
}

fn plan_of(
    model: ModelSpec,
    (sequences, prompt_len): (u32, u32),
    gen_len: u32,
    dtype: Dtype,
    kind: Kind,
) -> Result<Plan, LowerError> {
    // CPU attention has nothing beside it only where there is one batch.
    let (cache, batches) = match kind {
        Kind::OnDevice | Kind::Compressed(_) => ([100.0, 0.0], 3),
        Kind::CpuAttention => ([0.0, 100.0], 1),
    };
    let percent = [100.0, 0.0, cache[0], cache[1], 100.0, 0.0];
    let policy = Policy {
        barrier: false,
        cpu_attention: kind == Kind::CpuAttention,
        compression: match kind {
            Kind::Compressed(compression) => compression,
            Kind::OnDevice | Kind::CpuAttention => Compression::default(),
        },
        ..Policy::from_percent(sequences, batches, percent)?.in_whole_layers()
    };
    let workload = Workload {
        prompt_len,
        gen_len,
        num_prompts: None,
    };
    Plan::given(model, dtype, workload, policy).with_room()
}

/// What a curve of matrix products is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Matrix {
    pub stage: Stage,
    pub elements: u64,
    pub reused: bool,
}

/// Whether a task reads weights for one row, which the task before did not read.
pub(super) fn is_read_of_weights(task: &Timed) -> bool {
    matches!(
        task.op,
        Op::Linear {
            stage: Stage::Project | Stage::Finish,
            m: 1,
            reused: false,
            ..
        }
    )
}

/// Size of the weights and tokens of a matrix-product task: elements of its typical matrix (weighted by
/// work) and M.
///
/// A head's tasks are left out: they have too few M to make a curve.
pub(super) fn linear_key(task: &Timed) -> Option<(Matrix, u32, f64)> {
    let Op::Linear {
        stage,
        m,
        gemms,
        reused,
        ..
    } = task.op
    else {
        return None;
    };
    if stage == Stage::Head {
        return None;
    }
    let sizes = || gemms.iter().map(|g| f64::from(g.n) * f64::from(g.k));
    let all: f64 = sizes().sum();
    // The end of a layer has matrices of two sizes; its rate is filed between them.
    let typical = if stage == Stage::Finish {
        sizes().map(|s| s * s).sum::<f64>() / all
    } else {
        all / sizes().count() as f64
    };
    let matrix = Matrix {
        stage,
        elements: typical.round() as u64,
        reused,
    };
    Some((matrix, m, 2.0 * all * f64::from(m)))
}

/// Bytes of cache that a decode attention reads.
pub(super) fn decode_cache_bytes(task: &Timed, on: ResourceKind) -> Option<u64> {
    match task.op {
        Op::Attention { query_len: 1, .. } if task.kind == on => {
            task.op.cache_bytes().map(|bytes| bytes.0)
        }
        _ => None,
    }
}

/// Context and work of a prefill attention.
pub(super) fn prefill_attention(task: &Timed) -> Option<(u32, f64)> {
    match task.op {
        Op::Attention {
            query_len,
            context_len,
            ..
        } if query_len > 1 => Some((context_len, task.op.attention_flops()?.0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_every_type_have_about_the_bytes_that_are_asked_for() {
        let of_types = |bytes| Dtype::ALL.map(|dtype| (bytes, dtype));
        for (bytes, dtype) in LARGE_MODELS.into_iter().flat_map(of_types) {
            let model = model(of_bytes(bytes, dtype));
            let layers = (1..=model.num_hidden_layers).flat_map(|block| model.tensors(block));
            let elements: u64 = layers.map(|tensor| tensor.elements()).sum();
            let share = (elements * dtype.size_bytes()) as f64 / bytes.as_f64();
            assert!((0.7..1.3).contains(&share), "{bytes} {dtype:?}: {share}");
        }
    }

    #[test]
    fn several_types_are_less_to_read_than_twice_one() {
        let read = |types: usize| -> u64 {
            let of = |bytes: &Bytes| u64::from(tokens_of_read(*bytes, true, types)) * bytes.0;
            LARGE_MODELS.iter().map(of).sum::<u64>() * types as u64
        };
        for types in 2..=Dtype::ALL.len() {
            let longer = read(types) as f64 / read(1) as f64;
            assert!((1.0..1.6).contains(&longer), "{types}: {longer}");
        }
    }
}
