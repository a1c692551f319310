"""GRPO with a code interpreter (paper, section 2): TRL's GRPOTrainer with our rollouts, groups and loss.

TRL keeps the loop, the prompt order, the optimiser and gradient accumulation. Three things are ours, each a
pure function elsewhere: a batch of rollouts (`rollout.collect`), advantages and loss (`losses`). One RL step
is one batch of rollouts and `updates` optimiser steps on it. Groups without spread carry no gradient, so
they are counted in the token mean's denominator but never run through the model.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import tempfile
import time
import warnings
from pathlib import Path

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agentrl import losses, records
from agentrl.progress import Progress
from agentrl.rollout import collect
from agentrl.settings import Recipe, RLSettings, RolloutConfig, TaskConfig, build
from agentrl.train import models
from agentrl.train.sft import check_finite, quiet
from agentrl.types import Trajectory, TrajectoryGroup

LOSS_STATS = (
    "clip_fraction_high",
    "clip_fraction_low",
    "clip_fraction_dual",
    "ratio_mean",
    "kl_old",
    "entropy_trained",
)


class AgenticGRPOTrainer(GRPOTrainer):
    """GRPOTrainer over trajectories. `sample(tasks, step)` gives one `TrajectoryGroup` a task, and
    `after_step(trainer)` is called when a step's last update is done and its row written."""

    def __init__(self, model, tokenizer, tasks, sample, recipe, settings, args: GRPOConfig, after_step=None):
        self.tasks, self.sample, self.recipe, self.rl = tasks, sample, recipe, settings
        self.after_step = after_step
        self.groups: list[TrajectoryGroup] = []  # the rollouts of the step under way
        self.rows: list[dict] = []  # one metrics row a step
        self._parts: list[dict] = []  # loss statistics of the step's forward passes
        self._optimiser_logs: list[dict] = []
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")
        super().__init__(
            model=model,
            reward_funcs=_reward_of_rollout,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": t.prompt, "task": i} for i, t in enumerate(tasks)]),
            processing_class=tokenizer,
            rollout_func=_rollouts,
        )
        # TRL would read a reference model again from its folder; the start model is at hand.
        self.reference = copy.deepcopy(model).eval().requires_grad_(False) if recipe.kl_beta else None

    def _prepare_inputs(self, rows):
        """The next micro-batch; a new batch of rollouts where the last one is used up."""
        at = self._step % self.args.steps_per_generation
        if at == 0:
            started = time.monotonic()
            step = self._step // self.args.steps_per_generation
            self.groups = self.rollout_func(rows, self)
            self._rollout_s = time.monotonic() - started
            self._train_started = time.monotonic()
            self._micro_batches, self._zero_spread = self._micro_batches_of(self.groups)
            self._parts, self._optimiser_logs = [], []
            self._rl_step = step + 1
        return self._micro_batches[at]

    def _micro_batches_of(self, groups: list[TrajectoryGroup]) -> tuple[list[dict], float]:
        """Every update's micro-batches, and the share of groups without spread."""
        rewards_NxG = torch.tensor([[t.reward.total for t in g.trajectories] for g in groups])
        advantages_NxG = losses.group_advantages(rewards_NxG)
        flat = (advantages_NxG == 0).all(1).float().mean().item()
        per_update = len(groups) // self.rl.updates
        n_micro = self.args.gradient_accumulation_steps
        batches = []
        for u in range(self.rl.updates):
            chosen = slice(u * per_update, (u + 1) * per_update)
            pairs = [
                (t, a.item())
                for g, row in zip(groups[chosen], advantages_NxG[chosen], strict=True)
                for t, a in zip(g.trajectories, row, strict=True)
                if not math.isnan(t.reward.total)  # lost by the machine: trained on nowhere
            ]
            if self.recipe.aggregation == "token":
                denominator = sum(t.n_sampled for t, _ in pairs)
            else:
                denominator = sum(t.n_sampled > 0 for t, _ in pairs)
            # Without KL a zero advantage means a zero gradient; sorted lengths keep padding small.
            kept = [(t, a) for t, a in pairs if a or self.recipe.kl_beta]
            kept.sort(key=lambda pair: len(pair[0].prompt_ids) + len(pair[0].completion_ids))
            size = -(-len(kept) // n_micro)
            for m in range(n_micro):
                batches.append(self._tensors(kept[m * size : (m + 1) * size], denominator))
        return batches, flat

    def _tensors(self, pairs: list[tuple[Trajectory, float]], denominator: int) -> dict:
        """Padded tensors of one micro-batch; old and reference log-probabilities where they are needed."""
        device = self.model.device
        if not pairs:
            return {"denominator": denominator, "ids_BxL": None}
        sequences = [t.prompt_ids + t.completion_ids for t, _ in pairs]
        length = max(map(len, sequences))
        ids = torch.full((len(pairs), length), self.processing_class.pad_token_id)
        attention, mask = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, ((t, _), sequence) in enumerate(zip(pairs, sequences, strict=True)):
            ids[i, : len(sequence)] = torch.tensor(sequence)
            attention[i, : len(sequence)] = 1
            mask[i, len(t.prompt_ids) : len(sequence)] = torch.tensor(t.sampled_mask)
        batch = {
            "denominator": denominator,
            "ids_BxL": ids.to(device),
            "attention_BxL": attention.to(device),
            "mask_BxT": mask[:, 1:].to(device),  # position t of the logits predicts token t + 1
            "advantages_B": torch.tensor([a for _, a in pairs], device=device),
        }
        with torch.no_grad():
            if self.rl.updates > 1:
                batch["old_BxT"] = _token_logprobs(self.model, batch)[0]
            if self.reference is not None:
                batch["reference_BxT"] = _token_logprobs(self.reference, batch)[0]
        return batch

    def _compute_loss(self, model, batch):
        if batch["ids_BxL"] is None:  # every group of this micro-batch was without spread
            return sum(p.sum() for p in model.parameters()) * 0.0
        logprobs_BxT, entropy = _token_logprobs(model, batch)
        loss, stats = losses.policy_loss(
            logprobs_BxT,
            batch.get("old_BxT", logprobs_BxT.detach()),
            batch["advantages_B"],
            batch["mask_BxT"],
            self.recipe,
            batch.get("reference_BxT"),
            denominator=batch["denominator"],
        )
        self._parts.append(stats | {"entropy_trained": entropy, "loss": loss.item()})
        return loss

    def log(self, logs, start_time=None):
        """Keep the optimiser's numbers; a row is written when the step's last update is done."""
        if "grad_norm" not in logs:
            return
        check_finite(self._rl_step, loss=logs["loss"], grad_norm=logs["grad_norm"])
        self._optimiser_logs.append(logs)
        if len(self._optimiser_logs) == self.rl.updates:
            self.rows.append(self._row())
            if self.after_step:
                self.after_step(self)

    def _row(self) -> dict:
        import pandas as pd

        frame = pd.DataFrame(records.rows(self.groups, self._rl_step))
        row = {"step": self._rl_step} | records.summary(frame)
        # At temperature 1 the mean surprise of the drawn tokens is an unbiased estimate of the entropy.
        row["entropy"] = (
            -(frame["logprob_mean"] * frame["sampled_tokens"]).sum() / frame["sampled_tokens"].sum()
        )
        row["zero_spread_groups"] = self._zero_spread
        weights = [p["n_units"] for p in self._parts]
        row["loss"] = sum(p["loss"] for p in self._parts)
        for name in LOSS_STATS:  # NaN where every group was without spread, and so nothing was run
            weighed = sum(p[name] * w for p, w in zip(self._parts, weights, strict=True))
            row[name] = weighed / sum(weights) if sum(weights) else float("nan")
        row["grad_norm"] = sum(x["grad_norm"] for x in self._optimiser_logs) / len(self._optimiser_logs)
        row["lr"] = self._optimiser_logs[-1]["learning_rate"]
        row["rollout_s"], row["train_s"] = self._rollout_s, time.monotonic() - self._train_started
        return row


def _rollouts(rows: list[dict], trainer: AgenticGRPOTrainer) -> list[TrajectoryGroup]:
    """TRL's `rollout_func`: TRL repeats each prompt G times in a row; one group a prompt is sampled."""
    tasks = [trainer.tasks[row["task"]] for row in rows[:: trainer.num_generations]]
    return trainer.sample(tasks, trainer._step // trainer.args.steps_per_generation + 1)


def _reward_of_rollout(**kwargs):
    """TRL insists on a reward function; rewards come with the rollouts."""
    raise RuntimeError("rewards are part of the rollouts; this is never called")


def _token_logprobs(model, batch: dict) -> tuple[torch.Tensor, float]:
    """Log-probabilities (B x T, nats, 0 where masked) of the sampled tokens, and their mean entropy.

    Only sampled positions go through the output layer, so the vocabulary axis is built for those alone.
    """
    mask_BxT = batch["mask_BxT"].bool()
    hidden = model.base_model(
        input_ids=batch["ids_BxL"], attention_mask=batch["attention_BxL"], use_cache=False
    )
    logits_MxV = model.get_output_embeddings()(hidden.last_hidden_state[:, :-1][mask_BxT]).float()
    log_softmax_MxV = torch.log_softmax(logits_MxV, -1)
    drawn_M = log_softmax_MxV.gather(1, batch["ids_BxL"][:, 1:][mask_BxT][:, None])[:, 0]
    logprobs_BxT = torch.zeros(mask_BxT.shape, device=drawn_M.device).masked_scatter(mask_BxT, drawn_M)
    with torch.no_grad():
        entropy = losses.token_entropy(logits_MxV.detach()[None], torch.ones(1, len(drawn_M))).item()
    return logprobs_BxT, entropy


def grpo_config(settings, recipe, rollout, seed: int, scratch: str, on_cpu: bool) -> GRPOConfig:
    """TRL's settings for a profile's rl part. Raises ValueError where micro-batches don't fill an update."""
    per_update = settings.prompts * settings.group // settings.updates
    if per_update % settings.micro_batch:
        raise ValueError(
            f"rl.micro_batch {settings.micro_batch} must divide the {per_update} trajectories of an update"
        )
    n_micro = per_update // settings.micro_batch
    return GRPOConfig(
        output_dir=scratch,
        max_steps=settings.steps * settings.updates,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=n_micro,
        steps_per_generation=n_micro * settings.updates,
        num_generations=settings.group,
        max_completion_length=rollout.max_tokens,
        temperature=rollout.temperature,
        epsilon=recipe.clip_low,
        epsilon_high=recipe.clip_high,
        beta=0.0,  # the KL term is in our loss
        learning_rate=settings.lr,
        lr_scheduler_type="constant",
        max_grad_norm=settings.grad_clip,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=on_cpu,
        seed=seed,
    )


def train(
    model, tokenizer, tasks, sample, recipe, settings, rollout, seed: int, after_step=None
) -> list[dict]:
    """Train `model` in place; returns one metrics row a step. `after_step(trainer)` runs after each."""
    with tempfile.TemporaryDirectory() as scratch:
        args = grpo_config(settings, recipe, rollout, seed, scratch, model.device.type == "cpu")
        trainer = AgenticGRPOTrainer(model, tokenizer, tasks, sample, recipe, settings, args, after_step)
        quiet(trainer)
        trainer.train()
    if len(trainer.rows) != settings.steps:
        raise RuntimeError(
            f"{len(trainer.rows)} of {settings.steps} RL steps were made: too few training tasks?"
        )
    return trainer.rows


def run(config, folder: Path, inputs) -> dict:
    """Maker of an "rl" run: GRPO from the fine-tuned model, looking at the validation split as it goes."""
    import pandas as pd

    from agentrl.data import assert_disjoint, load_tasks
    from agentrl.policy import HFPolicy
    from agentrl.sandbox import Sandbox

    values = config.values
    recipe, settings = build(Recipe, values, "recipe."), build(RLSettings, values, "rl.")
    task_settings, rollout = build(TaskConfig, values, "tasks."), build(RolloutConfig, values, "rollout.")
    if not recipe.overlong:
        reward = dataclasses.replace(rollout.reward, overlong_cache_tokens=0)
        rollout = dataclasses.replace(rollout, reward=reward)
    models.prepare(config.seed, values["threads"])
    model, tokenizer = models.load(str(inputs["model"].folder / "model"))
    tasks = load_tasks(task_settings.source, "train", task_settings.train, config.seed)
    held_out = load_tasks(task_settings.source, "validation", settings.eval_tasks, 0)
    assert_disjoint(train=tasks, validation=held_out)
    policy = HFPolicy(model, tokenizer, max_rows=settings.prompts * settings.group)
    say, looks, drawn = Progress("rl", settings.steps, "step"), [], []
    with Sandbox() as sandbox:

        def sample(tasks_of_step, step):
            seed = sample_seed(config.seed, "train", step)
            with models.threads(1):
                return collect(policy, tasks_of_step, sandbox, settings.group, rollout, seed)

        def look(step):
            seed = sample_seed(config.seed, "validation", step)
            plain = dataclasses.replace(rollout, temperature=1.0, top_p=1.0)
            with models.threads(1):
                groups = collect(policy, held_out, sandbox, settings.eval_samples, plain, seed)
            looks.extend(records.rows(groups, step))

        def after_step(trainer):
            row = trainer.rows[-1]
            drawn.extend(records.rows(trainer.groups, row["step"]))
            if row["step"] % settings.eval_every == 0 or row["step"] == settings.steps:
                look(row["step"])
            say(
                row["step"],
                note=f"reward {row['reward']:+.2f}  accuracy {row['accuracy']:.2f}  calls {row['calls']:.1f}",
            )

        look(0)
        metrics = train(model, tokenizer, tasks, sample, recipe, settings, rollout, config.seed, after_step)
    for name, rows in (("metrics", metrics), ("rollouts", drawn), ("validation", looks)):
        pd.DataFrame(rows).to_parquet(folder / f"{name}.parquet")
    models.save(model, tokenizer, folder / "model")
    lost = sum(r["stop_reason"] == "sandbox_lost" for r in drawn)
    return {"lost_samples": lost, "isolation_level": sandbox.level}


def sample_seed(seed: int, purpose: str, step: int) -> int:
    """A seed for one batch of rollouts, a function of the run's seed, what it is for and the step."""
    text = f"{seed}/{purpose}/{step}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
