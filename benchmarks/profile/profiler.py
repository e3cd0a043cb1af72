"""CPU time by part of the code: ``python -m benchmarks.profile null --out FOLDER``; needs the extra ``profile``.

``null``: calls that are answered at once, as in ``benchmarks.null``; ``http``: `cortex batch` over real HTTP, 20 ms an
answer; ``latency``: one call after another, each made when the one before is absorbed. py-spy samples the real command
from outside, twice: once for a flame graph, once for the table. On a private Ray (``--cluster local``) the channel and
each branch are sampled from their start to their end.

A sample counts for the deepest function of ours on the stack, and so for the part of its file
(``harness.profile_parts``): a library's work counts for its caller, an event loop's own work for the loop. Shares
become microseconds a call by the CPU time that the process used between the first call and the last; for ``latency``,
where nothing runs side by side, by elapsed time. A commit that waits for its disk counts as busy, so ``journal``
includes waiting; so does a thread that waits inside Ray or uvloop now and then: on Ray ``event loop`` is an upper
bound. Imports, start and end are excluded by their functions, not by time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import command, figures, processes, profile_parts, rows
from benchmarks.harness.server import RunningServer
from benchmarks.null.throughput import JOB, journalled

RATE_HZ = 200
ATTACHED_HZ = 100
"""Samples a second where several processes are sampled."""
TOP = 12
LONGEST_S = 600.0
GONE_S = 10.0
"""Seconds for a py-spy to end after the process that it samples."""
CALLS = {"null": 100_000, "http": 20_000, "latency": 3_000}
_FRAME = re.compile(r"^(.*) \((.+?)(?::\d+)?\)$")
_START = frozenset(
    "_find_and_load _load_unlocked exec_module _compile_bytecode start_runtime fingerprint check".split()
)
"""Functions on every stack of an import, of a start, of the check of an input."""

_WAITING = frozenset({"wait", "select", "poll", "epoll", "accept", "readinto", "sleep", "_worker"})
"""Deepest functions of stacks that only look busy."""
_LOOPS = frozenset({"run", "run_until_complete", "run_forever", "_run_once", "main_loop"})
"""Functions that run an event loop: asyncio's, uvloop's and Ray's."""
_BOX = re.compile(r"<g><title>[^<]*? samples, ([0-9.]+)%\)</title>.*?</g>", re.DOTALL)
_TITLE = re.compile(r'(<text id="title"[^>]*>).*?(</text>)', re.DOTALL)
WIDTHS_MIN = (0.15, 0.3, 0.6, 1.2)
"""Least widths of a box in a flame graph, in percent of the whole, tried in this order."""
GRAPH_BYTES_MAX = 290_000


class Refused(RuntimeError):
    """Error, in one line: py-spy is missing or may not sample other processes."""


class Profile(msgspec.Struct):
    """Samples of one process. ``us``, ``parts`` and ``top``: microseconds a call."""

    looks: int
    us: float
    cpu_us: float
    """Microseconds of CPU a call; equal to ``us`` unless that is elapsed time."""
    parts: dict[str, float]
    top: dict[str, float]


def frames(stack: str) -> Iterator[tuple[str, str]]:
    """Yield (function, file) of each frame, the deepest first."""
    for frame in reversed(stack.split(";")):
        if found := _FRAME.match(frame):
            yield found[1], found[2]


def _ours(file: str) -> bool:
    return bool(profile_parts.own(file)) or profile_parts.part(file) == "benchmark"


