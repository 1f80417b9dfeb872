"""Makes the fixtures that the tests compare against Hugging Face's own implementation.

    python scripts/make-fixtures.py            # from the root of the repository

Needs torch, transformers, tokenizers, safetensors and numpy. The committed files were made with Python
3.11, torch 2.15.0, transformers 5.23.0 (Qwen2's, Qwen3's and the counts of parameters with 5.24.0), tokenizers 0.23.3, safetensors 0.8.0 and numpy 2.4.6, on one CPU
thread; the same versions give the same weights and tokens, and the same files on the same kind of
processor. No test needs Python: its output is committed.

It writes:

- `backend/tests/fixtures/<name>/`: small random models of each family that is executed, some in
  several stored types, a batch of prompts, and what transformers computes from them (eager attention,
  KV cache, greedy): `reference.json` for reading, `reference.safetensors` with the logits at every
  generated position. Weights are rounded to the stored type first; the arithmetic is f32. In `tiny-opt`
  also a tokenizer of OPT's kind (`tokenizer.json`), trained on a licence, and what it makes of some texts
  (`tokenizer-reference.json`);
- `core/tests/data/checkpoints/<name>/`: a small model of each family: `config.json` as transformers
  writes it, and `tensors.csv`, the names and shapes that its checkpoint holds;
- `core/tests/data/parameter_counts.csv`: the distinct parameters of every model in
  `core/models/`, counted on torch's meta device, which holds shapes and no data.
"""

import csv
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy
import safetensors.torch
import torch
import transformers
from safetensors import safe_open
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "backend" / "tests" / "fixtures"
CORE_DATA = ROOT / "core" / "tests" / "data"
MODELS = ROOT / "core" / "models"

WORDS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}

PROMPT_TOKENS = 12
# A long search means that a model's scales or its bounds are wrong.
SEEDS_TRIED_MAX = 2_000


@dataclass(frozen=True)
class Tiny:
    """A small random model, and how it is tried.

    Greedy decoding is only a fair test of another implementation where the best token leads clearly,
    and where tokens vary. The first seed that meets both in all stored types is taken.
    """

    model_type: str
    keys: dict
    # Standard deviations of the embeddings with the head, and of the other matrices.
    embedding_scale: float
    layer_scale: float
    prompts: int
    steps: int
    # By how much the best token leads: more than twice of what a logit may be off.
    gap_min: float
    distinct_tokens_min: int
    # The stored types by folder.
    folders: dict
    shard_bytes: int = 2**30


LLAMA_SHAPE = dict(
    vocab_size=160,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=80,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)

