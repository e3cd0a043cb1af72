"""Plots of the claims, PNG and SVG. Needs matplotlib, of the extra ``claims``.

A picture is a row of ``PICTURES``: the part whose figures it shows, its file, a function that draws and a function
that returns the caption. Every caption begins with the statement that the provider is simulated.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.claims import plots_loops
from benchmarks.claims.hanoi import GROWTHS
from policies.decisions.voting import k_min, votes_expected

SIMULATED = "Simulated provider: a bounded reasoner that reads its prompt alone and errs at a stated rate."
PANEL_INCHES = (5.2, 4.6)
CAPTION_CHARACTERS = 84
"""Characters of a caption line below one panel."""


class Picture(NamedTuple):
    """File of plots."""

    part: str
    name: str
    panels: int
    plot: Callable[[Any, dict[str, Any]], None]
    """Function that draws the figures on the axes of the panels."""
    caption: Callable[[dict[str, Any]], str]


def draw(found: dict[str, Any], folder: Path) -> list[str]:
    """Draw every picture that has figures; return the files. Raises ``ModuleNotFoundError`` without matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    return [file for each in PICTURES if each.part in found for file in _saved(folder, each, found[each.part])]


def _saved(folder: Path, picture: Picture, found: dict[str, Any]) -> list[str]:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = picture.name  # equal figures give equal files
    from matplotlib import pyplot

    wide, high = PANEL_INCHES
    figure, axes = pyplot.subplots(
        1, picture.panels, figsize=(wide * picture.panels, high), squeeze=False, layout="constrained"
    )
    picture.plot(axes[0], found)
    for axis in axes[0]:
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8)
    caption = f"{SIMULATED} {picture.caption(found)}"
    figure.supxlabel(textwrap.fill(caption, CAPTION_CHARACTERS * picture.panels), fontsize=8)
    path = folder / picture.name
    files = [str(path.with_suffix(form)) for form in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=140, metadata={"Date": None} if file.endswith("svg") else None)
    pyplot.close(figure)
    return files


