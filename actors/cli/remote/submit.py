"""``--cluster http(s)://…:8265``: run a command on the head of a Ray cluster, through its Jobs API.

Input and program travel in one package. The journal stays on the head. Output of the command is shown here while it
runs, and results are copied here when it has ended. Ctrl-C drains the remote job, like a local one.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from actors.cli.jobs.texts import standard_input
from actors.cli.options.errors import FAILED, PARTIAL, Interrupted, print_data, print_error
from actors.cli.options.exit_codes import signals_taken
from actors.cli.options.options import Options
from actors.cli.remote.package import JOB_FILE, JobPackage, package
from actors.cli.run.execute import answer_text
from actors.cluster.jobs_api import JobsApi, JobSubmission, NoResponse
from actors.common.errors import CommandError
from actors.files.local.new_files import opened_new
from actors.files.paths import is_remote
from actors.files.sinks.table_sink import resembles
from actors.ports.runtime import ClusterError

T = TypeVar("T")
COMMANDS = ("batch", "run", "resume", "attach")
LOOK_S = 1.0
AWAY_S = 60.0
"""Longest time in seconds for which a dashboard that does not answer is asked again. The job itself is not affected."""
OUTPUT = "cortex_output"
"""Key of a submission's metadata: host and path for the results."""
RESULTS_BYTES_MAX = 200_000_000
"""Most bytes of compressed results. They pass through the head's memory and its logs."""
_STATE = (
    'umask 077; S="${CORTEX_STATE:-$HOME/.cortex}"; '
    'case "$S" in *://*) O="$HOME/.cortex/outputs";; *) O="$S/outputs";; esac'
)
"""Shell code for the head that sets the folders of journals ($S) and results ($O)."""
_DRAIN = (
    'for n in $(seq 60); do said=$(cortex drain {} --state "$S" 2>&1) && '
    'case "$said" in *"nobody runs"*|*"does not run:"*) ;; *) exit 0;; esac; sleep 0.5; done; exit 1'
)
"""Shell code for the head that drains a job. Repeated for 30 s, since the job may be just about to begin.

The patterns match ``cortex drain`` of a job that does not run; the first is the text of earlier releases."""
_RAYS_OWN = re.compile(
    r"(\d{4}-\d\d-\d\d [\d:,]+\s+(INFO|WARNING)\s+[a-z_]+\.py:\d+ --"
    r"|Running entrypoint for job |\S*sh: .*not found$)"
)
_AFTERTHOUGHT = re.compile(r"; it goes on there without this command: cortex attach .+$")
_NOT_HERE = ("cortex: results: ", "cortex: to go on: ", "cortex: to ask the failed rows again: ")
"""Prefixes of lines about the head's disk and about commands to run there; not shown."""


def is_elsewhere(command: str, options: Options) -> bool:
    """Return True if a command is to run on the head of a cluster."""
    if command not in COMMANDS:
        return False
    where = options.cluster.strip() or "auto"
    where = os.environ.get("RAY_ADDRESS", "") if where == "auto" else where
    return where.startswith(("http://", "https://"))


def carry_out(command: str, given: Mapping[str, Any], options: Options) -> int:
    """Run a command on the head and return its exit code. Raises ``CommandError`` or ``ClusterError``."""
    address = options.cluster.strip() if options.cluster.strip() not in ("", "auto") else os.environ["RAY_ADDRESS"]
    output = str(given.get("output") or "")
    stdin = standard_input() if "-" in (given.get("input"), *(given.get("inputs") or ())) else b""
    fresh = command in ("batch", "run")
    made = package(given, options, stdin) if fresh else JobPackage()
    if fresh and options.no_keep_text and not is_remote(output):
        raise CommandError("--no-keep-text: results would pass through the head's logs: give -o s3://…")
    job = str(given.get("job") or options.job or _named(command, given, made))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", job):
        raise CommandError(f"--job {job!r}: Ray takes letters, digits, dots, dashes and underscores")
    api = JobsApi(address, os.environ)
    api.see()
    kept = _kept(output)
    here = f"{socket.gethostname()}:{Path(output).resolve()}" if kept else output
    name, before = _last(api, job)
    _see_output(output, kept, here, before, options)
    running = before is not None and not before.over
    name = name if running else _next(name, job, before)
    following = _SubmissionFollower(api, name, job, output, options)
    if not running:
        line = _line(command, job, output, options, given, made)
        if fresh:
            api.upload(made.name(), made.zipped())
        following.submit(name, line, made.name() if fresh else "", {OUTPUT: here, "cortex_job": job})
    text = f"job {job} runs on the head of {address}" + (" already: attached" if running else "")
    print_error(f"{text}; it goes on there without this command: {following.attach}")
    return following.to_its_end()


def _kept(output: str) -> bool:
    return output not in ("", "-") and not is_remote(output)


def _named(command: str, given: Mapping[str, Any], made: JobPackage) -> str:
    about = str(given.get("input") or given.get("program") or "")
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(about.partition(":")[0]).name.partition(".")[0]).strip("-")[:40]
    digest = sha256((made.digest() + str(given.get("output"))).encode()).hexdigest()[:8]
    return "-".join(filter(None, (command, stem, digest)))


