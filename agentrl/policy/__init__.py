"""Policies: anything that turns token ids into more token ids. They know nothing of tools or rewards.

A policy has a `tokenizer` and `generate(prompts, sampling) -> list[Completion]`. It may also offer
`open(sampling)`, a stream with `put(key, token_ids, seed)` and `get() -> (key, Completion)`: a later `put`
of a key appends to its context, so caches live across turns; `drop(key)` frees its place.
"""

from agentrl.policy.base import Completion, Sampling
from agentrl.policy.scripted import ScriptedPolicy

__all__ = ["Completion", "HFPolicy", "Sampling", "ScriptedPolicy"]


def __getattr__(name: str):
    if name == "HFPolicy":  # torch loads only where a model is used
        from agentrl.policy.hf import HFPolicy

        return HFPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