def _doubling(axis: Any, steps: Sequence[int]) -> None:
    """Set a logarithmic axis of base 2 with a number below each length."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(steps, [f"{each:,}" for each in steps], rotation=45, fontsize=8)
    axis.set_xticks([], minor=True)


# -- Towers of Hanoi ------------------------------------------------------------------------------------------------


def _cost(axes: Any, found: dict[str, Any]) -> None:
    rows: Sequence[dict[str, Any]] = found["cost"]
    steps = [row["steps"] for row in rows]
    totals = [row["samples_per_step"] * row["steps"] for row in rows]
    axes[0].loglog(steps, totals, "o", label="measured", zorder=3)
    for name, law in GROWTHS.items():
        scale = totals[0] / law(steps[0])
        off = found["fits"][name]
        axes[0].plot(steps, [scale * law(each) for each in steps], "--", label=f"as {name} (fitted: {off:.2f} off)")
    axes[0].set(title="Samples in all", xlabel="steps, s", ylabel="samples")
    fine = [round(steps[0] * (steps[-1] / steps[0]) ** (place / 400)) for place in range(401)]
    planned = [votes_expected(found["p"], k_min(found["p"], found["target"], each)) for each in fine]
    axes[1].plot(fine, planned, "-", alpha=0.6, label="formula, k planned for each length")
    axes[1].plot(steps, [row["votes_per_step"] for row in rows], "o", label="measured")
    axes[1].set(title="Counted votes a step", xlabel="steps, s", ylabel="votes")
    for axis in axes:
        _doubling(axis, steps)


def _cost_caption(found: dict[str, Any]) -> str:
    off = max(abs(row["off"]) for row in found["cost"])
    largest = max(row["largest_prompt_tokens"] for row in found["cost"])
    return (
        f"Towers of Hanoi, one move a call; a counted vote is right with p = {found['p']}, wrong ones all agree; k is"
        f" planned so that all steps are right with probability {found['target']:g}. Laws of growth drawn through the"
        " first point; how far off each is with its constant fitted, root mean square of natural logarithms. Votes a"
        f" step are at most {off:.2%} off the formula. Largest prompt: {largest} tokens."
    )


def _ablations(axes: Any, found: dict[str, Any]) -> None:
    rows = found["without_votes"]
    steps = [row["steps"] for row in rows]
    solved, error = [row["solved"] for row in rows], [2 * row["error"] for row in rows]
    axes[0].errorbar(steps, solved, error, fmt="o", capsize=3, label="one call a move, two standard errors")
    axes[0].plot(steps, [row["expected"] for row in rows], "-", label="p^s")
    axes[0].set(title="Without votes: chains without error", xlabel="steps, s", ylabel="share", ylim=(0, 1.1))
    _doubling(axes[0], steps)
    rows = found["with_history"]
    for name, label in (("history", "every move so far in the prompt"), ("clean", "the previous move alone")):
        axes[1].plot([row["steps"] for row in rows], [row[name] for row in rows], "o-", label=label)
    axes[1].set(title="With the history kept: votes a step", xlabel="moves made", ylabel="votes", ylim=(2.9, None))
    rows = found["fixed_k"]
    steps = [row["steps"] for row in rows]
    totals = [row["samples_per_step"] * row["steps"] for row in rows]
    axes[2].loglog(steps, totals, "o", label="samples, k = 3")
    axes[2].plot(steps, [totals[0] * each / steps[0] for each in steps], "--", color="C0", label="as s")
    axes[2].set(title="k fixed: linear, and less and less sure", xlabel="steps, s", ylabel="samples")
    _doubling(axes[2], steps)
    sure = axes[2].twinx()
    sure.plot(steps, [row["success_expected"] for row in rows], "r:")
    sure.set(ylabel="probability that all steps are right", ylim=(0, 1))
    axes[2].plot([], [], "r:", label="all steps right (right scale)")  # for the legend, which has a single scale


def _ablations_caption(found: dict[str, Any]) -> str:
    tokens = found["with_history"][-1]
    return (
        f"Left: p = {found['p_without_votes']}, {found['runs_without_votes']} chains a length. Middle: k = 3, how often"
        " a reply is wrong follows from its prompt (tokens, paragraphs, nesting); the largest prompts had"
        f" {tokens['history tokens']:,} and {tokens['clean tokens']:,} tokens. Right: p = {found['p']}."
    )


# -- convexity ------------------------------------------------------------------------------------------------------


def _f1(axes: Any, found: dict[str, Any]) -> None:
    rows = found["rows"]
    depths = [row["depth"] for row in rows]
    names = {
        "one-shot": "one shot", "tree": "one shot, syntax tree given", "history": "a call a node, full history",
        "focused": "a call a node, focused", "voted": "a call a node, focused, voted on",
    }  # fmt: skip
    for (name, label), mark in zip(names.items(), "osv^D", strict=True):
        axes[0].plot(depths, [row[name]["f1"] for row in rows], f"{mark}-", markersize=5, label=label)
    axes[0].plot(depths, [row["expected"] for row in rows], "k:", label="focused, as predicted")
    axes[0].set(title="Convex, concave or neither", xlabel="depth of composition", ylabel="F1 (macro)", ylim=(0, 1.05))
    for name, label in (*list(names.items())[:3], ("voted", "focused")):
        tokens = [row[name]["largest_prompt_tokens"] for row in rows]
        axes[1].plot(depths, tokens, "o-", markersize=5, label=label)
    axes[1].axhline(found["window_tokens"], color="k", linestyle=":", label="M and a reply")
    axes[1].set(title="Largest prompt", xlabel="depth of composition", ylabel="tokens", yscale="log")


def _f1_caption(found: dict[str, Any]) -> str:
    rows = found["rows"]
    low, high = min(row["error_min"] for row in rows), max(row["error_max"] for row in rows)
    return (
        f"{rows[0]['functions']} functions a depth; focused: the mean of {found['repeats']} readings of them. One-atom"
        f" prompts err in {low:.3%} to {high:.3%} of counted replies; k is planned for {found['target']:g} that no node"
        f" of a depth is judged wrongly (k = {rows[0]['k']} to {rows[-1]['k']})."
    )


# -- rlm ------------------------------------------------------------------------------------------------------------


def _rlm(axes: Any, found: dict[str, Any]) -> None:
    for name, label in (("keyed", "where code can leave something out"), ("plain", "where every line must be read")):
        rows = [row for row in found["tokens"] if row["question"] == name]
        lengths = [row["reviews"] for row in rows]
        axes[0].loglog(lengths, [row["rlm"]["tokens"] for row in rows], "o-", label=f"rlm, {label}")
    asked = [row for row in rows if row["one_shot"]["answered"]]
    tokens = [row["one_shot"]["tokens"] for row in asked]
    axes[0].loglog([row["reviews"] for row in asked], tokens, "s-", label="one shot")
    axes[0].loglog(lengths, [row["needed_at_once"] for row in rows], "k:", label="one shot, did it fit")
    axes[0].axhline(found["window_tokens"], color="grey", linewidth=0.8)
    axes[0].set(title="Tokens of a question over reviews", xlabel="reviews, a line each", ylabel="tokens")
    rows = found["wall"]
    axes[1].semilogx([row["at_once"] for row in rows], [row["wall_s"] for row in rows], "o-", label="rlm, in process")
    axes[1].set_ylim(bottom=0)
    axes[1].set(title=f"Wall time of {rows[0]['subcalls']} sub-calls", xlabel="at once, at most", ylabel="s")
    rows = found["kept"]
    runs = [row["run"] for row in rows]
    axes[2].plot(runs, [row["written_each_time"]["tokens"] for row in rows], "s-", label="written each time")
    axes[2].plot(runs, [row["tokens"] for row in rows], "o-", label="written once and kept")
    axes[2].set(title="A kept program: tokens of a run", xlabel="run, each on new input", ylabel="tokens")
    axes[2].set_ylim(bottom=0)


def _rlm_caption(found: dict[str, Any]) -> str:
    largest = max(row["rlm"]["largest_prompt_tokens"] for row in found["tokens"])
    lines = []
    for peer in found["peers"]:
        names = [name for name in ("cortex", "rlms") if name in peer]
        took = ", ".join(f"{name} {peer[name]['calls']} calls in {peer[name]['wall_s']:.1f} s" for name in names)
        lines.append(f"at {peer['latency_ms']:g} ms a call {took}")
    beside = f"\nSide by side over HTTP: {'; '.join(lines)}." if lines else ""
    return (
        f"M and a reply are {found['window_tokens']:,} tokens (grey); the largest prompt of rlm had {largest:,}. The"
        f" reasoner writes programs of two shapes that it knows.{beside}"
    )


# -- recovery -------------------------------------------------------------------------------------------------------


def _recovery(axes: Any, found: dict[str, Any]) -> None:
    rows = found["rows"]
    lengths = [row["notes"] for row in rows]
    for move in [name for name in rows[0] if name != "notes"]:
        style = "k:" if move == "none" else "o-"
        label = "one conversation" if move == "none" else move
        for axis, what in zip(axes, ("tokens", "largest_prompt_tokens", "success"), strict=True):
            axis.plot(lengths, [row[move][what] for row in rows], style, label=label)
    axes[0].set(title="Tokens a run", xlabel="notes", ylabel="tokens", yscale="log")
    axes[1].set(title="Largest prompt", xlabel="notes", ylabel="tokens", yscale="log")
    axes[2].set(title="Runs with the right counts", xlabel="notes", ylabel="share", ylim=(0, 1.03))


def _recovery_caption(found: dict[str, Any]) -> str:
    return (
        f"Notes read, labelled and counted with the same two tools; {found['runs']} runs a point; a bounded"
        f" conversation deals with {found['part']} notes. No votes, no checks."
    )


PICTURES = (
    Picture("hanoi", "hanoi-cost", 2, _cost, _cost_caption),
    Picture("hanoi", "hanoi-ablations", 3, _ablations, _ablations_caption),
    Picture("convex", "convex-f1", 2, _f1, _f1_caption),
    Picture("rlm", "rlm", 3, _rlm, _rlm_caption),
    Picture("chat", "chat-loop", 3, plots_loops.chat, plots_loops.chat_caption),
    Picture("surface", "tool-surface", 2, plots_loops.surface, plots_loops.surface_caption),
    Picture("recovery", "recovery", 3, _recovery, _recovery_caption),
)
