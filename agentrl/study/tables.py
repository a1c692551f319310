"""From saved runs to tables: curves with intervals, the benchmark, and the claims ledger."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from agentrl import metrics
from agentrl.evaluate import matrices, scores
from agentrl.records import summary
from agentrl.runs import Run, RunConfig, siblings

METRICS = {"average": "average@{k}", "pass": "pass@{k}", "maj": "maj@{k}"}

# Paper, sections 3 and 4. What no run of this version puts to the test is said to be untested.
CLAIMS = {
    "C1": "Real end-to-end SFT trajectories beat stitched ones on all three metrics (Table 1).",
    "C2": "Diverse RL data keeps entropy higher and needs fewer steps to a level (Fig. 2).",
    "C3": "Model-aware RL data lets the weak model learn (Fig. 3).",
    "C4": "GRPO-TCR beats GRPO-T, and reaches its best with at most 25% of the steps (Fig. 4).",
    "C5": "Token-level beats sequence-level on the strong model and ties on the weak (Fig. 4).",
    "C6": "pass@k and average@k rise together under TCR and SCR; T suppresses pass@k (section 4.2).",
    "C7": "T's entropy collapses early; TCR's and SCR's rise and plateau (Fig. 5).",
    "C8": "The effect of epsilon_high is not monotonic (Fig. 6).",
    "C9": "The strongest runs are deliberative: fewer calls, longer rounds (Fig. 7).",
    "C10": "Deliberative tool use succeeds in over 70% of calls, reactive in fewer (Fig. 8).",
    "C11": "A long-CoT start drives tool calls to 0 (Fig. 9).",
    "C12": "SFT restores tool use for long-CoT, but it only ties the instruct model (Fig. 10).",
    "C13": "A small agentic model beats larger ones (Table 2).",
}


def validation_curve(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a step: `records.summary`, and the accuracy's 95% interval over problems."""
    rows = []
    for step, part in frame.groupby("step"):
        low, high = metrics.bootstrap_ci(matrices(part)[0].mean(1))
        rows.append({"step": step} | summary(part) | {"accuracy_low": low, "accuracy_high": high})
    return pd.DataFrame(rows)


def training_data(runs: list[Run]) -> pd.DataFrame:
    """The data behind the training figure: every run's metrics beside its validation curve, with its seed."""
    frames = []
    for run in runs:
        curve = validation_curve(run.frame("validation"))
        frame = run.frame("metrics").merge(curve, on="step", how="outer", suffixes=("", "_validation"))
        frames.append(frame.assign(seed=run.config.seed))
    return pd.concat(frames, ignore_index=True)


def standing(configs: dict[str, RunConfig], out: Path) -> dict[str, list[Run]]:
    """Every seed's finished run of each config. Raises FileNotFoundError naming those that have none."""
    found = {name: siblings(config, out) for name, config in configs.items()}
    if missing := [name for name, runs in found.items() if not runs]:
        raise FileNotFoundError(
            f"no finished run of {', '.join(missing)} under {out}: run the notebooks that make it first "
            "(`python run_all.py` runs all)"
        )
    return found


def outcomes(frame: pd.DataFrame) -> pd.DataFrame:
    """Shares of right, right after a failed program, and wrong trajectories, by task family."""
    clean = frame["failed_calls"] == 0
    outcome = np.select(
        [frame["correct"] & clean, frame["correct"]], ["right", "right, after an error"], "wrong"
    )
    shares = frame.assign(outcome=outcome).groupby("source")["outcome"].value_counts(normalize=True)
    return shares.rename("share").reset_index().sort_values(["source", "outcome"])


