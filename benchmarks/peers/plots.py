"""Plot of the table of `benchmarks.peers`, PNG and SVG. Needs matplotlib, of the extra ``claims``."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

OURS = ("inline", "local")
TITLES = {"http": "Over HTTP, {delay_ms:g} ms an answer", "null": "A model that answers at once"}


def saved(folder: Path, found: dict[str, Any]) -> list[str]:
    """Draw and save; return the files. Raises ``ModuleNotFoundError`` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"  # equal figures give equal files
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(1, len(TITLES), figsize=(11, 5.4), layout="constrained")
    for axis, (work, title) in zip(axes, TITLES.items(), strict=True):
        _bars(axis, found["peers"], work)
        axis.set(title=title.format(**found), xlabel="calls a second (log scale)", xscale="log")
        axis.grid(True, axis="x", alpha=0.3)
    machine = found["machine"]
    caption = (
        f"Medians of {found['rounds']} rounds in turns, their range as a line; {machine['cpus']} cores of"
        f" {machine['cpu']}, load {machine['load_1min']:g} at the start and {found['load_1min_after']:g} at the end."
        " Dark: keeps finished calls through a kill -9, or says so."
    )
    figure.supxlabel(textwrap.fill(caption, 150), fontsize=8)
    files = [str(folder / f"peers{form}") for form in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=140, metadata={"Date": None} if file.endswith("svg") else None)
    pyplot.close(figure)
    return files


def _bars(axis: Any, peers: dict[str, Any], work: str) -> None:
    entries = [(name, row) for name, row in peers.items() if row.get(work, {}).get("calls_per_s")]
    entries.sort(key=lambda each: each[1][work]["calls_per_s"])
    for place, (name, row) in enumerate(entries):
        rate, rounds = row[work]["calls_per_s"], row[work]["rounds"]
        colour = "C1" if name in OURS else "C0"
        alpha = 0.3 if row["durable"] == "nothing" else 0.9
        axis.barh(place, rate, color=colour, alpha=alpha)
        axis.plot([min(rounds), max(rounds)], [place, place], "k-", linewidth=1)
        axis.annotate(f" {rate:,.0f}", (max(*rounds, rate), place), va="center", fontsize=8)
    axis.set_yticks(range(len(entries)), [name for name, _ in entries], fontsize=8)
    axis.margins(x=0.15)
