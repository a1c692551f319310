"""Answers, verdicts and rewards (paper, Eqs. 8 and 9), with inputs that broke graders like this one."""

import dataclasses
import json
import math
import time

import pytest

from agentrl.rewards import extract_answer, is_correct, outcome_tool_reward, overlong_penalty, score
from agentrl.settings import RewardConfig
from agentrl.types import StopReason, Task, ToolResult, Trajectory

OFF = RewardConfig(
    variant="paper", overlong_max_tokens=20480, overlong_cache_tokens=0, count_tool_tokens=False
)


def graded(text, gold, kind="math"):
    return is_correct(extract_answer(text), gold, kind)


def call(code):
    return (
        f"<tool_call>\n{json.dumps({'name': 'code_interpreter', 'arguments': {'code': code}})}\n</tool_call>"
    )


def assistant(text):
    return {"role": "assistant", "content": text}


def trajectory(*messages, n_calls=0, n_sampled=10, n_tool=0, stop_reason=StopReason.ANSWERED):
    result = ToolResult("OK", "", "", 0.0, "", "")
    mask = (1,) * n_sampled + (0,) * n_tool
    return Trajectory(
        task_id="t", messages=messages, prompt_ids=(), completion_ids=(0,) * len(mask), sampled_mask=mask,
        logprobs=(0.0,) * len(mask), tool_calls=(), tool_results=(result,) * n_calls, reward=None,
        stop_reason=stop_reason,
    )  # fmt: skip


def task(gold, kind="math"):
    return Task("t", "test", "?", gold, kind)


# extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{33}.", "33"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{a{b}c}", "a{b}c"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed{\{}", r"\{"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed {5}", "5"),
        ("\\boxed{\n 5\n}", "5"),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        (r"\boxed{5} and then \boxed{}", None),
        (r"\boxed{5", None),
        (r"\boxed{5} and then \boxed{6", None),
        (r"\boxed{{{{", None),
        (r"\boxed{5\}", None),
        ("", None),
        ("33", None),
        ("The answer is C", None),
        (r"boxed{5}", None),
        ("Final Answer: **73**", "73"),
        ("so it is.\n**Final Answer:** 73\n", "73"),
        ("**Final Answer**: $73$", "$73$"),
        ("Final answer:\n\n73", "73"),
        ("Final Answer: **72**\nno,\nFinal Answer: **73**. Done", "73"),
        ("Final Answer:", None),
        ("Final Answer: ****", None),
        (r"\boxed{1} Final Answer: **73**", "1"),
        (r"\boxed{} Final Answer: **73**", None),
    ],
)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


def test_nothing_inside_a_tool_call_is_an_answer():
    assert extract_answer(call(r"print('\\boxed{5}')")) is None
    assert extract_answer(r"\boxed{4} " + call(r"\boxed{5}")) == "4"
    assert extract_answer(call("1") + r" so \boxed{6}") == "6"
    assert extract_answer(r"\boxed{4} " + call(r'print("</tool_call> \boxed{5}")') + " done") == "4"
    assert extract_answer(r'\boxed{4} <tool_call>{"name": "x", "arguments": "\boxed{5}') == "4"
    assert extract_answer(r"\boxed{4} <tool_call></tool_call><tool_call>\boxed{5}</tool_call>") == "4"
    assert extract_answer(call("Final Answer: 5")) is None


# is_correct

