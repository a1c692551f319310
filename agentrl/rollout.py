"""The conversation between a policy and the code interpreter (paper, Eq. 2).

`collect` samples `n_per_task` trajectories a task. Tokens are only ever appended: what the policy drew is
what it is trained on, and what the environment wrote is marked as such. While some rows are decoded, the
programs of others run; results are taken in the order in which they were asked for, so that the speed of
the tools never decides which tokens are drawn.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from agentrl.chat import TOOLS, parse_tool_calls, render, tool_suffix
from agentrl.policy.base import Sampling
from agentrl.rewards import score
from agentrl.types import (
    MalformedCall,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
)

TOOL_NAME = TOOLS[0]["function"]["name"]
KEPT_OUTPUT_CHARS = 2000  # of stdout and of stderr, in the record; what the model read is kept whole


class _Conversation:
    """One trajectory under way."""

    def __init__(self, task: Task, prompt_ids: list[int], seed: int):
        self.task, self.prompt_ids, self.seed = task, prompt_ids, seed
        self.messages = [{"role": "user", "content": task.prompt}]
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.calls: list[ToolCall | MalformedCall] = []
        self.results: list[ToolResult] = []
        self.turns, self.tool_wall_s = 0, 0.0

    def append(self, ids, logprobs=None) -> None:
        self.ids += ids
        self.mask += [int(logprobs is not None)] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)


class _Rounds:
    """A stream over a policy that has only `generate`: all waiting conversations are drawn together."""

    def __init__(self, policy, sampling: Sampling):
        self._policy, self._sampling = policy, sampling
        self._contexts: dict = {}  # key -> (ids so far, seed, length of the first prompt)
        self._waiting: list = []
        self._done: deque = deque()

    def put(self, key, token_ids, seed: int) -> None:
        ids, seed, first = self._contexts.get(key, ([], seed, len(token_ids)))
        self._contexts[key] = (ids + list(token_ids), seed, first)
        self._waiting.append(key)

    def get(self):
        if not self._done:
            by_room: dict[int, list] = {}
            for key in self._waiting:
                ids, _, first = self._contexts[key]
                by_room.setdefault(self._sampling.max_tokens - (len(ids) - first), []).append(key)
            self._waiting = []
            for room, keys in by_room.items():
                contexts = [self._contexts[k] for k in keys]
                # A conversation's later turns draw from the same seed, moved on by what it holds already.
                seeds = tuple(seed + len(ids) - first for ids, seed, first in contexts)
                sampling = dataclasses.replace(self._sampling, max_tokens=room, seeds=seeds)
                drawn = self._policy.generate([ids for ids, _, _ in contexts], sampling)
                for key, completion in zip(keys, drawn, strict=True):
                    self._contexts[key][0].extend(completion.token_ids)
                    self._done.append((key, completion))
        return self._done.popleft()

    def drop(self, key) -> None:
        del self._contexts[key]


def collect(
    policy,
    tasks: list[Task],
    sandbox,
    n_per_task: int,
    config,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[TrajectoryGroup]:
    """Sample `n_per_task` trajectories for each task; one group a task, in order.

    `config` is the profile's rollout part; where it has a reward part, each trajectory carries its reward.
    `progress(done, total)` is called as trajectories end. Raises ValueError where a prompt is empty or the
    tokenizer has no chat template. The same seed, policy, tasks and budget give the same trajectories.
    """
    tokenizer = policy.tokenizer
    # One stream of seeds a trajectory, from the call's seed and its place: no two calls share one.
    seeds = np.random.default_rng(seed).integers(0, 2**62, size=(len(tasks), n_per_task))
    conversations = {}
    for t, task in enumerate(tasks):
        ids, _ = render([{"role": "user", "content": task.prompt}], TOOLS, tokenizer, True)
        for g in range(n_per_task):
            conversations[t, g] = _Conversation(task, ids, int(seeds[t, g]))
    sampling = Sampling(config.temperature, config.top_p, config.max_tokens)
    stream = policy.open(sampling) if hasattr(policy, "open") else _Rounds(policy, sampling)
    ended: dict[tuple[int, int], Trajectory] = {}
    pieces: dict[int, str] = {}  # token id -> its text, for display
    with _Interpreter(sandbox, config) as interpreter:
        waiting: deque = deque()  # (key, future): programs that run, oldest first
        for key, conversation in conversations.items():
            stream.put(key, conversation.prompt_ids, conversation.seed)
        drawing = len(conversations)

        def end(key, reason: StopReason) -> None:
            stream.drop(key)
            ended[key] = _trajectory(conversations.pop(key), reason, tokenizer, pieces, config, sandbox)
            if progress:
                progress(len(ended), len(tasks) * n_per_task)

        while conversations:
            # Waiting for the oldest program after a fixed number of later turns, not after a time, keeps the
            # batch's make-up, and with it the last bits of every log-probability, the same on every run.
            # Parked conversations keep their places, so the last place is never left to wait for its program.
            places = min(drawing + len(waiting), getattr(stream, "places", drawing + len(waiting)))
            if waiting and (not drawing or len(waiting) > min(max(1, places // 8), places - 1)):
                key, future = waiting.popleft()
                reason, suffix = interpreter.answer(conversations[key], future.result(), tokenizer)
                if reason:
                    end(key, reason)
                else:
                    conversations[key].append(suffix)
                    stream.put(key, suffix, conversations[key].seed)
                    drawing += 1
                continue
            key, completion = stream.get()
            drawing -= 1
            reason, call = _take_turn(conversations[key], completion, tokenizer, config)
            if reason:
                end(key, reason)
            else:
                waiting.append((key, interpreter.start(call)))
    return [
        TrajectoryGroup(task, tuple(ended[t, g] for g in range(n_per_task))) for t, task in enumerate(tasks)
    ]


def _take_turn(conversation: _Conversation, completion, tokenizer, config):
    """Record what was drawn. Returns (why it ends, None) or (None, the call to run)."""
    ids = list(completion.token_ids)
    conversation.append(ids, list(completion.logprobs))
    text = tokenizer.decode(ids[:-1] if completion.finished else ids)
    conversation.messages.append({"role": "assistant", "content": text})
    conversation.turns += 1
    calls = parse_tool_calls(text)
    conversation.calls += calls
    if not completion.finished:
        return StopReason.MAX_TOKENS, None
    if not calls:
        return StopReason.ANSWERED, None
    if conversation.turns >= config.max_turns:
        return StopReason.MAX_TURNS, None
    return None, calls


class _Interpreter:
    """Runs the calls of many conversations; a program that was run before is not run again."""

    def __init__(self, sandbox, config):
        self._sandbox, self._config = sandbox, config
        self._pool = ThreadPoolExecutor(max_workers=sandbox.workers)
        self._runs: dict[str, Future] = {}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._pool.shutdown(cancel_futures=True)

    def start(self, calls: list[ToolCall | MalformedCall]) -> Future:
        """A future of the turn's results: one call is run, the others are refused visibly."""
        first = calls[0]
        refused = [
            ToolResult("REFUSED", "", "", 0.0, "", "refused: only one call a turn is run") for _ in calls[1:]
        ]
        problem = first.problem if isinstance(first, MalformedCall) else self._problem(first)
        if problem:
            done: Future = Future()
            done.set_result([ToolResult("MALFORMED", "", "", 0.0, "", f"error: {problem}"), *refused])
            return done
        code = first.arguments["code"]
        if code not in self._runs:
            self._runs[code] = self._pool.submit(self._run, code)
        run, done = self._runs[code], Future()
        run.add_done_callback(
            lambda f: (
                done.set_exception(f.exception())
                if f.exception()
                else done.set_result([f.result(), *refused])
            )
        )
        return done

    @staticmethod
    def _problem(call: ToolCall) -> str | None:
        if call.name != TOOL_NAME:
            return f"there is no tool named {call.name[:40]!r}"
        if not isinstance(call.arguments.get("code"), str):
            return "the arguments hold no code"
        return None

    def _run(self, code: str) -> ToolResult:
        c = self._config
        for _ in range(2):  # a loss says nothing about the program: once more, and never kept for others
            result = self._sandbox.run(
                code, timeout_s=c.tool_timeout_s, cpu_limit_s=c.tool_cpu_s, memory_limit_mb=c.tool_memory_mb
            )
            if result.status != "INFRA":
                break
        else:
            self._runs.pop(code, None)
        text = result_text(result, c.max_tool_output_chars, c.tool_error_lines)
        stdout, stderr = result.stdout[:KEPT_OUTPUT_CHARS], result.stderr[:KEPT_OUTPUT_CHARS]
        return ToolResult(result.status.value, stdout, stderr, result.wall_s, result.level, text)

    def answer(self, conversation: _Conversation, results: list[ToolResult], tokenizer):
        """Record the results. Returns (why it ends, None) or (None, the ids that the model reads next)."""
        results = [dataclasses.replace(r, text=_without_marks(r.text, tokenizer)) for r in results]
        conversation.results += results
        conversation.tool_wall_s += sum(r.wall_s for r in results)
        conversation.messages += [{"role": "tool", "content": r.text} for r in results]
        if any(r.status == "INFRA" for r in results):
            return StopReason.SANDBOX_LOST, None
        if conversation.tool_wall_s > self._config.tool_budget_s:
            return StopReason.TOOL_TIME, None
        suffix = tool_suffix([r.text for r in results], TOOLS, tokenizer)
        if len(conversation.ids) + len(suffix) >= self._config.max_tokens:
            return StopReason.MAX_TOKENS, None
        return None, suffix