def _last(api: JobsApi, job: str) -> tuple[str, JobSubmission | None]:
    """Return name and state of a job's newest submission. Ray accepts each id once, so later ones have a number."""
    name, found, number = job, api.submission(job), 2
    while found is not None and (later := api.submission(f"{job}.{number}")) is not None:
        name, found, number = f"{job}.{number}", later, number + 1
    return name, found


def _next(name: str, job: str, before: JobSubmission | None) -> str:
    if before is None:
        return job
    return f"{job}.{int(name.rpartition('.')[2]) + 1 if name != job else 2}"


def _see_output(output: str, kept: bool, here: str, before: JobSubmission | None, options: Options) -> None:
    if not kept:
        return
    folder = Path(output).resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise CommandError(f"{output}: its folder does not exist or is not writable: name another")
    own = before is not None and before.metadata.get(OUTPUT) == here
    if os.path.lexists(output) and not (own or options.overwrite):
        raise CommandError(f"{output} exists: give --overwrite to write over it, or name another output")


def _there(job: str, output: str) -> str:
    """Return the path of a job's results on the head, quoted for its shell."""
    return f'"$O/{job}{"".join(Path(output).suffixes) if output != "-" else ".jsonl"}"'


def _line(command: str, job: str, output: str, options: Options, given: Mapping[str, Any], made: JobPackage) -> str:
    """Return the command for the shell of the head."""
    words = ["cortex", command]
    if command in ("batch", "run"):
        words += ["-f", JOB_FILE, "--job", job, "--cluster", "auto"]
        if not given.get("input") and command == "batch":
            raise CommandError("no input is given: name one")
    else:
        words += [job]
        words += [f"--{each.replace('_', '-')}={getattr(options, each)}" for each in _bounds(options)]
    if options.overwrite and command != "attach":
        words += ["--overwrite"]
    if command == "attach":
        output = ""  # its own output is on the head already, and is copied from there
    tail = f" -o {_there(job, output)}" if output and not is_remote(output) else ""
    flags = ' --state "$S" --wait --json' + (" --accept-partial" if options.accept_partial else "")
    return f'{_STATE}; mkdir -p "$O"; {shlex.join(words)}{tail}{flags}'


