"""Tables, claims and figures on made-up frames; the run lists."""

import json

import numpy as np
import pandas as pd
import pytest

from agentrl import figures, study
from agentrl.config import load_profile
from agentrl.evaluate import matrices, scores
from agentrl.runs import Run, RunConfig, siblings
from agentrl.study import tables


def rollouts(correct_NxK, lost=()):
    rows = []
    for n, row in enumerate(correct_NxK):
        for k, c in enumerate(row):
            stop = "sandbox_lost" if (n, k) in lost else "answered"
            rows.append({"task_id": f"t{n:03}", "sample": k, "correct": bool(c), "answer": "7" if c else None,
                         "stop_reason": stop, "source": "gcd", "reward": float(c), "calls": 1, "failed_calls": 0,
                         "malformed_calls": 0, "turns": 2, "sampled_tokens": 10})  # fmt: skip
    return pd.DataFrame(rows)


def saved(folder, correct_NxK, seed, kind="eval", name="rl-test"):
    folder.mkdir(parents=True)
    rollouts(correct_NxK).to_parquet(folder / "rollouts.parquet")
    values = {"split": "test", "eval.temperature": 1.0, "eval.top_p": 1.0}
    return Run(RunConfig(kind, name, "m:f", seed, values), folder)


def test_scores_by_hand():
    found = scores(rollouts([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]))
    assert found["average"] == pytest.approx((0.25 + 1 + 0) / 3)
    assert found["pass"] == pytest.approx(2 / 3)
    assert found["maj"] == pytest.approx(2 / 3)  # silence doesn't vote, so one right answer is the majority
    assert found["problems"] == 3 and found["samples"] == 4


def test_rows_in_any_order_and_lost_problems_left_out():
    frame = rollouts([[1, 0], [0, 0], [1, 1]], lost={(0, 1)}).sample(frac=1, random_state=0)
    correct, answers = matrices(frame)
    assert correct.tolist() == [[False, False], [True, True]]
    assert answers.tolist() == [[None, None], ["7", "7"]]


def test_gain_is_paired_by_problem(tmp_path):
    rng = np.random.default_rng(0)
    before = (rng.random((40, 4)) < 0.3).astype(int)
    after = (rng.random((40, 4)) < 0.8).astype(int)
    a, b = saved(tmp_path / "a", before, 3), saved(tmp_path / "b", after, 3)
    found = tables.gain(a, b)
    assert found["gain"] == pytest.approx(after.mean() - before.mean())
    assert found["gain_low"] < found["gain"] < found["gain_high"] and found["p"] < 0.01
    assert len(tables.gains([a], [b])) == 1 and tables.gains([a], []).empty


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([(0.1, 0.3), (0.05, 0.2)], "supported"),
        ([(0.1, 0.3), (-0.05, 0.2)], "inconclusive"),
        ([(0.1, 0.3), (-0.2, -0.1)], "not supported"),
    ],
)
def test_the_road_s_rule(intervals, verdict):
    frame = pd.DataFrame(
        [{"seed": i, "gain_low": lo, "gain_high": hi} for i, (lo, hi) in enumerate(intervals)]
    )
    claims = tables.ledger(frame, "tables/gain.csv")
    assert claims[0]["id"] == "R1" and claims[0]["verdict"] == verdict
    assert [c["id"] for c in claims[1:]] == [f"C{i}" for i in range(1, 14)]
    assert {c["verdict"] for c in claims[1:]} == {"not tested"}


def test_written_ledger_is_readable_json_and_markdown(tmp_path):
    frame = pd.DataFrame([{"seed": 0, "gain_low": 0.1, "gain_high": 0.3}])
    tables.write_ledger(tables.ledger(frame, "tables/gain.csv"), tmp_path)
    assert json.loads((tmp_path / "claims.json").read_text())[0]["numbers"][0]["gain_low"] == 0.1
    assert "nan" not in (tmp_path / "claims.md").read_text()


def test_missing_runs_are_named(tmp_path):
    config = RunConfig("rl", "GRPO-TCR", "m:f", 0, {})
    with pytest.raises(FileNotFoundError, match="no finished run of rl under .*run_all.py"):
        tables.standing({"rl": config}, tmp_path)


def test_one_value_changes_only_what_depends_on_it():
    plain, longer = load_profile("tiny"), load_profile("tiny", **{"rl.steps": 5})
    assert study.sft_run(plain).identity == study.sft_run(longer).identity
    assert study.rl_run(plain).identity != study.rl_run(longer).identity
    other = load_profile("tiny", **{"sft.steps": 5})
    assert study.data_run(plain).identity == study.data_run(other).identity
    assert study.rl_run(plain).identity != study.rl_run(other).identity
    again = load_profile("tiny", seed=1)
    assert (
        study.eval_run(plain, study.rl_run(plain), "test").identity
        != study.eval_run(again, study.rl_run(again), "test").identity
    )


def test_figures_repeat_to_the_byte_with_their_data(tmp_path):
    curve = pd.DataFrame(
        {"step": [0, 5], "accuracy": [0.2, 0.8], "accuracy_low": [0.1, 0.7], "accuracy_high": [0.3, 0.9]}
    )
    columns = [c for c, _ in figures.PANELS if c != "accuracy"]
    metrics = pd.DataFrame({"step": range(1, 6)} | {c: np.arange(5) / 10 for c in columns})
    kinds = {"pdf", "svg", "png", "csv"}
    for name in ("a", "b"):
        paths = figures.save(figures.training([(metrics, curve)]), curve, tmp_path / name, "training")
        assert {p.suffix[1:] for p in paths} == kinds
    for kind in kinds:
        a, b = (tmp_path / name / f"training.{kind}" for name in ("a", "b"))
        assert a.read_bytes() == b.read_bytes(), kind
    assert pd.read_csv(tmp_path / "a" / "training.csv").equals(curve)


def test_bars_show_intervals():
    frame = pd.DataFrame({"metric": ["average", "average"], "model": ["sft", "rl"], "value": [0.3, 0.9],
                          "value_low": [0.2, 0.8], "value_high": [0.4, 1.0]})  # fmt: skip
    _, ax = figures.new()
    figures.bars(ax, frame, "metric", "model", "value", "share")
    assert [round(p.get_height(), 3) for p in ax.patches] == [0.3, 0.9]
    assert len(ax.collections) == 2  # the whiskers


def test_siblings_differ_in_the_seed_alone(tmp_path):
    def finished(**overrides):
        profile = load_profile("smoke", **overrides)
        config = study.eval_run(profile, study.rl_run(profile), "test")
        folder = tmp_path / "runs" / f"{config.kind}-{config.name}-{config.identity[:8]}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config.as_json()))
        (folder / "_SUCCESS").write_text("{}")
        return config

    plain = finished()
    finished(seed=1)
    # These change an input alone: the evaluation's own values stay the same.
    for other in ({"rl.steps": 3}, {"sft.steps": 5}, {"recipe": "GRPO-T"}, {"teacher.trajectories": 50}):
        finished(**other)
    assert [run.config.seed for run in siblings(plain, tmp_path)] == [0, 1]
