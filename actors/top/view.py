"""Content of ``top``: facts in, rows and curves out. Pure functions, tested as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from actors.jobs.summary import rows_of_input, unreadable_text
from actors.top.labels import (
    caps_words,
    clock,
    money,
    ms,
    node_words,
    rate,
    route_words,
    seen_words,
    span,
    where_words,
    why_words,
)
from actors.top.layout import Column, SignalCurve, TableRow, TopTable
from actors.top.sources import ClusterSnapshot, JobSnapshot, TopSnapshot
from cortex.values.display import printable

SORTS = ("latest", "name", "rate", "cost", "failed")
_ALIVE = ("running", "detached")
_LEVELS = {
    "running": "good", "complete": "", "partial": "warn", "interrupted": "warn", "detached": "good", "failed": "bad",
    "cancelled": "dim", "unreadable": "bad", "closed": "", "open": "bad", "half-open": "warn", "up": "",
    "waiting": "warn",
}  # fmt: skip


class Screen(msgspec.Struct, frozen=True):
    """Content of the whole screen."""

    title: str
    where: str
    """Place of the shown state: state folder and cluster."""
    tables: tuple[TopTable, ...]
    curves: dict[str, tuple[SignalCurve, ...]]
    """Key of a route's row -> its curves."""
    trouble: str = ""


def screen(seen: TopSnapshot, cluster: str = "", sort: str = "latest") -> Screen:
    """Return the content for a state."""
    tables = (jobs_table(seen, sort), routes_table(seen), actors_table(seen), nodes_table(seen))
    running = sum(job.facts.get("outcome") in _ALIVE for job in seen.jobs)
    count = len(seen.jobs)
    title = f"cortex top  {clock(seen.at_s)}  {count:,} job{'' if count == 1 else 's'}, {running:,} running"
    found = {
        _key(each, name): curves(readings) for each in seen.clusters for name, readings in each.status["routes"].items()
    }
    where = f"cluster {cluster}, {seen.state}" if cluster else seen.state
    shown: Screen = _shown(Screen(title, where, tables, found, seen.trouble))
    return shown


