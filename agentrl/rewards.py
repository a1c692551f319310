"""Verdicts on text: the outcome-and-tool reward (paper, Eq. 8) and the length penalty (Eq. 9).

A reward is a total and its named parts. Two differences from the released code: the answer is the last box
of the whole last turn (the released code looks at the last 100 characters and can cut a box in two), and
numbers are compared as numbers (it compares strings). Not covered yet: equal formulas written differently,
and code problems.
"""

from __future__ import annotations

import math
import operator
import re
from collections import deque
from fractions import Fraction

from agentrl.chat import CLOSE, OPEN, parse_tool_calls
from agentrl.settings import RewardConfig
from agentrl.types import Reward, StopReason, Task, Trajectory

VARIANTS = ("paper", "released", "outcome")
MAX_ANSWER_CHARS = 1000  # a longer answer is wrong unread: no dataset's gold answer comes near

_MAX_TOOL_TERM = 0.4  # wrong answers saturate at -0.6, as in the released code; the paper prints no bound
_KINDS = ("math", "science", "choice")

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE_OR_ESCAPE = re.compile(r"\\.|[{}]", re.DOTALL)
_FINAL_ANSWER = re.compile(r"final answer\*{0,2}[ \t]*:", re.IGNORECASE)

_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}")
_DELIMITER_SIZE = re.compile(r"\\(?:left|right)(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac([0-9])([0-9])")
_SPACE_AT_SYMBOL = re.compile(r"\s*([^\w\s])\s*")
_LETTER_IN_PARENTHESES = re.compile(r"\(([A-Za-z])\)")
# [0-9], not \d: other scripts' digits are text.
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_RATIO = re.compile(r"([+-]?[0-9]+)/([+-]?[0-9]+)")
_LATEX_RATIO = re.compile(r"([+-]?)\\frac\{([+-]?[0-9]+)\}\{([+-]?[0-9]+)\}")
_SPELLINGS = (
    ("\\(", ""), ("\\)", ""), ("\\[", ""), ("\\]", ""),
    ("\\!", ""), ("\\,", ""), ("\\;", " "), ("\\ ", " "), ("~", " "), ("\\$", ""), ("$", ""), ("\\%", "%"),
    ("{,}", ","), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\N{MINUS SIGN}", "-"),
)  # fmt: skip


def extract_answer(text: str) -> str | None:
    r"""The answer that a model's text gives, without surrounding space, or None where it gives none.

    The last `\boxed{...}` decides, braces matched (`\{` and `\}` don't count); if that one is empty or never
    closed there is no answer. A text without any box may end in a line like `Final Answer: **73**`
    instead. What stands inside a tool call is code, not an answer. As linear in time as `parse_tool_calls`.
    """
    text = _outside_calls(text)
    if _BOX.search(text):
        return _last_box(text)
    return _final_answer(text)


def is_correct(answer: str | None, gold: str, kind: str = "math") -> bool:
    r"""Whether an extracted answer is the gold answer. `kind` is "math", "science" or "choice".

    Both are normalised: LaTeX spacing, `$`, `\left` and `\right`, `\text{...}` and its kin unwrapped, space
    beside symbols, a full stop at the end, parentheses around a single letter. Equal texts (case matters)
    are right. Outside "choice", so are equal numbers: integers and plain decimals, with leading zeros
    or thousands commas, and a/b or `\frac{a}{b}` of integers, compared exactly as fractions.

    Not accepted unless the texts are equal: a percentage for a share (`50%` for `0.5` or `50`), a value
    with a unit (`5 cm` for `5`), a rounded value (`0.33` for `1/3`), powers of ten (`1e3`), digits that
    aren't ASCII, underscores in numbers, `x = 5` for `5`, and formulas written differently.

    None, an empty answer and one of more than 1,000 characters are wrong. Nothing is evaluated, so the time
    is bounded by that length. Never raises on model text; raises ValueError on an unknown kind and
    TypeError where `gold` isn't text.
    """
    if kind not in _KINDS:
        raise ValueError(f"can't compare answers of kind {kind!r}; known kinds: {', '.join(_KINDS)}")
    if not isinstance(gold, str):
        raise TypeError(f"gold must be text, got {type(gold).__name__}")
    if not isinstance(answer, str) or max(len(answer), len(gold)) > MAX_ANSWER_CHARS:
        return False
    answer, gold = _normalised(answer), _normalised(gold)
    if not answer:
        return False
    if answer == gold:
        return True
    if kind == "choice":
        return False
    number = _number(answer)
    return number is not None and number == _number(gold)


def outcome_tool_reward(correct: bool, n_calls: int, variant: str = "paper") -> Reward:
    """Eq. 8: a part "outcome", 1 or -1, and a part "tool" for `n_calls` tool calls.

    "paper": the tool part is min(0.1 n, 0.4), right or wrong. "released": the same for a wrong answer, 0 for
    a right one. "outcome": always 0. The paper says that the term is clipped but not where; 0.4 is where
    the released code stops. Raises ValueError on an unknown variant and on a negative `n_calls`.
    """
    if variant not in VARIANTS:
        raise ValueError(f"unknown reward variant {variant!r}; known variants: {', '.join(VARIANTS)}")
    n_calls = operator.index(n_calls)
    if n_calls < 0:
        raise ValueError(f"n_calls must be 0 or more, got {n_calls}")
    rewards_tool = variant == "paper" or (variant == "released" and not correct)
    tool = min(n_calls / 10, _MAX_TOOL_TERM) if rewards_tool else 0.0
    return _reward({"outcome": 1.0 if correct else -1.0, "tool": tool})