TINY = [
    Tiny(
        model_type="opt",
        keys=dict(
            vocab_size=512,
            hidden_size=64,
            word_embed_proj_dim=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            ffn_dim=256,
            max_position_embeddings=128,
            do_layer_norm_before=True,
            activation_function="relu",
            bos_token_id=2,
            eos_token_id=2,
            pad_token_id=1,
        ),
        # The token embedding is the head too: its size sets how far logits lie apart. The layers, not
        # the tied embedding, decide the next token.
        embedding_scale=0.25,
        layer_scale=0.2,
        prompts=6,
        steps=16,
        gap_min=0.02,
        distinct_tokens_min=8,
        folders={"tiny-opt": torch.float32, "tiny-opt-f16": torch.float16},
    ),
    # As opt-350m: narrow embeddings that are projected, norms behind the residual. The norms take what
    # the layers add down again, so these are large for tokens to vary.
    Tiny(
        model_type="opt",
        keys=dict(
            vocab_size=160,
            hidden_size=48,
            word_embed_proj_dim=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=96,
            max_position_embeddings=64,
            do_layer_norm_before=False,
            activation_function="relu",
            bos_token_id=2,
            eos_token_id=2,
            pad_token_id=1,
        ),
        embedding_scale=0.25,
        layer_scale=0.4,
        prompts=4,
        steps=16,
        gap_min=1e-3,
        distinct_tokens_min=10,
        folders={"tiny-opt-projected": torch.float32},
    ),
    # As Llama 1 and 2: all heads with keys of their own, an untied head. Embeddings of the size that
    # transformers gives to new models.
    Tiny(
        model_type="llama",
        keys=LLAMA_SHAPE,
        embedding_scale=0.02,
        layer_scale=0.12,
        prompts=4,
        steps=8,
        gap_min=0.005,
        distinct_tokens_min=5,
        folders={
            "tiny-llama": torch.float32,
            "tiny-llama-f16": torch.float16,
            "tiny-llama-bf16": torch.bfloat16,
        },
    ),
    # As Llama 3.2: grouped queries, stretched rotary frequencies (all three kinds of them), a tied
    # head; heads that are wider together than the layer; two shards.
    Tiny(
        model_type="llama",
        keys=dict(
            LLAMA_SHAPE,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            eos_token_id=[2, 3],
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=10000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        embedding_scale=0.04,
        layer_scale=0.15,
        prompts=4,
        steps=16,
        gap_min=1e-3,
        distinct_tokens_min=8,
        folders={"tiny-llama-3": torch.float32},
        shard_bytes=150_000,
    ),
    # As Mistral 7B: grouped queries, and a window that is shorter than the prompt.
    Tiny(
        model_type="mistral",
        keys=dict(LLAMA_SHAPE, num_key_value_heads=2, head_dim=16, sliding_window=5),
        embedding_scale=0.04,
        layer_scale=0.15,
        prompts=4,
        steps=16,
        gap_min=1e-3,
        distinct_tokens_min=8,
        folders={"tiny-mistral": torch.float32},
    ),
    # As Qwen2.5: grouped queries, biases of queries, keys and values alone, a tied head. A window that is stated and not used
    # is written as none.
    Tiny(
        model_type="qwen2",
        keys=dict(
            LLAMA_SHAPE, num_key_value_heads=2, tie_word_embeddings=True, sliding_window=5
        ),
        embedding_scale=0.04,
        layer_scale=0.15,
        prompts=4,
        steps=16,
        gap_min=1e-3,
        distinct_tokens_min=8,
        folders={"tiny-qwen2": torch.float32},
    ),
    # As Qwen3: grouped queries, heads that are wider together than the layer and are normalised one by one, no biases.
    Tiny(
        model_type="qwen3",
        keys=dict(LLAMA_SHAPE, num_attention_heads=6, num_key_value_heads=2, head_dim=16),
        embedding_scale=0.04,
        layer_scale=0.15,
        prompts=4,
        steps=16,
        gap_min=1e-3,
        distinct_tokens_min=8,
        folders={"tiny-qwen3": torch.float32},
    ),
]


# --- the tiny models ------------------------------------------------------------------------------


def tiny_model(tiny, seed):
    """A model whose every parameter is random: also norms and biases, which are usually 1 and 0."""
    config = CONFIG_MAPPING[tiny.model_type](**tiny.keys)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm.weight" in name:
                parameter.copy_(1.0 + 0.2 * noise)
            elif name.endswith(".bias"):
                parameter.copy_(0.1 * noise)
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(tiny.embedding_scale * noise)
            else:
                parameter.copy_(tiny.layer_scale * noise)
    return model.eval()


@torch.no_grad()
def rounded(model, dtype):
    """The model with its parameters rounded; what is computed from the configuration stays in f32."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))
    return model


def read_checkpoint(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    ).eval()


def tiny_prompts(tiny, seed):
    """Prompts of equal length, of ordinary tokens (the first four ids are special)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (tiny.prompts, PROMPT_TOKENS)
    return torch.randint(4, tiny.keys["vocab_size"], shape, generator=generator)


@torch.no_grad()
def generate(model, prompts, steps, given=None):
    """So many tokens a prompt, end-of-text ignored: (tokens, logits at each generated position).

    Greedy, or with the tokens that are given.
    """
    cache, fed, tokens, logits = None, prompts, [], []
    for step in range(steps):
        out = model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        last = out.logits[:, -1, :].float()
        best = last.argmax(dim=-1, keepdim=True)
        fed = best if given is None else given[:, step : step + 1]
        tokens.append(best)
        logits.append(last)
    return torch.cat(tokens, dim=1), torch.stack(logits, dim=1).contiguous()


def smallest_gap(logits):
    """How far the best token leads the second, where it leads least."""
    best = logits.topk(2, dim=-1).values
    return (best[..., 0] - best[..., 1]).min().item()


def is_clear_and_varied(tiny, model, prompts):
    tokens, logits = generate(model, prompts, tiny.steps)
    distinct = min(len(set(row.tolist())) for row in tokens)
    return smallest_gap(logits) >= tiny.gap_min and distinct >= tiny.distinct_tokens_min


def choose_seed(tiny):
    """The first seed with clear and varied tokens, from the weights in each stored type."""
    for seed in range(SEEDS_TRIED_MAX):
        prompts = tiny_prompts(tiny, seed)
        models = (rounded(tiny_model(tiny, seed), dtype) for dtype in tiny.folders.values())
        if all(is_clear_and_varied(tiny, model, prompts) for model in models):
            return seed
    raise SystemExit(f"{list(tiny.folders)}: no seed gives clear and varied tokens: relax gap_min")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_checkpoint(model, folder, shard_bytes):
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch, max_shard_size=shard_bytes)
        for path in Path(scratch).iterdir():
            if path.name == "config.json" or path.name.startswith("model"):
                shutil.copyfile(path, folder / path.name)


