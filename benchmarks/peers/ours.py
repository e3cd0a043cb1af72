"""`cortex.batch` with a model that answers at once, in this process: Cortex's program for ``--work null``.

Timed from the model's first question to the caller's last row, with the journal on disk and closed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import cortex
from benchmarks.harness.rows import check_all
from cortex.values.reply import Reply, Usage

MARK = b"row "
DIGITS = 6


class Instant:
    """Model that repeats the row's number at once."""

    endpoint, rate = "instant", None
    first_s = cpu_s = 0.0
    """Time of the first question, and CPU seconds of this process by then."""

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply:
        """Return the answer."""
        if not self.first_s:
            self.first_s, self.cpu_s = time.perf_counter(), time.process_time()
        start = body.index(MARK)
        text = body[start : start + len(MARK) + DIGITS].decode()
        return Reply(
            b'{"id":"msg","content":[{"type":"text","text":"%s"}]}' % text.encode(), "end_turn", "none", Usage(40, 4)
        )

    async def count_tokens(self, body: bytes) -> int | None:
        """Return None: the count is not needed."""
        return None

    async def close(self) -> None:
        """Do nothing: no resource is held."""


def main() -> None:
    """Run all rows from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--state", type=Path, required=True)
    given = parser.parse_args()
    rows = [{"id": f"r{number:06d}", "number": f"{number:06d}"} for number in range(given.calls)]
    model = Instant()
    answers = cortex.batch(
        rows, "Repeat this and nothing else: row {{number}}", id="id", model=model, state=str(given.state),
        cluster="inline", concurrency=given.at_once, progress=False, ordered=False,
    )  # fmt: skip
    took = {"took_s": time.perf_counter() - model.first_s, "cpu_s": time.process_time() - model.cpu_s}
    check_all(((row["id"], row["answer"]) for row in answers.rows), given.calls)
    print(msgspec.json.encode({"answered": len(answers.rows), **took}).decode())


if __name__ == "__main__":
    main()
