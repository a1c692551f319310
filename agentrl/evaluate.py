"""Evaluation: sample k trajectories a problem and keep every one; metrics are computed from the rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from agentrl import metrics, records
from agentrl.progress import Progress
from agentrl.rollout import collect
from agentrl.settings import EvalSettings, RolloutConfig, TaskConfig, build
from agentrl.train import models


def run(config, folder: Path, inputs) -> dict:
    """Maker of an "eval" run: the input model (or the base) on one split."""
    import pandas as pd

    from agentrl.data import load_tasks
    from agentrl.policy import HFPolicy
    from agentrl.sandbox import Sandbox

    values = config.values
    tasks_config, settings = build(TaskConfig, values, "tasks."), build(EvalSettings, values, "eval.")
    rollout = build(RolloutConfig, values, "rollout.")
    rollout = dataclasses.replace(rollout, temperature=settings.temperature, top_p=settings.top_p)
    models.prepare(config.seed, values["threads"])
    source = str(inputs["model"].folder / "model") if "model" in inputs else values["base"]
    model, tokenizer = models.load(source)
    split = values["split"]
    # A split's problems are the same for every seed: seeds differ in training, never in the exam.
    tasks = load_tasks(tasks_config.source, split, getattr(tasks_config, split), 0)
    with Sandbox() as sandbox, models.threads(1):
        say = Progress(f"eval {config.name}", len(tasks) * settings.samples, "sample")
        groups = collect(
            HFPolicy(model, tokenizer), tasks, sandbox, settings.samples, rollout, config.seed, say
        )
    frame = pd.DataFrame(records.rows(groups, 0))
    frame.to_parquet(folder / "rollouts.parquet")
    return {
        "lost_samples": int((frame["stop_reason"] == "sandbox_lost").sum()),
        "isolation_level": sandbox.level,
    }


def matrices(frame) -> tuple[np.ndarray, np.ndarray]:
    """(correct_NxK, answers_NxK) of a frame of rollouts, problems sorted by id.

    A problem with a sample that the machine lost is left out: it has no K samples to speak of.
    """
    lost = frame.loc[frame["stop_reason"] == "sandbox_lost", "task_id"]
    frame = frame[~frame["task_id"].isin(lost)].sort_values(["task_id", "sample"])
    n = frame["task_id"].nunique()
    return (
        frame["correct"].to_numpy().reshape(n, -1),
        frame["answer"].astype(object).where(frame["answer"].notna(), None).to_numpy().reshape(n, -1),
    )


def scores(frame) -> dict[str, float]:
    """average@k, pass@k and maj@k over all k samples, each with a 95% interval over problems."""
    correct_NxK, answers_NxK = matrices(frame)
    k = correct_NxK.shape[1]
    per_problem = {
        "average": correct_NxK.mean(1),
        "pass": correct_NxK.any(1).astype(float),  # the unbiased estimator at k = K
        "maj": np.array(
            [
                metrics.maj_at_k(answers_NxK[i : i + 1], correct_NxK[i : i + 1])
                for i in range(len(correct_NxK))
            ]
        ),
    }
    out: dict[str, float] = {"problems": len(correct_NxK), "samples": k}
    for name, values_N in per_problem.items():
        low, high = metrics.bootstrap_ci(values_N)
        out |= {name: float(values_N.mean()), f"{name}_low": low, f"{name}_high": high}
    return out
