"""Logs: their form, what deserves a line, and what never stands in one."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult

from actors.observability.base.settings import TelemetrySettings
from actors.observability.logs import formatting, otlp_export
from actors.observability.logs.formatting import LogSettingsError, begin, checked, log_arguments
from actors.observability.logs.job_events import ClusterLog, JobLog
from actors.observability.logs.otlp_export import OtlpLogHandler
from actors.observability.wiring import TelemetryParts, of_environ
from actors.providers.credentials.credential import Credential
from cortex.scheduler import protocol
from cortex.scheduler.state import LostNode, Member, PoolState, SchedulerState
from cortex.state import events
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import LimitPolicy, PoolAllowance, PoolCaps, new
from tests.edge.support.in_process_job import PRICE, FunctionModel, reply
from tests.edge.support.metered_job import run_of
from tests.support.patience import PATIENCE_S

KEY = "sk-ant-api03-MARKEDKEY-0123456789"
PROMPT = "row "
"""How prompts of the tests' rows begin; their replies and failures are marked, too."""
TERMS = JobTerms(
    job="j", program="batch", params_json=b"{}", fingerprint="f" * 64,
    route=Route(endpoint="https://api.example.com", model="m"),
)  # fmt: skip


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """All that is logged, at every level, as JSON."""
    ours, others = logging.getLogger(formatting.OURS), logging.getLogger()
    before = ours.level, ours.propagate, ours.handlers[:], others.level, others.handlers[:]
    stream = io.StringIO()
    begin("json", "debug", {"actor": "channel:j", "node": "n"}, stream)
    yield stream
    ours.setLevel(before[0])
    ours.propagate, ours.handlers[:], others.handlers[:] = before[1], before[2], before[4]
    others.setLevel(before[3])


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def messages(stream: io.StringIO) -> list[str]:
    return [line["message"] for line in lines(stream)]


# -- form ------------------------------------------------------------------------------------------------------------


def test_a_record_is_one_object_with_its_fields(written):
    logging.getLogger("cortex.job").info(**log_arguments("it\nhappens", job="j", goal=7, kind="lost", epoch=2, who=""))
    (line,) = lines(written)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "logger": "cortex.job", "message": "it\nhappens", "actor": "channel:j", "node": "n",
        "job": "j", "goal": 7, "kind": "lost", "epoch": 2,
    }  # fmt: skip


def test_text_is_one_line_for_people(written):
    stream = io.StringIO()
    begin("text", "info", None, stream)
    logging.getLogger("cortex.job").warning(**log_arguments("the job is blocked", job="j", kind="blocked"))
    logging.getLogger("cortex.job").debug("not this")
    assert stream.getvalue().endswith("Z warning the job is blocked (job=j kind=blocked)\n")
    assert stream.getvalue().count("\n") == 1


def test_of_an_exception_its_type_and_place_and_not_what_it_says(written):
    try:
        raise ValueError("a marked prompt")
    except ValueError:
        logging.getLogger("cortex.channel").exception("channel:%s can go on no more", "j")
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    assert "marked" not in written.getvalue()
    for line in lines(written):
        assert line["exception"] == "ValueError" and "test_logs.py" in line["at"]


def test_others_are_heard_from_warning_on(written):
    logging.getLogger("anthropic").debug("Request options: a marked prompt")
    logging.getLogger("httpx2").info("HTTP Request")
    logging.getLogger("aiohttp").warning("something")
    assert messages(written) == ["something"]


def test_no_key_stands_in_a_line_whoever_writes_it(written):
    secret = "a-token-of-no-known-form"
    formatting.redaction.know(Credential(auth_token=secret))
    logging.getLogger("aiohttp").warning("header x-api-key %s, authorization Bearer %s", KEY, secret)
    logging.getLogger("cortex.job").info(**log_arguments("so", who=KEY))
    assert KEY not in written.getvalue() and secret not in written.getvalue()
    assert len(lines(written)) == 2


