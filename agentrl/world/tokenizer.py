"""The tiny models' tokenizer: a byte-level BPE of about 400 entries, one token a digit.

A large model spends fifteen tokens on the JSON frame of a tool call; here the frame is kept in one piece
before merging, so that a tiny model spends one or two and its capacity goes to the decision.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from agentrl.world.text import CALL_HEAD, document, number

HERE = Path(__file__).parent
FOLDER = HERE / "tokenizer"
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, START, END)
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def _sentences(rng: random.Random, n: int):
    """Text for the merges: base documents, and the families' wording over random numbers. The wording is a frozen
    copy: another family must not change the tokens that every model has learned."""
    for _ in range(n):
        doc = document(rng)
        yield doc if isinstance(doc, str) else "\n".join(m["content"] for m in doc)
    wording = json.loads((HERE / "wording.json").read_text(encoding="utf-8"))
    for _ in range(n // 10):
        for question, *programs in wording:
            values = {k: number(rng, 3) for k in ("a", "b", "n", "e", "plus")}
            yield question.format(**values)
            for program in programs:
                yield program.format(**values).replace("\n", "\\n")
    for _ in range(n // 10):
        yield "system\nTools: code_interpreter(code)"
        yield "user\n"
        yield "assistant\n"
        yield from ("I know it.", "The code failed. I will fix it.", "That looks wrong. I will check it.")
        yield from (
            "NameError: name 'primes' is not defined",
            "SyntaxError: invalid syntax",
            "'(' was never closed",
        )


def build(folder: Path = FOLDER, vocabulary: int = 512, seed: int = 0) -> None:
    """Train the merges and write the tokenizer with its chat template to `folder`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    head = CALL_HEAD.replace("{", r"\{")
    # Kept whole: the call's frame, a line break inside JSON, the box; then a word, a digit, punctuation.
    pattern = head + r"""|"\}\}|\\n| ?\\boxed\{| ?\p{L}+|\d| ?[^\s\p{L}\d"\\]+|\s|["\\]"""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(MARKS),
        min_frequency=20,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(random.Random(seed), 20_000), trainer)
    tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in MARKS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )
    fast.chat_template = (HERE / "chat_template.jinja").read_text(encoding="utf-8")
    fast.save_pretrained(folder)


def load(folder: Path = FOLDER):
    """The committed tokenizer (transformers' `PreTrainedTokenizerFast`)."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)