def write_tiny(tiny, seed, name, dtype):
    folder = FIXTURES / name
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(tiny_model(tiny, seed).to(dtype), folder, tiny.shard_bytes)
    prompts = tiny_prompts(tiny, seed)
    tokens, logits = generate(read_checkpoint(folder, torch.float32), prompts, tiny.steps)
    reference = {
        "prompts": prompts.to(torch.int32),
        "tokens": tokens.to(torch.int32),
        "logits": logits,
    }
    (folder / "reference.safetensors").write_bytes(safetensors.torch.save(reference))
    report = {
        "made_by": "scripts/make-fixtures.py",
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "seed": seed,
        "weights": WORDS[dtype],
        "arithmetic": "f32",
        "smallest_top1_top2_gap": round(smallest_gap(logits), 6),
        "prompts": prompts.tolist(),
        "tokens": tokens.tolist(),
    }
    if dtype != torch.float32:
        # What the same model gives where transformers computes in the stored type as well.
        _, own = generate(read_checkpoint(folder, dtype), prompts, tiny.steps, tokens)
        report["largest_difference_in_that_type"] = round((own - logits).abs().max().item(), 6)
    write_json(folder / "reference.json", report)
    print(f"{name}: seed {seed}, smallest gap {smallest_gap(logits):.4f}")


# --- the tiny tokenizer ----------------------------------------------------------------------------

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]

TEXTS = [
    "Once upon a time",
    "  two spaces, and a line\nbreak",
    "A Licence: the Work, \"Derivative Works\" & 1234567890.",
    "Grüße aus Köln, Ωμέγα, 日本語 and 🚢",
    "x",
    "",
]