def overlong_penalty(n_tokens: int, max_tokens: int, cache_tokens: int) -> float:
    """Eq. 9: 0.0 up to max - cache tokens, then falling linearly to -1.0 at max, and -1.0 beyond.

    Raises ValueError unless 0 < cache_tokens <= max_tokens and n_tokens >= 0.
    """
    if not 0 < cache_tokens <= max_tokens:
        raise ValueError(f"cache_tokens must lie in 1..max_tokens ({max_tokens}), got {cache_tokens}")
    if n_tokens < 0:
        raise ValueError(f"n_tokens must be 0 or more, got {n_tokens}")
    excess = n_tokens - (max_tokens - cache_tokens)
    if excess <= 0:
        return 0.0
    return max(-excess / cache_tokens, -1.0)


def score(task: Task, trajectory: Trajectory, config: RewardConfig, sandbox) -> Reward:
    """The trajectory's reward: parts "outcome", "tool" (Eq. 8) and, where it is on, "overlong" (Eq. 9).

    The last assistant turn alone is graded; for a "choice" task only a box there is an answer. Eq. 9 is on
    where `config.overlong_cache_tokens` > 0; it counts the tokens that the policy drew, and tool output too
    where `config.count_tool_tokens`. The parts sum to the total (`math.fsum`). A trajectory lost to the
    machine (SANDBOX_LOST) gets NaN and no parts. `sandbox` is for code problems, which aren't graded yet:
    ValueError.
    """
    if task.kind == "code":
        raise ValueError(f"task {task.id!r}: code problems aren't graded yet")
    if trajectory.stop_reason == StopReason.SANDBOX_LOST:
        return Reward(math.nan)
    text = last_turn(trajectory)
    answer = _last_box(_outside_calls(text)) if task.kind == "choice" else extract_answer(text)
    correct = is_correct(answer, task.gold, task.kind)
    parts = dict(outcome_tool_reward(correct, trajectory.n_calls, config.variant).parts)
    if config.overlong_cache_tokens > 0:
        n_tokens = len(trajectory.completion_ids) if config.count_tool_tokens else trajectory.n_sampled
        parts["overlong"] = overlong_penalty(
            n_tokens, config.overlong_max_tokens, config.overlong_cache_tokens
        )
    return _reward(parts)


def _reward(parts: dict[str, float]) -> Reward:
    return Reward(math.fsum(parts.values()), parts)


def last_turn(trajectory: Trajectory) -> str:
    """The text that is graded: the last assistant message, "" where there is none."""
    for message in reversed(trajectory.messages):
        if message["role"] == "assistant":
            return message.get("content") or ""
    return ""


def _outside_calls(text: str) -> str:
    """`text` without its tool calls. The parser finds where each ends: a tag inside a code string doesn't."""
    kept, at = [], 0
    for call in parse_tool_calls(text):
        start = text.find(OPEN, at)
        kept.append(text[at:start])
        at = start + len(OPEN) + len(call.raw)
        at += len(CLOSE) if text.startswith(CLOSE, at) else 0
    return "\n".join([*kept, text[at:]])


def _last_match(pattern: re.Pattern, text: str) -> re.Match | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _last_box(text: str) -> str | None:
    """What the last box to open holds, or None where there is none, or it is empty or never closed."""
    opening = _last_match(_BOX, text)
    if opening is None:
        return None
    depth = 1
    for token in _BRACE_OR_ESCAPE.finditer(text, opening.end()):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return text[opening.end() : token.start()].strip() or None
    return None


def _final_answer(text: str) -> str | None:
    heading = _last_match(_FINAL_ANSWER, text)
    if heading is None:
        return None
    line = text[heading.end() :].lstrip().partition("\n")[0].strip()
    bold = re.match(r"\*\*([^*]+)\*\*", line)
    return (bold[1] if bold else line).strip(" \t*") or None


def _normalised(text: str) -> str:
    for spelling, plain in _SPELLINGS:
        text = text.replace(spelling, plain)
    text = _DELIMITER_SIZE.sub("", text)
    for _ in range(3):  # \text{\textbf{C}}
        text = _WRAPPER.sub(r"\1", text)
    text = _SPACE_AT_SYMBOL.sub(r"\1", " ".join(text.split())).removesuffix(".")
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    letter = _LETTER_IN_PARENTHESES.fullmatch(text)
    return letter[1] if letter else text


def _number(text: str) -> Fraction | None:
    """The exact value of a normalised integer, decimal or ratio of integers; None for anything else."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    sign, ratio = "", _RATIO.fullmatch(text)
    if ratio:
        numerator, denominator = ratio.groups()
    elif latex := _LATEX_RATIO.fullmatch(text):
        sign, numerator, denominator = latex.groups()
    else:
        return None
    if int(denominator) == 0:
        return None
    value = Fraction(int(numerator), int(denominator))
    return -value if sign == "-" else value
