"""The tiny world's problems: reasoning-gym's items, asked briefly, in splits that share no question.

A question belongs to a split by its own hash, so no choice of seeds or sizes can move one across. (Seeds
alone would not do: item i of reasoning-gym's seed s is about item i-1 of seed s+1.)
"""

from __future__ import annotations

import hashlib

from agentrl.types import Task
from agentrl.world.families import FAMILIES, Family

SPLITS = ("train", "validation", "test")
_SEED_STRIDE = 1_000_003  # wider than any set: neighbouring reasoning-gym seeds overlap


def split_of(question: str) -> str:
    """The split that `question` belongs to: of 10 hash classes 8 train, 1 validates, 1 tests."""
    bucket = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 10
    return {8: "validation", 9: "test"}.get(bucket, "train")


def load(families: list[str], split: str, limit: int, seed: int) -> list[Task]:
    """`limit` problems of `split`, the families in turn, no question twice.

    Raises ValueError on an unknown family or split, or where a family has too few problems.
    """
    unknown = [f for f in families if f not in FAMILIES]
    if unknown or not families:
        raise ValueError(f"unknown task families {unknown}; known: {', '.join(FAMILIES)}")
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    families = list(dict.fromkeys(families))
    share = -(-limit // len(families))
    columns = [_family_tasks(FAMILIES[f], split, share, seed) for f in families]
    return [columns[i % len(families)][i // len(families)] for i in range(limit)]


def _family_tasks(family: Family, split: str, n: int, seed: int) -> list[Task]:
    import reasoning_gym

    tasks: dict[str, Task] = {}
    for attempt in range(40):
        items = reasoning_gym.create_dataset(
            family.name, seed=(seed * 40 + attempt) * _SEED_STRIDE, size=max(200, 4 * n), **family.settings
        )
        for item in items:
            numbers = family.numbers(item["metadata"])
            if numbers is None:
                continue
            question = family.question.format(**numbers)
            if split_of(question) == split and question not in tasks:
                name = hashlib.sha256(question.encode()).hexdigest()[:10]
                tasks[question] = Task(
                    f"{family.name}-{name}",
                    family.name,
                    question,
                    item["answer"],
                    "math",
                    {"numbers": numbers},
                )
        if len(tasks) >= n:
            return list(tasks.values())[:n]
    raise ValueError(
        f"family {family.name} has only {len(tasks)} problems in split {split}, {n} were asked for"
    )
