"""Where models come from: a tiny base shipped with the package, or a folder that a run wrote."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path


def source_folder(source: str) -> Path:
    """The folder of `source`: "world:strong" is a shipped base, anything else a path. Raises FileNotFoundError
    naming what is missing and how to make it."""
    if source.startswith("world:"):
        from agentrl.world import base

        folder = base.FOLDER / source.removeprefix("world:")
        hint = f"known bases: {', '.join(base.BASES)}; rebuild one with `python -m agentrl.world.base NAME`"
    else:
        folder, hint = Path(source), "run the notebook that makes it first"
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no model at {folder} (from {source!r}); {hint}")
    return folder


def weights_sha256(source: str) -> str:
    """SHA-256 of the weights file, so that a run's identity changes with its start model."""
    return hashlib.sha256((source_folder(source) / "model.safetensors").read_bytes()).hexdigest()


def load(source: str):
    """(model in float32, tokenizer) of `source`, on the CPU or the first GPU."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = source_folder(source)
    tokenizer_folder = folder
    if source.startswith("world:"):
        from agentrl.world import tokenizer as tiny

        tokenizer_folder = tiny.FOLDER
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device), AutoTokenizer.from_pretrained(tokenizer_folder)


def save(model, tokenizer, folder: Path) -> None:
    """Write model and tokenizer so that `load(str(folder))` gives them back."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare(seed: int, threads: int) -> None:
    """Seed every generator and fix the number of threads: the same seed gives the same numbers."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    transformers.set_seed(seed)


@contextlib.contextmanager
def threads(n: int):
    """Let torch use `n` threads within. Decoding many short rows gains little from a second one, and the
    programs that those rows wrote need a core to run on meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