def benchmark(models: dict[str, Run]) -> pd.DataFrame:
    """One row a model and metric: value and 95% interval over problems, each with how it was sampled."""
    rows = []
    for name, run in models.items():
        found, values = scores(run.frame("rollouts")), run.config.values
        for metric, label in METRICS.items():
            rows.append(
                {
                    "model": name,
                    "seed": run.config.seed,
                    "metric": label.format(k=found["samples"]),
                    "value": found[metric],
                    "value_low": found[f"{metric}_low"],
                    "value_high": found[f"{metric}_high"],
                    "problems": found["problems"],
                    "split": values["split"],
                    "temperature": values["eval.temperature"],
                    "top_p": values["eval.top_p"],
                }
            )
    return pd.DataFrame(rows)


def gain(before: Run, after: Run) -> dict[str, float]:
    """average@k after minus before, paired over problems: difference, 95% interval, sign-flip p."""
    a, b = (matrices(run.frame("rollouts"))[0].mean(1) for run in (after, before))
    difference, low, high, p = metrics.paired_difference(a, b)
    return {
        "seed": after.config.seed,
        "before": float(b.mean()),
        "after": float(a.mean()),
        "gain": difference,
        "gain_low": low,
        "gain_high": high,
        "p": p,
        "problems": len(a),
    }


def gains(before: list[Run], after: list[Run]) -> pd.DataFrame:
    """`gain` for every seed that both lists have."""
    by_seed = {run.config.seed: run for run in before}
    return pd.DataFrame([gain(by_seed[run.config.seed], run) for run in after if run.config.seed in by_seed])


def ledger(per_seed: pd.DataFrame, evidence: str) -> list[dict]:
    """The claims ledger: the road's own claim with its numbers, and the paper's, untested where no run tests one.

    The road's rule: supported where every seed's interval lies above 0, not supported where one lies below
    0, inconclusive otherwise.
    """
    if (per_seed["gain_low"] > 0).all():
        verdict = "supported"
    else:
        verdict = "not supported" if (per_seed["gain_high"] < 0).any() else "inconclusive"
    road = {
        "id": "R1",
        "statement": "Reinforcement learning with the interpreter raises held-out accuracy over SFT.",
        "verdict": verdict,
        "evidence": evidence,
        "numbers": per_seed.to_dict("records"),
    }
    untested = {"verdict": "not tested", "evidence": None, "numbers": []}
    return [road, *({"id": i, "statement": s} | untested for i, s in CLAIMS.items())]


def write(frame: pd.DataFrame, folder: Path, name: str) -> None:
    """`frame` as `name`.csv and `name`.md."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
    (folder / f"{name}.md").write_text(markdown(frame) + "\n", encoding="utf-8")


def markdown(frame: pd.DataFrame) -> str:
    """`frame` as a Markdown table, numbers to three places."""

    def cell(value) -> str:
        if value is None or value != value:
            return ""
        if isinstance(value, (float, np.floating)):
            return f"{value:.3f}"
        return str(value).replace("|", "\\|").replace("\n", " ")

    lines = [list(frame.columns), ["---"] * len(frame.columns)]
    lines += [[cell(v) for v in row] for row in frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write_ledger(claims: list[dict], folder: Path) -> None:
    """claims.json, .csv and .md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.json").write_text(json.dumps(claims, indent=1) + "\n", encoding="utf-8")
    write(pd.DataFrame(claims)[["id", "statement", "verdict", "evidence"]], folder, "claims")


def summary_text(per_seed: pd.DataFrame, sampling: str) -> str:
    """What was learned, in plain words, with intervals: printed at the end of a batch run."""
    lines = [
        f"What was learned (test split, average@k over {per_seed['problems'].iloc[0]} problems, {sampling}):"
    ]
    for row in per_seed.itertuples():
        lines.append(
            f"  seed {row.seed}: {row.before:.3f} after SFT -> {row.after:.3f} after RL, "
            f"gain {row.gain:+.3f} [{row.gain_low:+.3f}, {row.gain_high:+.3f}] (95% over problems), p {row.p:.4f}"
        )
    if len(per_seed) == 1:
        lines.append("  One seed: the interval is over problems, and says nothing about other training runs.")
    return "\n".join(lines) + "\n"
