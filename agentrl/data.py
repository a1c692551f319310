"""Tasks and trajectories: loading them, and having a teacher write them."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl import gym, records
from agentrl.chat import TOOLS
from agentrl.progress import Progress
from agentrl.rollout import collect
from agentrl.settings import RolloutConfig, TaskConfig, build
from agentrl.types import Task, TrajectoryGroup


def load_tasks(source: str, split: str | None = None, limit: int | None = None, seed: int = 0) -> list[Task]:
    """Tasks from `source`, deterministic in (source, split, limit, seed); `limit` is 100 where none is given.

    `"reasoning-gym:gcd,lcm"` gives reasoning-gym's own questions, `"world:gcd,lcm"` the tiny world's short
    ones. Their splits "train", "validation" and "test" share no question; None takes from all. Raises
    ValueError on a source, dataset or split that is not known, or where there are too few problems.
    """
    kind, _, names = source.partition(":")
    families = [n.strip() for n in names.split(",") if n.strip()]
    limit = 100 if limit is None else limit
    if kind == "world":
        from agentrl.world import tasks

        return tasks.load(families, split, limit, seed)
    if kind == "reasoning-gym" and families:
        return gym.load(families, split, limit, seed)
    raise ValueError(f"unknown task source {source!r}; known: 'world:NAME,NAME', 'reasoning-gym:NAME,NAME'")


def assert_disjoint(**splits: list[Task]) -> None:
    """Raise ValueError where two splits share a question's text."""
    names = sorted(splits)
    questions = {name: {t.prompt.strip() for t in splits[name]} for name in names}
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if shared := questions[a] & questions[b]:
                raise ValueError(f"{a} and {b} share {len(shared)} questions, for example {min(shared)!r}")


def real_trajectories(
    teacher, tasks: list[Task], sandbox, config, seed: int, progress=None
) -> list[TrajectoryGroup]:
    """One trajectory a task, written by `teacher` (a policy) in conversation with the real interpreter."""
    return collect(teacher, tasks, sandbox, 1, config, seed, progress)


def run(config, folder: Path, inputs) -> dict:
    """Maker of a "data" run: the teacher's trajectories on training questions, as `messages` and `tools`."""
    import pandas as pd

    from agentrl.sandbox import Sandbox
    from agentrl.world import teacher, tokenizer

    values = config.values
    tasks_config, rollout = build(TaskConfig, values, "tasks."), build(RolloutConfig, values, "rollout.")
    tasks = load_tasks(tasks_config.source, "train", tasks_config.train, config.seed)
    held_out = {
        split: load_tasks(tasks_config.source, split, getattr(tasks_config, split), 0)
        for split in ("validation", "test")
    }
    assert_disjoint(train=tasks, **held_out)
    asked = [tasks[i % len(tasks)] for i in range(values["teacher.trajectories"])]
    with Sandbox() as sandbox:
        say = Progress("teacher", len(asked), "trajectory")
        groups = real_trajectories(
            teacher.teacher(tokenizer.load()), asked, sandbox, rollout, config.seed, say
        )
    frame = pd.DataFrame(records.rows(groups, 0))
    frame["tools"] = json.dumps(TOOLS)
    frame = frame[frame["stop_reason"] == "answered"]  # a cut-off conversation teaches no ending
    if len(frame) < len(groups) / 2:
        raise ValueError(
            f"only {len(frame)} of the teacher's {len(groups)} conversations reach an answer: raise "
            "rollout.max_turns or rollout.max_tokens"
        )
    frame.to_parquet(folder / "trajectories.parquet")
    return {"written": len(groups), "kept": len(frame), "isolation_level": sandbox.level}