def _bounds(options: Options) -> list[str]:
    from actors.cli.options.options import BOUNDS

    return [name for name in BOUNDS if name in options.origins]


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore the signals of ``signals_taken`` within the block."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals_taken()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _SubmissionFollower:
    """Follower of one submission to its end, which then copies the results to this machine."""

    def __init__(self, api: JobsApi, name: str, job: str, output: str, options: Options) -> None:
        self._api = api
        self._name = name
        self._job = job
        self._output = output
        self._options = options
        self._seen = 0
        self._summary = ""
        self._stopped = 0
        self.attach = f"cortex attach {job} --cluster {api.address}"
        """Command that follows the job, or copies its results, from any machine."""
        self._begun = False
        self._meanwhile = f"job {job} may have begun there"
        """State of the job to report if the head no longer answers."""

    def submit(self, name: str, line: str, made: str = "", metadata: Mapping[str, str] | None = None) -> None:
        """Run a command on the head exactly once, although the request may be repeated.

        Raises ``CommandError``, with exit code 3 (the job may still run) unless the head refused the command.
        """
        tried = False

        def ask() -> None:
            nonlocal tried
            if tried and self._api.submission(name) is not None:
                return  # the request was received, and only the answer was lost
            first, tried = not tried, True
            try:
                self._api.submit(name, line, made, metadata)
            except NoResponse:
                raise
            except ClusterError as error:
                if first and not self._begun:
                    raise CommandError(str(error)) from None
                raise

        self._asked(ask)

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return the answer of the head, repeating the request. Raises ``CommandError`` after ``AWAY_S``."""
        until_s = 0.0
        while True:
            try:
                return ask()
            except ClusterError as error:
                now_s = time.monotonic()
                if not until_s:
                    until_s = now_s + AWAY_S
                    print_error(f"{error}; asking again")
                elif now_s >= until_s:
                    raise CommandError(f"{error}; {self._meanwhile}: {self.attach}", PARTIAL) from None
            time.sleep(LOOK_S)

    def to_its_end(self) -> int:
        """Show the output of the job until it ends, and copy its results. Return the exit code."""
        self._begun, self._meanwhile = True, f"job {self._job} goes on there"
        ended = self._patiently()
        if self._stopped and (ended is None or not ended.over):
            print_error(f"the job goes on there: {self.attach}")
            return self._stopped
        if ended is None:
            message = f"the Ray at {self._api.address} does not know job {self._job}: its head may have been lost"
            raise CommandError(message, PARTIAL)
        facts = self._facts()
        if facts is None:
            return self._broken(ended)
        if self._output and not is_remote(self._output):
            if facts.get("output") and facts.get("rows", 0) + facts.get("rows_succeeded", 0):
                self._bring(str(facts["output"]))
            facts["output"] = self._output if self._output == "-" else str(Path(self._output).resolve())
        if facts.get("resume"):
            facts["resume"] = f"cortex resume {self._job} --cluster {self._api.address}"
            print_error(f"to go on: {facts['resume']}")
        if self._options.as_json:
            text = msgspec.json.encode(facts).decode()
            print(text, file=sys.stderr if self._output == "-" else sys.stdout, flush=True)
        elif not facts.get("output") and facts.get("answer") is not None:
            print_data(answer_text(facts["answer"]) + "\n")
        return self._stopped or (ended.code if ended.code is not None else FAILED)

    def _patiently(self) -> JobSubmission | None:
        drain: tuple[str, str] | None = None
        while True:
            try:
                if drain is not None:
                    self.submit(*drain)
                    drain = None
                return self._watch()
            except Interrupted as stopped:
                if self._stopped:
                    return None
                self._stopped = stopped.code
                print_error("draining: the calls in flight are finished first; once more leaves the job to go on there")
                drain = f"{self._name}-drain-{time.time_ns():x}", f"{_STATE}; {_DRAIN.format(self._job)}"
                with _deaf(), contextlib.suppress(ClusterError):  # a second signal may come for the whole process group
                    self._api.submit(*drain)
                    drain = None

    def _watch(self) -> JobSubmission | None:
        while True:
            found = self._asked(lambda: self._api.submission(self._name))
            self._show(self._asked(lambda: self._api.logs(self._name)), found is None or found.over)
            if found is None or found.over:
                return found
            time.sleep(LOOK_S)

    def _show(self, text: str, whole: bool) -> None:
        """Print new lines, without Ray's own lines and the summary, which is kept for later."""
        until = len(text) if whole else text.rfind("\n") + 1
        new, self._seen = text[self._seen : until], max(self._seen, until)
        for line in new.splitlines():
            if line.startswith('{"job"') and line.endswith("}"):
                self._summary = line
            elif line.strip() and not _RAYS_OWN.match(line) and not line.startswith(_NOT_HERE):
                print(_AFTERTHOUGHT.sub("", line), file=sys.stderr, flush=True)

    def _facts(self) -> dict[str, Any] | None:
        with contextlib.suppress(msgspec.DecodeError):
            facts = msgspec.json.decode(self._summary or "null")
            return facts if isinstance(facts, dict) else None
        return None

    def _broken(self, ended: JobSubmission) -> int:
        """Handle a job without a summary: it was refused, with its own error lines, or never started."""
        if ended.code == 127:
            text = f"the head of {self._api.address} finds no `cortex`: install it there, on the PATH of Ray"
            raise CommandError(text)
        if ended.code is None:
            text = " ".join(ended.message.split())[:300] or "Ray gives no reason"
            raise CommandError(f"job {self._job} was {ended.status.lower()} there: {text}", PARTIAL)
        return ended.code

    # -- the results -----------------------------------------------------------------------------------------------

    def _bring(self, there: str) -> None:
        """Copy the results file: compressed, through the log of one more submission, and verified by its digest."""
        quoted = shlex.quote(there)
        line = (
            f"f=$(mktemp) && gzip -c {quoted} > $f && wc -c < $f && sha256sum < {quoted} && "
            f"[ $(wc -c < $f) -le {RESULTS_BYTES_MAX} ] && base64 -w 16000 $f; code=$?; rm -f $f; exit $code"
        )
        name = f"{self._name}-results-{time.time_ns():x}"
        self._meanwhile = f"the results of job {self._job} stand at {there} on the head"
        self.submit(name, line)
        while (found := self._asked(lambda: self._api.submission(name))) is not None and not found.over:
            time.sleep(LOOK_S / 4)
        text = self._asked(lambda: self._api.logs(name))
        lines = [each for each in text.splitlines() if each.strip() and not _RAYS_OWN.match(each)]
        with contextlib.suppress(Exception):
            self._api.forget(name)
        content = _unpacked(lines)
        if content is None:
            size = f", {int(lines[0]):,} bytes packed," if lines and lines[0].strip().isdigit() else ""
            text = f"the results{size} stand at {there} on the head: they could not be brought here"
            raise CommandError(text, PARTIAL)
        if self._output == "-":
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
            return
        path = Path(self._output)
        if not self._options.overwrite and not resembles(path, content):
            raise CommandError(
                f"{self._output} is not as job {self._job} left it, and stays: the results stand at {there} on the "
                f"head: {self.attach} -o FILE, or give --overwrite",
                PARTIAL,
            )
        part = path.with_name(f".{path.name}.part")
        with os.fdopen(opened_new(part), "wb") as file:
            file.write(content)
        part.replace(path)
        print_error(f"results: {path.resolve()}")


def _unpacked(lines: list[str]) -> bytes | None:
    """Return a file from the lines of its size, digest and content; None if incomplete."""
    if len(lines) < 3:
        return None
    try:
        content = gzip.decompress(base64.b64decode("".join(lines[2:])))
    except (ValueError, OSError, EOFError):
        return None
    return content if sha256(content).hexdigest() == lines[1].split()[0] else None
