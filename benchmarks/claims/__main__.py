"""Published claims about systems of bounded calls, measured: ``python -m benchmarks.claims --json``.

All calls go to the simulated provider's bounded reasoner. No method is tuned, and a fact missing from a prompt cannot
be used. Runs in process, over the core's own step (``core_run``). The million-step run through journal and actors with
two kills is ``benchmarks.million``. Exit code 1: a claim does not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.claims import chat, convex, hanoi, recovery, rlm, surface
from benchmarks.harness import figures

PARTS = {
    "hanoi": hanoi.measure, "convex": convex.measure, "rlm": rlm.measure,
    "chat": chat.measure, "surface": surface.measure, "recovery": recovery.measure,
}  # fmt: skip


def main() -> int:
    """Measure, draw and print. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="measure this part alone; may be repeated")
    parser.add_argument("--small", action="store_true", help="first look: short chains, few functions; proves nothing")
    parser.add_argument("--plots", metavar="FOLDER", help="folder for PNG and SVG")
    given = parser.parse_args()
    found: dict[str, Any] = {"benchmark": "claims", "machine": figures.machine(), "small": given.small}
    for name in given.only or PARTS:
        begun_s = time.process_time()
        found[name] = PARTS[name](given.small)
        found[name]["cpu_s"] = round(time.process_time() - begun_s, 1)
        for claim, holds in found[name]["holds"].items():
            figures.said(f"{name}: {claim}: {'holds' if holds else 'DOES NOT HOLD'}", given.json)
    if given.plots:
        from benchmarks.claims.plots import draw

        found["plots"] = draw(found, Path(given.plots))
    figures.tell(found)
    return 0 if all(all(found[name]["holds"].values()) for name in given.only or PARTS) else 1


if __name__ == "__main__":
    sys.exit(main())
