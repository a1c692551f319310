"""The shapes of settings: frozen dataclasses, and building them from plain values with checked types.

Apart from `config`, which holds the numbers, so that a run depends on its own values and not on every profile.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """What the policy loss does (paper, section 2.3, App. A.1). A variant is a `dataclasses.replace`.

    `dual_clip` bounds the ratio where the advantage is negative (10 in the released code; None is off).
    `overlong` switches Eq. 9's length penalty on.
    """

    name: str
    aggregation: Literal["token", "sequence"]
    clip_low: float
    clip_high: float
    kl_beta: float
    overlong: bool
    dual_clip: float | None


@dataclass(frozen=True)
class RewardConfig:
    """Eq. 8's variant, and Eq. 9's lengths in tokens; `overlong_cache_tokens` 0 switches Eq. 9 off."""

    variant: Literal["paper", "released", "outcome"]
    overlong_max_tokens: int
    overlong_cache_tokens: int
    count_tool_tokens: bool  # whether tool output counts towards a response's length


@dataclass(frozen=True)
class RolloutConfig:
    """One conversation's budgets and how the policy samples in it."""

    max_turns: int  # assistant messages
    max_tokens: int  # completion tokens, tool output included
    temperature: float
    top_p: float
    tool_timeout_s: float
    tool_cpu_s: float
    tool_memory_mb: int
    tool_budget_s: float  # wall time of all of a conversation's calls
    max_tool_output_chars: int  # cut in the middle (verl's default is 256)
    tool_error_lines: int  # how much of a traceback the model reads: its last lines (0: all of it)
    reward: RewardConfig | None


@dataclass(frozen=True)
class TaskConfig:
    """Which problems, and how many a split. Splits share no question."""

    source: str
    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class TeacherConfig:
    """How many trajectories the teacher writes."""

    trajectories: int


@dataclass(frozen=True)
class SFTSettings:
    """Supervised fine-tuning on assistant tokens."""

    steps: int
    batch: int  # trajectories a step
    lr: float
    warmup: int
    grad_clip: float


@dataclass(frozen=True)
class RLSettings:
    """GRPO: a step is one batch of rollouts and `updates` optimiser steps on it."""

    steps: int
    prompts: int  # prompts a step
    group: int  # G, rollouts a prompt
    updates: int
    lr: float
    grad_clip: float
    micro_batch: int  # trajectories a forward pass
    eval_every: int  # steps between looks at the validation split
    eval_tasks: int
    eval_samples: int


@dataclass(frozen=True)
class EvalSettings:
    """The benchmark: samples a problem, and how they are drawn."""

    samples: int
    temperature: float
    top_p: float


@dataclass(frozen=True)
class Profile:
    """Everything that decides a run, at one scale."""

    name: str
    seed: int
    base: str
    threads: int  # torch threads a process
    tasks: TaskConfig
    teacher: TeacherConfig
    sft: SFTSettings
    rollout: RolloutConfig
    rl: RLSettings
    recipe: Recipe
    eval: EvalSettings
    overrides: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)


def build(cls: type, values: dict[str, Any], prefix: str = ""):
    """A `cls` (a dataclass) from the dotted keys of `values` under `prefix`. Raises ValueError on a wrong type."""
    hints, kwargs = typing.get_type_hints(cls), {}
    for f in dataclasses.fields(cls):
        key, kind = f"{prefix}{f.name}", hints[f.name]
        nested = [t for t in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(t)]
        kwargs[f.name] = build(nested[0], values, key + ".") if nested else _coerce(key, values[key], kind)
    return cls(**kwargs)


def _coerce(key: str, value: Any, kind: Any) -> Any:
    """`value` as `kind`, or a ValueError that names the key. An int is a float; a bool is no number."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value in options:
            return value
        raise ValueError(f"{key}: {value!r} is not one of {', '.join(map(repr, options))}")
    if origin is dict:
        return dict(value)
    if type(None) in options:
        if value is None:
            return None
        kind = options[0]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key}: expected {kind.__name__}, got {value!r}")
    return value


def flatten(value, prefix: str = "") -> dict[str, Any]:
    """A dataclass as dotted keys and plain values: what `build` reads."""
    if not dataclasses.is_dataclass(value):
        return {prefix: value}
    out = {}
    for f in dataclasses.fields(value):
        if f.name != "overrides":
            out |= flatten(getattr(value, f.name), f"{prefix}.{f.name}" if prefix else f.name)
    return out