def write_tokenizer(folder):
    """Byte-level BPE that begins a text with `</s>`, as OPT's does; its ids fit the tiny model."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY[0].keys["vocab_size"],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(ROOT / "LICENSE-APACHE")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    cases = [dict(text=text, ids=tokenizer.encode(text).ids) for text in TEXTS]
    for case in cases:
        assert tokenizer.decode(case["ids"], skip_special_tokens=True) == case["text"]
    write_json(folder / "tokenizer-reference.json", cases)


# --- names and shapes of each family --------------------------------------------------------------

SMALL = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)

FAMILIES = {
    "opt": ("opt", dict(SMALL, ffn_dim=64, max_position_embeddings=40)),
    "opt-projected": (
        "opt",
        dict(
            SMALL,
            ffn_dim=64,
            max_position_embeddings=40,
            word_embed_proj_dim=16,
            do_layer_norm_before=False,
        ),
    ),
    "opt-no-bias": (
        "opt",
        dict(SMALL, ffn_dim=64, max_position_embeddings=40, enable_bias=False),
    ),
    "llama": ("llama", dict(SMALL, intermediate_size=48, max_position_embeddings=64)),
    "llama-grouped": (
        "llama",
        dict(
            SMALL,
            intermediate_size=48,
            num_key_value_heads=2,
            head_dim=16,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            max_position_embeddings=4096,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=500000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=512,
            ),
        ),
    ),
    "mistral": ("mistral", dict(SMALL, intermediate_size=48, num_key_value_heads=2)),
    "qwen2": ("qwen2", dict(SMALL, intermediate_size=48, num_key_value_heads=2)),
    "qwen3": ("qwen3", dict(SMALL, intermediate_size=48, num_key_value_heads=2)),
    "gptj": (
        "gptj",
        dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4),
    ),
    "gpt_neox": (
        "gpt_neox",
        dict(SMALL, intermediate_size=48, max_position_embeddings=64, hidden_act="gelu_fast"),
    ),
    "bloom": ("bloom", dict(vocab_size=96, hidden_size=32, n_layer=2, n_head=4)),
}


def write_checkpoint_shapes(name, model_type, keys):
    folder = CORE_DATA / "checkpoints" / name
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**keys))
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        shutil.copyfile(Path(scratch) / "config.json", folder / "config.json")
        with safe_open(Path(scratch) / "model.safetensors", "pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}
    with open(folder / "tensors.csv", "w", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["name", "rows", "cols"])
        for key in sorted(shapes):
            rows.writerow([key, *([1] + shapes[key])[-2:]])


# --- parameter counts -----------------------------------------------------------------------------


def count_on_meta(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](**config))
    model.tie_weights()
    # `parameters()` yields a tied matrix once.
    return sum(parameter.numel() for parameter in model.parameters())


def count_gpt3(c):
    h, inner, layers = c["n_embd"], c["n_inner"], c["n_layer"]
    attention = h * 3 * h + 3 * h + h * h + h
    mlp = h * inner + inner + inner * h + h
    embeddings = (c["vocab_size"] + c["n_positions"]) * h
    return embeddings + layers * (attention + mlp + 4 * h) + 2 * h


def count_chatglm(c):
    h, inner, layers = c["hidden_size"], c["ffn_hidden_size"], c["num_layers"]
    q = c["kv_channels"] * c["num_attention_heads"]
    qkv = q + 2 * c["kv_channels"] * c["multi_query_group_num"]
    attention = h * qkv + qkv + q * h
    mlp = h * 2 * inner + inner * h
    return 2 * c["padded_vocab_size"] * h + layers * (attention + mlp + 2 * h) + h


def count_parameters(config):
    published = "computed from the published shape"
    if config["model_type"] == "gpt3":
        return count_gpt3(config), published
    if config["model_type"] == "chatglm":
        return count_chatglm(config), published
    return count_on_meta(config), f"transformers {transformers.__version__} meta device"


def write_parameter_counts():
    CORE_DATA.mkdir(parents=True, exist_ok=True)
    with open(CORE_DATA / "parameter_counts.csv", "w", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["name", "parameters", "source"])
        for path in sorted(MODELS.glob("*.json")):
            count, source = count_parameters(json.loads(path.read_text()))
            rows.writerow([path.stem, count, source])
            print(f"{path.stem:>14} {count:>16,}  {source}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"safetensors {safetensors.__version__}, numpy {numpy.__version__}")
    write_parameter_counts()
    for name, (model_type, keys) in FAMILIES.items():
        write_checkpoint_shapes(name, model_type, keys)
    for tiny in TINY:
        seed = choose_seed(tiny)
        for name, dtype in tiny.folders.items():
            write_tiny(tiny, seed, name, dtype)
    write_tokenizer(FIXTURES / "tiny-opt")


if __name__ == "__main__":
    main()
