//! The tensors of a model, block by block, under their published names.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Family, ModelSpec, Norm, Positions, QkvLayout};

/// What a tensor is for, whatever its family calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names say it
pub enum TensorRole {
    TokenEmbedding,
    PositionEmbedding,
    EmbedNormWeight,
    EmbedNormBias,
    /// From `embedding_size` to `hidden_size`, after the token embedding.
    ProjectIn,
    AttnNormWeight,
    AttnNormBias,
    QWeight,
    QBias,
    KWeight,
    KBias,
    VWeight,
    VBias,
    /// Of each head of the queries.
    QNormWeight,
    /// Of each head of the keys.
    KNormWeight,
    /// Query, key and value in one, laid out as `ModelSpec::qkv_layout` says.
    QkvWeight,
    QkvBias,
    OWeight,
    OBias,
    MlpNormWeight,
    MlpNormBias,
    GateWeight,
    GateBias,
    UpWeight,
    UpBias,
    /// Gate rows, then up rows.
    GateUpWeight,
    GateUpBias,
    DownWeight,
    DownBias,
    FinalNormWeight,
    FinalNormBias,
    /// From `hidden_size` to `embedding_size`, before the head.
    ProjectOut,
    LmHead,
    LmHeadBias,
}

impl TensorRole {
    /// The bias that is added to what a layer's matrix gives, in models that have it.
    pub fn bias(self) -> Option<TensorRole> {
        use TensorRole::{
            DownBias, DownWeight, GateBias, GateUpBias, GateUpWeight, GateWeight, KBias, KWeight,
            LmHead, LmHeadBias, OBias, OWeight, QBias, QWeight, QkvBias, QkvWeight, UpBias,
            UpWeight, VBias, VWeight,
        };
        match self {
            QWeight => Some(QBias),
            KWeight => Some(KBias),
            VWeight => Some(VBias),
            QkvWeight => Some(QkvBias),
            OWeight => Some(OBias),
            GateWeight => Some(GateBias),
            UpWeight => Some(UpBias),
            GateUpWeight => Some(GateUpBias),
            DownWeight => Some(DownBias),
            LmHead => Some(LmHeadBias),
            _ => None,
        }
    }
}

/// In plain words, for messages.
impl fmt::Display for TensorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TensorRole::TokenEmbedding => "token embedding",
            TensorRole::PositionEmbedding => "position embedding",
            TensorRole::EmbedNormWeight => "embedding norm weight",
            TensorRole::EmbedNormBias => "embedding norm bias",
            TensorRole::ProjectIn => "input projection",
            TensorRole::AttnNormWeight => "attention norm weight",
            TensorRole::AttnNormBias => "attention norm bias",
            TensorRole::QWeight => "query weight",
            TensorRole::QBias => "query bias",
            TensorRole::KWeight => "key weight",
            TensorRole::KBias => "key bias",
            TensorRole::VWeight => "value weight",
            TensorRole::VBias => "value bias",
            TensorRole::QNormWeight => "query norm weight",
            TensorRole::KNormWeight => "key norm weight",
            TensorRole::QkvWeight => "query-key-value weight",
            TensorRole::QkvBias => "query-key-value bias",
            TensorRole::OWeight => "attention output weight",
            TensorRole::OBias => "attention output bias",
            TensorRole::MlpNormWeight => "MLP norm weight",
            TensorRole::MlpNormBias => "MLP norm bias",
            TensorRole::GateWeight => "MLP gate weight",
            TensorRole::GateBias => "MLP gate bias",
            TensorRole::UpWeight => "MLP up weight",
            TensorRole::UpBias => "MLP up bias",
            TensorRole::GateUpWeight => "MLP gate-and-up weight",
            TensorRole::GateUpBias => "MLP gate-and-up bias",
            TensorRole::DownWeight => "MLP down weight",
            TensorRole::DownBias => "MLP down bias",
            TensorRole::FinalNormWeight => "final norm weight",
            TensorRole::FinalNormBias => "final norm bias",
            TensorRole::ProjectOut => "output projection",
            TensorRole::LmHead => "head",
            TensorRole::LmHeadBias => "head bias",
        })
    }
}

/// A tensor's name in the published checkpoint. Spelled out only where it is displayed: plans are placed
/// by the thousand, and nobody reads those names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorName {
    /// Of a layer's tensor: what goes before the layer's index, and the index.
    layer: Option<(&'static str, u32)>,
    module: &'static str,
    /// `.weight` or `.bias`.
    kind: &'static str,
}