@pytest.mark.parametrize(
    ("form", "level", "terminal", "expected"),
    [
        ("", "", True, ("text", logging.WARNING)), ("", "", False, ("json", logging.WARNING)),
        ("json", "", True, ("json", logging.INFO)), ("text", "DEBUG", False, ("text", logging.DEBUG)),
    ],
)  # fmt: skip
def test_what_is_meant_where_nothing_is_said(form, level, terminal, expected):
    assert checked(form, level, terminal) == expected


@pytest.mark.parametrize(
    ("form", "level", "told"),
    [
        ("", "", ["job.waits", "job.blocked"]), ("text", "", ["job.waits"]),
        ("json", "", ["job.rows_failing", "job.waits", "job.blocked"]),
        ("", "warning", ["job.rows_failing", "job.waits", "job.blocked"]),
        ("text", "warning", ["job.rows_failing", "job.waits", "job.blocked"]),
    ],
)  # fmt: skip
def test_what_the_lines_of_a_command_count_is_logged_only_where_that_was_asked_for(written, form, level, told):
    stream = io.StringIO()
    begin(form, level, None, stream)
    for event in ("job.rows_failing", "job.waits", "job.blocked"):
        logging.getLogger("cortex.job").warning(**log_arguments(event, event=event))
    assert re.findall(r"job\.[a-z_]+", re.sub(r'"event":"[^"]*"|event=\S+', "", stream.getvalue())) == told


@pytest.mark.parametrize(("form", "level", "told"), [("xml", "", "--log-format xml"), ("", "loud", "--log-level loud")])
def test_what_there_is_not(form, level, told):
    with pytest.raises(LogSettingsError, match=told):
        checked(form, level, True)


def test_a_library_says_nothing_unless_it_is_asked_to(capfd, monkeypatch):
    ours = logging.getLogger(formatting.OURS)
    monkeypatch.setattr(ours, "handlers", [logging.NullHandler()])  # another test may have run the command line here
    logging.getLogger("cortex.job").warning("nobody configured anything")
    assert capfd.readouterr().err == ""


# -- what deserves a line --------------------------------------------------------------------------------------------


def _log(written: io.StringIO, *batches: tuple[events.Event, ...], k: State | None = None) -> list[dict[str, Any]]:
    log = JobLog("j", lambda: 100.0)
    for seq, batch in enumerate(batches):
        log.turn(seq, events.Turn(float(seq), (batch,)), [], k or State(terms=TERMS, epoch=3))
    return lines(written)


def test_what_operators_do_is_an_event_with_who(written):
    entries = _log(
        written,
        (events.Opened(TERMS, 1),),
        (events.LimitsSet("ann", Limits(concurrency=7)),),
        (events.Stopped("bob", "drain"),),
        (events.Resumed("cho"),),
        (events.AnswerGiven("dee", "approve:send the letter", {"text": "marked"}),),
        (events.AnswerGiven("eve", "name", "marked"),),
    )
    assert [(line["event"], line.get("who", "")) for line in entries] == [
        ("job.begun", ""), ("job.set", "ann"), ("job.drain", "bob"), ("job.resumed", "cho"), ("job.approved", "dee"),
        ("job.answered", "eve"),
    ]  # fmt: skip
    assert entries[1]["limits"] == {"concurrency": 7}
    assert {(line["job"], line["epoch"]) for line in entries} == {("j", 3)}
    assert "marked" not in written.getvalue() and "letter" not in written.getvalue()


