"""Warnings of the actors of a private Ray, printed by the driver that owns it. The actors write into log files of
that Ray."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from actors.common.tolerant_stream import tolerant
from actors.observability.logs.formatting import form_here, redaction, text_of

LOOK_S = 1.0
"""Seconds between two readings of the log files."""
LINES_MAX = 20
"""Most lines printed after one reading; of the rest only the number is printed."""
_LOUD = frozenset({"warning", "error", "critical"})


class ActorLogReader:
    """Reader of the new lines in the log files of a Ray folder. ``form``: ``json``, else lines of text."""

    def __init__(self, folder: str, form: str) -> None:
        self._folder, self._form = Path(folder), form
        self._read: dict[Path, int] = {}

    async def run(self) -> None:
        """Print new warnings and errors until cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(LOOK_S)
                self.show()
        self.show()

    def show(self) -> None:
        """Print the warnings and errors that are new since the last call."""
        found = [line for path in self._folder.glob("r/session_latest/logs/worker-*.err") for line in self._new(path)]
        stream = tolerant(sys.stderr)
        for line in found[:LINES_MAX]:
            print(line, file=stream, flush=True)
        if len(found) > LINES_MAX:
            more = {"level": "warning", "message": f"{len(found) - LINES_MAX} more warnings of actors"}
            print(self._shown(more), file=stream, flush=True)

    def _new(self, path: Path) -> list[str]:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, end, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._read[path] = self._read.get(path, 0) + len(whole) + len(end)
        lines = []
        for line in whole.splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                facts = msgspec.json.decode(line)
                if isinstance(facts, dict) and facts.get("level") in _LOUD:
                    lines.append(self._shown(facts))
        return lines

    def _shown(self, facts: Mapping[str, object]) -> str:
        return redaction(msgspec.json.encode(facts).decode() if self._form == "json" else text_of(facts))


@contextlib.asynccontextmanager
async def shown(folder: str) -> AsyncIterator[None]:
    """Print actors' warnings while the block lasts. Does nothing if ``folder`` is empty, or if this process does not
    write logs."""
    if not folder or not form_here():
        yield
        return
    task = asyncio.create_task(ActorLogReader(folder, form_here()).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
