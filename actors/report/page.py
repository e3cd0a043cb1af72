"""Report as one HTML page without network requests: text and tables as HTML, all else as JSON within the page.

Foreign text is escaped: in HTML by the template, and in the JSON so that it can end no element. The script inserts text
as text, never as HTML.
"""

from __future__ import annotations

import base64
import gzip
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from actors.common.units import clock
from actors.history.annotated_turns import JournalReader, priced
from actors.jobs.summary import unreadable_text
from actors.report.charts import charts
from actors.report.counters import CallTotals, FailureCount, GoalTrack
from actors.report.figures import PROMPTS, ReportFigures
from actors.report.goal_details import GoalDetails, Key, clip, stories
from actors.report.goal_tree import GoalNode, tree
from actors.report.palette import DARK, LIGHT, MARKS_DARK, MARKS_LIGHT, PATTERNS, style
from actors.report.sentences import MEANINGS, JobEnding, cautions, sentences
from cortex.values.display import text_of
from cortex.values.limits import JobTerms
from policies.estimates.price import usd, usd_text

TITLE_CHARACTERS = 120
"""Most characters of the title."""
PROMPT_CHARACTERS = 2_000
"""Most characters of a prompt."""
STORIES_MAX = 600
"""Most goals with details."""
_PAGE = Path(__file__).parent / "page"
NO_CHARTS = "the charts are drawn by plotly: pip install 'cortex-bounded-calls[report]', and make the report again"


class Report(msgspec.Struct, kw_only=True):
    """Data of a page."""

    ending: JobEnding
    readings: list[JournalReader]
    figures: ReportFigures
    nodes: list[GoalNode]
    details: dict[Key, GoalDetails]
    text: bool


def report(readings: list[JournalReader], ending: JobEnding, figures: ReportFigures, text: bool = True) -> Report:
    """Return the data of a page, with the details of outstanding goals, which are read in a second pass. ``text``:
    include prompts and replies."""
    nodes = tree(readings, figures)
    chosen: dict[Key, None] = {}
    for track in _standing_out(figures):
        chosen[track.job, track.goal] = None
    for node in nodes:
        if len(chosen) < STORIES_MAX and node.key.goal and (node.attempts or node.status == "failed"):
            chosen[node.key.job, node.key.goal] = None
    facts: dict[Key, GoalDetails] = {}
    for reading in readings:
        facts |= stories(reading, set(chosen), text)
    return Report(ending=ending, readings=readings, figures=figures, nodes=nodes, details=facts, text=text)


def _standing_out(figures: ReportFigures) -> list[GoalTrack]:
    lists = (figures.failed_goals, figures.slowest.largest(), figures.dearest.largest(), figures.retried.largest())
    return [track for each in lists for track in each]


def plotly() -> bytes | None:
    """Return the chart library as its package ships it; None if it is not installed."""
    try:
        return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    except (ModuleNotFoundError, OSError):
        return None


def page(made: Report, library: bytes | None) -> str:
    """Return the page. ``library``: the chart library; without it every chart is shown as its table."""
    figures, ending, reading = made.figures, made.ending, made.readings[0]
    k = reading.k
    drawn = charts(figures, reading.terms.limits.concurrency, reading.terms.limits.max_cost_nusd)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    carried = _carried_nusd(reading)
    return environment.get_template("page.html").render(
        title=ending.facts["job"], style=style(), css=(_PAGE / "page.css").read_text("utf-8"),
        script=(_PAGE / "page.js").read_text("utf-8"), island=island(_page_facts(made, drawn)),
        library=base64.b64encode(gzip.compress(library, 9, mtime=0)).decode() if library is not None else "",
        no_charts=NO_CHARTS, ending=ending, made_at=clock(ending.now_s), until=clock(reading.end_s),
        said=sentences(ending, figures, reading), cautions=cautions(reading, figures, carried), tiles=_tiles(made),
        charts=drawn, costs=_costs(made), failures=_failures(figures), meanings=MEANINGS, lists=_lists(made),
        tree=made.nodes, prompts=_prompts(made), constructors=_constructors(figures), replayed=k is not None,
        happenings=[(clock(at_s), text) for at_s, text in sorted(figures.happenings)],
        limits=ending.facts["limits"], text=made.text, terms=reading.terms, children=made.readings[1:],
    )  # fmt: skip