def test_failures_are_told_together_and_not_too_often(written):
    k = State(terms=TERMS)
    now_s = [100.0]
    log = JobLog("j", lambda: now_s[0])
    broke = events.AttemptFailed(1, "0", 1, Failure(FailureKind.REJECTED, "marked words", 400), 0.5)
    for n in range(50):
        k.tally.failures["rejected"] = n
        log.turn(n, events.Turn(1.0, ((broke,),)), [], k)
    now_s[0] += 10
    log.turn(51, events.Turn(1.0, ((events.Ticked(),),)), [], k)
    entries = lines(written)
    together = [line["failures"] for line in entries if line["level"] == "info"]
    assert sum(each["rejected"] for each in together) == 49 and len(together) == 2
    single = [line for line in entries if line["level"] == "debug"]
    assert len(single) == 50 and single[0]["kind"] == "rejected" and single[0]["status"] == 400
    assert single[0]["call"] == "j/1/0" and single[0]["goal"] == 1
    assert "marked" not in written.getvalue()


def test_rows_that_fail_are_a_warning_once_and_not_one_for_each(written):
    k, now_s = State(terms=TERMS), [100.0]
    log = JobLog("j", lambda: now_s[0])
    for n in range(1_000):
        bad = n >= 500 and n % 3 == 0
        k.tally.succeeded, k.tally.failed = k.tally.succeeded + (not bad), k.tally.failed + bad
        if bad:
            k.tally.failures["rejected"] = k.tally.failed_for_good["rejected"] = k.tally.failed
        now_s[0] += 1.0
        log.turn(n, events.Turn(float(n), ((events.Ticked(),),)), [], k)
    first, many = [line for line in lines(written) if line["level"] == "warning"]
    assert (first["event"], first["kind"]) == ("job.rows_failing", "rejected")
    assert (many["event"], many["job"]) == ("job.rows_failing", "j") and many["rows_failed"] > 0.05 * many["rows"]