def owner(stack: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the part that a sample counts for, and the function's name: the deepest of ours. Below an event loop's
    run stands only the code that started the loop."""
    for function, file in stack:
        if _ours(file):
            return profile_parts.part(file), f"{profile_parts.own(file) or 'benchmark'}: {function}"
        if function.rpartition(".")[2] in _LOOPS:
            return "event loop", f"event loop: {function}"
    part = profile_parts.part(stack[0][1])
    return part, f"{part}: {stack[0][0]}"


def read(raw: str, us: float, cpu_us: float = 0.0) -> Profile:
    """Return the profile of collapsed stacks. ``us``: microseconds of the process for a call."""
    by_part: Counter[str] = Counter()
    by_function: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        seen = list(frames(stack))
        names = [function.rpartition(".")[2] for function, _ in seen]
        if not seen or not _START.isdisjoint(names) or (names[0] in _WAITING and not _ours(seen[0][1])):
            continue
        part, function = owner(seen)
        by_part[part] += int(count)
        by_function[function] += int(count)
    looks = by_part.total()
    scale = us / looks if looks else 0.0
    top = {name: round(count * scale, 2) for name, count in by_function.most_common(TOP)}
    return Profile(
        looks,
        round(us, 1),
        round(cpu_us or us, 1),
        {name: round(n * scale, 2) for name, n in by_part.most_common()},
        top,
    )


def spy() -> str:
    """Return the path of py-spy. Raises ``Refused``."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if not found:
        raise Refused("py-spy is not there: pip install 'cortex-bounded-calls[profile]'")
    return found


def recording(out: Path, form: str, rate: int, *what: str) -> list[str]:
    """Return the command that samples."""
    how = ["--function"] if form == "flamegraph" else ["--full-filenames"]
    return [spy(), "record", "--format", form, "--output", str(out), "--rate", str(rate), *how, *what]


def see_ended(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the output. Raises ``Refused`` where py-spy may not sample, ``RuntimeError`` where the command failed."""
    for line in ended.stderr.splitlines():
        if "ermission denied" in line or "not permitted" in line:
            raise Refused(f"py-spy may not look at other processes here ({line.strip()}): run as root, or allow ptrace")
    if ended.returncode != 0:
        raise RuntimeError(f"it ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    return ended.stdout


class Target:
    """Command of one of the three kinds of work."""

    def __init__(self, name: str, calls: int, cluster: str, folder: Path) -> None:
        self.name, self.calls, self.cluster, self._folder = name, calls, cluster, folder
        self._runs = 0
        self.state = folder

    def argv(self, url: str) -> list[str]:
        """Return the command of the next run, in its own state folder."""
        self._runs += 1
        self.state = self._folder / f"state-{self._runs}"
        where = ["-o", str(self._folder / f"out-{self._runs}.jsonl"), "--state", str(self.state), "--job", JOB]
        where += ["--cluster", self.cluster, "--json"]
        if self.name == "http":
            input_ = self._folder / "in.jsonl"
            rows.write_input(input_, self.calls)
            what = ["actors.cli", "batch", str(input_), "--base-url", url, "--model", rows.MODEL]
            what += ["--concurrency", "300"]
        else:
            ahead = ["-p", "ahead=1"] if self.name == "latency" else ["--concurrency", "2000"]
            program = ["run", "benchmarks.null.null_program:Null", "-p", f"calls={self.calls}"]
            what = ["benchmarks.harness.instant_model", *program, *ahead]
            what += ["--model", "sim"]
        return [sys.executable, "-m", *what, *where]

    def checked(self, said: str) -> None:
        """Check that every call is answered. Raises ``rows.Lost``."""
        summary = msgspec.json.decode(next(line for line in said.splitlines()[::-1] if line.startswith("{")))
        entries = (summary["outcome"], summary["rows_succeeded"], summary["attempts"])
        if entries != ("complete", self.calls, self.calls):
            raise rows.Lost(f"{self.calls} calls, and the summary says {entries}")


def trimmed(graph: Path) -> None:
    """Remove boxes from a flame graph that are too narrow to read, and more until the file is small enough. The title
    becomes the file's name: py-spy's is a command line with paths of the machine."""
    text = _TITLE.sub(lambda found: f"{found[1]}{graph.stem}{found[2]}", graph.read_text())
    for width in WIDTHS_MIN:
        text = _BOX.sub(lambda found: found[0] if float(found[1]) >= width else "", text)  # noqa: B023
        if len(text) <= GRAPH_BYTES_MAX:
            break
    graph.write_text(text)


def inline(target: Target, url: str, out: Path, raws: Path) -> dict[str, Profile]:
    """Sample a run in one process twice."""
    graph, raw = out / f"{target.name}-inline.svg", raws / f"{target.name}-inline.raw"
    for path, form in ((graph, "flamegraph"), (raw, "raw")):
        with processes.Cpu() as cpu:
            argv = recording(path, form, RATE_HZ, "--", *target.argv(url))
            ended = subprocess.run(
                argv, env=command.environment(), capture_output=True, text=True, timeout=LONGEST_S, check=False
            )  # fmt: skip
            target.checked(see_ended(ended))
    trimmed(graph)
    rates = journalled(target.state, target.calls)
    cpu_us = 1e6 * cpu.between(rates.first_s, rates.last_s)["driver"] / target.calls
    time_us = 1e6 * (rates.last_s - rates.first_s) / target.calls
    return {"driver": read(raw.read_text(), time_us if target.name == "latency" else cpu_us, cpu_us)}


def on_ray(target: Target, url: str, out: Path, raws: Path) -> dict[str, Profile]:
    """Sample the actors of a private Ray twice. The branches' values are added."""
    for _, graph in attached(target, url, out, "flamegraph"):
        trimmed(graph)
    with processes.Cpu() as cpu:
        looks = attached(target, url, raws, "raw")
    stacks: dict[str, str] = {}
    for name, path in looks:
        stacks[name] = stacks.get(name, "") + path.read_text()
    rates = journalled(target.state, target.calls)
    cpu_s = cpu.between(rates.first_s, rates.last_s)
    return {name: read(raw, 1e6 * cpu_s.get(f"ray::{name}", 0.0) / target.calls) for name, raw in stacks.items()}


def attached(target: Target, url: str, out: Path, form: str) -> list[tuple[str, Path]]:
    """Run with a py-spy for each actor; return the output files by the actor's class."""
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(target.argv(url), env=command.environment(), **piped)
    spies: dict[int, tuple[str, Path, subprocess.Popen[str]]] = {}
    try:
        while running.poll() is None:
            for pid in processes.family(running.pid):
                name = processes.name_of(pid).removeprefix("ray::")
                if pid in spies or name not in ("Channel", "Branch"):
                    continue
                others = sum(of == name for of, _, _ in spies.values())
                suffix = "svg" if form == "flamegraph" else "raw"
                path = out / f"{target.name}-ray-{name.lower()}{others or ''}.{suffix}"
                argv = recording(path, form, ATTACHED_HZ, "--pid", str(pid))
                spies[pid] = name, path, subprocess.Popen(argv, **piped)
            time.sleep(0.1)
        answer, error = running.communicate()
        for _, path, each in spies.values():
            entries = _told(each)
            if not path.exists():
                see_ended(subprocess.CompletedProcess(each.args, each.returncode or 1, *entries))
    finally:
        for each in (running, *(spy for _, _, spy in spies.values())):
            if each.poll() is None:
                each.kill()
    target.checked(see_ended(subprocess.CompletedProcess(running.args, running.returncode, answer, error)))
    return [(name, path) for name, path, _ in spies.values()]


def _told(spy_: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the final output of a py-spy. Sometimes py-spy continues though its actor is gone; an interrupt makes it
    write its samples."""
    try:
        return spy_.communicate(timeout=GONE_S)
    except subprocess.TimeoutExpired:
        spy_.send_signal(signal.SIGINT)
        return spy_.communicate(timeout=60)


def table(name: str, found: Profile) -> str:
    """Return a table for people."""
    lines = [f"{name}: {found.us} us a call, {found.cpu_us} of CPU, {found.looks:,} looks"]
    lines += [f"  {part:20}{us:9.2f}{us / found.us:7.0%}" for part, us in found.parts.items() if us >= 0.05]
    lines += ["  of it"] + [f"    {us:7.2f}  {function}" for function, us in found.top.items()]
    return "\n".join(lines)


def main() -> None:
    """Run from the command line. Exit code 2: py-spy may not sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("road", choices=sorted(CALLS))
    parser.add_argument("--out", default="benchmarks/profile/graphs", help="folder for flame graph and JSON")
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--cluster", choices=("inline", "local"), default="inline")
    parser.add_argument("--raw", action="store_true", help="keep the collapsed stacks too")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args()
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    calls = given.calls or CALLS[given.road]
    facts: dict[str, Any] = {"benchmark": "profile", "road": given.road, "cluster": given.cluster, "calls": calls}
    facts["microseconds_of"] = "time" if given.road == "latency" and given.cluster == "inline" else "CPU"
    facts["machine"] = figures.machine()
    try:
        with tempfile.TemporaryDirectory(prefix="profile-") as folder, RunningServer() as server:
            target = Target(given.road, calls, given.cluster, Path(folder))
            look = inline if given.cluster == "inline" else on_ray
            found = look(target, server.url, out, out if given.raw else Path(folder))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        sys.exit(2)
    for name, each in found.items():
        figures.said(table(name, each), given.json)
    facts["profiles"] = found
    kept = out / f"{given.road}-{'inline' if given.cluster == 'inline' else 'ray'}.json"
    kept.write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")
    figures.tell(facts)


if __name__ == "__main__":
    main()
