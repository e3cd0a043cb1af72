"""Public Python client: ``run``, ``submit`` and ``attach``, for programs and notebooks.

A job runs in a thread with its own event loop, so the client also works inside a running loop. Wait for a job with
``result()``, ``await`` it, or iterate over its results as they finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import queue
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from datetime import datetime
from typing import Any, Protocol

import msgspec

from actors.api.progress_bar import ProgressBar
from actors.api.result import Result as Result
from actors.api.session import RunOutcome, Session
from actors.api.temporary_job import passing_folder, scripted
from actors.common.errors import UserError
from actors.history.catalog import last_places, last_state
from actors.jobs import option_parsing
from actors.jobs.limit_options import bounded
from actors.jobs.spec import JobSpec, who
from actors.journal.journal import StateFolder
from actors.journal.state_folder import STATE_DEFAULT, advised
from actors.ports.model import Model
from actors.ports.rows import Sink, Source
from actors.programs.loader import load, refuse_in_import
from actors.providers.credentials.credential import absolute
from actors.providers.registry import SIMULATED
from actors.routing.routes import ModelSpec, SetupError, remembered
from cortex.flows import Flow
from cortex.goals.shards import checked
from cortex.state.program import Program
from cortex.values.limits import MESSAGES, Limits

_END = object()
Given = str | Model | Callable[..., Any]
"""A model: its name, a model object, or a function of the prompt."""


class _QueueSink:
    """Sink that keeps results in memory for iteration over the job. ``read`` converts a result to its public form."""

    def __init__(self, read: Callable[[Any], Any] | None = None) -> None:
        self._read = read
        self.rows: list[Any] = []
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Return 0: a new reader starts at the first result."""
        return 0

    def write(self, values: list[Any]) -> None:
        """Add results to the list and to the queue."""
        for value in values if self._read is None else map(self._read, values):
            self.rows.append(value)
            self.news.put(value)

    def flush(self) -> tuple[int, int]:
        """Return counts of rows and bytes; nothing is written to disk."""
        return len(self.rows), 0

    def close(self) -> None:
        """Release nothing."""


class RowInput(Protocol):
    """Rows that a job reads, and its output: the interface of the input of ``cortex.batch``."""

    def begin(self, order: JobSpec) -> None:
        """Check all rows before anything is asked."""

    @property
    def source(self) -> Source:
        """Source of the rows."""

    @property
    def sink(self) -> Sink | None:
        """Sink of the results; None: results are kept in memory."""

    def read(self, value: Any) -> Any:
        """Return a result in its public form."""

    def end(self, outcome: str) -> None:
        """Release all resources at the end of the run."""


ASK_S = 1.0
"""Longest wait of ``Job.status`` for an answer, in seconds."""


