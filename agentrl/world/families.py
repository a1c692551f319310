"""The tiny world's task families: a short question, and the programs a person might write for it.

The problems come from reasoning-gym; the questions are shortened so that a prompt fits in about thirty
tokens. Each family knows right programs, wrong ones (a neighbouring formula that a person might take) and
failing ones (a forgotten import, a function that does not exist, a syntax slip). A mistake here is always
a decision, never a mis-copied digit: reinforcement learning can mend the first and not the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One kind of problem.

    `question` is a template over the numbers of a problem; `right`, `wrong` and `failing` are program
    templates over the same numbers. `numbers` pulls them from a reasoning-gym item's metadata, or returns
    None where the item is not used. `settings` go to reasoning-gym.
    """

    name: str
    question: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    failing: tuple[str, ...]
    numbers: Callable[[dict], dict | None]
    settings: dict

    def __post_init__(self):
        if not (self.right and self.wrong and self.failing):
            raise ValueError(f"family {self.name}: needs right, wrong and failing programs")


def _gcd(meta: dict) -> dict | None:
    a, b = meta["numbers"]
    # Most pairs of random numbers have a greatest common divisor of 1, which a policy could guess.
    return {"a": a, "b": b} if meta["result"] > 1 and a != b else None


def _lcm(meta: dict) -> dict | None:
    a, b = meta["numbers"]
    # Where a and b share no factor the wrong formula a * b would be right.
    return {"a": a, "b": b} if meta["result"] < a * b and a != b else None


def _product(meta: dict) -> dict | None:
    a, b = re.findall(r"\d+", meta["expression"])
    return {"a": a, "b": b}


def _chain_sum(meta: dict) -> dict | None:
    expression = meta["expression"]
    # Without a minus the wrong formula (all plus) would be right.
    return {"e": expression, "plus": expression.replace("-", "+")} if "-" in expression else None


def _count_bits(meta: dict) -> dict | None:
    return {"n": meta["number"]}


def _count_primes(meta: dict) -> dict | None:
    a, b = meta["start"], meta["end"]
    return {"a": a, "b": b} if 5 <= b - a <= 80 and a >= 2 else None


FAMILIES: dict[str, Family] = {
    f.name: f
    for f in (
        Family(
            "gcd", "What is the gcd of {a} and {b}?",
            right=("import math\nprint(math.gcd({a}, {b}))",),
            wrong=("print({a} % {b})", "print(min({a}, {b}))"),
            failing=("print(math.gcd({a}, {b}))", "print(gcd({a}, {b}))"),
            numbers=_gcd, settings={"min_value": 10, "max_value": 999},
        ),
        Family(
            "lcm", "What is the lcm of {a} and {b}?",
            right=("import math\nprint(math.lcm({a}, {b}))",),
            wrong=("print({a} * {b})", "print(max({a}, {b}))"),
            failing=("print(math.lcm({a}, {b}))", "print(lcm({a}, {b}))"),
            numbers=_lcm, settings={"min_value": 4, "max_value": 99},
        ),
        Family(
            "products", "What is {a} times {b}?",
            right=("print({a} * {b})",),
            wrong=("print({a} + {b})", "print({a} ** {b} % 1000)"),
            failing=("print({a} x {b})", "print(times({a}, {b}))"),
            numbers=_product, settings={"min_digits": 2, "max_digits": 3},
        ),
        Family(
            "chain_sum", "What is {e}?",
            right=("print({e})",),
            wrong=("print({plus})",),
            failing=("print({e}", "print(sum({e}))"),
            numbers=_chain_sum, settings={"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 3},
        ),
        Family(
            "count_bits", "How many 1 bits are in {n}?",
            right=("print(bin({n}).count('1'))",),
            wrong=("print(len(bin({n})))", "print(bin({n}).count('0'))"),
            failing=("print(bits({n}))", "print({n}.count('1'))"),
            numbers=_count_bits, settings={"min_n": 100, "max_n": 99999},
        ),
        Family(
            "count_primes", "How many primes are from {a} to {b}?",
            right=("print(sum(all(n % d for d in range(2, n)) for n in range({a}, {b} + 1)))",),
            wrong=("print(sum(n % 2 for n in range({a}, {b} + 1)))", "print({b} - {a})"),
            failing=("print(primes({a}, {b}))", "print(sum(prime(n) for n in range({a}, {b} + 1)))"),
            numbers=_count_primes, settings={"min_n": 2, "max_n": 299},
        ),
    )
}  # fmt: skip
