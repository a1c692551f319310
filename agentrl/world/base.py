"""The tiny base models: Qwen3 with 0.85 million weights, shipped with the package.

Reinforcement learning improves decisions and not copying, so a base copies numbers reliably before the road
begins. `build.py` is how they were made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "bases"


@dataclass(frozen=True)
class BaseConfig:
    """Everything that decides a base model's weights, on one machine with one thread."""

    steps: int
    rows: int = 16  # rows a step, each packed with whole documents up to MAX_DOCUMENT_TOKENS
    muon_lr: float = 1e-2  # for the matrices; embeddings and norms use AdamW at adamw_lr
    adamw_lr: float = 3e-3
    warmup: int = 50
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 384
    seed: int = 0


BASES = {"strong": BaseConfig(steps=3000), "weak": BaseConfig(steps=450)}


def new_model(config: BaseConfig, vocabulary: int):
    """A Qwen3 with random weights from `config.seed`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(config.seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.hidden // config.heads,
            intermediate_size=config.feed_forward,
            tie_word_embeddings=True,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
