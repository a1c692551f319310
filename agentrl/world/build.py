"""Pre-training the tiny base models: `python -m agentrl.world.build strong` (twenty minutes on one core) or `weak`
(three), which has the same shape and less training.

The loss is on predictable tokens alone: the repeated half of a copying document, and the assistant's turns.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import re
import time
from dataclasses import asdict
from pathlib import Path

from agentrl.world import text, tokenizer
from agentrl.world.base import BASES, FOLDER, BaseConfig, new_model
from agentrl.world.families import FAMILIES

MAX_DOCUMENT_TOKENS = 192


def question_patterns() -> list[re.Pattern]:
    """One pattern a family that matches every question the family can ask."""
    patterns = []
    for family in FAMILIES.values():
        pieces = re.split(r"\{\w+\}", family.question)
        patterns.append(re.compile(r"[-+*\d ]+".join(map(re.escape, pieces))))
    return patterns


def documents(seed: int):
    """The endless stream of base documents. Raises ValueError if one holds any task's question."""
    rng, patterns = random.Random(seed), question_patterns()
    while True:
        doc = text.document(rng)
        for turn in [doc] if isinstance(doc, str) else [m["content"] for m in doc]:
            if any(p.search(turn) for p in patterns):
                raise ValueError(f"base text holds a task's question: {turn!r}")
        yield doc


def encode(doc, tok) -> tuple[list[int], list[int]]:
    """Token ids and labels (-100 where there is no loss) of one document."""
    from agentrl.chat import TOOLS, render

    if isinstance(doc, str):
        first, second = doc.split(" = ")
        head = tok.encode(f"{first} =")
        tail = tok.encode(f" {second}") + [tok.eos_token_id]
        return head + tail, [-100] * len(head) + tail
    ids, mask = render(doc, TOOLS, tok, add_generation_prompt=False)
    return ids, [i if m else -100 for i, m in zip(ids, mask, strict=True)]


def packed_rows(config: BaseConfig, tok, seed: int):
    """Endless (input_ids, labels) rows of MAX_DOCUMENT_TOKENS, whole documents each, padded at the end."""
    ids, labels = [], []
    for doc in documents(seed):
        more_ids, more_labels = encode(doc, tok)
        if len(more_ids) > MAX_DOCUMENT_TOKENS:
            continue
        if len(ids) + len(more_ids) > MAX_DOCUMENT_TOKENS:
            gap = MAX_DOCUMENT_TOKENS - len(ids)
            yield ids + [tok.pad_token_id] * gap, labels + [-100] * gap
            ids, labels = [], []
        ids, labels = ids + more_ids, labels + more_labels


def token_accuracy(model, tok, config: BaseConfig, n_rows: int = 128, seed: int = 10_000_019) -> float:
    """Share of predictable tokens that the likeliest guess gets right, on documents never trained on. Some can't
    be guessed (whether a thought comes first), so it stays below 1."""
    import torch

    rows = packed_rows(config, tok, seed)
    right = total = 0
    for _ in range(n_rows // 16):
        ids, labels = (torch.tensor(x) for x in zip(*(next(rows) for _ in range(16)), strict=True))
        with torch.no_grad():
            guess = model(input_ids=ids).logits[:, :-1].argmax(-1)
        known = labels[:, 1:] != -100
        right += (guess[known] == labels[:, 1:][known]).sum().item()
        total += known.sum().item()
    return right / total


def task_accuracy(model, tok, limit: int = 72, samples: int = 4) -> float:
    """average@k on validation questions (temperature 1, top_p 1), before any fine-tuning."""
    from agentrl.config import load_profile
    from agentrl.data import load_tasks
    from agentrl.policy import HFPolicy
    from agentrl.rollout import collect
    from agentrl.sandbox import Sandbox

    profile = load_profile("tiny")
    tasks = load_tasks(profile.tasks.source, "validation", limit)
    with Sandbox() as sandbox:
        groups = collect(HFPolicy(model, tok), tasks, sandbox, samples, profile.rollout, 0)
    right = [t.reward.parts.get("outcome", 0) > 0 for g in groups for t in g.trajectories]
    return sum(right) / len(right)


def train(config: BaseConfig, tok, progress=print):
    """Pre-train one base model on one thread; returns it in float32 with its last losses' mean (nats)."""
    import torch

    torch.set_num_threads(1)  # the sum order of two threads would change the weights from machine to machine
    model = new_model(config, len(tok))
    for settings in (model.config, model.generation_config):
        settings.eos_token_id, settings.pad_token_id = tok.eos_token_id, tok.pad_token_id
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in named if p.ndim != 2 or "embed" in n]
    # In 375 steps Muon reached a loss of 0.06 where AdamW stood at 0.26.
    optimisers = [
        torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=config.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    rates = (config.muon_lr, config.adamw_lr)
    rows, losses, started = packed_rows(config, tok, config.seed), [], time.monotonic()
    for step in range(config.steps):
        factor = min(1.0, (step + 1) / config.warmup) * (1 - step / config.steps)
        for optimiser, rate in zip(optimisers, rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * factor
        ids, labels = (torch.tensor(x) for x in zip(*(next(rows) for _ in range(config.rows)), strict=True))
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            took = time.monotonic() - started
            left = took / (step + 1) * (config.steps - step - 1)
            mean = sum(losses[-50:]) / 50
            progress(f"base step {step + 1}/{config.steps}  loss {mean:.4f}  {took:.0f} s, {left:.0f} s left")
    return model, sum(losses[-50:]) / len(losses[-50:])


def build(name: str, folder: Path, config: BaseConfig, progress=print) -> dict:
    """Train base `name`, write it to `folder` in bfloat16 and return its provenance (also written there)."""
    import torch
    import transformers

    tok = tokenizer.load()
    started = time.monotonic()
    model, loss = train(config, tok, progress)
    model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    model = model.to(torch.float32)
    provenance = {
        "name": name,
        "command": f"python -m agentrl.world.build {name}",
        "config": asdict(config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "loss_nats": round(loss, 5),
        "held_out_token_accuracy": round(token_accuracy(model, tok, config), 5),
        "validation_task_accuracy": round(task_accuracy(model, tok), 5),
        "seconds": round(time.monotonic() - started),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")
    return provenance


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m agentrl.world.build", description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=BASES)
    parser.add_argument("--out", type=Path, help="folder to write to (default: the committed one)")
    args = parser.parse_args(argv)
    print(json.dumps(build(args.name, args.out or FOLDER / args.name, BASES[args.name]), indent=1))


if __name__ == "__main__":
    main()
