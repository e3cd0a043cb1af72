"""Makes the journals that are kept as test data: ``python -m tests.journals.make``.

Each is made by the real command in a process of its own, against the simulated provider, and ended by SIGKILL where it
is to be an interrupted one. What an uninterrupted run of the same comes to is kept beside it (``expected.json``).

All is made in a folder of a fixed name: paths stand in journals, and a test puts another of the same length in place of
it (``moved``), which changes no other byte.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import cortex
from actors.journal import fact_digests
from cortex.journal import seals

HERE = Path(__file__).parent
WORK = Path("/var/tmp/cj-00000000")
ROOT = HERE.parent.parent
SIM = ("--model", "sim")
NOWHERE = "import socket; socket.gethostname = lambda: 'a-host'"
AS_IF_LONG = "import actors.channel.journal_maintenance as u; f = u.JournalMaintenance.record_turn; u.JournalMaintenance.record_turn = lambda self, n, *more: f(self, 2_500 * n, *more)"
"""A short job with the snapshots of a long one: each event counts as many."""


class Case(NamedTuple):
    """One job: the command, and after how many turns in its journal it is killed; 0: never."""

    command: tuple[str, ...]
    slowly: tuple[str, ...] = ()
    """Options of the run that is killed."""
    kill_after: int = 0
    files: Callable[[], dict[str, str]] = dict
    before: str = ""
    """Python that runs first."""
    retried: tuple[str, ...] = ()
    """The command after which all rows have succeeded."""


def requests(count: int, long: int = 0) -> dict[str, str]:
    """An input; so many of its last rows are long."""
    lines = []
    for number in range(count):
        text = f"row {number}" + (" and much more" * 400 if number >= count - long else "")
        params = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": text}]}
        lines.append(json.dumps({"custom_id": f"r{number}", "params": params}) + "\n")
    return {"in.jsonl": "".join(lines)}


BATCH = ("batch", "in.jsonl", "-o", "out.jsonl", *SIM)
CASES = {
    "finished": Case(BATCH, files=lambda: requests(12)),
    "interrupted": Case(
        (*BATCH, "--concurrency", "6"), ("--sim", "latency_ms=150"), 16, files=lambda: requests(40)
    ),
    "failed": Case(
        (*BATCH, "--sim", "context_window=1200"), files=lambda: requests(12, long=3),
        retried=("retry", "failed", "--sim", "context_window=200000"),
    ),
    "snapshots": Case(
        ("run", "hanoi", "-p", "disks=5", *SIM), ("--sim", "latency_ms=20"), 40, before=AS_IF_LONG
    ),
    "shards": Case(
        (*BATCH, "--concurrency", "6", "--shards", "2"), ("--sim", "latency_ms=150"), 14, files=lambda: requests(16)
    ),
    "children": Case(
        ("run", "programs.py:parent", *SIM), ("--sim", "latency_ms=120"), 14,
        files=lambda: {"programs.py": (HERE / "programs.py").read_text()},
    ),
}  # fmt: skip


def minor() -> str:
    """The minor release that this is, or is to become."""
    return ".".join(cortex.__version__.split(".")[:2])


def main() -> None:
    """Make those of this release anew."""
    into = HERE / minor()
    shutil.rmtree(into, ignore_errors=True)
    for name, case in CASES.items():
        _fresh(case)
        done = subprocess.run(_argv(name, case, ()), cwd=WORK, env=_environ(), capture_output=True, text=True, check=False)
        if not done.stdout:
            raise SystemExit(done.stderr)
        summary = json.loads(done.stdout.splitlines()[-1])
        expected = {"exit_code": done.returncode, "results": _results(), "summary": summary}
        if case.kill_after:
            _fresh(case)
            _killed(name, case)
        _keep(into / name, name)
        (into / name / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        size = sum(path.stat().st_size for path in (into / name).rglob("*") if path.is_file())
        print(f"{name}: {size:,} bytes, {summary['outcome']} when it is not killed")
    shutil.rmtree(WORK)


def _fresh(case: Case) -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    for name, text in case.files().items():
        (WORK / name).write_text(text)


def _argv(name: str, case: Case, more: tuple[str, ...]) -> list[str]:
    begin = f"{case.before}\n{NOWHERE}\nimport sys\nfrom actors.cli.main import enter\nsys.exit(enter(sys.argv[1:]))"
    return [sys.executable, "-c", begin, *case.command, *more, "--job", name, "--state", "state", "--json"]


def _environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORTEX_", "OTEL_", "RAY_"))}
    return kept | {"PYTHONPATH": str(ROOT), "OTEL_TRACES_EXPORTER": "none"}


def _killed(name: str, case: Case) -> None:
    run = subprocess.Popen(
        _argv(name, case, case.slowly), cwd=WORK, env=_environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while _turns(name) < case.kill_after:
        if run.poll() is not None:
            raise SystemExit(f"{name} ended before it was killed")
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()


def _turns(name: str) -> int:
    journals = list((WORK / "state" / "jobs").glob(f"{name}*.sqlite"))
    total = 0
    for path in journals:
        try:
            with closing(sqlite3.connect(path, timeout=5.0)) as db:
                total += db.execute("SELECT count(*) FROM turns").fetchone()[0]
        except sqlite3.OperationalError:
            return 0
    return total


def _keep(into: Path, name: str) -> None:
    """The state folder with its databases whole, the input and what there is of the output."""
    for path in _databases(WORK / "state"):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.execute("VACUUM")
            db.execute("PRAGMA journal_mode=DELETE").fetchall()
    ignored = shutil.ignore_patterns("*.lock", "*-wal", "*-shm", "traces", "live", ".gitignore", "__pycache__")
    shutil.copytree(WORK, into, ignore=ignored)


def _databases(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*.sqlite"))


def _results() -> list[object]:
    path = WORK / "out.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def moved(case: Path, to: Path) -> None:
    """Copy a kept case to a folder whose name is as long as that in which it was made."""
    pairs = [(str(WORK), str(to))]
    pairs += [(_module(WORK / path.name), _module(to / path.name)) for path in case.glob("*.py")]
    assert all(len(here) == len(there) for here, there in pairs), "a longer path would move what stands behind it"
    shutil.copytree(case, to, dirs_exist_ok=True)
    for path in _databases(to / "state"):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'turns'").fetchone():
                _replace(db, [(here.encode(), there.encode()) for here, there in pairs])


def _replace(db: sqlite3.Connection, pairs: list[tuple[bytes, bytes]]) -> None:
    """Put each second text in place of the first one, and write the checksums anew that cover it."""

    def other(blob: bytes) -> bytes:
        for here, there in pairs:
            blob = blob.replace(here, there)
        return blob

    facts = dict(db.execute("SELECT key, value FROM meta"))
    has_seals, own = "sealed" in facts, 0
    for seq, record in db.execute("SELECT seq, blob FROM turns ORDER BY seq").fetchall():
        blob = other(seals.opened(seq, record)[0] if has_seals else record)
        if has_seals:
            blob, own = seals.sealed(seq, blob, own)
        db.execute("UPDATE turns SET blob = ? WHERE seq = ?", (blob, seq))
    for seq, record in db.execute("SELECT seq, blob FROM snapshots").fetchall():
        blob = other(seals.opened(seq, record)[0] if has_seals else record)
        blob = seals.sealed(seq, blob, seals.SNAPSHOT)[0] if has_seals else blob
        db.execute("UPDATE snapshots SET blob = ? WHERE seq = ?", (blob, seq))
    facts = {key: other(value) for key, value in facts.items()}
    if fact_digests.DIGESTS in facts:
        facts[fact_digests.DIGESTS] = fact_digests.encoded(fact_digests.of(facts.items()))
    db.executemany("UPDATE meta SET value = ? WHERE key = ?", [(value, key) for key, value in facts.items()])


def _module(path: Path) -> str:
    """The name under which a program's file is imported."""
    return "cortex_program_" + sha256(str(path).encode()).hexdigest()[:12]


if __name__ == "__main__":
    main()
