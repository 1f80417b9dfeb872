"""Trains the small model with which `plimsoll perplexity` measures what compression costs.

    apt-get download bible-kjv bible-kjv-text         # Debian's packages, 4.38
    for deb in bible-kjv*.deb; do dpkg-deb -x $deb kjv; done
    kjv/usr/bin/bible -p $PWD/kjv/usr/lib -l100000 'gen1:1-rev22:21' > kjv.txt
    python scripts/train-quality-model.py kjv.txt     # again, until it says that all is written

Needs torch, transformers, tokenizers and safetensors. The committed files were made with Python 3.11, torch
2.15.0, transformers 5.23.0, tokenizers 0.23.3 and safetensors 0.8.0, on one CPU thread in f32; other versions,
or another processor, train another model, about as good. No test needs Python: what this writes is committed.

The text is the King James Version of 1611, in the public domain (the packages' `copyright`: "The copyright
for the King James Version text of the Bible is expired"). Three books (Ruth, Jonah, James) are kept from
tokenizer and training, and are the text to evaluate on.

The model is a Llama: grouped queries, heads of 64 elements (a group of 4-bit codes), a tied head. It is
trained for a fixed number of steps. Each call goes on for some minutes at most from where the last one
stopped (`--state`), and gives the same weights as one that did not stop.

It writes to `experiments/quality/`: `kjv-llama/` (weights in bf16, `config.json`, `generation_config.json`,
`tokenizer.json`), `held-out.txt`, and `reference.json`: the perplexity of these weights on that text, and
on parts of it, as transformers computes it in f32, at the positions that `plimsoll perplexity` scores.
"""

import argparse
import json
import math
import re
import shutil
import tempfile
import time
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parent.parent / "experiments" / "quality"
HELD_OUT = ["Ruth", "Jonah", "James"]
# What perplexity is computed of: bytes of the held-out text (none: all), tokens of a window.
REFERENCES = [(None, 512), (8000, 512), (3000, 128)]

SEED = 1611
VOCABULARY = 1280
END_OF_TEXT = "<|endoftext|>"
CONTEXT = 512

STEPS = 1250
BATCH = 4
WARM_UP = 60
PEAK_RATE = 3e-3
LAST_RATE = 2e-4
WEIGHT_DECAY = 0.1


# --- the text --------------------------------------------------------------------------------------


def read_books(path):
    """Each book by name: a verse a line, without numbers, and an empty line between chapters."""
    books = {}
    for line in path.read_text(encoding="ascii").splitlines():
        chapter = re.fullmatch(r"(\S.*) (\d+)", line)
        verse = re.fullmatch(r" +\d+ (.*)", line)
        if chapter:
            name, number = chapter.groups()
            book = books.setdefault(name, [])
            if number != "1":
                book.append("")
        elif verse:
            book.append(verse.group(1).strip())
        elif line.strip():
            raise SystemExit(f"{path}: neither a chapter's title nor a verse: {line!r}")
    return {name: "\n".join(lines) + "\n" for name, lines in books.items()}


def train_tokenizer(texts):
    """Byte-level BPE, so that every text has tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


# --- training --------------------------------------------------------------------------------------


def new_model():
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=256,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def rate(step):
    """The learning rate: up in a line, down in a half cosine."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / (STEPS - WARM_UP)
    return LAST_RATE + (PEAK_RATE - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))


def new_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        dict(params=matrices, weight_decay=WEIGHT_DECAY),
        dict(params=vectors, weight_decay=0.0),
    ]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))


def batch_of(ids, step):
    """Random pieces of the text; which ones depends on the step alone."""
    generator = torch.Generator().manual_seed(SEED * 100_000 + step)
    starts = torch.randint(0, len(ids) - CONTEXT - 1, (BATCH,), generator=generator)
    return torch.stack([ids[start : start + CONTEXT + 1] for start in starts])


def train(ids, state_path, seconds):
    """The trained model, or none where the time was over before."""
    model = new_model()
    optimizer = new_optimizer(model)
    first, started = 0, time.monotonic()
    if state_path.exists():
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    model.train()
    for step in range(first, STEPS):
        if time.monotonic() - started > seconds:
            torch.save(
                dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step),
                state_path,
            )
            print(f"{step} of {STEPS} steps are in {state_path}: run it again to go on")
            return None
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        batch = batch_of(ids, step)
        logits = model(input_ids=batch[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            took = time.monotonic() - started
            print(f"step {step}: loss {loss.item():.3f}, {took:.0f} s", flush=True)
    return model


# --- what is kept ----------------------------------------------------------------------------------


@torch.no_grad()
def perplexity(model, ids, context):
    """Perplexity, and how many tokens it is of.

    The first half of each window is the prompt, and the first token after it comes out of prefill; the
    others are scored. Each window begins as many tokens on as are scored.
    """
    prompt = context // 2
    scored = context - prompt - 1
    lost = []
    for start in range(0, len(ids) - context + 1, scored):
        window = ids[start : start + context]
        logits = model(input_ids=window[None, :-1]).logits[0]
        lost.append(cross_entropy(logits[prompt:], window[prompt + 1 :], reduction="none"))
    lost = torch.cat(lost).double()
    return lost.mean().exp().item(), len(lost)


def write(model, tokenizer, held_out):
    folder = FOLDER / "kjv-llama"
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(eos_token_id=0)
    with tempfile.TemporaryDirectory() as scratch:
        model.to(torch.bfloat16).save_pretrained(scratch)
        for name in ["config.json", "generation_config.json", "model.safetensors"]:
            shutil.copyfile(Path(scratch) / name, folder / name)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (FOLDER / "held-out.txt").write_text(held_out)
    stored = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cases = []
    for size, context in REFERENCES:
        part = held_out[:size]
        ids = torch.tensor(tokenizer.encode(part).ids)
        value, count = perplexity(stored, ids, context)
        cases.append(
            dict(bytes=len(part), context=context, tokens=len(ids), scored=count, perplexity=value)
        )
        print(f"{len(part)} bytes, {count} of {len(ids)} tokens scored: perplexity {value:.4f}")
    reference = {
        "made_by": "scripts/train-quality-model.py",
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "arithmetic": "f32",
        "cases": cases,
    }
    (FOLDER / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("text", type=Path, help="what the program bible wrote")
    arguments.add_argument("--state", type=Path, default=Path("quality-training.pt"))
    arguments.add_argument("--minutes", type=float, default=4.0, help="of training in this call")
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    books = read_books(asked.text)
    held_out = "".join(books.pop(name) for name in HELD_OUT)
    tokenizer = train_tokenizer(books.values())
    end = [tokenizer.token_to_id(END_OF_TEXT)]
    ids = sum((tokenizer.encode(text).ids + end for text in books.values()), [])
    print(f"{sum(map(len, books.values()))} bytes, {len(ids)} tokens to train on")
    model = train(torch.tensor(ids), asked.state, 60 * asked.minutes)
    if model is not None:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{parameters} parameters")
        write(model, tokenizer, held_out)


if __name__ == "__main__":
    main()
