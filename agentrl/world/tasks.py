"""The tiny world's problems: reasoning-gym's items, asked briefly."""

from __future__ import annotations

from agentrl import gym
from agentrl.types import Task
from agentrl.world.families import FAMILIES

SPLITS = gym.SPLITS


def load(families: list[str], split: str | None, limit: int, seed: int) -> list[Task]:
    """`limit` problems of `split`, the families in turn, no question twice.

    Raises ValueError on an unknown family or split, or where a family has too few problems.
    """
    unknown = [f for f in families if f not in FAMILIES]
    if unknown or not families:
        raise ValueError(f"unknown task families {unknown}; known: {', '.join(FAMILIES)}")
    settings = {name: FAMILIES[name].settings for name in families}
    return gym.load(families, split, limit, seed, _ask, settings)


def _ask(name: str, item: dict) -> tuple[str, dict] | None:
    numbers = FAMILIES[name].numbers(item["metadata"])
    return numbers and (FAMILIES[name].question.format(**numbers), {"numbers": numbers})
