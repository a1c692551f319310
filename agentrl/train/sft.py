"""Supervised fine-tuning on a teacher's trajectories: TRL's SFTTrainer, loss on assistant tokens alone.

The paper fine-tunes for 5 epochs on 3,000 trajectories (App. A.1); a profile gives steps instead.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

from agentrl.chat import render
from agentrl.progress import Progress
from agentrl.settings import SFTSettings, build
from agentrl.train import models


def encode(rows: list[dict], tokenizer) -> list[dict]:
    """Rows of `messages` and `tools` as `input_ids` and `labels`; -100 wherever the policy would not draw."""
    encoded = []
    for row in rows:
        ids, mask = render(row["messages"], row["tools"], tokenizer, add_generation_prompt=False)
        labels = [i if m else -100 for i, m in zip(ids, mask, strict=True)]
        encoded.append({"input_ids": ids, "labels": labels})
    return encoded


def train(model, tokenizer, rows: list[dict], settings, seed: int, say=None) -> list[dict]:
    """Fine-tune `model` in place on `rows`; returns one metrics row a step: step, loss (nats), lr, grad_norm.

    `settings` is the profile's sft part; `say(done, note=...)` reports progress. Batches are random: batches
    of equal lengths would go together with the decision that a trajectory shows. Raises ValueError on no rows.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    if not rows:
        raise ValueError("there are no trajectories to fine-tune on")
    metrics: list[dict] = []

    class Record(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in logs:
                check_finite(state.global_step, loss=logs["loss"], grad_norm=logs["grad_norm"])
                kept = {"loss": logs["loss"], "lr": logs["learning_rate"], "grad_norm": logs["grad_norm"]}
                metrics.append({"step": state.global_step, **kept})
                if say:
                    say(state.global_step, note=f"loss {logs['loss']:.3f}")

    with tempfile.TemporaryDirectory() as scratch:
        args = SFTConfig(
            output_dir=scratch,
            max_steps=settings.steps,
            per_device_train_batch_size=settings.batch,
            learning_rate=settings.lr,
            warmup_steps=settings.warmup,
            lr_scheduler_type="linear",
            max_grad_norm=settings.grad_clip,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=model.device.type == "cpu",
            seed=seed,
        )
        trainer = SFTTrainer(
            model=model,
            args=args,
            train_dataset=Dataset.from_list(encode(rows, tokenizer)),
            processing_class=tokenizer,
            callbacks=[Record()],
        )
        quiet(trainer)
        trainer.train()
    return metrics


def check_finite(step: int, **numbers: float) -> None:
    """Raise FloatingPointError where training has broken down: what follows would be noise, kept as a result."""
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise FloatingPointError(
                f"{name} is {value} at step {step}: lower the learning rate or grad_clip"
            )


def quiet(trainer) -> None:
    """Take away the callback that prints a dictionary a step: `Progress` says the same in one line."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


def run(config, folder: Path, inputs) -> dict:
    """Maker of an "sft" run: fine-tune the base on the data run's trajectories."""
    import pandas as pd

    values = config.values
    settings = build(SFTSettings, values, "sft.")
    models.prepare(config.seed, values["threads"])
    model, tokenizer = models.load(values["base"])
    data = inputs["data"].frame("trajectories")
    rows = [
        {"messages": json.loads(row.messages), "tools": json.loads(row.tools)} for row in data.itertuples()
    ]
    metrics = train(model, tokenizer, rows, settings, config.seed, Progress("sft", settings.steps, "step"))
    pd.DataFrame(metrics).to_parquet(folder / "metrics.parquet")
    models.save(model, tokenizer, folder / "model")
    return {"trajectories": len(rows), "final_loss_nats": metrics[-1]["loss"]}