def island(facts: dict[str, Any]) -> str:
    """Return values as JSON that may stand in an HTML ``script`` element, whatever they contain."""
    plain = msgspec.json.encode(facts).decode()
    for sign in "<>&\u2028\u2029":
        plain = plain.replace(sign, f"\\u{ord(sign):04x}")
    return plain


# -- data of the script -----------------------------------------------------------------------------------------------


def _page_facts(made: Report, drawn: list[dict[str, Any]]) -> dict[str, Any]:
    begin_s = made.figures.axis.begin_s
    return {
        "charts": drawn,
        "colours": {"light": {**LIGHT, "marks": MARKS_LIGHT}, "dark": {**DARK, "marks": MARKS_DARK}},
        "patterns": PATTERNS,
        "lists": {name: [_row(track, begin_s) for track in tracks] for name, _, tracks in _some(made.figures)},
        "tree": [_node(node, begin_s) for node in made.nodes],
        "stories": {f"{job} {goal}": _story(story, begin_s) for (job, goal), story in made.details.items()},
    }


def _row(track: GoalTrack, begin_s: float) -> dict[str, Any]:
    return {
        "key": f"{track.job} {track.goal}", "name": track.name or f"goal {track.goal}", "kind": track.kind,
        "begun": round(track.first_s - begin_s, 3), "took": round(track.took_s, 3), "attempts": track.attempts,
        "failed": track.failed, "tokens": track.tokens, "usd": usd(track.known_nusd), "failure": track.failure,
        "said": track.message,
    }  # fmt: skip


def _node(node: GoalNode, begin_s: float) -> list[Any]:
    return [
        f"{node.key.job} {node.key.goal}", node.name, node.kind, node.status, node.goals, node.attempts, node.failed,
        usd(node.known_nusd), round(node.took_s, 3), node.failed_goals, node.children, node.more, usd(node.more_nusd),
        node.message, round(max(0.0, node.first_s - begin_s), 3),
    ]  # fmt: skip


def _story(story: GoalDetails, begin_s: float) -> dict[str, Any]:
    lines = [[round(at_s - begin_s, 3), kind, message, text] for at_s, kind, message, text in story.lines]
    return {"prompt": story.prompt, "lines": lines, "more": story.more}


def _some(figures: ReportFigures) -> list[tuple[str, str, list[GoalTrack]]]:
    found = [
        ("failed", "Failed", figures.failed_goals), ("slowest", "Slowest", figures.slowest.largest()),
        ("dearest", "Dearest", figures.dearest.largest()), ("retried", "Most retried", figures.retried.largest()),
    ]  # fmt: skip
    return [each for each in found if each[2]]


def _lists(made: Report) -> list[tuple[str, str, int]]:
    totals = {"failed": made.figures.goals_failed}
    return [(name, title, totals.get(name, 0)) for name, title, _ in _some(made.figures)]


# -- tables -----------------------------------------------------------------------------------------------------------


def _tiles(made: Report) -> list[tuple[str, str, str]]:
    """Return tiles: name, figure, explanation."""
    facts, figures, ending = made.ending.facts, made.figures, made.ending
    failed = sum(facts["failures"].values())
    share = f"{100 * failed / facts['attempts']:.3g} % of attempts" if facts["attempts"] else ""
    seconds = facts["elapsed_s"]
    pace = f"{figures.latency.count / seconds:,.3g} answers a second" if seconds else ""
    tokens = facts["input_tokens"] + facts["cache_read_tokens"] + facts["cache_creation_tokens"]
    return [
        _rows_tile(made),
        ("Calls", f"{facts['calls']:,}", f"{facts['attempts']:,} attempts, {facts['reused_calls']:,} from memory"),
        ("Failed attempts", f"{failed:,}", share),
        ("Cost", ending.cost.partition(" (")[0] or "unknown", ending.cost.partition(" (")[2].rstrip(")")),
        ("Tokens", f"{tokens:,}", f"in, and {facts['output_tokens']:,} out"),
        ("Time", ending.time, pace),
        ("Median answer", f"{figures.latency.quantile(0.5):.3g} s", f"95 %: {figures.latency.quantile(0.95):.3g} s"),
    ]  # fmt: skip


