"""Frames to Axes: drawing only. No statistics and no training code; the data behind a figure is saved beside it."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

# Okabe-Ito: told apart by colour-blind readers, and ordered so that neighbours differ in grey as well.
COLOURS = {
    "base": "#999999",
    "sft": "#E69F00",
    "rl": "#0072B2",
    "GRPO-T": "#D55E00",
    "GRPO-TCR": "#0072B2",
    "GRPO-SCR": "#009E73",
    "right": "#0072B2",
    "right, after an error": "#56B4E9",
    "wrong": "#D55E00",
}
LABELS = {"base": "base", "sft": "after SFT", "rl": "after RL"}
STYLE = {
    "pdf.fonttype": 42,
    "svg.hashsalt": "agentrl",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 160,
}


def new(rows: int = 1, columns: int = 1, width: float = 3.2, height: float = 2.4):
    """A figure and its axes in the workbook's style; sizes in inches a panel."""
    import matplotlib.pyplot as plt

    mpl.rcParams.update(STYLE)
    return plt.subplots(rows, columns, figsize=(width * columns, height * rows))


def curve(
    ax, frame, x: str, y: str, ylabel: str, colour: str, xlabel: str = "RL step", label: str | None = None
):
    """A line of `y` over `x`; a band between `<y>_low` and `<y>_high` where the frame has them."""
    frame = frame.sort_values(x)
    marker = "o" if len(frame) <= 12 else None  # where a look was taken
    ax.plot(frame[x], frame[y], color=colour, lw=1.4, marker=marker, ms=3, label=label)
    if f"{y}_low" in frame:
        ax.fill_between(frame[x], frame[f"{y}_low"], frame[f"{y}_high"], color=colour, alpha=0.2, lw=0)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    return ax


PANELS = (
    ("accuracy", "validation accuracy"),
    ("reward", "training reward"),
    ("entropy", "entropy (nats a token)"),
    ("calls", "programs run a sample"),
    ("call_success", "share of programs that ran clean"),
    ("sampled_tokens", "tokens drawn a sample"),
)


def training(runs: list[tuple]):
    """Six panels over RL steps from (metrics, validation curve) pairs, a line a run; returns the figure.

    Accuracy is the validation curve's, with its interval; the rest is measured on the training rollouts.
    """
    figure, axes = new(2, 3)
    for metrics, validation in runs:
        for ax, (column, label) in zip(axes.flat, PANELS, strict=True):
            frame = validation if column == "accuracy" else metrics
            curve(ax, frame, "step", column, label, COLOURS["rl"])
            if column in ("accuracy", "call_success"):
                ax.set_ylim(0, 1)
    return figure


def bars(ax, frame, group: str, hue: str, value: str, ylabel: str):
    """Grouped bars of `value` with whiskers from `<value>_low` to `<value>_high` where the frame has them."""
    groups, hues = list(dict.fromkeys(frame[group])), list(dict.fromkeys(frame[hue]))
    width = 0.8 / len(hues)
    for i, h in enumerate(hues):
        part = frame[frame[hue] == h].set_index(group).reindex(groups)
        x = [g + (i - (len(hues) - 1) / 2) * width for g in range(len(groups))]
        ax.bar(x, part[value], width * 0.92, color=COLOURS.get(h, f"C{i}"), label=LABELS.get(h, h))
        if f"{value}_low" in part:
            spans = [part[value] - part[f"{value}_low"], part[f"{value}_high"] - part[value]]
            ax.errorbar(x, part[value], yerr=spans, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)
    ax.set_xticks(range(len(groups)), groups)
    ax.set_ylabel(ylabel)
    ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(hues), columnspacing=1)
    return ax


def save(figure, frame, folder: Path, name: str) -> list[Path]:
    """Write `name`.pdf, .svg and .png and the data behind it as `name`.csv; the same data gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for ending, stamp in (
        ("pdf", {"CreationDate": None}),
        ("svg", {"Date": None}),
        ("png", {"Software": None}),
    ):
        path = folder / f"{name}.{ending}"
        figure.savefig(path, metadata=stamp)
        paths.append(path)
    path = folder / f"{name}.csv"
    frame.to_csv(path, index=False, float_format="%.6g")
    return [*paths, path]
