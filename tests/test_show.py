"""Trajectories as HTML, as table rows, and back."""

import dataclasses
import html.parser
import json
import math

import pandas as pd
import pytest

from agentrl import records
from agentrl.show import trajectory_html
from agentrl.types import (
    MalformedCall,
    Reward,
    StopReason,
    Task,
    TestCase,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
)

EVIL = "</pre></div><script>alert(1)</script><img src=x onerror=\"alert('2')\"> & \" '"
TASK = Task("t", "test", "What is 2 times 3?", "6")


def trajectory(**changes):
    t = Trajectory(
        task_id="t",
        messages=(
            {"role": "user", "content": "What is 2 times 3?"},
            {"role": "assistant", "content": "Hm <tool_call>{}</tool_call>"},
            {"role": "tool", "content": "6"},
            {"role": "assistant", "content": "The answer is \\boxed{6}."},
        ),
        prompt_ids=(1, 2, 3),
        completion_ids=(4, 5, 6, 7),
        sampled_mask=(1, 0, 1, 1),
        logprobs=(-0.5, 0.0, -1.25, -0.125),
        tool_calls=(
            ToolCall("code_interpreter", {"code": "print(6)", "n": [1, None, {"é": 1.5}]}, "raw"),
            MalformedCall("{", "the tool call is never closed"),
        ),
        tool_results=(
            ToolResult("OK", "6\n", "", 0.25, "L0", "6"),
            ToolResult("MALFORMED", "", "", 0.0, "", "error: the tool call is never closed"),
        ),
        reward=Reward(1.1, {"outcome": 1.0, "tool": 0.1}),
        stop_reason=StopReason.ANSWERED,
        token_texts=("Hm", "\n", "6", "."),
    )
    return dataclasses.replace(t, **changes)


class Reader(html.parser.HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_shows_the_conversation():
    read = Reader(trajectory()._repr_html_())
    text = "".join(read.texts)
    for piece in (
        "What is 2 times 3?",
        "Hm <tool_call>{}</tool_call>",
        "\\boxed{6}",
        "OK",
        "250 ms",
        "answered",
        "+1.10",
    ):
        assert piece in text
    assert (
        "outcome +1.00" in text
        and "tool +0.10" in text
        and "3 tokens drawn" in text
        and "1 from the environment" in text
    )
    assert read.open == []
    spans = [a for tag, a in read.tags if tag == "span" and ("title" in a or a.get("class") == "env")]
    assert [("title" in a) for a in spans] == [True, False, True, True]
    assert "-1.25" in spans[2]["title"] and "0.287" in spans[2]["title"]  # exp(-1.25)


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": ({"role": "user", "content": EVIL},)},
        {"messages": ({"role": "assistant", "content": EVIL},)},
        {"messages": ({"role": "tool", "content": EVIL},)},
        {"messages": ({"role": EVIL, "content": "x"},)},
        {"token_texts": (EVIL, EVIL, EVIL, EVIL)},
        {
            "messages": ({"role": "tool", "content": "x"},),
            "tool_results": (ToolResult(EVIL, EVIL, EVIL, 0.1, EVIL, EVIL),),
        },
        {"tool_calls": (ToolCall(EVIL, {"code": EVIL}, EVIL), MalformedCall(EVIL, EVIL))},
        {"reward": Reward(1.0, {EVIL: 1.0})},
        {"task_id": EVIL},
    ],
)
def test_model_text_is_escaped(changes):
    source = trajectory_html(trajectory(**changes))
    read = Reader(source)
    assert {tag for tag, _ in read.tags} <= {"style", "div", "span", "pre", "details", "summary"}
    assert {a for _, attrs in read.tags for a in attrs} <= {"class", "title", "style"}
    assert "<script" not in source and "<img" not in source
    assert read.open == []


def test_shows_what_is_not_there():
    for t in (
        trajectory(reward=None),
        trajectory(token_texts=()),
        trajectory(messages=(), tool_results=(), tool_calls=()),
        trajectory(tool_results=()),
        trajectory(reward=Reward(math.nan), stop_reason=StopReason.SANDBOX_LOST),
        trajectory(logprobs=(-math.inf, 0.0, -1000.0, 0.0)),
        trajectory(prompt_ids=(), completion_ids=(), sampled_mask=(), logprobs=(), token_texts=()),
    ):
        assert Reader(t._repr_html_()).open == []
    assert "not scored" in trajectory_html(trajectory(reward=None))
    assert "sandbox_lost" in trajectory_html(trajectory(stop_reason=StopReason.SANDBOX_LOST))


def test_message_without_content():
    call = {"role": "assistant", "content": None, "tool_calls": []}
    assert Reader(trajectory_html(trajectory(messages=(call,)))).open == []


