"""Makes the fixtures that the tests compare against Hugging Face's own implementation.

    python scripts/make-fixtures.py            # from the root of the repository

Needs torch, transformers, tokenizers, safetensors and numpy. The committed files were made with Python
3.11, torch 2.15.0, transformers 5.23.0, tokenizers 0.23.3, safetensors 0.8.0 and numpy 2.4.6, on one CPU
thread; the same versions give the same files. No test needs Python: its output is committed.

It writes:

- `backend/tests/fixtures/tiny-opt/`: a small random OPT model in f32, a batch of prompts, and what
  transformers computes from them (f32, eager attention, KV cache, greedy): `reference.json` for
  reading, `reference.safetensors` with the logits at every generated position. Also a tokenizer of
  OPT's kind (`tokenizer.json`), trained on a licence, and what it makes of some texts
  (`tokenizer-reference.json`);
- `backend/tests/fixtures/tiny-opt-f16/`: the same weights rounded to f16. Its reference is computed
  in f32 arithmetic from those rounded weights;
- `core/tests/data/checkpoints/<name>/`: a small model of each family: `config.json` as transformers
  writes it, and `tensors.csv`, the names and shapes that its checkpoint holds;
- `core/tests/data/parameter_counts.csv`: the distinct parameters of every model in
  `core/models/`, counted on torch's meta device, which holds shapes and no data.
"""

import csv
import json
import shutil
import tempfile
from pathlib import Path

import numpy
import safetensors.torch
import torch
import transformers
from safetensors import safe_open
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "backend" / "tests" / "fixtures"
CORE_DATA = ROOT / "core" / "tests" / "data"
MODELS = ROOT / "core" / "models"

PROMPTS, PROMPT_TOKENS, STEPS = 6, 12, 16

# Greedy decoding is only a fair test of another implementation where the best token leads clearly,
# and where tokens vary. The first seed that meets both is taken.
GAP_MIN = 0.02
DISTINCT_TOKENS_MIN = 8
SEEDS_TRIED_MAX = 2_000

OPT_SHAPE = dict(
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
)


# --- the tiny OPT model ---------------------------------------------------------------------------


def tiny_opt(seed):
    """A model whose every parameter is random: also norms and biases, which are usually 1 and 0."""
    model = OPTForCausalLM._from_config(OPTConfig(**OPT_SHAPE), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "layer_norm.weight" in name:
                parameter.copy_(1.0 + 0.2 * noise)
            elif name.endswith(".bias"):
                parameter.copy_(0.1 * noise)
            elif "embed" in name:
                # The token embedding is the head too: its size sets how far logits lie apart.
                parameter.copy_(0.25 * noise)
            else:
                # Large enough that the layers, not the tied embedding, decide the next token.
                parameter.copy_(0.2 * noise)
    return model.eval()


def tiny_prompts(seed):
    """Prompts of equal length, of ordinary tokens (the first four ids are special)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (PROMPTS, PROMPT_TOKENS)
    return torch.randint(4, OPT_SHAPE["vocab_size"], shape, generator=generator)


@torch.no_grad()
def greedy(model, prompts):
    """STEPS tokens a prompt, end-of-text ignored: (tokens, logits at each generated position)."""
    cache, fed, tokens, logits = None, prompts, [], []
    for _ in range(STEPS):
        out = model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        last = out.logits[:, -1, :].float()
        fed = last.argmax(dim=-1, keepdim=True)
        tokens.append(fed)
        logits.append(last)
    return torch.cat(tokens, dim=1), torch.stack(logits, dim=1).contiguous()


def smallest_gap(logits):
    """How far the best token leads the second, where it leads least."""
    best = logits.topk(2, dim=-1).values
    return (best[..., 0] - best[..., 1]).min().item()


def is_clear_and_varied(model, prompts):
    tokens, logits = greedy(model, prompts)
    distinct = min(len(set(row.tolist())) for row in tokens)
    return smallest_gap(logits) >= GAP_MIN and distinct >= DISTINCT_TOKENS_MIN


def choose_seed():
    """The first seed with clear and varied tokens, from both precisions of the weights."""
    for seed in range(SEEDS_TRIED_MAX):
        prompts = tiny_prompts(seed)
        if is_clear_and_varied(tiny_opt(seed), prompts):
            if is_clear_and_varied(tiny_opt(seed).half().float(), prompts):
                return seed
    raise SystemExit("no seed gives clear and varied tokens: relax GAP_MIN")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_tiny_opt(folder, seed, half):
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_opt(seed)
    if half:
        model = model.half()
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(Path(scratch) / name, folder / name)
    prompts = tiny_prompts(seed)
    tokens, logits = greedy(model.float(), prompts)
    gap = smallest_gap(logits)
    reference = {
        "prompts": prompts.to(torch.int32),
        "tokens": tokens.to(torch.int32),
        "logits": logits,
    }
    (folder / "reference.safetensors").write_bytes(safetensors.torch.save(reference))
    write_json(
        folder / "reference.json",
        {
            "made_by": "scripts/make-fixtures.py",
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
            "seed": seed,
            "weights": "f16" if half else "f32",
            "arithmetic": "f32",
            "smallest_top1_top2_gap": round(gap, 6),
            "prompts": prompts.tolist(),
            "tokens": tokens.tolist(),
        },
    )
    print(f"{folder.relative_to(ROOT)}: seed {seed}, smallest gap {gap:.4f}")


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
        vocab_size=OPT_SHAPE["vocab_size"],
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
    seed = choose_seed()
    write_tiny_opt(FIXTURES / "tiny-opt", seed, half=False)
    write_tiny_opt(FIXTURES / "tiny-opt-f16", seed, half=True)
    write_tokenizer(FIXTURES / "tiny-opt")


if __name__ == "__main__":
    main()
