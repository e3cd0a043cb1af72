"""Protection of a results file from a run that is not the job that wrote it: checked before anything is asked.

A run that begins a job anew (another program, parameter, schema, model or address, another release, ``--fresh``) writes
its results file from the first row on. The rows in that file are paid for, and the journal no longer lists them.
A file that holds none of the job's results belongs to another job or to no job at all. Both stay as they are unless
the user permits to overwrite them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice, takewhile
from typing import Any, Final, Protocol

from actors.files.errors import SinkError
from actors.history.catalog import as_it_was, last_state
from actors.history.result_history import lines, shard_names
from actors.jobs.opening import Opening, asked, begins_anew, same_program, same_request
from actors.jobs.spec import JobSpec
from actors.journal.journal import Journal, StateFolder, TextRedacted
from actors.programs.loader import NoSuchProgram
from actors.providers.registry import SIMULATED
from cortex.values.limits import JobTerms

OVERWRITES: Final = "overwrite"
"""Key among a job's places: set if the job was opened with the permission to overwrite its output."""
RESULTS: Final = 500
"""Results at the beginning of a journal among which the first rows of the job's file are looked for."""


class KeptOutput(Protocol):
    """Sink whose present content can be judged."""

    def kept(self) -> bool:
        """Return whether the output holds a row, or anything else that would be lost."""

    def is_of(self, values: list[Any]) -> bool:
        """Return whether the output may be that of a job whose first results are ``values``."""

    def older_than(self, at_s: float) -> bool:
        """Return whether the output was last written before this Unix time."""

    def replace(self) -> None:
        """Permit to replace the output."""


def refuse_losing(
    folder: StateFolder, order: JobSpec, before: JobTerms, opening: Opening | None, sink: KeptOutput
) -> bool:  # fmt: skip
    """Raise ``SinkError`` if a run would overwrite rows of the job's output that it does not write again.

    Call for an output that the job has as its own, before the run is opened. ``opening``: None for a run that joins a
    running job. Return False if the user permits to overwrite a file that is not the job's: it is then written from its
    beginning, not continued.
    """
    if not sink.kept():
        return True
    if opening is not None and begins_anew(before, opening):
        k = last_state(folder, order.named())
        if begins_anew(k.terms, opening):
            if not order.overwrite and asks_otherwise(k.terms, opening):
                raise SinkError(would_be_lost(order, k.outcome, now_asks(k.terms, opening)))
            return True
    if refuse_foreign(folder, order.named(), before, sink, order.output, order.overwrite, order.permission):
        return True
    sink.replace()
    return False


def refuse_foreign(
    folder: StateFolder, job: str, terms: JobTerms, sink: KeptOutput, output: str, overwrite: bool,
    permission: str = "--overwrite",
) -> bool:  # fmt: skip
    """Raise ``SinkError`` if the output of a job holds none of the job's results, unless ``overwrite``.

    Return whether the output is the job's. A job without text, with retried rows, or whose program is gone cannot tell
    its results: its output is taken for its own.
    """
    with closing(folder.journal(job)) as source:
        try:
            if source.reopenings():
                return True
            found = _first_results(folder, source)
            began_s = next((turn.at_s for _, turn in source.turns(source.opened_at())), 0.0)
        except (TextRedacted, NoSuchProgram):
            return True
    if sink.is_of(found):
        return True
    if overwrite or (OVERWRITES in terms.places and sink.older_than(began_s)):
        return False
    raise SinkError(f"{output} is not as job {job} left it: move it away, or give {permission}")


def would_be_lost(order: JobSpec, outcome: str, asks: str) -> str:
    """Return the line for a job that would overwrite the results of its earlier run."""
    other = f", or another {order.names}" if order.names else ""
    return (
        f"job {order.named()} is {outcome or 'not ended'}, and now asks {asks}: its results in {order.output} would be "
        f"overwritten: give {order.permission}{other}"
    )


def asks_otherwise(then: JobTerms, opening: Opening) -> bool:
    """Return whether a run that begins a job anew gives other results than those in its file.

    False where the user asks the same and the release alone has changed: the same results come again, from replies that
    are remembered. False, too, where the simulated provider is asked the same rows again, perhaps with other settings:
    its results cost nothing.
    """
    now = opening.terms
    if not same_program(then, now) and not same_request(then, now.program, now.params_json):
        return True
    if then.places.get("digest") != now.places.get("digest"):
        return True
    simulated = all(route.endpoint.partition(":")[0] == SIMULATED for route in (*then.routes, *now.routes))
    return not simulated and (now.fresh or asked(then) != asked(now))


def now_asks(then: JobTerms, opening: Opening) -> str:
    """Return what a run that begins a job anew asks, in words."""
    now = opening.terms
    if now.fresh:
        return "all rows anew"
    if then.route.model != now.route.model:
        return "another model"
    return "something else"


def _first_results(folder: StateFolder, source: Journal) -> list[Any]:
    """Return the first results of a job; of each shard, since their order in the file is not known."""
    names = shard_names(source, as_it_was)
    if not names:
        return list(islice(_values(source), RESULTS))
    found: list[Any] = []
    for name in names:
        if folder.has(name):
            with closing(folder.journal(name)) as shard:
                found += islice(_values(shard), RESULTS)
    return found


def _values(source: Journal) -> Iterator[Any]:
    found = lines(source, as_it_was)
    return (line.value for line in takewhile(lambda each: each is not None, found) if line is not None)