@pytest.mark.parametrize("where", ["an attempt failed", "the row's own code failed", "it was refused at reading"])
@pytest.mark.parametrize("good", [0, 10_000])
def test_rows_that_fail_at_once_are_a_warning_whatever_failed_before(written, good, where):
    """A share over all rows since the last failure would hide them, and not every failed row has an attempt."""
    k, now_s = State(terms=TERMS), [100.0]
    log = JobLog("j", lambda: now_s[0])
    for _ in range(100):
        log.turn(1, events.Turn(1.0, ((events.Ticked(),),)), [], k)
        k.tally.succeeded += good // 100
        now_s[0] += 10.0
    k.tally.failed = 400
    if where == "it was refused at reading":
        k.tally.rows_refused = 400
    else:
        k.tally.failed_for_good["faulty"] = 400
    if where == "an attempt failed":
        k.tally.failures["faulty"] = 400
    log.turn(1, events.Turn(1.0, ((events.Ticked(),),)), [], k)
    first, many = [line for line in lines(written) if line["level"] == "warning"]
    assert first["kind"] == ("refused before sending" if where == "it was refused at reading" else "faulty")
    assert (many["rows"], many["rows_failed"]) == (400 + good // 100, 400)
    assert many["message"].endswith("rows failed (80 %)" if good else "rows failed (100 %)")


def test_an_attempt_names_its_trace_where_that_is_kept(written):
    def sampled(k: State, event: Any) -> tuple[str, str] | None:
        return ("a" * 32, "b" * 16) if event.goal == 1 else None

    log = JobLog("j", sampled=sampled)
    broke = [events.AttemptFailed(goal, "0", 1, Failure(FailureKind.LOST, ""), 0.5) for goal in (1, 2)]
    log.turn(1, events.Turn(1.0, (tuple(broke),)), [], State(terms=TERMS))
    first, second = lines(written)
    assert (first["trace_id"], first["span_id"]) == ("a" * 32, "b" * 16) and "trace_id" not in second


@pytest.mark.parametrize("sent", [False, True])
def test_a_route_that_does_not_reply_is_told_once_and_that_it_replies_again(written, sent):
    k = State(terms=TERMS)
    log = JobLog("j")
    (share,) = k.shares
    share.failing, share.failing_s = Failure(FailureKind.TRANSIENT, "marked: no connection", sent=sent), 100.0
    for at_s, why in (
        (101.0, ""),
        (104.0, "the breaker is open: 9 of 9 failed"),
        (106.0, "half open, 2 to probe"),
        (120.0, "half open, 2 to probe"),
    ):
        k.at_s, share.why = at_s, why
        log.turn(1, events.Turn(at_s, ((events.Ticked(),),)), [], k)
    k.at_s, share.failing, share.failing_s = 130.0, None, 0.0
    for _ in range(2):
        log.turn(2, events.Turn(130.0, ((events.Ticked(),),)), [], k)
    waits, goes_on = lines(written)
    assert (waits["event"], waits["level"], waits["kind"], waits["since_s"]) == (
        "job.waits",
        "warning",
        "transient",
        100.0,
    )
    assert waits.get("error") == (None if sent else "marked: no connection"), "what was sent may be quoted in it"
    assert (goes_on["event"], goes_on["level"], goes_on["waited_s"]) == ("job.goes_on", "info", 30.0)
    assert waits["route"] == goes_on["route"]


@pytest.mark.parametrize(
    ("kind", "message", "level"),
    [(FailureKind.OVER_BUDGET, "the budget is reached", "warning"),
     (FailureKind.BLOCKED, "the job is blocked", "error"), (FailureKind.UNAUTHORISED, "the job is blocked", "error")],
)  # fmt: skip
def test_a_pause_is_told_once_and_its_end(written, kind, message, level):
    k = State(terms=TERMS)
    log = JobLog("j")
    k.paused = Failure(kind, "marked: credit", 402, "billing_error")
    for seq in range(3):
        log.turn(seq, events.Turn(1.0, ((events.Ticked(),),)), [], k)
    k.paused = None
    log.turn(4, events.Turn(1.0, ((events.Ticked(),),)), [], k)
    entries = lines(written)
    assert [line["message"] for line in entries] == [message, "the job goes on"]
    assert (entries[0]["level"], entries[0]["kind"], entries[0]["error_type"]) == (level, str(kind), "billing_error")
    assert "marked" not in written.getvalue()


def test_what_the_cortex_does_is_told(written):
    state = SchedulerState()
    state.members["branch:0"] = Member("branch", 0, past=("x", 3))
    state.members["branch:1"] = Member("branch", 1)
    pool = state.pools["p"] = PoolState(new(LimitPolicy()), allowed=PoolAllowance(40))
    log = ClusterLog(state)
    from cortex.scheduler.reports import ProgressReport

    reported = protocol.MemberReported(1.0, ProgressReport("branch:0", "i", "n", 1, "calling"))
    log.step(reported, [])
    pool.allowed = PoolAllowance(20)
    log.step(reported, [])
    log.step(protocol.TimePassed(2.0), [
        protocol.BreakerMoved("route:r", "closed", "open", "7 of 10 failed"), protocol.BreakerMoved("route:r", "open", "half-open", ""),
        protocol.BreakerMoved("route:r", "half-open", "closed", ""), protocol.KillMember("branch:1", "silent for 30 s, and unheard"),
        protocol.StartMember("branch", "branch:0"), protocol.StartMember("branch", "branch:1"), protocol.StopJob("j", "marked"),
    ])  # fmt: skip
    log.step(protocol.MemberDied(3.0, "branch:1", "n"), [])
    log.step(protocol.PoolCapped(4.0, "ann", "p", PoolCaps(concurrency=3)), [])
    log.step(protocol.DrainMember(5.0, "bob", "n"), [])
    state.lost["n"] = LostNode("pod-n", 5.0, 1e9)
    log.step(protocol.NodesChanged(5.0, ()), [])
    state.lost.clear()
    log.step(protocol.NodesChanged(6.0, ("n",)), [])
    assert messages(written) == [
        "a limit was cut", "a breaker opened", "a breaker is half open", "a breaker closed",
        "an actor is ended by force", "an actor is started again", "an actor is started",
        "a job is stopped: its channel keeps dying", "an actor is gone", "a pool was bounded by hand",
        "a drain of a node or an actor was requested", "a node is lost", "a lost node is told no more",
    ]  # fmt: skip
    entries = lines(written)
    assert [(line["event"], line["level"], line["host"]) for line in entries[-2:]] == [
        ("node.lost", "warning", "pod-n"), ("node.back", "info", "pod-n"),
    ]  # fmt: skip
    assert (entries[0]["limit"], entries[0]["was"]) == (20, 40)
    log.step(protocol.TimePassed(6.0), [protocol.BreakerMoved("route:r", "half-open", "open", "2 of 2 probes failed")])
    assert [line["level"] for line in lines(written) if line["message"] == "a breaker opened"] == ["warning", "info"]
    assert [line["who"] for line in entries if "who" in line] == ["ann", "bob"]
    assert "marked" not in written.getvalue()


# -- never a prompt, a reply or a key --------------------------------------------------------------------------------


def _answer(n: int) -> Reply | Failure:
    """All the ways in which an attempt can end, each with words of the prompt or the reply in what it says."""
    text = f"about your prompt 'row {n}': MARKEDREPLY {KEY}"
    passing = {5: FailureKind.OVERLOADED, 25: FailureKind.TRANSIENT, 35: FailureKind.TIMED_OUT}  # tried again
    if n % 3 and n not in passing:
        return reply("MARKEDREPLY", stop_reason="refusal" if n % 2 else "end_turn")
    return Failure(passing.get(n, FailureKind.REJECTED), text, 400, "invalid_request_error")


async def test_nothing_of_prompts_replies_and_keys_stands_in_any_line(tmp_path, written, capfd):
    asked = 0

    def answer(body: bytes) -> Reply | Failure:
        nonlocal asked
        asked += 1
        return _answer(asked)

    telemetry = of_environ({"OTEL_TRACES_EXPORTER": "none", "ANTHROPIC_API_KEY": KEY})
    assert isinstance(telemetry, TelemetryParts)
    facts = (await run_of(tmp_path, FunctionModel(answer), 60, price=PRICE, telemetry=telemetry).to_end()).facts
    assert facts["rows_failed"] > 5 and facts["rows_succeeded"] > 5 and len(facts["failures"]) >= 4
    broken = FunctionModel(lambda body: Failure(FailureKind.BLOCKED, f"MARKEDREPLY {KEY} for 'row 1'", 402))
    await run_of(tmp_path, broken, 5, job="b", telemetry=of_environ({"OTEL_TRACES_EXPORTER": "none"})).to_end()
    output = written.getvalue()
    texts = messages(written)
    assert {"the job begins", "attempts failed", "an attempt failed", "the job has ended", "the job is blocked"} <= set(
        texts
    )
    out, err = capfd.readouterr()
    for text in (output, out, err):
        assert "MARKED" not in text and KEY not in text and "'row" not in text and "row 1" not in text


# -- sent to a collector ---------------------------------------------------------------------------------------------


class _Kept(LogRecordExporter):
    def __init__(self) -> None:
        self.records: list[Any] = []

    def export(self, batch: Any) -> LogRecordExportResult:
        self.records += [each.log_record for each in batch]
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True

    def shutdown(self) -> None: ...


def test_records_are_sent_and_what_operators_do_is_an_event(written, monkeypatch):
    kept = _Kept()
    monkeypatch.setattr(otlp_export, "CLOSE_MS", 1_000 * PATIENCE_S)
    handler = OtlpLogHandler(TelemetrySettings(), lambda: kept)
    monkeypatch.setitem(formatting._envelope, "actor", "channel:j")
    logging.getLogger(formatting.OURS).addHandler(handler)
    try:
        _log(written, (events.Stopped("bob", "drain"),))
        logging.getLogger("cortex.observing").warning("not this: it would go in circles")
        logging.getLogger("cortex.job").info(**log_arguments(f"so {KEY}"))
    finally:
        handler.close()
    first, second = kept.records
    assert (first.event_name, first.body, first.severity_text) == (
        "cortex.job.drain",
        "a stop of the job was requested",
        "INFO",
    )
    assert first.attributes["cortex.job.id"] == "j" and first.attributes["cortex.who"] == "bob"
    assert first.attributes["cortex.actor"] == "channel:j"
    assert KEY not in second.body


def test_a_collector_that_is_down_is_told_of_once(written):
    class Down(_Kept):
        def export(self, batch: Any) -> LogRecordExportResult:
            return LogRecordExportResult.FAILURE

    handler = OtlpLogHandler(TelemetrySettings(), Down)
    logging.getLogger(formatting.OURS).addHandler(handler)
    try:
        for _ in range(5):
            logging.getLogger("cortex.job").info("so")
            handler._provider.force_flush()
    finally:
        handler.close()
    (line,) = [line for line in lines(written) if line["level"] == "warning"]
    assert "log records do not reach" in line["message"]


def test_a_request_that_outlives_the_close_adds_no_line_when_it_ends(written, monkeypatch):
    """Else it would be written in the next job of the process."""
    monkeypatch.setattr(otlp_export, "CLOSE_MS", 50)
    go, done = threading.Event(), threading.Event()

    class Slow(_Kept):
        def export(self, batch: Any) -> LogRecordExportResult:
            assert go.wait(PATIENCE_S)
            return LogRecordExportResult.FAILURE

        def shutdown(self) -> None:
            done.set()

    handler = OtlpLogHandler(TelemetrySettings(), Slow)
    handler.emit(logging.LogRecord("cortex.job", logging.INFO, "", 0, "so", None, None))
    handler.close()
    (line,) = lines(written)
    assert "log records do not reach" in line["message"]
    go.set()
    assert done.wait(PATIENCE_S) and lines(written) == [line]


# -- of actors elsewhere ---------------------------------------------------------------------------------------------


def test_a_driver_shows_what_actors_of_its_own_ray_warn_of(tmp_path, written, capsys):
    from actors.observability.logs.ray_actor_logs import LINES_MAX, ActorLogReader

    folder = tmp_path / "r" / "session_latest" / "logs"
    folder.mkdir(parents=True)
    path = folder / "worker-1.err"
    loud = {"time": "T", "level": "warning", "logger": "cortex.cluster", "message": "so", "actor": "cortex"}
    path.write_text(
        "\n".join(["no JSON", json.dumps({**loud, "level": "info"}), json.dumps(loud), json.dumps([1])]) + '\n{"half'
    )
    shown = ActorLogReader(str(tmp_path), "text")
    shown.show()
    assert capsys.readouterr().err == "T warning so (actor=cortex)\n"
    with path.open("a") as file:
        file.write('": 1}\n' + (json.dumps({**loud, "who": KEY}) + "\n") * (LINES_MAX + 5))
    shown.show()
    answer = capsys.readouterr().err
    assert answer.count("T warning so") == LINES_MAX and "5 more warnings of actors" in answer and KEY not in answer
    shown.show()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("outcome", "why", "level"),
    [
        ("complete", "", "INFO"), ("cancelled", "cancel: by bob", "INFO"), ("partial", "drain: by bob", "INFO"),
        ("partial", "deadline", "WARNING"), ("partial", "over_budget: $1 is spent", "WARNING"),
        ("partial", "blocked: no credit", "ERROR"), ("partial", "unauthorised: the key", "ERROR"),
        ("partial", "condemned: it dies", "ERROR"), ("partial", "a reason of a program", "WARNING"),
        ("failed", "", "ERROR"),
    ],
)  # fmt: skip
def test_the_end_of_a_job_has_the_level_of_what_a_person_must_do(outcome, why, level):
    from actors.observability.logs.levels import level_of_end

    assert logging.getLevelName(level_of_end(outcome, why)) == level
