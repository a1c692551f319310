"""Trajectories as rows of a table, and back: what a run saves so that any figure can be made again."""

from __future__ import annotations

import json
from dataclasses import asdict

from agentrl.rewards import extract_answer, last_turn
from agentrl.types import (
    MalformedCall,
    Reward,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
)

FAILED = ("ERROR", "TIMEOUT", "CPU_LIMIT", "OOM", "OUTPUT_LIMIT", "SIGNALED")


def rows(groups: list[TrajectoryGroup], step: int) -> list[dict]:
    """One row a trajectory: what figures count, and the trajectory itself."""
    return [_row(t, group, step, sample) for group in groups for sample, t in enumerate(group.trajectories)]


def _row(t: Trajectory, group: TrajectoryGroup, step: int, sample: int) -> dict:
    parts = t.reward.parts if t.reward else {}
    statuses = [r.status for r in t.tool_results]
    return {
        "step": step,
        "task_id": t.task_id,
        "source": group.task.source,
        "sample": sample,
        "reward": t.reward.total if t.reward else float("nan"),
        "correct": parts.get("outcome", 0.0) > 0,
        "answer": extract_answer(last_turn(t)),  # of the text that was graded
        "stop_reason": t.stop_reason.value,
        "calls": t.n_calls,
        "failed_calls": sum(s in FAILED for s in statuses),
        "malformed_calls": sum(isinstance(c, MalformedCall) for c in t.tool_calls),
        "turns": sum(m["role"] == "assistant" for m in t.messages),
        "sampled_tokens": t.n_sampled,
        "completion_tokens": len(t.completion_ids),
        "logprob_mean": sum(t.logprobs) / max(1, t.n_sampled),
        "reward_parts": json.dumps(t.reward.parts if t.reward else None),
        "messages": json.dumps(t.messages),
        "tool_calls": json.dumps([asdict(c) for c in t.tool_calls]),
        "tool_results": json.dumps([asdict(r) for r in t.tool_results]),
        "prompt_ids": list(t.prompt_ids),
        "completion_ids": list(t.completion_ids),
        "sampled_mask": list(t.sampled_mask),
        "logprobs": list(t.logprobs),
        "token_texts": list(t.token_texts),
    }


def trajectory(row) -> Trajectory:
    """The trajectory that `row` (a mapping with the columns of `rows`) was made from."""
    calls = [ToolCall(**c) if "name" in c else MalformedCall(**c) for c in json.loads(row["tool_calls"])]
    parts = json.loads(row["reward_parts"])
    return Trajectory(
        task_id=row["task_id"],
        messages=tuple(json.loads(row["messages"])),
        prompt_ids=tuple(int(i) for i in row["prompt_ids"]),
        completion_ids=tuple(int(i) for i in row["completion_ids"]),
        sampled_mask=tuple(int(i) for i in row["sampled_mask"]),
        logprobs=tuple(float(x) for x in row["logprobs"]),
        tool_calls=tuple(calls),
        tool_results=tuple(ToolResult(**r) for r in json.loads(row["tool_results"])),
        reward=None if parts is None else Reward(float(row["reward"]), parts),
        stop_reason=StopReason(row["stop_reason"]),
        token_texts=tuple(row["token_texts"]),
    )


def summary(table) -> dict[str, float]:
    """Means over a frame of rows, for training curves. Samples that the machine lost count in `lost` alone."""
    lost = table["stop_reason"] == "sandbox_lost"
    table = table[~lost]
    calls = table["calls"].sum()
    return {
        "accuracy": table["correct"].mean(),
        "reward": table["reward"].mean(),
        "calls": table["calls"].mean(),
        "call_success": 1 - table["failed_calls"].sum() / calls if calls else float("nan"),
        "malformed_calls": table["malformed_calls"].mean(),
        "turns": table["turns"].mean(),
        "sampled_tokens": table["sampled_tokens"].mean(),
        "truncated": (table["stop_reason"] == "max_tokens").mean(),
        "lost": lost.mean(),
    }