def _rows_tile(made: Report) -> tuple[str, str, str]:
    facts, rows = made.ending.facts, made.ending.rows
    if made.readings[0].changed:
        return "Results written", f"{facts['results_written']:,}", "of rows nothing more is known"
    noun = "Rows" if made.readings[0].terms.streams else "Results"
    counts = ", ".join(filter(None, (f"of {rows:,}", f"{facts['rows_failed']:,} failed", unreadable_text(facts))))
    return noun, f"{facts['rows_succeeded']:,}", counts if rows else ""


def _costs(made: Report) -> list[dict[str, Any]]:
    """Return one table for each breakdown of the cost."""
    figures, terms = made.figures, made.readings[0].terms
    known = bool(made.ending.cost) and all(priced(route) for route in terms.routes)
    found = [("By model and route", "route", figures.routes), ("By kind of goal", "kind", figures.kinds)]
    found += [("By label", "label", figures.labels)] if figures.labels else []
    found += [("By job", "job and its child jobs", figures.jobs)] if len(figures.jobs) > 1 else []
    whole = max(1, sum(sums.known_nusd + sums.assumed_nusd for sums in figures.jobs.values()))
    tables = []
    for title, noun, by in found:
        rows = [_cost_row(name, sums, whole) for name, sums in _dearest(by)]
        some = {name: any(row[name] for row in rows) for name in ("reused", "cached")}
        tables.append({"title": title, "noun": noun, "known": known, "rows": rows, **some})
    return tables


def _dearest(sums: dict[str, CallTotals]) -> list[tuple[str, CallTotals]]:
    return sorted(sums.items(), key=lambda each: (-each[1].known_nusd, -each[1].attempts, each[0]))[:50]


def _cost_row(name: str, sums: CallTotals, whole: int) -> dict[str, Any]:
    paid = sums.known_nusd + sums.assumed_nusd
    each = sums.known_nusd // sums.answered if sums.answered else 0
    return {
        "name": name, "attempts": sums.attempts, "answered": sums.answered, "reused": sums.reused,
        "failed": sums.failed, "input": sums.input_tokens + sums.cache_creation_tokens + sums.cache_read_tokens,
        "cached": sums.cache_read_tokens, "output": sums.output_tokens, "usd": usd_text(sums.known_nusd),
        "assumed": usd_text(sums.assumed_nusd) if sums.assumed_nusd else "", "each": usd_text(each),
        "share": round(100 * paid / whole, 1),
    }  # fmt: skip


def _failures(figures: ReportFigures) -> list[dict[str, Any]]:
    whole = max(1, max((each.count for each in figures.failures.values()), default=1))
    return [
        {
            "kind": kind, "count": each.count, "share": round(100 * each.count / whole, 1),
            "first": clock(each.first_s) if each.first_s else "", "last": clock(each.last_s) if each.last_s else "",
            "examples": _examples(each), "others": each.others,
        }
        for kind, each in sorted(figures.failures.items(), key=lambda pair: -pair[1].count)
    ]  # fmt: skip


def _examples(each: FailureCount) -> list[tuple[int, str, str]]:
    most = sorted(each.messages.items(), key=lambda pair: -pair[1])[:5]
    return [(count, text, each.goals.get(text, "")) for text, count in most]


def _prompts(made: Report) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    met: set[bytes] = set()
    for job, goal, attempt, size, constructor, name, body in made.figures.prompts.largest():
        if body in met or len(found) == PROMPTS:
            continue  # a repeated prompt
        met.add(body)
        text = clip(text_of(body), PROMPT_CHARACTERS) if made.text else ""
        found.append(
            {
                "name": name or f"goal {goal}", "job": job, "goal": goal, "attempt": attempt, "bytes": size,
                "constructor": constructor, "text": text,
            }
        )  # fmt: skip
    return found


def _constructors(figures: ReportFigures) -> list[tuple[str, int, int, int]]:
    known = figures.constructors.items()
    rows = [(name or "unnamed", calls, total // calls, most) for name, (calls, total, most) in known]
    return sorted(rows, key=lambda row: -row[1] * row[2])[:50]


def _carried_nusd(reading: JournalReader) -> int | None:
    terms_opened = next(event for batch in reading.opened.batches for event in batch if hasattr(event, "carried"))
    carried = terms_opened.carried
    return carried.known_nusd + carried.assumed_nusd if carried is not None else None


__all__ = ["NO_CHARTS", "JobTerms", "Report", "island", "page", "plotly", "report"]