def _without_marks(text: str, tokenizer) -> str:
    """`text` with special tokens broken up, so that a program's output can't end a turn or begin one."""
    for mark in (t.content for t in tokenizer.added_tokens_decoder.values() if t.special):
        text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


def result_text(result, max_chars: int, error_lines: int) -> str:
    """What the model reads of a `RunResult`: output, then the traceback's last `error_lines` lines (0: all),
    `max_chars` characters of it, cut in the middle where it is longer; a note stands for silence, a limit or
    a signal."""
    error = result.stderr.strip()
    if error_lines:
        error = "\n".join(error.splitlines()[-error_lines:])
    status = result.status.value
    notes = {
        "TIMEOUT": "stopped: time limit",
        "CPU_LIMIT": "stopped: time limit",
        "OOM": "stopped: memory limit",
        "OUTPUT_LIMIT": "stopped: output limit",
        "SIGNALED": "stopped: killed by a signal",
    }
    text = "\n".join(t for t in (result.stdout.strip(), error, notes.get(status, "")) if t)
    if len(text) > max_chars:
        head = max_chars // 2
        text = text[:head] + " ... " + text[len(text) - (max_chars - head) :]
    return text or "(no output)"


def _trajectory(conversation, reason: StopReason, tokenizer, pieces: dict, config, sandbox) -> Trajectory:
    ids = conversation.ids
    for i in ids:
        if i not in pieces:
            pieces[i] = tokenizer.decode([i])
    trajectory = Trajectory(
        task_id=conversation.task.id,
        messages=tuple(conversation.messages),
        prompt_ids=tuple(conversation.prompt_ids),
        completion_ids=tuple(ids),
        sampled_mask=tuple(conversation.mask),
        logprobs=tuple(conversation.logprobs),
        tool_calls=tuple(conversation.calls),
        tool_results=tuple(conversation.results),
        reward=None,
        stop_reason=reason,
        token_texts=tuple(pieces[i] for i in ids),
    )
    if config.reward is None:
        return trajectory
    reward = score(conversation.task, trajectory, config.reward, sandbox)
    return dataclasses.replace(trajectory, reward=reward)
