"""A policy that a function writes: scripted teachers, and conversations for tests."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.policy.base import Completion, Sampling


class ScriptedPolicy:
    """`reply(conversation_text, seed)` gives the assistant's next text; log-probabilities are 0.

    `conversation_text` is the decoded prompt, special tokens included. A reply is cut at
    `sampling.max_tokens`, and ends with the tokenizer's end token where it fits.
    """

    def __init__(self, reply: Callable[[str, int], str], tokenizer):
        self.reply, self.tokenizer = reply, tokenizer

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Completion]:
        """One completion a prompt, in order."""
        out = []
        for prompt, seed in zip(prompts, sampling.seeds, strict=True):
            text = self.reply(self.tokenizer.decode(prompt), seed)
            ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
            finished = len(ids) <= sampling.max_tokens
            ids = ids[: sampling.max_tokens]
            out.append(Completion(tuple(ids), (0.0,) * len(ids), finished))
        return out
