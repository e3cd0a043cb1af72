"""``replay``: run of a program over a job's recorded replies, and the further calls it would make."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from actors.cli.jobs.programs import built, program_named
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, FAILED, PARTIAL, print_error
from actors.cli.options.options import Options
from actors.cli.run.execute import answer_text
from actors.common.text_table import bounded_line
from actors.history.recorded_replies import RecordedReplies, terms_for
from actors.programs import loader
from cortex.journal.dry_run import DryRun, DryRunTotals, NewCall
from cortex.state.program import Program
from cortex.values.display import clipped
from cortex.values.limits import JobTerms
from policies.estimates.price import usd, usd_text

_SHOWN_MAX = 20
_OPEN = "needs calls"


def replay(job: str, where: str, pairs: list[str], options: Options) -> int:
    """Run ``cortex replay`` and return the exit code: 0 if the recorded replies suffice, 3 if more calls are needed,
    else 1."""
    with contextlib.closing(RecordedReplies(named_folder(options), job)) as records:
        program = _program(records.terms, where, pairs)
        tried = DryRun(terms_for(records.terms, program), program, records, loader.load)
        k = tried.run(records.began_at_s, records.external_events)
        outcome = k.outcome or _OPEN
        totals, answer = tried.totals, tried.answer
        if not records.rows_ended:
            print_error(f"only the {k.tally.rows_read:,} rows that {job} has read are recorded")
        if options.as_json:
            print(msgspec.json.encode(_as_json(job, tried, outcome, answer)).decode())
        else:
            print("\n".join(map(bounded_line, _summary(job, tried, outcome, where == "" and records.changed))))
            if answer not in (None, []):
                print(answer_text(answer))
    return PARTIAL if totals.calls or totals.runs or totals.waits else COMPLETE if outcome == "complete" else FAILED


def _program(terms: JobTerms, where: str, pairs: list[str]) -> Program:
    """Return the job's own program in its present version, or another one, with the job's parameters that the program
    has."""
    if not where:
        type_ = loader.find(terms.program)
    else:
        name = terms.program.rpartition(":")[2]
        file = where.endswith(".py") and ":" not in where
        same = file and name in loader.programs_in(where)
        type_ = program_named(f"{where}:{name}" if same else where)
    fields = {field.encode_name for field in msgspec.structs.fields(type_)}
    own: dict[str, Any] = msgspec.json.decode(terms.params_json)
    if dropped := [name for name in own if name not in fields]:
        print_error(f"{where} has no parameter {', '.join(dropped)}: the value of the job is left out")
    return built(type_, pairs, {}, {name: value for name, value in own.items() if name in fields})


def _as_json(job: str, tried: DryRun, outcome: str, answer: Any) -> dict[str, Any]:
    totals, k = tried.totals, tried.k
    cost, most = _sums(totals)
    return {
        "job": job, "program": k.terms.program, "outcome": outcome, "why": k.why,
        "reused_calls": totals.reused, "failed_calls": totals.failed, "reused_tool_runs": totals.runs_reused,
        "new_calls": [_call(each) for each in totals.calls], "new_tool_runs": totals.runs, "waits": totals.waits,
        "let_go": totals.let_go,
        "input_tokens": sum(each.input_tokens for each in totals.calls),
        "output_tokens": sum(each.output_tokens for each in totals.calls),
        "cost_usd": None if cost is None else usd(cost), "cost_max_usd": None if most is None else usd(most),
        "rows_succeeded": k.tally.succeeded, "rows_failed": k.tally.failed, "answer": answer,
    }  # fmt: skip


def _call(each: NewCall) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(each)
    for name in ("cost_nusd", "cost_max_nusd"):
        nusd = facts.pop(name)
        facts[name.replace("nusd", "usd")] = None if nusd is None else usd(nusd)
    return facts


def _sums(totals: DryRunTotals) -> tuple[int | None, int | None]:
    """Return the expected and the highest cost of the new calls in nano-USD; None if a route has no price."""
    if any(each.cost_nusd is None for each in totals.calls):
        return None, None
    return sum(each.cost_nusd or 0 for each in totals.calls), sum(each.cost_max_nusd or 0 for each in totals.calls)


def _summary(job: str, tried: DryRun, outcome: str, changed: bool) -> list[str]:
    """Return the lines of the result for a terminal."""
    totals, k = tried.totals, tried.k
    program = k.terms.program + (", which has changed since it ran" if changed else "")
    lines = [f"job       {job}, tried with {program}; no model was asked and no tool run"]
    reused = f"{_many(totals.reused, 'recorded reply', 'recorded replies')}"
    if totals.runs_reused:
        reused += f", {_many(totals.runs_reused, 'tool result')}"
    if totals.failed:
        reused += f", {_many(totals.failed, 'failure')} (a run would ask again)"
    lines.append(f"reused    {reused}")
    if k.terms.streams:
        lines.append(f"rows      {k.tally.succeeded:,} succeeded, {k.tally.failed:,} failed")
    if totals.calls:
        tokens = sum(each.input_tokens for each in totals.calls), sum(each.output_tokens for each in totals.calls)
        lines.append(f"new       {_many(len(totals.calls), 'call')}: {_worth(*tokens, *_sums(totals))}")
        lines += map(_line, totals.calls[:_SHOWN_MAX])
        if len(totals.calls) > _SHOWN_MAX:
            lines.append(f"            and {len(totals.calls) - _SHOWN_MAX:,} more: --json lists them all")
    for run in totals.runs[:_SHOWN_MAX]:
        lines.append(f"tool      {run.job}/{run.goal} would run {run.tool} with {run.arguments}")
    if totals.let_go:
        lines.append(f"let go    {totals.let_go:,} calls or runs that would begin, and whose result is not used")
    if totals.waits:
        lines.append(f"waits     for an answer: {', '.join(totals.waits)}")
    state = "stops here: the program needs these results, and may ask more" if outcome == _OPEN else outcome
    lines.append(f"outcome   {state}{f': {k.why}' if k.why else ''}")
    if k.tally.failed_said:
        lines.append(f"failed    {k.tally.failed_said}")
    return lines


def _line(each: NewCall) -> str:
    worth = _worth(each.input_tokens, each.output_tokens, each.cost_nusd, each.cost_max_nusd)
    return f"  {each.job}/{each.goal}/{each.sample}  {each.kind}  {clipped(each.prompt, 60)!r}  {worth}"


def _worth(input_tokens: int, output_tokens: int, cost: int | None, most: int | None) -> str:
    tokens = f"about {input_tokens:,} tokens in, {output_tokens:,} out"
    if cost is None or most is None:
        return f"{tokens}; no price is known"
    return f"{tokens}, {usd_text(cost)} (at most {usd_text(most)})"


def _many(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