def _shown(value: Any) -> Any:
    """Return a value with all its texts printable: names and messages are of others."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    if isinstance(value, dict):
        return {_shown(key): _shown(each) for key, each in value.items()}
    if isinstance(value, msgspec.Struct):
        return type(value)(*(_shown(getattr(value, name)) for name in value.__struct_fields__))
    return value


# -- jobs ------------------------------------------------------------------------------------------------------------

JOB_COLUMNS = (
    Column("JOB", 0, width_max=32, width_least=22), Column("STATE", 1, width_max=12), Column("DONE", 2, True),
    Column("%", 7, True), Column("RATE/S", 3, True), Column("LEFT", 6, True), Column("COST", 5, True),
    Column("FAILED", 4, True), Column("IN FLIGHT", 9, True), Column("PERMITS", 10, True), Column("SEEN", 11),
    Column("WAITS", 8, width_max=80),
)  # fmt: skip


def jobs_table(seen: TopSnapshot, sort: str = "latest") -> TopTable:
    """Return a row for each job: running ones first, then sorted by ``sort``."""
    jobs = sorted(seen.jobs, key=lambda job: (job.facts.get("outcome") not in _ALIVE, _order(job, sort)))
    return TopTable("jobs", JOB_COLUMNS, tuple(_job(job, seen.at_s) for job in jobs), "no jobs yet")


def _order(job: JobSnapshot, sort: str) -> Any:
    facts = job.facts
    if sort == "name":
        return job.job
    if sort == "rate":
        return -(facts.get("rate_per_s") or 0.0)
    if sort == "cost":
        return -(facts.get("known_nusd") or 0)
    if sort == "failed":
        return -(facts.get("rows_failed") or 0)
    return -job.as_of_s


def _job(job: JobSnapshot, now_s: float) -> TableRow:
    facts = job.facts
    state = facts.get("outcome", "")
    if "results" not in facts:  # not read yet, or unreadable
        answer = facts.get("why", "still to be read")
        blank = ("",) * 8
        details = (("job", job.job), ("state", state or "not read yet"), ("why", facts.get("why", "")))
        row = (job.job, state or "…", *blank, seen_words(job, now_s), answer)
        return TableRow(job.job, row, _LEVELS.get(state, ""), details)
    alive = state in _ALIVE
    expected = rows_of_input(facts) if facts.get("rows_expected") else 0
    done = facts["results"] or (0 if expected else facts["calls"])
    keyless = f"waiting for a key: cortex attach {job.job}" if alive and facts.get("unarmed") else ""
    waits = facts["waits"] or keyless or why_words(facts["why"])
    cells = (
        job.job, state, f"{done:,}/{expected:,}" if expected else f"{done:,}",
        f"{100 * done // expected}%" if expected else "", rate(facts.get("rate_per_s")) if alive else "",
        _left(facts) if alive else "", money(facts), f"{facts['rows_failed']:,}",
        f"{facts['in_flight']:,}" if alive else "", f"{facts['permits']:,}" if alive else "",
        seen_words(job, now_s), waits,
    )  # fmt: skip
    level = "warn" if alive and (facts["waits"] or keyless) else _LEVELS.get(state, "")
    about = f"{job.job}: {waits or ', '.join(filter(None, (unreadable_text(facts), _made(facts))))}"
    return TableRow(job.job, cells, level, _job_details(job, now_s), about)


def _left(facts: dict[str, Any]) -> str:
    """Return the time that the rest takes; a dash where not even the rate is known."""
    return span(facts.get("left_s")) or ("-" if facts.get("rate_per_s") is None else "")


def _made(facts: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in facts["failures"].items())
    more = f", attempts failed: {kinds}" if kinds else ""
    return f"{facts['calls']:,} calls, {facts['reused_calls']:,} remembered{more}"


def _job_details(job: JobSnapshot, now_s: float) -> tuple[tuple[str, str], ...]:
    facts = job.facts
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in facts["rows_failed_by_kind"].items())
    attempts = ", ".join(f"{count:,} {kind}" for kind, count in facts["failures"].items())
    routes = "; ".join(
        each["route"] + (f" for {', '.join(each['roles'])}" if each["roles"] else "")
        + (f": {each['in_flight']:,} in flight of {each['permits']:,}" if facts["outcome"] in _ALIVE else "")
        + (f", {each['why']}" if each["why"] else "")
        for each in facts["routes"]
    )  # fmt: skip
    expected = rows_of_input(facts) if facts.get("rows_expected") else 0
    speed = facts.get("rate_per_s") if "unit" in facts else None
    parts = [
        ("job", job.job), ("state", facts["outcome"]), ("runs in", job.owner), ("why", why_words(facts["why"])),
        ("waits", facts["waits"]),
        ("rows", f"{facts['rows_succeeded']:,} succeeded" + (f" of {expected:,}" if expected else "")
         + (f", {facts['rows_failed']:,} failed" if facts["rows_failed"] else "") + (f" ({kinds})" if kinds else "")
         + (f", {lost}" if (lost := unreadable_text(facts)) else "")),
        ("rate", f"{rate(speed)} {facts['unit']} a second" if speed is not None else ""),
        ("left", span(facts.get("left_s"))),
        ("calls", f"{facts['calls']:,}, {facts['attempts']:,} attempts, {facts['reused_calls']:,} remembered"),
        ("failed", f"attempts: {attempts}" if attempts else ""),
        ("tokens", f"{facts['input_tokens']:,} in, {facts['output_tokens']:,} out"),
        ("cost", money(facts)), ("routes", routes), ("limits", " ".join(map(" ".join, facts["limits"].items()))),
        ("channel", f"epoch {facts['epoch']}" if facts.get("epoch") else ""),
        ("elapsed", f"{facts['elapsed_s']:.1f}s" if facts["elapsed_s"] < 60 else span(facts["elapsed_s"])),
        ("output", facts["output"]), ("seen", seen_words(job, now_s, True)),
    ]  # fmt: skip
    return tuple((name, text) for name, text in parts if text)


# -- routes ----------------------------------------------------------------------------------------------------------

ROUTE_COLUMNS = (
    Column("ROUTE", 0, width_max=44, width_least=22), Column("BREAKER", 1, width_max=22, width_least=22),
    Column("LIMIT", 2, True), Column("IN FLIGHT", 3, True), Column("GRANTED", 4, True), Column("WANTED", 5, True),
    Column("RATE/S", 6, True), Column("FAILED", 7, True), Column("P50 MS/TOK", 8, True), Column("P95", 9, True),
    Column("WHY", 10, width_max=70), Column("SEEN IN", 11, width_max=48),
)  # fmt: skip


def routes_table(seen: TopSnapshot) -> TopTable:
    """Return a row for each route of a scheduler, with its pool."""
    rows = [_route(each, name, seen.at_s) for each in seen.clusters for name in each.status["routes"]]
    return TopTable("routes", ROUTE_COLUMNS, tuple(rows), "no route in use" if seen.jobs else "")


def _route(seen: ClusterSnapshot, name: str, now_s: float) -> TableRow:
    status = seen.status
    read, breaker = status["routes"][name], status["breakers"].get(f"route:{name}", {})
    pools: dict[str, dict[str, Any]] = status["pools"]
    pool_name = next((named for named, each in pools.items() if name in each["routes"]), "")
    pool = pools.get(pool_name, {})
    state = breaker.get("state", "")
    until_s = breaker.get("until_s") or 0.0
    probed = f", probed in {span(max(0.0, until_s - now_s))}" if state == "open" and until_s else ""
    caps = caps_words(pool.get("caps"))
    held_s = (pool.get("held_until_s") or 0.0) - now_s
    why = "; ".join(
        filter(None, (breaker.get("why", "") if state != "closed" else "", caps,
                      f"held for {span(held_s)}" if held_s >= 1 else ""))
    )  # fmt: skip
    cells = (
        route_words(name), state + probed, *(f"{pool.get(field, 0):,}" for field in _POOL),
        rate(_of_late(read)), f"{100 * read['failure_share']:.0f}%", ms(read["per_token_p50_s"]),
        ms(read["per_token_p95_s"]), why, where_words(seen, now_s),
    )  # fmt: skip
    details = (
        ("route", name), ("pool", pool_name), ("breaker", state + probed), ("why", breaker.get("why", "")),
        ("limit", f"{pool.get('concurrency', 0):,} at once, {pool.get('in_flight', 0):,} in flight, "
         f"{pool.get('granted', 0):,} granted, {pool.get('wanted', 0):,} wanted"),
        ("by hand", caps), ("headroom", f"{pool.get('headroom', 0):g}" if pool.get("headroom") else ""),
        ("last minute", f"{rate(read['begun_per_s'])}/s begun, {rate(read['answered_per_s'])}/s answered, "
         f"{rate(read['failed_per_s'])}/s failed"),
        ("tokens", f"{rate(read['input_tokens_per_s'])}/s in, {rate(read['output_tokens_per_s'])}/s out"),
        ("latency", f"{read['latency_s']:.2f} s a call; {ms(read['per_token_p50_s'])} ms an output token, "
         f"95 % within {ms(read['per_token_p95_s'])} ms"),
        ("seen in", where_words(seen, now_s)),
    )  # fmt: skip
    shown = tuple((label, text) for label, text in details if text)
    about = f"{route_words(name)}: breaker {state}{probed}" + (f", {why}" if why else "")
    return TableRow(_key(seen, name), cells, _LEVELS.get(state, "") or ("warn" if caps else ""), shown, about)


def _of_late(read: dict[str, Any]) -> float:
    """Return the answers per second over the last ten seconds: a minute is too slow for a viewer."""
    answered: list[int] = list(read.get("series", {}).get("answered", ()))[-RATE_S:]
    return sum(answered) / RATE_S


RATE_S = 10
_POOL = ("concurrency", "in_flight", "granted", "wanted")


def curves(readings: dict[str, Any]) -> tuple[SignalCurve, ...]:
    """Return the curves of a route's signals, by second."""
    series = readings.get("series", {})

    def of(name: str) -> tuple[float, ...]:
        return tuple(series.get(name, ()))

    def last(name: str) -> str:
        return f"{of(name)[-1]:,.0f}/s" if of(name) else "0/s"

    return (
        SignalCurve("begun", of("begun"), last("begun")),
        SignalCurve("answered", of("answered"), last("answered")),
        SignalCurve("failed", of("failed"), last("failed")),
        SignalCurve("p50 ms/token", of("per_token_p50_s"), f"{ms(readings['per_token_p50_s'])} ms"),
        SignalCurve("p95 ms/token", of("per_token_p95_s"), f"{ms(readings['per_token_p95_s'])} ms"),
    )