impl TensorName {
    /// Whether the family has no such module.
    pub(super) fn is_missing(self) -> bool {
        self.module.is_empty()
    }
}

/// Any other name.
impl From<&'static str> for TensorName {
    fn from(module: &'static str) -> TensorName {
        TensorName {
            layer: None,
            module,
            kind: "",
        }
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((layers, layer)) = self.layer {
            write!(f, "{layers}{layer}.")?;
        }
        write!(f, "{}{}", self.module, self.kind)
    }
}

/// One stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// What it is for.
    pub role: TensorRole,
    /// Its name in the published checkpoint.
    pub name: TensorName,
    /// Rows: the outputs of a matrix; 1 for a vector.
    pub rows: u64,
    /// Columns: the inputs of a matrix; the length of a vector. Stored row after row.
    pub cols: u64,
}

impl TensorSpec {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.rows.saturating_mul(self.cols)
    }

    /// Whether it is a vector (a bias, or a norm's weight) rather than a matrix.
    pub fn is_vector(&self) -> bool {
        self.rows == 1
    }

    /// Whether tokens are multiplied with it: a matrix that no token looks rows up in.
    pub fn is_multiplied(&self) -> bool {
        let is_looked_up = matches!(
            self.role,
            TensorRole::TokenEmbedding | TensorRole::PositionEmbedding
        );
        !self.is_vector() && !is_looked_up
    }
}

/// What a family calls its modules; empty where it has no such module.
struct Names {
    token_embedding: &'static str,
    position_embedding: &'static str,
    embed_norm: &'static str,
    project_in: &'static str,
    /// A layer's modules start with this, its index and a dot.
    layers: &'static str,
    attn_norm: &'static str,
    q: &'static str,
    k: &'static str,
    v: &'static str,
    q_norm: &'static str,
    k_norm: &'static str,
    qkv: &'static str,
    o: &'static str,
    mlp_norm: &'static str,
    gate: &'static str,
    up: &'static str,
    gate_up: &'static str,
    down: &'static str,
    final_norm: &'static str,
    project_out: &'static str,
    lm_head: &'static str,
}

const NOTHING: Names = Names {
    token_embedding: "",
    position_embedding: "",
    embed_norm: "",
    project_in: "",
    layers: "",
    attn_norm: "",
    q: "",
    k: "",
    v: "",
    q_norm: "",
    k_norm: "",
    qkv: "",
    o: "",
    mlp_norm: "",
    gate: "",
    up: "",
    gate_up: "",
    down: "",
    final_norm: "",
    project_out: "",
    lm_head: "lm_head",
};

const OPT: Names = Names {
    token_embedding: "model.decoder.embed_tokens",
    position_embedding: "model.decoder.embed_positions",
    project_in: "model.decoder.project_in",
    layers: "model.decoder.layers.",
    attn_norm: "self_attn_layer_norm",
    q: "self_attn.q_proj",
    k: "self_attn.k_proj",
    v: "self_attn.v_proj",
    o: "self_attn.out_proj",
    mlp_norm: "final_layer_norm",
    up: "fc1",
    down: "fc2",
    final_norm: "model.decoder.final_layer_norm",
    project_out: "model.decoder.project_out",
    ..NOTHING
};

/// Llama's, which are Mistral's and Qwen2's too; Qwen3 has norms of heads besides.
const LLAMA: Names = Names {
    token_embedding: "model.embed_tokens",
    layers: "model.layers.",
    attn_norm: "input_layernorm",
    q: "self_attn.q_proj",
    k: "self_attn.k_proj",
    v: "self_attn.v_proj",
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    o: "self_attn.o_proj",
    mlp_norm: "post_attention_layernorm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    final_norm: "model.norm",
    ..NOTHING
};

const GPT_J: Names = Names {
    token_embedding: "transformer.wte",
    layers: "transformer.h.",
    attn_norm: "ln_1",
    q: "attn.q_proj",
    k: "attn.k_proj",
    v: "attn.v_proj",
    o: "attn.out_proj",
    up: "mlp.fc_in",
    down: "mlp.fc_out",
    final_norm: "transformer.ln_f",
    ..NOTHING
};

const GPT_NEOX: Names = Names {
    token_embedding: "gpt_neox.embed_in",
    layers: "gpt_neox.layers.",
    attn_norm: "input_layernorm",
    qkv: "attention.query_key_value",
    o: "attention.dense",
    mlp_norm: "post_attention_layernorm",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    final_norm: "gpt_neox.final_layer_norm",
    lm_head: "embed_out",
    ..NOTHING
};