RIGHT = [
    ("33", "033"),
    (" 33 ", "033"),
    (r"\boxed{ 33 }", "033"),
    ("1,000", "1000"),
    ("1{,}000", "1000"),
    (r"1\,000", "1000"),
    ("-1,234,567.50", "-1234567.5"),
    ("004", "4"),
    ("4.0", "4"),
    ("+4", "4"),
    ("-0", "0"),
    ("33.", "33"),
    ("$33$", "33"),
    (r"\(33\)", "33"),
    ("\N{MINUS SIGN}5", "-5"),
    ("- 5", "-5"),
    ("0.5", "1/2"),
    (".5", "0.50"),
    (r"\frac{1}{2}", "0.5"),
    (r"\dfrac{2}{4}", "1/2"),
    (r"\frac12", r"\frac{1}{2}"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"\frac{1}{-2}", "-1/2"),
    ("6/3", "2"),
    ("0.1", "1/10"),
    ("C", "C"),
    ("(C)", "C"),
    (r"\text{C}", "C"),
    (r"\text{(C)}", "C"),
    (r"( \textbf{C} )", "C"),
    (r"\text{\textbf{C}}", "C"),
    ("C.", "C"),
    ("y=2x+3", "y = 2x + 3"),
    (r"\left(1, 2\right)", "(1,2)"),
    (r"50\%", "50%"),
    ("x_1", "x_1"),
    ("9" * 999, "9" * 999),
]

WRONG = [
    (r"\frac{1}{2}", r"\frac{1}{3}"),
    ("y = 2x + 3", "y = 2x + 4"),
    ("4", "5"),
    ("-5", "5"),
    ("840840", "840"),
    ("1,00", "100"),
    ("10,00", "1000"),
    ("1_000", "1000"),
    ("\uff13\uff13", "33"),  # full-width digits
    ("\u0663\u0663", "33"),  # Arabic-Indic digits
    ("1 2", "12"),
    ("1 1/2", "3/2"),
    (r"1\frac{1}{2}", "3/2"),
    (r"\frac123", "1/23"),
    ("50%", "0.5"),
    ("50%", "50"),
    ("5 cm", "5"),
    (r"5\text{ cm}", "5"),
    ("0.33", "1/3"),
    ("0.333333333333333333", "1/3"),
    ("3.14", r"\pi"),
    ("x = 5", "5"),
    ("1e3", "1000"),
    ("10^3", "1000"),
    ("2+2", "4"),
    ("1/0", "1/0.0"),
    (r"\frac{1}{0}", "1/0"),
    ("nan", "0"),
    ("inf", "1e999999"),
    ("X", "x"),
    ("(C) 5", "C"),
    ("C, D", "C"),
    ("33 or 34", "33"),
    ("", "33"),
    ("", ""),
    (".", ""),
    (None, "33"),
    (33, "33"),
]


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_right(answer, gold):
    assert is_correct(answer, gold) is True
    assert is_correct(gold, gold) is True


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_wrong(answer, gold):
    assert is_correct(answer, gold) is False


def test_a_box_far_from_the_end_or_repeated():
    assert graded(r"\boxed{33}. " + "x" * 95, "33")
    assert graded(r"\boxed{33}. " + "x" * 100_000, "33")
    assert graded(r"so \boxed{840}. Hence \boxed{840}", "840")
    assert not graded(r"\boxed{840} no, \boxed{841}", "840")
    assert graded("Final Answer: **73**", "73")


def test_multiple_choice():
    for text in (r"\boxed{C}", r"\boxed{(C)}", r"\boxed{\text{C}}"):
        assert graded(text, "C", "choice")
        assert not graded(text, "D", "choice")
    assert not graded("The answer is C", "C", "choice")
    # Options aren't numbers.
    assert is_correct("04", "4") and not is_correct("04", "4", "choice")


def test_bad_arguments_are_the_callers():
    with pytest.raises(ValueError, match="known kinds: math, science, choice"):
        is_correct("1", "1", "code")
    with pytest.raises(TypeError, match="gold"):
        is_correct("1", 1)


