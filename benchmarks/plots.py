"""The claims as pictures, PNG and SVG. Needs matplotlib, of the extra ``claims``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims_hanoi import GROWTHS
from policies.voting import k_min, votes_expected

SIMULATED = "Simulated provider: a bounded reasoner that reads its prompt alone and errs at a stated rate."


def draw(found: dict[str, Any], folder: Path) -> list[str]:
    """Every plot that there are figures for; the files. Raises ``ModuleNotFoundError`` without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    if "hanoi" in found:
        files += _saved(folder / "hanoi-cost", 2, _cost, found["hanoi"], _cost_caption(found["hanoi"]))
        files += _saved(folder / "hanoi-ablations", 3, _ablations, found["hanoi"], _ablations_caption(found["hanoi"]))
    if "convex" in found:
        files += _saved(folder / "convex-f1", 1, _f1, found["convex"], _f1_caption(found["convex"]))
    return files


def _saved(path: Path, panels: int, plot: Callable[[Any, Any], None], found: Any, caption: str) -> list[str]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = path.name  # the same figures make the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=(5.2 * panels, 4.6), squeeze=False, layout="constrained")
    plot(axes[0], found)
    for axis in axes[0]:
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8)
    figure.supxlabel(f"{SIMULATED}\n{caption}", fontsize=8)
    files = [str(path.with_suffix(form)) for form in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=140, metadata={"Date": None} if file.endswith("svg") else None)
    pyplot.close(figure)
    return files


def _cost(axes: Any, found: dict[str, Any]) -> None:
    rows: Sequence[dict[str, Any]] = found["cost"]
    steps = [row["steps"] for row in rows]
    totals = [row["samples_per_step"] * row["steps"] for row in rows]
    axes[0].loglog(steps, totals, "o", label="measured")
    for name, law in GROWTHS.items():
        scale = totals[0] / law(steps[0])
        axes[0].loglog(steps, [scale * law(each) for each in steps], "--", label=f"as {name}")
    axes[0].set(title="Samples in all", xlabel="steps", ylabel="samples")
    fine = [round(steps[0] * (steps[-1] / steps[0]) ** (place / 400)) for place in range(401)]
    planned = [votes_expected(found["p"], k_min(found["p"], found["target"], each)) for each in fine]
    axes[1].semilogx(fine, planned, "-", alpha=0.6, label="formula, k planned for each length")
    axes[1].semilogx(steps, [row["votes_per_step"] for row in rows], "o", label="measured")
    axes[1].set(title="Counted votes a step", xlabel="steps", ylabel="votes")


def _cost_caption(found: dict[str, Any]) -> str:
    off = max(abs(row["off"]) for row in found["cost"])
    return (
        f"Towers of Hanoi, one move a call; a counted vote is right with p = {found['p']}, wrong ones all agree; k"
        f" planned for {found['target']:g}. Farthest from the formula: {off:.2%}."
    )


def _ablations(axes: Any, found: dict[str, Any]) -> None:
    rows = found["without_votes"]
    axes[0].errorbar(
        [row["steps"] for row in rows], [row["solved"] for row in rows], [row["error"] for row in rows], fmt="o",
        label="one call a move",
    )  # fmt: skip
    axes[0].plot([row["steps"] for row in rows], [row["expected"] for row in rows], "-", label="p^s")
    axes[0].set(title="Without votes: chains without error", xlabel="steps", ylabel="share", xscale="log")
    rows = found["with_history"]
    for name, label in (("history", "every move so far in the prompt"), ("clean", "the previous move alone")):
        axes[1].plot([row["steps"] for row in rows], [row[name] for row in rows], "o-", label=label)
    axes[1].set(title="With the history kept: samples a step", xlabel="moves made", ylabel="samples")
    rows = found["fixed_k"]
    totals = [row["samples_per_step"] * row["steps"] for row in rows]
    axes[2].loglog([row["steps"] for row in rows], totals, "o-", label="samples, k = 3")
    axes[2].set(title="k fixed: linear, and less and less sure", xlabel="steps", ylabel="samples")
    sure = axes[2].twinx()
    sure.semilogx([row["steps"] for row in rows], [row["success_expected"] for row in rows], "r--")
    sure.set_ylabel("probability that all are right (dashed)")


def _ablations_caption(found: dict[str, Any]) -> str:
    tokens = found["with_history"][-1]
    return (
        "Left: p = 0.99. Middle: the error follows from the text (tokens, paragraphs, nesting); the largest prompts had"
        f" {tokens['history tokens']:,} and {tokens['clean tokens']:,} tokens. Right: p = {found['p']}."
    )


def _f1(axes: Any, found: dict[str, Any]) -> None:
    rows = found["rows"]
    depths = [row["depth"] for row in rows]
    names = {
        "one-shot": "one shot", "tree": "one shot, syntax tree given", "history": "a call a node, full history",
        "focused": "a call a node, focused", "voted": "a call a node, focused, voted on",
    }  # fmt: skip
    for name, label in names.items():
        axes[0].plot(depths, [row[name]["f1"] for row in rows], "o-", label=label)
    axes[0].plot(depths, [row["expected"] for row in rows], "k:", label="focused, as predicted")
    axes[0].set(title="Convex, concave or neither", xlabel="depth of composition", ylabel="F1 (macro)", ylim=(0, 1.03))


def _f1_caption(found: dict[str, Any]) -> str:
    rows = found["rows"]
    low, high = min(row["error_min"] for row in rows), max(row["error_max"] for row in rows)
    names = ("one-shot", "history", "voted")
    largest = [max(row[name]["largest_prompt_tokens"] for row in rows) for name in names]
    return (
        f"{rows[0]['functions']} functions a depth. One-atom prompts err in {low:.3%} to {high:.3%} of counted replies."
        f" Largest prompts: one shot {largest[0]}, history {largest[1]}, focused {largest[2]} tokens; M and a reply are"
        f" {found['window_tokens']}."
    )