/// GPT-2's names. GPT-2 checkpoints store these matrices transposed; since GPT-3 has no public
/// checkpoint, the shapes here are `[out, in]` as everywhere else.
const GPT_3: Names = Names {
    token_embedding: "transformer.wte",
    position_embedding: "transformer.wpe",
    layers: "transformer.h.",
    attn_norm: "ln_1",
    qkv: "attn.c_attn",
    o: "attn.c_proj",
    mlp_norm: "ln_2",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    final_norm: "transformer.ln_f",
    ..NOTHING
};

const CHATGLM2: Names = Names {
    token_embedding: "transformer.embedding.word_embeddings",
    layers: "transformer.encoder.layers.",
    attn_norm: "input_layernorm",
    qkv: "self_attention.query_key_value",
    o: "self_attention.dense",
    mlp_norm: "post_attention_layernorm",
    gate_up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    final_norm: "transformer.encoder.final_layernorm",
    lm_head: "transformer.output_layer",
    ..NOTHING
};

const BLOOM: Names = Names {
    token_embedding: "transformer.word_embeddings",
    embed_norm: "transformer.word_embeddings_layernorm",
    layers: "transformer.h.",
    attn_norm: "input_layernorm",
    qkv: "self_attention.query_key_value",
    o: "self_attention.dense",
    mlp_norm: "post_attention_layernorm",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    final_norm: "transformer.ln_f",
    ..NOTHING
};

impl Names {
    fn of(family: Family) -> &'static Names {
        match family {
            Family::Opt => &OPT,
            Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 => &LLAMA,
            Family::GptJ => &GPT_J,
            Family::GptNeoX => &GPT_NEOX,
            Family::Gpt3 => &GPT_3,
            Family::ChatGlm2 => &CHATGLM2,
            Family::Bloom => &BLOOM,
        }
    }
}

/// Collects the tensors of one block.
struct Block<'a> {
    spec: &'a ModelSpec,
    /// What goes before a layer's index, and the index.
    layer: Option<(&'static str, u32)>,
    tensors: Vec<TensorSpec>,
}

impl Block<'_> {
    fn push(&mut self, role: TensorRole, name: (&'static str, &'static str), rows: u64, cols: u64) {
        self.tensors.push(TensorSpec {
            role,
            name: TensorName {
                layer: self.layer,
                module: name.0,
                kind: name.1,
            },
            rows,
            cols,
        });
    }

    /// A matrix, and its bias where `bias` gives that a role.
    fn linear(
        &mut self,
        module: &'static str,
        weight: TensorRole,
        bias: Option<TensorRole>,
        (out_size, in_size): (u64, u64),
    ) {
        self.push(weight, (module, ".weight"), out_size, in_size);
        if let Some(bias) = bias {
            self.push(bias, (module, ".bias"), 1, out_size);
        }
    }

    fn norm(&mut self, module: &'static str, weight: TensorRole, bias: TensorRole) {
        let hidden = u64::from(self.spec.hidden_size);
        self.push(weight, (module, ".weight"), 1, hidden);
        if self.spec.norm == Norm::LayerNorm {
            self.push(bias, (module, ".bias"), 1, hidden);
        }
    }

    fn attention(&mut self, names: &Names) {
        use TensorRole::*;
        let hidden = u64::from(self.spec.hidden_size);
        let (q_size, kv_size) = (self.spec.q_size(), self.spec.kv_size());
        let bias = |role| self.spec.attention_bias.then_some(role);
        let (qb, kb, vb, qkvb) = (bias(QBias), bias(KBias), bias(VBias), bias(QkvBias));
        let ob = self.spec.attention_output_bias.then_some(OBias);
        if self.spec.qkv_layout == QkvLayout::Separate {
            self.linear(names.q, QWeight, qb, (q_size, hidden));
            self.linear(names.k, KWeight, kb, (kv_size, hidden));
            self.linear(names.v, VWeight, vb, (kv_size, hidden));
        } else {
            self.linear(names.qkv, QkvWeight, qkvb, (q_size + 2 * kv_size, hidden));
        }
        if self.spec.qk_norm {
            let head = u64::from(self.spec.head_dim);
            self.push(QNormWeight, (names.q_norm, ".weight"), 1, head);
            self.push(KNormWeight, (names.k_norm, ".weight"), 1, head);
        }
        self.linear(names.o, OWeight, ob, (hidden, q_size));
    }

    fn mlp(&mut self, names: &Names) {
        use TensorRole::*;
        let hidden = u64::from(self.spec.hidden_size);
        let inner = u64::from(self.spec.intermediate_size);
        let bias = |role| self.spec.mlp_bias.then_some(role);
        let (gate_b, up_b, both_b, down_b) = (
            bias(GateBias),
            bias(UpBias),
            bias(GateUpBias),
            bias(DownBias),
        );
        if self.spec.gated_mlp && self.spec.fused_gate_up {
            self.linear(names.gate_up, GateUpWeight, both_b, (2 * inner, hidden));
        } else {
            if self.spec.gated_mlp {
                self.linear(names.gate, GateWeight, gate_b, (inner, hidden));
            }
            self.linear(names.up, UpWeight, up_b, (inner, hidden));
        }
        self.linear(names.down, DownWeight, down_b, (hidden, inner));
    }
}