# Rows


def rows(*ts, step=3):
    return records.rows([TrajectoryGroup(TASK, ts)], step)


@pytest.mark.parametrize(
    "t",
    [
        trajectory(),
        trajectory(reward=None),
        trajectory(reward=Reward(-1.0, {"outcome": -1.0})),
        trajectory(messages=({"role": "user", "content": EVIL + "\ud800\x00"},)),
        trajectory(tool_calls=(), tool_results=()),
        trajectory(token_texts=()),
        trajectory(stop_reason=StopReason.TOOL_TIME),
        trajectory(prompt_ids=(), completion_ids=(), sampled_mask=(), logprobs=(), token_texts=()),
    ],
)
def test_trajectory_survives_a_table(tmp_path, t):
    assert records.trajectory(rows(t)[0]) == t
    pd.DataFrame(rows(t, trajectory())).to_parquet(tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    assert records.trajectory(frame.iloc[0]) == t
    assert records.trajectory(frame.to_dict("records")[1]) == trajectory()


def test_lost_trajectory_survives_a_table(tmp_path):
    lost = trajectory(reward=Reward(math.nan), stop_reason=StopReason.SANDBOX_LOST)
    pd.DataFrame(rows(lost)).to_parquet(tmp_path / "rows.parquet")
    back = records.trajectory(pd.read_parquet(tmp_path / "rows.parquet").iloc[0])
    assert math.isnan(back.reward.total) and back.reward.parts == {}
    assert dataclasses.replace(back, reward=None) == dataclasses.replace(lost, reward=None)


def test_row_by_hand():
    (row,) = rows(trajectory())
    assert (row["step"], row["task_id"], row["source"], row["sample"]) == (3, "t", "test", 0)
    assert (row["reward"], row["correct"], row["answer"], row["stop_reason"]) == (1.1, True, "6", "answered")
    assert (row["calls"], row["failed_calls"], row["malformed_calls"], row["turns"]) == (1, 0, 1, 2)
    assert (row["sampled_tokens"], row["completion_tokens"]) == (3, 4)
    assert row["logprob_mean"] == pytest.approx((-0.5 - 1.25 - 0.125) / 3)
    assert json.loads(row["reward_parts"]) == {"outcome": 1.0, "tool": 0.1}


def test_samples_are_numbered_within_their_group():
    groups = [TrajectoryGroup(TASK, (trajectory(),) * n) for n in (2, 3)]
    assert [r["sample"] for r in records.rows(groups, 0)] == [0, 1, 0, 1, 2]


def test_answer_of_a_conversation_that_ends_with_the_tool():
    t = trajectory(messages=trajectory().messages[:3])
    assert rows(t)[0]["answer"] is None


def test_statuses_that_count_as_failed():
    statuses = [
        "OK",
        "ERROR",
        "TIMEOUT",
        "CPU_LIMIT",
        "OOM",
        "OUTPUT_LIMIT",
        "SIGNALED",
        "INFRA",
        "REFUSED",
        "MALFORMED",
    ]
    results = tuple(ToolResult(s, "", "", 0.0, "", "") for s in statuses)
    (row,) = rows(trajectory(tool_results=results))
    assert row["failed_calls"] == 6 and row["calls"] == trajectory(tool_results=results).n_calls


def test_summary_by_hand():
    right = trajectory()
    wrong = trajectory(
        reward=Reward(-0.5, {"outcome": -1.0, "tool": 0.5}),
        tool_results=(ToolResult("ERROR", "", "", 0.1, "L0", ""), ToolResult("OK", "", "", 0.1, "L0", "")),
        stop_reason=StopReason.MAX_TOKENS,
    )
    summary = records.summary(pd.DataFrame(rows(right, wrong)))
    assert summary["accuracy"] == 0.5 and summary["reward"] == pytest.approx(0.3)
    assert summary["calls"] == 1.5 and summary["call_success"] == pytest.approx(2 / 3)
    assert summary["truncated"] == 0.5 and summary["lost"] == 0.0
    nothing = records.summary(pd.DataFrame(rows(trajectory(tool_results=()))))
    assert math.isnan(nothing["call_success"])


def test_nouns_are_plain_values():
    case = TestCase("1\n", "2\n")
    assert case.kind == "stdin" and Task("c", "s", "p", (case,), "code").gold[0] is case
    assert hash(TASK) == hash(dataclasses.replace(TASK, meta={"a": 1}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.gold = "7"
    t = trajectory()
    assert (t.n_calls, t.n_sampled) == (1, 3)
    assert StopReason("max_turns") is StopReason.MAX_TURNS and len(StopReason) == 6