# -- actors and nodes ------------------------------------------------------------------------------------------------

ACTOR_COLUMNS = (
    Column("ACTOR", 0, width_max=36, width_least=22), Column("STATE", 1), Column("PHASE", 4),
    Column("IN FLIGHT", 2, True), Column("PERMITS", 5, True), Column("FAILED", 6, True), Column("DEATHS", 7, True),
    Column("NODE", 3, width_max=32), Column("DRAINED BY", 8, width_max=24), Column("SEEN IN", 9, width_max=48),
)  # fmt: skip


def actors_table(seen: TopSnapshot) -> TopTable:
    """Return the rows of branches and workers, then of channels."""
    rows = [row for each in seen.clusters for row in _actors(each, seen)]
    return TopTable("actors", ACTOR_COLUMNS, tuple(rows), "no branch, worker or channel is live" if seen.jobs else "")


def _actors(seen: ClusterSnapshot, all_: TopSnapshot) -> list[TableRow]:
    where, nodes = where_words(seen, all_.at_s), seen.status["nodes"]
    rows = []
    for name, one in seen.status["staff"].items():
        drained = one.get("drained_by") or nodes.get(one["node"], {}).get("drained_by", "")
        cells = (
            name, one["state"], one["phase"], f"{one['in_flight']:,}", "", f"{100 * one.get('failure_share', 0):.0f}%",
            f"{one.get('deaths', 0)}", node_words(one["node"], nodes), drained, where,
        )  # fmt: skip
        level = "warn" if one["state"] != "up" or drained else ""
        details: tuple[tuple[str, Any], ...] = (
            ("actor", name), ("state", one["state"]), ("phase", one["phase"]), ("node", one["node"]),
            ("host", nodes.get(one["node"], {}).get("host", "")), ("drained by", drained), ("seen in", where),
        )  # fmt: skip
        rows.append(TableRow(_key(seen, name), cells, level, tuple(pair for pair in details if pair[1])))
    facts = {job.job: job.facts for job in all_.jobs}
    for job, permits in seen.status["jobs"].items():
        reported, told_by_job = seen.status.get("channels", {}).get(job, {}), facts.get(job, {})
        state = "condemned" if reported.get("condemned") else "silent" if reported.get("expired") else "up"
        flights = told_by_job.get("in_flight", "")
        cells = (
            f"channel:{job}", state, f"epoch {reported.get('epoch', 1)}", f"{flights:,}" if flights != "" else "",
            f"{permits:,}", "", f"{reported.get('deaths', 0)}", "", "", where,
        )  # fmt: skip
        details = (("actor", f"channel:{job}"), ("state", state), ("permits", f"{permits:,}"),
                   ("epoch", f"{reported.get('epoch', 1)}"), ("deaths", f"{reported.get('deaths', 0)} recently"),
                   ("seen in", where))  # fmt: skip
        rows.append(TableRow(_key(seen, f"channel:{job}"), cells, "" if state == "up" else "bad", details))
    return rows


