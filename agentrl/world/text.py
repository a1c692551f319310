"""The text that the tiny base models read: copying and format, no decisions and no errors.

Two kinds of document. Copying: digit strings, lists and expressions repeated after a cue. Format: a user
hands over a program (or a program with blanks and the numbers to fill in), the assistant calls the
interpreter with it, the interpreter answers, the assistant boxes what was printed. No document asks a
question of a task family, so nothing here tells which program answers which question, and no program
fails, so recovery is not taught either: both are left to fine-tuning and reinforcement learning.
"""

from __future__ import annotations

import contextlib
import io
import json
import random

CALL_HEAD = '{"name": "code_interpreter", "arguments": {"code": "'

# Programs with blanks A, B, N: pieces of Python that families use too, without any question attached.
SKELETONS = (
    "print(A)", "print(A + B)", "print(A - B)", "print(A * B)", "print(A % B)", "print(A // B)",
    "print(A * B + N)", "print(A - B + N)", "print(A + B - N)", "print(A + B + N)", "print(A - B - N)",
    "print(max(A, B))", "print(min(A, B))", "print(abs(A - B))", "print(len(str(A)))", "print(str(A)[::-1])",
    "print(str(A).count('1'))", "print(bin(A))", "print(len(bin(A)))", "print(hex(A))", "print(pow(A, 2))",
    "print(sum((A, B, N)))", "print(sorted((A, B, N)))", "print((A, B))", "x = A\nprint(x + B)", "x = A\nprint(x)",
    "import math\nprint(math.isqrt(A))", "import math\nprint(math.gcd(A, B))", "import math\nprint(math.lcm(A, B))",
    "import math\nprint(math.dist((A, B), (B, A)))", "print(sum(n for n in range(A, B + 1)))",
    "print(sum(n % 2 for n in range(A, B + 1)))", "print(all(A % d for d in range(2, 9)))",
    "print(sum(all(n % d for d in range(2, 9)) for n in range(A, B + 1)))", "print(len(range(A, B)))",
    "for n in range(2):\n    print(A + n)", "print(A, B)", "print(A == B)", "print(bin(A).count('1'))",
)  # fmt: skip
CUES = ("Repeat", "Copy", "Say", "Write")
JOINERS = (", ", " and ", " to ", " times ", " then ")
THOUGHTS = ("I will compute it with code.", "Let me run it.")


def number(rng: random.Random, max_digits: int = 6) -> str:
    """A random natural number; the number of digits is uniform, so short and long ones are equally common."""
    digits = rng.randint(1, max_digits)
    return str(rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1))


def _expression(rng: random.Random) -> str:
    terms = [number(rng, 4) for _ in range(rng.randint(2, 4))]
    return terms[0] + "".join(f" {rng.choice('+-*')} {t}" for t in terms[1:])


def _string(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return number(rng, 9)
    if kind < 0.75:
        return _expression(rng)
    if kind < 0.9:
        return ", ".join(number(rng, 5) for _ in range(rng.randint(2, 4)))
    return "-" + number(rng, 7)


def _program(rng: random.Random) -> tuple[str, dict[str, str]]:
    skeleton = rng.choice(SKELETONS)
    names = [n for n in "ABN" if n in skeleton]
    if "range(A, B" in skeleton:
        a = int(number(rng, 3))
        values = {"A": str(a), "B": str(a + rng.randint(2, 80))}
    else:
        values = {n: number(rng, 5) for n in names}
    values = {n: v if n not in "BN" or v != "0" else "7" for n, v in values.items()}
    if rng.random() < 0.25 and skeleton == "print(A)":
        return skeleton, {"A": _expression(rng)}
    return skeleton, values


def fill(skeleton: str, values: dict[str, str]) -> str:
    """The program with its blanks filled in."""
    for name, value in values.items():
        skeleton = skeleton.replace(name, value)
    return skeleton


def run_own_program(code: str) -> str:
    """What one of this module's own programs prints. Not for anybody else's code: there is no sandbox."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "<base text>", "exec"), {})  # noqa: S102
    return out.getvalue().strip()


def call_text(code: str) -> str:
    """The Hermes tool call with this program, as the chat template renders it."""
    arguments = json.dumps({"code": code}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "code_interpreter", "arguments": {arguments}}}\n</tool_call>'


def document(rng: random.Random) -> list[dict] | str:
    """One document: a plain string (copying), or a conversation for the chat template."""
    kind = rng.random()
    if kind < 0.2:
        s = _string(rng)
        return f"{s} = {s}"
    if kind < 0.4:
        s = _string(rng)
        return [
            {"role": "user", "content": f"{rng.choice(CUES)} {s}"},
            {"role": "assistant", "content": s},
        ]
    skeleton, values = _program(rng)
    code = fill(skeleton, values)
    if kind < 0.6:
        request = f"Run\n{code}"
    else:
        # Numbers are met in running text and copied into a call, in the order in which they came.
        request = f"Fill {skeleton} with " + rng.choice(JOINERS).join(values.values())
    printed = run_own_program(code)
    if rng.random() < 0.5:  # the box holds what was printed, even where it could not be guessed
        printed = _string(rng)
    thought = rng.choice(THOUGHTS) + "\n" if rng.random() < 0.5 else ""
    return [
        {"role": "user", "content": request},
        {"role": "assistant", "content": thought + call_text(code)},
        {"role": "tool", "content": printed},
        {"role": "assistant", "content": f"The answer is \\boxed{{{printed}}}."},
    ]