class Job:
    """Handle of a started job."""

    def __init__(
        self, order: JobSpec, model: Model | None, progress: bool | Callable[[dict[str, Any]], None],
        others: tuple[Model | None, ...] = (), players: Mapping[str, Model] | None = None, folder: str = "",
        rows: RowInput | None = None,
    ) -> None:  # fmt: skip
        self._rows = rows
        self._folder = folder
        """Temporary folder, deleted when the job has ended; may be empty."""
        self._scripted: list[Any] = [each for each in (model, *others, *(players or {}).values()) if scripted(each)]
        self._sink = _QueueSink(rows.read if rows is not None else None)
        self._bar = ProgressBar(rows=int(order.places.get("rows", 0)) or None) if progress is True else None
        show = progress if callable(progress) else self._bar.show if self._bar is not None else _silent
        self._facts: dict[str, Any] = {"outcome": "starting"}
        self._show = show
        self._session = Session(
            order, dict(os.environ), source=rows.source if rows is not None else None,
            sink=(rows.sink if rows is not None else None) or self._sink, progress=self._shown, model=model,
            others=others, players=players,
        )  # fmt: skip
        self.name = self._session.job
        if self._bar is not None:
            bar = self._bar
            self._session.log = lambda line: bar.print_line(f"{self.name}: {line}")
        self._ended: RunOutcome | None = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=f"cortex {self.name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        facts = self._facts
        return f"<job {self.name}: {facts['outcome']}, {facts.get('results', 0)} results>"

    def _shown(self, facts: dict[str, Any]) -> None:
        self._facts = facts
        self._show(facts)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                self._loop = runner.get_loop()
                self._ended = runner.run(self._session.run())
        except BaseException as error:
            self._error = error
        finally:
            if self._rows is not None:
                self._let_go(self._rows)
            for model in self._scripted:
                self._error, model.trouble = model.trouble or self._error, None
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            if self._bar is not None:
                self._bar.close()
            self._sink.news.put(_END)

    def _let_go(self, rows: RowInput) -> None:
        try:
            rows.end(self._ended.facts["outcome"] if self._ended is not None else "")
        except Exception as error:
            self._error = self._error or error

    def status(self) -> dict[str, Any]:
        """Return the present figures of the job; the last known ones if the job does not answer within a second.

        Inside the job's own program or ``progress``, always the last known ones.
        """
        if self._ended is not None:
            self._facts |= self._ended.facts
        elif not self._thread.is_alive():
            self._facts |= {"outcome": "interrupted"} if self._facts["outcome"] in ("starting", "running") else {}
        elif self._loop is not None and threading.current_thread() is not self._thread:
            self._facts = self._facts | self._status(self._loop)
        return dict(self._facts)

    def _status(self, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
        """Ask the job's channel for its figures. Nothing is read, written or replayed."""
        look = self._session.look()
        try:
            asked = asyncio.run_coroutine_threadsafe(look, loop)
        except RuntimeError:  # the job has just ended
            look.close()
            return {}
        try:
            return asked.result(ASK_S)
        except (TimeoutError, CancelledError):
            asked.cancel()
            return {}

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the end and return the result. Ctrl-C drains the job, which can then be resumed.

        Raises the error of the run, or ``TimeoutError`` after ``timeout_s`` seconds (default: no limit).
        """
        try:
            self._thread.join(timeout_s)
        except KeyboardInterrupt:
            self.drain()
            self._thread.join()
            raise
        if self._thread.is_alive():
            raise TimeoutError(f"{self.name} still runs after {timeout_s} s")
        if self._error is not None:
            raise self._error.with_traceback(None) if isinstance(self._error, UserError) else self._error
        assert self._ended is not None
        return Result(self._ended, list(self._sink.rows))

    def drain(self) -> None:
        """Finish the calls in flight, then stop; the job can be resumed."""
        self._stop("drain")

    def cancel(self) -> None:
        """End the job for good."""
        self._stop("cancel")

    def _stop(self, how: str) -> None:
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the job has just ended
                asyncio.run_coroutine_threadsafe(self._session.stop(how, who()), self._loop)

    def __iter__(self) -> Iterator[Any]:
        """Yield results as they finish. Raises the error of the run at the end."""
        while (value := self._sink.news.get()) is not _END:
            yield value
        self._sink.news.put(_END)
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (value := await asyncio.to_thread(self._sink.news.get)) is not _END:
            yield value
        self._sink.news.put(_END)
        if self._error is not None:
            raise self._error

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.to_thread(self.result).__await__()


def _silent(facts: dict[str, Any]) -> None:
    """Show no progress."""


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's where installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def submit(
    program: Program, *, model: Given = "", job: str = "", state: str = "", cluster: str = "auto", provider: str = "",
    base_url: str | Sequence[str] = "", metrics_from: str | Sequence[str] = (), api_key_file: str = "", price: str = "",
    price_as: str = "", via: str = MESSAGES, fallback: Given | Sequence[Given] = (),
    roles: Mapping[str, Given] | None = None, labels: Mapping[str, str] | None = None, limits: Limits | None = None,
    fresh: bool = False, progress: bool | Callable[[dict[str, Any]], None] = False, wish: ModelSpec | None = None,
    max_cost: float | str | None = None, max_job_tokens: int | None = None, max_output_tokens: int | None = None,
    prompt_tokens_max: int | None = None, concurrency: int | None = None, rpm: float | None = None,
    itpm: float | None = None, otpm: float | None = None, headroom: float | None = None, priority: float | None = None,
    deadline: str | float | datetime | None = None, goal_timeout: str | float | None = None,
    timeout: str | float | None = None, max_failed: float | str | None = None, warm_prefix: bool = False,
    hedge: str | float | None = None, wait_blocked: str | float | None = None, rows: RowInput | None = None,
    shards: int = 1,
) -> Job:  # fmt: skip
    """Start a program in the background and return its ``Job``.

    ``model``: ``"local"``, ``"sim"``, ``"sim,latency_ms=300,error=0"``, a provider's model; an object with the
    interface ``actors.ports.model.Model``; or, to try a program, a function of the prompt (see ``cortex.testing``).
    ``provider``: ``"anthropic"``, ``"bedrock,region=eu-west-1"``, ``"openai"``, ``"openai-responses"`` and so on, also
    with ``base_url`` (several: servers of one model). ``metrics_from`` (a URL, or several), ``api_key_file`` and
    ``price_as`` are as on the command line. ``fallback``: routes of calls while the breaker of the model is open, as on
    the command line, or model objects. ``roles``: role name -> model (``ctx.ask(…, model="judge")``), in the forms of
    ``fallback``. ``labels``: labels of the job in traces and reports, such as a team. A resumed job keeps those of its
    start. ``via``: ``"messages"``, or ``"batches"``: half the price, and an answer may take a day. The limits are those
    of ``cortex batch --help``: ``max_cost`` in USD, ``rpm``, ``itpm`` and ``otpm`` a minute, ``deadline`` as ``"+6h"``,
    ISO 8601, a ``datetime`` or seconds since 1970, durations as ``"15m"`` or seconds, ``max_failed`` as a count of rows
    from 1 or a share below 1. ``rows``: the input of ``cortex.batch``. ``job``: name of the job; by default derived
    from the program and its parameters, so that a repeated call resumes, or shows, its job. ``fresh``: take no earlier
    reply.

    Raises ``SetupError`` for an invalid argument. Errors at the start of the job are raised by ``result``.
    """
    refuse_in_import()
    asked = {
        "max_cost": max_cost, "max_job_tokens": max_job_tokens, "max_output_tokens": max_output_tokens,
        "prompt_tokens_max": prompt_tokens_max, "concurrency": concurrency, "rpm": rpm, "itpm": itpm, "otpm": otpm,
        "headroom": headroom, "priority": priority, "deadline": deadline, "goal_timeout": goal_timeout,
        "timeout": timeout, "max_failed": max_failed, "warm_prefix": warm_prefix, "hedge": hedge,
        "wait_blocked": wait_blocked,
    }  # fmt: skip
    _complete(program)
    several = isinstance(fallback, Sequence) and not isinstance(fallback, str)
    others: list[Any] = list(fallback) if several else [fallback]  # type: ignore[arg-type]
    named: Any = _taken(model, "model")
    others = [_taken(each, "fallback") for each in others]
    cast_of = {role: _taken(each, f"role {role}") for role, each in (roles or {}).items()}
    name = named if isinstance(named, str) else ""
    try:
        bounds = bounded(limits or Limits(), asked, time.time())
        called, shards = option_parsing.labels((labels or {}).items()), checked(shards, rows is not None)
        own = wish or _own_model(name, price=price, via=via, price_as=price_as)
        own = _located(own, provider, base_url, api_key_file, metrics_from)
        fallbacks = tuple(option_parsing.fallback(each) if isinstance(each, str) else ModelSpec() for each in others)
        cast = {role: _played(role, each) for role, each in cast_of.items()}
    except ValueError as error:
        raise SetupError(str(error)) from None
    own = msgspec.structs.replace(own, fallbacks=fallbacks or own.fallbacks, roles=cast or own.roles)
    players = {role: each for role, each in cast_of.items() if not isinstance(each, str)}
    trial = not state and any(map(scripted, (named, *others, *players.values())))
    folder = passing_folder() if trial else ""
    order = JobSpec(
        program=program, model_spec=own, limits=bounds, job=job,
        state=state or folder or os.environ.get("CORTEX_STATE", STATE_DEFAULT), cluster=cluster, fresh=fresh,
        labels=called, shards=shards, in_python=True, concurrency_given=concurrency is not None or limits is not None,
    )  # fmt: skip
    if rows is not None:
        rows.begin(order)
    given = None if isinstance(named, str) else named
    alone = tuple(None if isinstance(each, str) else each for each in others)
    return Job(order, given, progress, alone, players, folder, rows)


def _own_model(name: str, **given: Any) -> ModelSpec:
    """Return the spec of the job's model; settings may follow the name of the simulated provider. Raises
    ``ValueError``."""
    name, *settings = name.split(",") if name.startswith(f"{SIMULATED},") else [name]
    return ModelSpec(model=name, simulated=option_parsing.simulated(settings), **given)


def _located(
    own: ModelSpec, provider: str, base_url: str | Sequence[str], api_key_file: str, metrics_from: str | Sequence[str]
) -> ModelSpec:
    """Return the spec of the job's model with its provider, its servers, the URLs of their metrics and its key file.
    Raises ``ValueError``."""
    key_file = {"api_key_file": absolute(api_key_file)} if api_key_file else {}
    own = option_parsing.at_provider(msgspec.structs.replace(own, **key_file), provider)
    servers = option_parsing.addresses([base_url] if isinstance(base_url, str) else base_url)
    own = own.at_servers(servers) if servers else own
    if not metrics_from:
        return own
    try:
        given = [metrics_from] if isinstance(metrics_from, str) else metrics_from
        return own.with_metrics(option_parsing.metrics_urls(given))
    except ValueError as error:
        raise ValueError(f"metrics_from: {error}") from None


def _played(role: str, by: Any) -> ModelSpec:
    """Return the model spec of a role. Raises ``ValueError``."""
    return (
        option_parsing.role(f"{role}={by}")[1]
        if isinstance(by, str)
        else ModelSpec(model=option_parsing.role_name(role))
    )


def _complete(program: Any) -> None:
    """Raise ``SetupError`` unless ``program`` is a program with all required parameters."""
    if not isinstance(program, Program):
        like = getattr(program, "__name__", "triage")
        raise SetupError(f"give a program with its parameters, like {like}(...), not {program!r:.60}")
    if isinstance(program, Flow) and (lacking := [name for name in program.required if name not in program.params()]):
        raise SetupError(f"{type(program).__name__} needs {', '.join(lacking)}")


def _taken(given: Any, what: str) -> Any:
    """Return a model's name or object; a function is wrapped in a model object."""
    if isinstance(given, str) or (hasattr(given, "call") and not isinstance(given, type)):
        return given
    if callable(given) and not isinstance(given, type):
        from actors.fakes.scripted_models import ScriptedModel

        return ScriptedModel(given)
    raise SetupError(f"{what}: give a name, a function of the prompt or a model, not {given!r:.60}")


def run(program: Program, **options: Any) -> Result:
    """Run a program to its end. Takes the arguments of ``submit``; ``progress`` is True by default, but for scripted
    models."""
    options.setdefault("progress", not scripted(options.get("model")) and not inspect.isfunction(options.get("model")))
    return submit(program, **options).result()


def attach(job: str, *, state: str = "", progress: bool = False) -> Job:
    """Continue a job, or read one that has ended, by its name. Raises ``NoSuchJob``."""
    refuse_in_import()
    folder = state or os.environ.get("CORTEX_STATE", STATE_DEFAULT)
    k = last_state(StateFolder(folder), job)
    if k.terms.streams:
        raise SetupError(f"{job} reads rows from a file: {advised(folder, 'resume', job)}")
    program = load(k.terms.program, k.terms.params_json)
    order = JobSpec(
        program=program, model_spec=remembered(last_places(StateFolder(folder), job, k.terms)), limits=k.terms.limits,
        job=job,
        state=folder, cluster=k.terms.places.get("cluster", "inline"), labels=k.terms.labels, concurrency_given=True,
    )  # fmt: skip
    return Job(order, None, progress)