NODE_COLUMNS = (
    Column("NODE", 0, width_max=48, width_least=13), Column("STATE", 1, width_max=28),
    Column("BREAKER", 3, width_max=22), Column("BRANCHES", 4, True), Column("WORKERS", 5, True),
    Column("DRAINED BY", 2, width_max=24), Column("WHY", 6, width_max=60), Column("SEEN IN", 7, width_max=48),
)  # fmt: skip


def nodes_table(seen: TopSnapshot) -> TopTable:
    """Return a row for each node."""
    rows = []
    for each in seen.clusters:
        for name, node in each.status["nodes"].items():
            breaker = each.status["breakers"].get(f"node:{name}", {})
            on = [who.partition(":")[0] for who, one in each.status["staff"].items() if one["node"] == name]
            state = "drained" if node["drained_by"] else "up" if node["alive"] else "gone"
            opened = breaker.get("state", "")
            why = breaker.get("why", "") if opened != "closed" else ""
            cells = (
                node_words(name, each.status["nodes"]), state, opened, str(on.count("branch")),
                str(on.count("worker")), node["drained_by"], why, where_words(each, seen.at_s),
            )  # fmt: skip
            details = (("node", name), ("host", node.get("host", "")), ("state", state), ("breaker", opened),
                       ("why", why), ("drained by", node["drained_by"]),
                       ("seen in", where_words(each, seen.at_s)))  # fmt: skip
            level = "warn" if state != "up" else _LEVELS.get(opened, "")
            rows.append(TableRow(_key(each, name), cells, level, tuple(pair for pair in details if pair[1])))
        rows += _lost(each, seen)
    return TopTable("nodes", NODE_COLUMNS, tuple(rows), "")


def _lost(seen: ClusterSnapshot, all_: TopSnapshot) -> Iterator[TableRow]:
    """Yield a row for each node that was lost lately."""
    lost, where = seen.status.get("lost", {}), where_words(seen, all_.at_s)
    for name, one in lost.items():
        why = f"{clock(one['at_s'])}, {span(max(0.0, all_.at_s - one['at_s']))} ago"
        shown = node_words(name, {**seen.status["nodes"], **lost})
        details = (("node", name), ("host", one["host"]), ("state", "lost"), ("why", f"at {why}"), ("seen in", where))
        yield TableRow(_key(seen, name), (shown, "lost", "", "0", "0", "", f"at {why}", where), "bad", details)


def _key(seen: ClusterSnapshot, name: str) -> str:
    return f"{seen.status.get('cortex', '')} {name}"
