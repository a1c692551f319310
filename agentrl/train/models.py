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
        hint = f"known bases: {', '.join(base.BASES)}; rebuild one with `python -m agentrl.world.build NAME`"
    else:
        folder, hint = Path(source), "run the notebook that makes it first"
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no model at {folder} (from {source!r}); {hint}")
    return folder


def model_sha256(source: str) -> str:
    """SHA-256 over the weights and the tokenizer, so that a run's identity changes with its start model."""
    folder = source_folder(source)
    files = [folder / "model.safetensors", tokenizer_folder(source) / "tokenizer.json"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def tokenizer_folder(source: str) -> Path:
    """The folder of the tokenizer of `source`; the tiny bases share one."""
    if source.startswith("world:"):
        from agentrl.world import tokenizer

        return tokenizer.FOLDER
    return source_folder(source)


def load(source: str):
    """(model in float32, tokenizer) of `source`, on the CPU or the first GPU."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source_folder(source), dtype=torch.float32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device), AutoTokenizer.from_pretrained(tokenizer_folder(source))


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
