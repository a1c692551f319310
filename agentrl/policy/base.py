"""What a policy is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """How to draw. `max_tokens` bounds the tokens after a key's first prompt, later `put`s included.

    `seeds` has one integer a prompt for `generate`; a stream gets its seed with `put`.
    """

    temperature: float
    top_p: float
    max_tokens: int
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Completion:
    """What was drawn: `token_ids` (the end token included where one was drawn), one natural-log probability
    a token at temperature 1, and whether an end token was drawn (False: the budget ran out)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool
