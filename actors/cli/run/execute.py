"""Execution of a session for a command: run it, report the outcome, return the exit code."""

from __future__ import annotations

import os
import sys
from logging import ERROR, WARNING
from typing import Any

import msgspec

from actors.api.progress_bar import ProgressBar
from actors.api.session import Session
from actors.cli.jobs.job_state import forget_spool, standing_of
from actors.cli.jobs.lost_heads import LostHeads
from actors.cli.jobs.rendering import OVER, JobStatus, headline, last_failed, why
from actors.cli.jobs.settings import notify_of, share_of, shared_cluster
from actors.cli.options.errors import PARTIAL, error_line, never_show, print_data, print_error
from actors.cli.options.options import Options
from actors.cli.run.terminal import ImmediateStop, SessionRunner
from actors.files.errors import SinkError
from actors.files.paths import is_remote
from actors.jobs.bill_excess import excess_line
from actors.jobs.wait_reasons import idle_servers
from actors.journal.journal import StoreError
from actors.journal.state_folder import advised
from actors.observability.logs.formatting import begin
from actors.observability.logs.levels import level_of_end
from actors.routing.routes import ResolvedRoute


class PreparedRun(msgspec.Struct, kw_only=True):
    """A session to run, and the files to close afterwards."""

    session: Session
    options: Options
    source: Any = None
    sink: Any = None
    rows: int = 0
    """Rows to read, for the progress line; 0: unknown."""
    note: str = ""
    """Further text of the header."""
    new: bool = False
    """True if the journal had no turn before."""


def carry_out(work: PreparedRun) -> int:
    """Run a session and return the exit code. Errors found before anything was sent are raised."""
    share_of(work.options)
    notify = notify_of(work.options)
    session, text = work.session, ""
    write_logs(work.options, session.job)
    elsewhere = bool(shared_cluster(work.options))
    bar = ProgressBar(rows=work.rows or None, form=work.options.log_format or "text", elsewhere=elsewhere)
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
        text = known[1]
    finally:
        for each in (work.source, work.sink):
            if each is not None:
                try:
                    each.close()
                except SinkError as error:
                    text = text or str(error)
                except OSError:
                    pass
    if ended is not None:
        status = JobStatus(facts=ended.facts, state=session.folder.address, answer=ended.answer)
        order = session.order
        status.asks_again = order.program.asks_again and order.keeps_text and order.shards == 1
    else:
        try:
            status = standing_of(session.folder, session.job)
        except StoreError as error:  # the job never began, or the journal cannot be read either
            unsent = work.new and not session.begun
            print_error(_not_begun(session.job, text or str(error)) if unsent else text or str(error), error=True)
            return conduct.code or PARTIAL
        if status.outcome == "running":  # the lock of this run is gone: another run has the job, or none
            status.facts["outcome"] = "interrupted"
        LostHeads(session.folder).see(session.job, status)  # nobody can attach where no head answers
    forget_spool(session.folder, status)
    if work.sink is not None and not text and status.outcome in OVER:
        work.sink.forget()
    code = report(status, work.options, text)
    return conduct.code if conduct.code and status.resume else PARTIAL if text else code


def _not_begun(job: str, text: str) -> str:
    """Return the error line for a job that never began: there is nothing to resume."""
    what, again = f"job {job} has not begun, nothing was sent or paid", "give the same command again"
    if text.endswith("then resume"):
        return f"{text.removesuffix('resume')}{again}: {what}"
    return f"{text}; {what}: {again}"


def write_logs(options: Options, job: str = "") -> None:
    """Configure logs on standard error, in this process and in the actors that it starts. ``job``: the job of every
    line of JSON. Raises ``LogSettingsError``.
    """
    begin(options.log_format, options.log_level, {"job": job} if job else None)
    for name in ("log_format", "log_level"):
        if answer := getattr(options, name):
            os.environ[f"CORTEX_{name.upper()}"] = answer


