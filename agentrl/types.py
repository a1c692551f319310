"""The nouns: tasks, calls, results, rewards, trajectories. Read this file first.

Everything here is a frozen dataclass of plain Python values. Nothing imports torch, so a figure, a
notebook or a test can hold a trajectory without loading a model.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


@dataclass(frozen=True)
class TestCase:
    """One test of a code problem: what the program reads and what it must print."""

    __test__ = False  # a noun, not a pytest class

    stdin: str
    expected: str
    kind: Literal["stdin", "call", "assert"] = "stdin"


@dataclass(frozen=True)
class Task:
    """One problem. `gold` is the reference answer: text, or a tuple of `TestCase` where `kind` is "code"."""

    id: str
    source: str
    prompt: str
    gold: str | tuple[TestCase, ...]
    kind: Literal["math", "code", "science", "choice"] = "math"
    meta: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ToolCall:
    """A call that could be read. `arguments` is an object; `raw` is the text between the tags."""

    name: str
    arguments: dict[str, Any]
    raw: str


@dataclass(frozen=True)
class MalformedCall:
    """A call that could not be read. `problem` is one sentence, and the model is shown it."""

    raw: str
    problem: str


@dataclass(frozen=True)
class ToolResult:
    """What became of a call. `text` is exactly what the model read; `wall_s` is seconds."""

    status: str
    stdout: str
    stderr: str
    wall_s: float
    level: str
    text: str


class StopReason(StrEnum):
    """Why a trajectory ended. Every trajectory has exactly one."""

    ANSWERED = "answered"  # an end token and no call, boxed or not
    MAX_TURNS = "max_turns"  # a turn is one assistant message; the last allowed turn's call isn't run
    MAX_TOKENS = "max_tokens"  # the completion budget, tool tokens included, is spent
    MALFORMED_CALL = "malformed_call"  # only where the released behaviour is switched on
    TOOL_TIME = "tool_time"  # the tool's time budget is spent
    SANDBOX_LOST = "sandbox_lost"  # the machine's fault: never trained on


@dataclass(frozen=True)
class Reward:
    """A reward and its named shares; the shares sum to `total`."""

    total: float
    parts: dict[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Trajectory:
    """One sampled conversation, with the tokens as they were drawn.

    `completion_ids`, `sampled_mask`, `logprobs` and (where kept) `token_texts` have one entry a completion
    token. `sampled_mask` is 1 where the policy drew the token and 0 where the environment wrote it;
    `logprobs` are natural logarithms at temperature 1, and 0.0 where the environment wrote. Assistant
    `content` in `messages` is the raw text drawn, calls included.
    """

    task_id: str
    messages: tuple[dict[str, Any], ...]
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampled_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    tool_calls: tuple[ToolCall | MalformedCall, ...]
    tool_results: tuple[ToolResult, ...]
    reward: Reward | None
    stop_reason: StopReason
    token_texts: tuple[str, ...] = ()

    @property
    def n_calls(self) -> int:
        """Programs that were run: n in Eq. 8. Refused and malformed calls earn nothing."""
        return sum(r.status not in ("REFUSED", "MALFORMED") for r in self.tool_results)

    @property
    def n_sampled(self) -> int:
        """Tokens that the policy drew."""
        return sum(self.sampled_mask)

    def _repr_html_(self) -> str:
        # By name, so that display is no part of what decides a run (`runs.source_digests` reads imports).
        return importlib.import_module("agentrl.show").trajectory_html(self)


@dataclass(frozen=True)
class TrajectoryGroup:
    """The G trajectories of one task: the unit over which Eq. 3 normalises."""

    task: Task
    trajectories: tuple[Trajectory, ...]
