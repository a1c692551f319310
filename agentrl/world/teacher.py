"""A stochastic scripted teacher for the tiny world: it talks to the interpreter as a policy does.

For each question it decides: the right program, a wrong formula, a program that fails, or an answer
without the tool. After an error it mends the program, fails again, or gives up with a guess. It never
mis-copies a number. An untidy teacher leaves reinforcement learning something to decide: the student
imitates the mixture, and only its rewards can tell it which decisions pay.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from agentrl.policy.scripted import ScriptedPolicy
from agentrl.world.families import FAMILIES, Family
from agentrl.world.text import call_text
from agentrl.world.tokenizer import END, START

_TURN = re.compile(re.escape(START) + r"(\w+)\n(.*?)" + re.escape(END), re.DOTALL)
_ERROR = re.compile(r"Error|stopped:|refused:")


@dataclass(frozen=True)
class Habits:
    """Probabilities of the first decision (the rest answers without the tool) and of those after an error."""

    right: float = 0.3
    wrong: float = 0.35
    failing: float = 0.2
    mend: float = 0.5
    fail_again: float = 0.15


def teacher(tokenizer, habits: Habits = Habits()) -> ScriptedPolicy:
    """The teacher as a policy."""
    return ScriptedPolicy(lambda text, seed: reply(text, seed, habits), tokenizer)


def reply(conversation: str, seed: int, habits: Habits) -> str:
    """The teacher's next message. Raises ValueError on a question of no family."""
    turns = _TURN.findall(conversation)
    question = next(content for role, content in turns if role == "user")
    family, values = parse_question(question)
    rng = random.Random(seed)
    if turns[-1][1] == question:
        return _first(family, values, rng, habits)
    output = turns[-1][1].removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
    if not _ERROR.search(output):
        return f"The answer is \\boxed{{{output}}}."
    decision = rng.random()
    if decision < habits.mend:
        return _call("The code failed. I will fix it.", rng.choice(family.right), values)
    if decision < habits.mend + habits.fail_again:
        return _call("The code failed. I will fix it.", rng.choice(family.failing), values)
    return _guess(rng)


def _first(family: Family, values: dict, rng: random.Random, habits: Habits) -> str:
    decision = rng.random()
    for share, programs in (
        (habits.right, family.right),
        (habits.wrong, family.wrong),
        (habits.failing, family.failing),
    ):
        if decision < share:
            return _call("I will compute it with code.", rng.choice(programs), values)
        decision -= share
    return "I know it. " + _guess(rng)


def _call(thought: str, program: str, values: dict) -> str:
    return f"{thought}\n{call_text(program.format(**values))}"


def _guess(rng: random.Random) -> str:
    return f"The answer is \\boxed{{{rng.randint(1, 99)}}}."


def parse_question(question: str) -> tuple[Family, dict[str, str]]:
    """The family that asks `question`, and the numbers in it."""
    for family in FAMILIES.values():
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[-+\\d ]+)", re.escape(family.question))
        if match := re.fullmatch(pattern, question):
            values = match.groupdict()
            return family, values | ({"plus": values["e"].replace("-", "+")} if "e" in values else {})
    raise ValueError(f"no task family asks {question!r}")
