"""Problems from reasoning-gym, in splits that share no question.

A question belongs to a split by its own hash, so no choice of seeds or sizes can move one across. (Seeds
alone would not do: item i of reasoning-gym's seed s is about item i-1 of seed s+1.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from agentrl.types import Task

SPLITS = ("train", "validation", "test")
_SEED_STRIDE = 1_000_003  # wider than any set: neighbouring seeds overlap
_ATTEMPTS = 40


def split_of(question: str) -> str:
    """The split that `question` belongs to: of 10 hash classes 8 train, 1 validates, 1 tests."""
    bucket = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 10
    return {8: "validation", 9: "test"}.get(bucket, "train")


def load(
    names: list[str],
    split: str | None,
    limit: int,
    seed: int,
    ask: Callable[[str, dict], tuple[str, dict] | None] | None = None,
    settings: dict[str, dict] | None = None,
) -> list[Task]:
    """`limit` problems of `split` (None: of any) from the datasets `names` in turn, no question twice.

    `ask(name, item)` gives (question, meta) in other words than reasoning-gym's, or None to leave an item
    out; `settings[name]` goes to the dataset. Raises ValueError on an unknown dataset or split, or where a
    dataset has too few problems.
    """
    from reasoning_gym.factory import DATASETS

    names = list(dict.fromkeys(names))
    if unknown := [n for n in names if n not in DATASETS]:
        raise ValueError(f"unknown reasoning-gym datasets {unknown}")
    if split is not None and split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    share = -(-limit // len(names))
    columns = [_draw(n, split, share, seed, ask or _as_asked, (settings or {}).get(n, {})) for n in names]
    return [columns[i % len(names)][i // len(names)] for i in range(limit)]


def _as_asked(name: str, item: dict) -> tuple[str, dict]:
    return item["question"], {}


def _draw(name: str, split: str | None, n: int, seed: int, ask, settings: dict) -> list[Task]:
    import reasoning_gym

    tasks: dict[str, Task] = {}
    for attempt in range(_ATTEMPTS):
        if len(tasks) >= n:
            break
        items = reasoning_gym.create_dataset(
            name, seed=(seed * _ATTEMPTS + attempt) * _SEED_STRIDE, size=max(200, 4 * n), **settings
        )
        for item in items:
            asked = ask(name, item)
            if asked is None:
                continue
            question, meta = asked
            if question not in tasks and split in (None, split_of(question)):
                digest = hashlib.sha256(question.encode()).hexdigest()[:10]
                tasks[question] = Task(f"{name}-{digest}", name, question, str(item["answer"]), "math", meta)
    if len(tasks) < n:
        where = f" in split {split}" if split else ""
        raise ValueError(f"{name} has only {len(tasks)} problems{where}, {n} were asked for")
    return list(tasks.values())[:n]
