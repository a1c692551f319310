"""The shipped base models: what is committed is what its provenance says, and one is rebuilt at smoke size."""

import dataclasses
import hashlib
import json

import pytest

from agentrl.train import models
from agentrl.world import base, build, tokenizer

TINY = dataclasses.replace(
    base.BASES["weak"], steps=4, rows=2, layers=1, hidden=32, feed_forward=32, warmup=2
)


@pytest.mark.parametrize("name", list(base.BASES))
def test_committed_base_is_the_one_described(name):
    folder = base.FOLDER / name
    told = json.loads((folder / "provenance.json").read_text())
    assert told["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert told["config"] == dataclasses.asdict(base.BASES[name])
    assert told["command"] == f"python -m agentrl.world.build {name}"
    model, tok = models.load(f"world:{name}")
    assert sum(p.numel() for p in model.parameters()) == told["parameters"]
    few = build.token_accuracy(model, tok, base.BASES[name], n_rows=16)
    assert few == pytest.approx(told["held_out_token_accuracy"], abs=0.02)


def test_bases_fit_in_five_megabytes_and_the_strong_one_copies_better():
    files = [base.FOLDER / name / "model.safetensors" for name in base.BASES]
    assert sum(f.stat().st_size for f in files) < 5e6
    told = {name: json.loads((base.FOLDER / name / "provenance.json").read_text()) for name in base.BASES}
    assert told["strong"]["held_out_token_accuracy"] > told["weak"]["held_out_token_accuracy"]


def test_rebuilding_repeats_and_learns(tmp_path):
    told = [build.build("weak", tmp_path / str(i), TINY, progress=lambda line: None) for i in range(2)]
    assert told[0]["sha256"] == told[1]["sha256"]
    assert told[0]["sha256"] == json.loads((tmp_path / "0" / "provenance.json").read_text())["sha256"]
    longer = build.build(
        "weak", tmp_path / "longer", dataclasses.replace(TINY, steps=40), progress=lambda line: None
    )
    assert longer["loss_nats"] < told[0]["loss_nats"] - 0.5


def test_committed_tokenizer_is_what_the_code_builds(tmp_path):
    tokenizer.build(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (tokenizer.FOLDER / "tokenizer.json").read_bytes()


def test_digits_are_single_tokens():
    tok = tokenizer.load()
    pieces = [tok.decode([i]) for i in tok.encode("1234567 and 80")]
    assert [p for p in pieces if p.strip().isdigit()] == list("123456780")


def test_text_that_asks_a_question_is_refused(monkeypatch):
    monkeypatch.setattr(build.text, "document", lambda rng: "Say What is the gcd of 12 and 18?")
    with pytest.raises(ValueError, match="holds a task's question"):
        next(build.documents(0))
