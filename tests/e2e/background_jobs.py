"""A provider and jobs beside a test, in processes of their own, on this machine alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e import tools
from tests.support.ports import free_port
from tests.support.repository_rules import ROOT

KEY = "sk-ant-for-nobody"
PRICE = "input=3,output=15"


def environment(**more: str) -> dict[str, str]:
    """What a command of ours sees: our packages, a key that opens nothing, and what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "CORTEX_STATE"))}
    return {**kept, "PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": KEY, **more}


@contextmanager
def cortex(*words: object, log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours; what it says is in ``log``."""
    command = [sys.executable, "-m", "actors.cli", *(str(word) for word in words)]
    with tools.running(command, log, env=environment(**more), cwd=log.parent) as child:
        yield child


@contextmanager
def provider(log: Path, *settings: str, port: int = 0, **faults: float) -> Iterator[str]:
    """A simulated provider; where it listens. ``settings``: ``NAME=VALUE``; ``faults``: share of requests."""
    port = port or free_port()
    words = ["simulate", "--port", port]
    words += [word for name, share in faults.items() for word in ("--fault", f"{name}={share}")]
    words += [word for setting in settings for word in ("--set", setting)]
    with cortex(*words, log=log) as child:
        tools.until(lambda: _listens(port), 120, "the simulated provider", child, log)
        yield f"http://127.0.0.1:{port}"


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def requests(path: Path, count: int) -> Path:
    """A file of input whose rows are all different."""
    text = "Answer with one of: bug, praise.\n\nIt crashes {} times."
    with path.open("w") as out:
        for number in range(count):
            asked = [{"role": "user", "content": text.format(number)}]
            params = {"model": "claude-test", "max_tokens": 8, "messages": asked}
            out.write(json.dumps({"custom_id": f"r{number}", "params": params}) + "\n")
    return path
