"""A session carried out for a user: run it, say what came of it, end with the right exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from actors.api.progress_bar import ProgressBar
from actors.api.session import Session
from actors.cli.jobs.job_state import forget_spool, standing_of
from actors.cli.jobs.rendering import OVER, JobStatus, headline, last_failed, why
from actors.cli.jobs.settings import notify_of, share_of
from actors.cli.options.errors import PARTIAL, error_line, never_show, print_error
from actors.cli.options.options import Options
from actors.cli.run.terminal import ImmediateStop, SessionRunner
from actors.files.errors import SinkError
from actors.journal.journal import StoreError
from actors.observability.logs.formatting import begin
from actors.routing.routes import ResolvedRoute


class PreparedRun(msgspec.Struct, kw_only=True):
    """What is to be carried out, and what must be let go of afterwards."""

    session: Session
    options: Options
    source: Any = None
    sink: Any = None
    rows: int = 0
    unreadable: int = 0
    note: str = ""
    """What the header says besides."""
    new: bool = False
    """Whether its journal had no turn before."""


def carry_out(work: PreparedRun) -> int:
    """Run it; the exit code. Raises what is wrong before anything was sent."""
    share_of(work.options)
    notify = notify_of(work.options)
    session, said = work.session, ""
    write_logs(work.options)
    bar = ProgressBar(rows=work.rows or None, form=work.options.log_format or "text")
    conduct = SessionRunner(session, bar, lambda session: header(session, work.note))
    ended = None
    session.progress, session.on_credential = conduct.progress, never_show
    session.endpoint.address = work.options.metrics_listen
    session.notify = notify
    try:
        ended = conduct.run()
    except ImmediateStop:
        pass
    except Exception as error:
        known = error_line(error)
        if known is None or known[0] != PARTIAL:
            raise
        said = known[1]
    finally:
        for each in (work.source, work.sink):
            if each is not None:
                try:
                    each.close()
                except SinkError as error:
                    said = said or str(error)
                except OSError:
                    pass
    if ended is not None:
        standing = JobStatus(facts=ended.facts, state=session.folder.address, answer=ended.answer)
        standing.rows, standing.unreadable = work.rows, work.unreadable
        standing.asks_again = session.order.program.asks_again and session.order.keeps_text
    else:
        try:
            standing = standing_of(session.folder, session.job)
        except StoreError as error:  # it never began, or even reading fails on that disk
            print_error(_not_begun(session.job, said or str(error)) if work.new else said or str(error))
            return conduct.code or PARTIAL
        if standing.outcome == "running":  # our own lock is gone: what runs is another run, or nothing
            standing.facts["outcome"] = "interrupted"
    forget_spool(session.folder, standing)
    if work.sink is not None and not said and standing.outcome in OVER:
        work.sink.forget()
    code = report(standing, work.options, said)
    return conduct.code if conduct.code and standing.resume else PARTIAL if said else code


def _not_begun(job: str, said: str) -> str:
    """There is nothing to resume."""
    what, again = f"job {job} has not begun, nothing was sent or paid", "give the same command again"
    if said.endswith("then resume"):
        return f"{said.removesuffix('resume')}{again}: {what}"
    return f"{said}; {what}: {again}"


def write_logs(options: Options) -> None:
    """Logs of this process go to standard error; those of actors that it starts are alike. Raises
    ``LogSettingsError``.
    """
    begin(options.log_format, options.log_level)
    for name in ("log_format", "log_level"):
        if said := getattr(options, name):
            os.environ[f"CORTEX_{name.upper()}"] = said


def header(session: Session, note: str) -> str:
    """What runs, and where: said once, before the first figures."""
    found = session.destination
    where = session.cluster()
    said = f"job {session.job}, model {_models(found)}, cluster {where}"
    if session.order.cluster == "auto":
        said += " (auto)"
    if session.endpoint.where:
        said += f", metrics at {session.endpoint.where}"
    now = "it runs there already: attached" if session.attached else note
    if where not in ("inline", "local"):
        now += ("; " if now else "") + f"it goes on there without this command: cortex attach {session.job}"
    for more in (found.notice if found is not None else "", session.note, now):
        said += f"; {more}" if more else ""
    return said


def _models(found: ResolvedRoute | None) -> str:
    """The job's own model, and those of roles that have another."""
    if found is None:
        return "?"
    others = [f"{role}={found.role_routes[lane - 1].model}" for role, lane in found.roles.items() if lane]
    return ", ".join([found.route.model, *others])


def report(standing: JobStatus, options: Options, said: str = "") -> int:
    """Tell people, then programs, how a job ended; the exit code that belongs to it."""
    output = standing.facts["output"]
    print_error(headline(standing))
    for line in filter(None, (said or why(standing), _last_failed(standing))):
        print_error(line)
    if output not in ("", "-"):
        print_error(f"results: {output}")
    if standing.retry:
        print_error(f"to ask the failed rows again: {standing.retry}")
    if standing.resume:
        print_error(f"to go on: {standing.resume}{_raised(standing)}")
        if output == "-":
            print_error("standard output cannot be cut back: the rows since the last flush may come again")
    show_answer(standing, options)
    return standing.code(share_of(options), options.accept_partial)


def _last_failed(standing: JobStatus) -> str:
    """What went wrong: the row that failed last; or, in a program that has no rows, what failed it."""
    said = standing.facts["failed_said"]
    if said in standing.facts["why"]:
        return ""
    if row := last_failed(standing.facts):
        return f"rows failed, {row}"
    return said if not standing.rows and not standing.facts["rows_refused"] else ""


BUDGET_WHY = "over_budget: the budget "


def _raised(standing: JobStatus) -> str:
    """What must be given besides, so that a job stopped by its own cap or deadline can go on; or by a shared budget."""
    said = standing.facts["why"]
    if said.startswith("deadline"):
        return " --deadline +2h"
    if said.startswith(BUDGET_WHY):
        return ", when the budget is whole again or raised: cortex budget lists it"
    return " --max-cost USD (or --max-job-tokens N), higher" if said.startswith("over_budget") else ""


def show_answer(standing: JobStatus, options: Options) -> None:
    """The object of ``--json``, or the answer where there is no file that holds the results."""
    output = standing.facts["output"]
    if options.as_json:
        print(standing.as_json(), file=sys.stderr if output == "-" else sys.stdout, flush=True)
    elif not output and standing.answer is not None:
        print(answer_text(standing.answer), flush=True)


def answer_text(answer: Any) -> str:
    """An answer for people: a text as it is, also one that comes with particulars; all else as JSON."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict) and isinstance(answer.get("text"), str):
        partial = answer.get("partial")
        reasons = answer.get("why")
        missing = "; ".join(map(str, reasons)) if isinstance(reasons, list) else str(reasons or "")
        return f"{answer['text']}\n\n(partial: {missing})" if partial else str(answer["text"])
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