def header(session: Session, note: str) -> str:
    """Return the first line of a run: job, model, cluster and metrics address."""
    found = session.destination
    where = session.cluster()
    text = f"job {session.job}, model {_models(found)}, cluster {where}"
    if session.order.cluster == "auto":
        text += " (auto)"
    if session.endpoint.where:
        text += f", metrics at {session.endpoint.where}"
    now = "already running there: attached" if session.attached else note
    if where not in ("inline", "local"):
        follow = advised(session.folder, "attach", session.job)
        now += ("; " if now else "") + f"it goes on there without this command: {follow}"
    for more in (found.notice if found is not None else "", session.note, now):
        text += f"; {more}" if more else ""
    return text


def _models(found: ResolvedRoute | None) -> str:
    """Return the model of the job, and those of roles with another one."""
    if found is None:
        return "?"
    others = [f"{role}={found.role_routes[lane - 1].model}" for role, lane in found.roles.items() if lane]
    return ", ".join([found.route.model, *others])


def report(status: JobStatus, options: Options, text: str = "") -> int:
    """Print the outcome of a job as text, then as JSON if asked. Return the exit code."""
    output = status.facts["output"]
    level = ERROR if text else level_of_end(status.outcome, str(status.facts["why"]))
    print_error(headline(status), level=level)
    for line in filter(None, (text or why(status), excess_line(status.facts), _last_failed(status))):
        print_error(line, level=level)
    if line := idle_servers(status.facts):
        print_error(line, level=WARNING)
    if output not in ("", "-"):
        print_error(_where(status, output))
        if text and status.outcome in OVER:  # only the output failed
            print_error(f"to write the results again: {status.command('resume')}")
    elif output == "-" and text:
        print_error(f"the results so far: {status.command('results', '-o FILE.jsonl')}")
    if status.retry:
        print_error(f"to ask the failed rows again: {status.retry}")
    if status.resume:
        print_error(f"to go on: {_continuation(status)}", level=level)
        if output == "-":
            print_error("standard output cannot be truncated: rows since the last flush may be written again")
    show_answer(status, options)
    return status.code(share_of(options), options.accept_partial)


def _where(status: JobStatus, output: str) -> str:
    """Return where the results are: in the output, unless that was never written."""
    if is_remote(output) or os.path.exists(output):
        return f"results: {output}"
    return f"{output} was not written; the results so far: {status.command('results', '-o FILE.jsonl')}"


def _last_failed(status: JobStatus) -> str:
    """Return the row that failed last, or the failure of a program without rows; empty if none failed."""
    answer = status.facts["failed_said"]
    if answer in status.facts["why"]:
        return ""
    if row := last_failed(status.facts):
        return f"rows failed, {row}"
    return answer if not status.facts["rows_expected"] and not status.facts["rows_refused"] else ""


BUDGET_WHY = "over_budget: the budget "


def _continuation(status: JobStatus) -> str:
    """Return how to continue the job."""
    return status.longer or f"{status.resume}{_raised(status)}"


def _raised(status: JobStatus) -> str:
    """Return the options that let a job stopped by its cap or deadline continue; or a hint at a shared budget."""
    answer = status.facts["why"]
    if answer.startswith("deadline"):
        return " --deadline +2h"
    if answer.startswith("max_failed"):
        return " --max-failed N (or a share), higher"
    if answer.startswith(BUDGET_WHY):
        return f", when the budget is renewed or raised: {advised(status.state, 'budget')} lists it"
    return " --max-cost USD (or --max-job-tokens N), higher" if answer.startswith("over_budget") else ""


def show_answer(status: JobStatus, options: Options) -> None:
    """Print the object of ``--json``, or the answer if there is no results file."""
    output = status.facts["output"]
    if options.as_json:
        print(status.as_json(), file=sys.stderr if output == "-" else sys.stdout, flush=True)
    elif not output and status.answer is not None:
        print_data(answer_text(status.answer) + "\n")


def answer_text(answer: Any) -> str:
    """Return an answer as text: the ``text`` of a dict, with the reasons if it is partial; else JSON."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict) and isinstance(answer.get("text"), str):
        partial = answer.get("partial")
        reasons = answer.get("why")
        missing = "; ".join(map(str, reasons)) if isinstance(reasons, list) else str(reasons or "")
        return f"{answer['text']}\n\n(partial: {missing})" if partial else str(answer["text"])
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