MEGA = 1_000_000
ATTACKS = {
    "digits": "9" * MEGA,
    "commas": "1,000" * (MEGA // 5),
    "spaces": " " * MEGA,
    "open braces": "{" * MEGA,
    "fractions": r"\frac{" * (MEGA // 6),
    "wrappers": r"\text{" * 160,
    "short digits": "9" * 1000,
    "exponent": "1e999999",
    "power": "9^9^9^9^9^9",
    "factorial": "99999999!",
    "infinity": "inf",
    "not a number": "nan",
    "ratio": "1/" + "0" * 900,
    "long decimal": "0." + "3" * 990,
    "code": "__import__('os').system('true')",
    "surrogate": "\ud800",
    "null": "\x00",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_attacks_are_wrong_at_once(attack):
    start = time.perf_counter()
    assert is_correct(attack, "33") is False
    assert is_correct("33", attack) is False
    for text in (
        rf"\boxed{{{attack}}}",
        attack + r"\boxed{",
        f"Final Answer: {attack}",
        f"<tool_call>{attack}",
    ):
        assert not graded(text, "33")
    assert time.perf_counter() - start < 5  # quadratic work would take minutes


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        r"\boxed{}",
        r"\boxed ",
        "{}",
        "\\",
        "Final Answer:",
        "Final Answer: **",
        "*",
        "<tool_call>",
    ],
)
def test_long_texts_take_linear_time(piece):
    text = piece * (MEGA // len(piece))
    start = time.perf_counter()
    extract_answer(text)
    assert extract_answer(text + "</tool_call>" + r"\boxed{33}") == "33"
    assert time.perf_counter() - start < 5  # quadratic work would take minutes


def test_answers_longer_than_the_limit_are_wrong():
    assert is_correct("x" * 1000, "x" * 1000)
    assert not is_correct("x" * 1001, "x" * 1001)
    assert not is_correct(" " * 1000 + "3", "3")


def test_the_last_of_twenty_boxes():
    text = " ".join(rf"\boxed{{{i}}}" for i in range(20))
    assert [graded(text, str(i)) for i in range(20)] == [False] * 19 + [True]


# Eq. 8


def test_wrong_answers_by_number_of_calls():
    for variant in ("paper", "released"):
        totals = [outcome_tool_reward(False, n, variant).total for n in (0, 1, 3, 4, 10)]
        assert totals == [-1, -0.9, -0.7, -0.6, -0.6]


def test_right_answers_by_number_of_calls():
    def totals(variant):
        return [outcome_tool_reward(True, n, variant).total for n in (0, 1, 3, 4, 10)]

    assert totals("paper") == pytest.approx([1, 1.1, 1.3, 1.4, 1.4])
    assert totals("released") == [1] * 5
    assert totals("outcome") == [1] * 5
    assert [outcome_tool_reward(False, n, "outcome").total for n in (0, 1, 10)] == [-1] * 3
    assert outcome_tool_reward(True, 2) == outcome_tool_reward(True, 2, "paper")


def test_parts_are_named_and_sum_exactly():
    assert outcome_tool_reward(False, 3).parts == {"outcome": -1.0, "tool": 0.3}
    for variant in ("paper", "released", "outcome"):
        for correct in (True, False):
            for n in range(12):
                reward = outcome_tool_reward(correct, n, variant)
                assert math.fsum(reward.parts.values()) == reward.total


def test_eq8_refuses():
    with pytest.raises(ValueError, match="known variants: paper, released, outcome"):
        outcome_tool_reward(True, 0, "papper")
    with pytest.raises(ValueError, match="n_calls"):
        outcome_tool_reward(True, -1)


# Eq. 9


def test_overlong_penalty_by_hand():
    got = [overlong_penalty(n, 20480, 4096) for n in (0, 16384, 17408, 18432, 20480, 20481, 10**9)]
    assert got == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0, -1.0]
    assert overlong_penalty(5, 10, 10) == -0.5
    assert math.copysign(1, overlong_penalty(16384, 20480, 4096)) == 1  # not -0.0


def test_overlong_penalty_refuses():
    for n, longest, cache in ((1, 10, 0), (1, 10, -1), (1, 10, 11), (-1, 10, 5)):
        with pytest.raises(ValueError, match="n_tokens" if n < 0 else "cache_tokens"):
            overlong_penalty(n, longest, cache)


# score


def test_score_counts_tool_tokens_only_where_asked():
    lost_in_tools = trajectory(assistant(r"\boxed{3}"), n_sampled=15_432, n_tool=3_000)
    config = dataclasses.replace(OFF, overlong_cache_tokens=4096)
    without = score(task("3"), lost_in_tools, config, None)
    counted = score(task("3"), lost_in_tools, dataclasses.replace(config, count_tool_tokens=True), None)
    assert without.parts == {"outcome": 1.0, "tool": 0.0, "overlong": 0.0} and without.total == 1.0
    assert counted.parts == {"outcome": 1.0, "tool": 0.0, "overlong": -0.5} and counted.total == 0.5


def test_score_has_no_overlong_part_where_it_is_off():
    assert score(task("3"), trajectory(assistant(r"\boxed{3}"), n_sampled=30_000), OFF, None).parts == {
        "outcome": 1.0,
        "tool": 0.0,
    }


def test_score_counts_calls_and_reads_the_variant():
    wrong = trajectory(
        assistant(call("1")), {"role": "tool", "content": ""}, assistant(r"\boxed{4}"), n_calls=3
    )
    assert score(task("3"), wrong, OFF, None).total == -0.7
    assert score(task("4"), wrong, OFF, None).parts == {"outcome": 1.0, "tool": 0.3}
    assert score(task("4"), wrong, dataclasses.replace(OFF, variant="released"), None).total == 1.0
    assert score(task("3"), wrong, dataclasses.replace(OFF, variant="outcome"), None).total == -1.0


def test_score_grades_the_last_assistant_turn_alone():
    early = trajectory(
        assistant(r"It is \boxed{3}. " + call("1")),
        {"role": "tool", "content": r"\boxed{3}"},
        assistant("Let me check. " + call(r"print('\\boxed{3}')")),
        n_calls=1,
        stop_reason=StopReason.MAX_TURNS,
    )
    assert score(task("3"), early, OFF, None).parts["outcome"] == -1.0
    tool_last = trajectory(assistant("hm"), {"role": "tool", "content": r"\boxed{3}"})
    assert score(task("3"), tool_last, OFF, None).parts["outcome"] == -1.0
    before_a_call = trajectory(assistant(r"\boxed{3} " + call("1")), stop_reason=StopReason.MAX_TURNS)
    assert score(task("3"), before_a_call, OFF, None).parts["outcome"] == 1.0


def test_score_of_a_choice_needs_a_box():
    assert score(task("C", "choice"), trajectory(assistant(r"\boxed{(C)}")), OFF, None).total == 1.0
    for text in ("Final Answer: **C**", "The answer is C", r"\boxed{D}", r"\boxed{A, B, C, D}"):
        assert score(task("C", "choice"), trajectory(assistant(text)), OFF, None).total == -1.0
    assert score(task("C", "science"), trajectory(assistant("Final Answer: **C**")), OFF, None).total == 1.0


def test_score_without_any_text():
    for messages in (
        (),
        ({"role": "user", "content": r"\boxed{3}"},),
        ({"role": "assistant", "content": None},),
    ):
        assert score(task("3"), trajectory(*messages), OFF, None).total == -1.0


def test_a_lost_trajectory_has_no_reward():
    reward = score(
        task("3"), trajectory(assistant(r"\boxed{3}"), stop_reason=StopReason.SANDBOX_LOST), OFF, None
    )
    assert math.isnan(reward.total) and reward.parts == {}


def test_code_is_not_graded_yet():
    with pytest.raises(ValueError, match="code problems aren't graded yet"):
        score(task((), "code"), trajectory(assistant("")), OFF, None)


def test_parts_of_a_score_sum_exactly():
    config = dataclasses.replace(OFF, overlong_cache_tokens=4096)
    for n_calls in range(6):
        for n_sampled in range(16_000, 21_000, 177):
            reward = score(
                task("3"), trajectory(assistant(""), n_calls=n_calls, n_sampled=n_sampled), config, None
            )
            assert math.fsum(reward.parts.values()) == reward.total