impl ModelSpec {
    /// The tensors that a pass needs in a block: 0 is the input embedding, `1..=layers` the decoder
    /// layers, `layers + 1` the final norm and the head. A tied head is the token embedding's name
    /// with the role of a head. A block past the last has none.
    pub fn tensors(&self, block: u32) -> Vec<TensorSpec> {
        if block == 0 {
            self.input_block()
        } else if block <= self.num_hidden_layers {
            self.layer_block(block - 1)
        } else if block == self.num_hidden_layers + 1 {
            self.output_block()
        } else {
            Vec::new()
        }
    }

    /// How many distinct parameters the model has: a tied head counts once.
    pub fn parameters(&self) -> u64 {
        let elements = |tensors: Vec<TensorSpec>| {
            tensors
                .iter()
                .filter(|tensor| !self.is_tied_head(tensor))
                .fold(0u64, |sum, tensor| sum.saturating_add(tensor.elements()))
        };
        elements(self.layer_block(0))
            .saturating_mul(u64::from(self.num_hidden_layers))
            .saturating_add(elements(self.input_block()))
            .saturating_add(elements(self.output_block()))
    }

    /// Whether this tensor is the token embedding, listed once more as the head.
    pub fn is_tied_head(&self, tensor: &TensorSpec) -> bool {
        self.tie_word_embeddings && tensor.role == TensorRole::LmHead
    }

    fn block(&self, layer: Option<(&'static str, u32)>) -> Block<'_> {
        Block {
            spec: self,
            layer,
            tensors: Vec::new(),
        }
    }

    /// Whether the embedding has another width than the layers, and is projected.
    fn projects(&self) -> bool {
        self.embedding_size != self.hidden_size
    }

    fn input_block(&self) -> Vec<TensorSpec> {
        use TensorRole::*;
        let names = Names::of(self.family);
        let mut block = self.block(None);
        let (hidden, embedding) = (u64::from(self.hidden_size), u64::from(self.embedding_size));
        let vocab = u64::from(self.vocab_size);
        block.linear(
            names.token_embedding,
            TokenEmbedding,
            None,
            (vocab, embedding),
        );
        if let Positions::Learned { offset } = self.positions {
            let rows = u64::from(self.max_position_embeddings) + u64::from(offset);
            block.linear(
                names.position_embedding,
                PositionEmbedding,
                None,
                (rows, hidden),
            );
        }
        if self.projects() {
            block.linear(names.project_in, ProjectIn, None, (hidden, embedding));
        }
        if self.embedding_norm {
            block.norm(names.embed_norm, EmbedNormWeight, EmbedNormBias);
        }
        block.tensors
    }

    fn layer_block(&self, layer: u32) -> Vec<TensorSpec> {
        use TensorRole::*;
        let names = Names::of(self.family);
        let mut block = self.block(Some((names.layers, layer)));
        block.norm(names.attn_norm, AttnNormWeight, AttnNormBias);
        block.attention(names);
        if self.mlp_norm {
            block.norm(names.mlp_norm, MlpNormWeight, MlpNormBias);
        }
        block.mlp(names);
        block.tensors
    }

    fn output_block(&self) -> Vec<TensorSpec> {
        use TensorRole::*;
        let names = Names::of(self.family);
        let mut block = self.block(None);
        let (hidden, embedding) = (u64::from(self.hidden_size), u64::from(self.embedding_size));
        let vocab = u64::from(self.vocab_size);
        if self.final_norm {
            block.norm(names.final_norm, FinalNormWeight, FinalNormBias);
        }
        if self.projects() {
            block.linear(names.project_out, ProjectOut, None, (embedding, hidden));
        }
        let head = if self.tie_word_embeddings {
            names.token_embedding
        } else {
            names.lm_head
        };
        block.linear(head, LmHead, None, (vocab, embedding));
        if self.lm_head_bias {
            block.push(LmHeadBias, (names.lm_head, ".bias"), 1, vocab);
        }
        block.tensors
    }
}
