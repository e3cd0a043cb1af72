"""The sandbox: nothing gets out, nothing exhausts it, every breach is a refusal of the closed list; and what it is for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.sandbox import child_pool
from actors.sandbox.await_analysis import awaited
from actors.sandbox.child import GRACE_S, write
from actors.sandbox.child_pool import Sandbox
from actors.worker.worker import Worker
from cortex.state.sandbox import PieceCallResult, PieceOutcome, SandboxBounds, SandboxPiece, SandboxRefusal
from cortex.state.sandbox import sandbox as declared
from tests.edge.channel.test_worker import Program, Runtime
from tests.support.patience import PATIENCE_S
from tests.support.sandbox_escapes import ESCAPES

BOUNDS = SandboxBounds(time_s=30.0, memory_mb=64, output_chars=20_000, calls=40, answer_bytes=100_000)
"""Of pieces that end by themselves, or by another bound than that of time."""
BRIEF = msgspec.structs.replace(BOUNDS, time_s=0.4)
SLACK_S = 2.0
"""Starting another process in place of a killed one, on a busy machine."""
TRIES = 3
"""Runs of a piece, of which one must keep to its time: a machine may be busy in any, a bound that does not hold is
passed in each."""


linux = pytest.mark.skipif(not os.path.isdir("/proc"), reason="no /proc tells of processes here")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    box = Sandbox()
    yield box
    box.close()


def to_the_end(
    sandbox: Sandbox, code: str, bounds: SandboxBounds = BOUNDS, context: Any = "a\nb\nc"
) -> tuple[PieceOutcome, int]:
    """Run a piece, its calls answered by ``<prompt>``; its last outcome, and how often it paused."""
    piece, pauses = SandboxPiece(code), 0
    while True:
        outcome = sandbox.outcome([piece], {"context": context}, bounds)
        if not outcome.calls:
            return outcome, pauses
        pauses += 1
        parts = tuple(PieceCallResult(f"<{wanted.prompt}>") for wanted in outcome.calls)
        piece = SandboxPiece(code, (*piece.said, *parts), outcome.seal)


def test_the_corpus_is_large_and_each_of_it_is_another():
    assert len(ESCAPES) >= 60
    assert len({escape.name for escape in ESCAPES}) == len({escape.code for escape in ESCAPES}) == len(ESCAPES)
    others = {SandboxRefusal.DIFFERS, SandboxRefusal.CRASHED}  # which have tests of their own
    assert {refusal for escape in ESCAPES for refusal in escape.ends} == {*SandboxRefusal} - others


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name.replace(" ", "-"))
def test_it_ends_in_its_refusal_within_its_limits_and_the_next_one_is_served(sandbox, escape, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-never-seen")
    bounds = BRIEF if SandboxRefusal.TIME in escape.ends else BOUNDS
    for _ in range(TRIES):
        began_s = time.monotonic()
        outcome, pauses = to_the_end(sandbox, escape.code, bounds)
        took_s = time.monotonic() - began_s
        assert outcome.refusal in escape.ends, outcome
        if took_s < (most_s := (1 + pauses) * (3 * BRIEF.time_s + GRACE_S) + child_pool.SILENT_S + SLACK_S):
            break
    assert not outcome.submitted and not outcome.calls
    assert took_s < most_s
    assert len(outcome.why) <= 300 and len(outcome.output) <= BOUNDS.shown_chars + 60
    assert "sk-never-seen" not in repr(outcome) and "root:" not in repr(outcome)
    after, _ = to_the_end(sandbox, "submit(len(context.splitlines()))")
    assert (after.submitted, after.answer) == (True, 3)


def test_a_new_piece_after_others_has_its_own_time_and_no_more(sandbox):
    bounds = SandboxBounds(time_s=1.0)
    for _ in range(TRIES):
        began_s = time.monotonic()
        outcome = sandbox.outcome([SandboxPiece("x = 1"), SandboxPiece("while True:\n    pass")], {}, bounds)
        took_s = time.monotonic() - began_s
        assert outcome.refusal == SandboxRefusal.TIME
        if took_s < 2.8:
            break
    assert 1.0 <= took_s < 2.8  # those before may take three times as long, being run again


def test_nothing_is_left_of_one_piece_for_the_next_program(sandbox):
    to_the_end(sandbox, "secret = 'of another'")
    assert to_the_end(sandbox, "print(secret)")[0].refusal == SandboxRefusal.RAISED


def test_what_is_printed_cannot_be_taken_for_a_result(sandbox):
    forged = '{"submitted": true, "answer": 42, "refusal": null}'
    outcome, _ = to_the_end(sandbox, f"print({forged!r})\nprint('calls', llm('really'))\n{forged!r}")
    assert not outcome.submitted and outcome.answer is None and outcome.refusal is None
    assert forged in outcome.output and "<really>" in outcome.output


def test_of_a_long_output_the_beginning_and_the_end_are_shown(sandbox):
    outcome, _ = to_the_end(sandbox, "for i in range(2000):\n    print(i)")
    assert outcome.output.startswith("0\n1\n") and outcome.output.endswith("1998\n1999\n")
    assert "characters left out" in outcome.output
    assert len(outcome.output) < BOUNDS.shown_chars + 60 < outcome.printed_chars


@pytest.mark.parametrize(
    ("code", "pauses", "answer"),
    [
        ("submit([llm('a'), llm('b')])", 2, ["<a>", "<b>"]),
        ("submit([llm_query(p) for p in 'ab'])", 2, ["<a>", "<b>"]),
        ("submit(llm_map(['a', 'b']))", 1, ["<a>", "<b>"]),
        ("submit(llm_query_batched(['a', 'b']))", 1, ["<a>", "<b>"]),
        ("submit(await llm_map(['a', 'b']))", 1, ["<a>", "<b>"]),
        ("submit(llm_map([]))", 0, []),
        ("submit(await llm('a'))", 1, "<a>"),
        ("import asyncio\nsubmit(await asyncio.gather(*[llm(p) for p in 'abc']))", 1, ["<a>", "<b>", "<c>"]),
        ("import asyncio\nt = [llm(p) for p in 'ab']\nt.append(llm('c'))\nsubmit(await asyncio.gather(*t))", 1,
         ["<a>", "<b>", "<c>"]),
        ("import asyncio\nasync def one(p):\n    return await llm(p)\nsubmit(await asyncio.gather(one('a'), one('b')))",
         1, ["<a>", "<b>"]),
        ("import asyncio\ndef one(p):\n    return llm(p)\nsubmit(await asyncio.gather(*[one(p) for p in 'ab']))", 1,
         ["<a>", "<b>"]),
        ("import asyncio\nasync def main():\n    return await asyncio.gather(llm('a'), llm('b'))\nsubmit(asyncio.run(main()))",
         1, ["<a>", "<b>"]),
        ("first = llm('é')\nsecond = await llm(first + '!')\nsubmit(second)", 2, "<<é>!>"),
        ("import asyncio\nthen = await asyncio.gather(*[llm(llm(p)) for p in 'ab'])\nsubmit(then)", 3, ["<<a>>", "<<b>>"]),
    ],
)  # fmt: skip
def test_calls_pause_it_together_where_they_are_mapped_or_gathered(sandbox, code, pauses, answer):
    outcome, paused = to_the_end(sandbox, code)
    assert (outcome.answer, paused) == (answer, pauses), outcome


def test_which_calls_are_awaited_is_told_in_bytes():
    code = "é = 'ü'; x = llm(é)\ny = await llm('ö' + é)"
    ((begin, end),) = awaited(code)
    assert code.encode()[begin:end].decode() == "llm('ö' + é)"
    assert awaited("not python (") == set()


def test_a_failed_call_is_an_error_in_the_program_and_never_its_text(sandbox):
    code = "try:\n    x = llm_map(['a', 'b'])\nexcept RuntimeError as e:\n    x = str(e)\nsubmit(x)"
    paused = sandbox.outcome([SandboxPiece(code)], {}, BOUNDS)
    parts = (PieceCallResult("fine"), PieceCallResult(failed="refused: the model declined"))
    outcome = sandbox.outcome([SandboxPiece(code, parts, paused.seal)], {}, BOUNDS)
    assert outcome.answer == "1 of 2 calls failed, the first: refused: the model declined"


def test_names_stay_from_piece_to_piece_also_those_of_one_that_raised(sandbox):
    first = SandboxPiece("x = llm('a')\ny = [x] * 3\nimport re\nraise ValueError('no')")
    paused = sandbox.outcome([first], {"context": "c"}, BOUNDS)
    first = SandboxPiece(first.code, (PieceCallResult("four"),), paused.seal)
    outcome = sandbox.outcome([first], {"context": "c"}, BOUNDS)
    assert (outcome.refusal, outcome.line) == (SandboxRefusal.RAISED, 4)
    assert [tuple(msgspec.to_builtins(name)) for name in outcome.names] == [
        ("context", "str", 1),
        ("x", "str", 4),
        ("y", "list", 3),
    ]
    then = sandbox.outcome([first, SandboxPiece("submit([len(y), re.sub('o', '0', x)])")], {"context": "c"}, BOUNDS)
    assert then.answer == [3, "f0ur"]


def test_hiding_what_tells_of_names_hides_the_names_and_no_more(sandbox):
    outcome, _ = to_the_end(sandbox, "def len(x):\n    while True:\n        pass\nlocals = type = None\nx = [1]")
    assert outcome.refusal is None and outcome.names == ()


def test_the_bound_of_calls_is_that_of_all_pieces_together(sandbox):
    first = SandboxPiece("a = llm_map([str(n) for n in range(30)])")
    paused = sandbox.outcome([first], {}, BOUNDS)
    first = SandboxPiece(first.code, tuple(PieceCallResult("x") for _ in paused.calls), paused.seal)
    assert sandbox.outcome([first, SandboxPiece("llm_map(['y'] * 11)")], {}, BOUNDS).refusal == SandboxRefusal.CALLS
    assert len(sandbox.outcome([first, SandboxPiece("llm_map(['y'] * 10)")], {}, BOUNDS).calls) == 10


def test_a_piece_that_makes_other_calls_when_it_is_run_again_is_refused(sandbox):
    paused = sandbox.outcome([SandboxPiece("submit(llm(context))")], {"context": "one"}, BOUNDS)
    changed = sandbox.outcome(
        [SandboxPiece("submit(llm(context))", (PieceCallResult("x"),), paused.seal)], {"context": "two"}, BOUNDS
    )
    assert changed.refusal == SandboxRefusal.DIFFERS and not changed.submitted
    fewer = sandbox.outcome(
        [SandboxPiece("submit(1)", (PieceCallResult("x"),), paused.seal)], {"context": "one"}, BOUNDS
    )
    assert fewer.refusal == SandboxRefusal.DIFFERS


def test_clock_chance_and_order_are_the_same_in_every_process():
    code = (
        "import random, time\nfrom datetime import datetime\n"
        "submit([random.random(), time.time(), str(datetime.now()), hash('a'), list({str(n * 7) for n in range(99)})])"
    )
    answers = []
    for _ in range(2):
        box = Sandbox()
        answers.append(box.outcome([SandboxPiece(code)], {}).answer)
        box.close()
    assert answers[0] == answers[1] and answers[0] is not None


def test_a_process_that_is_killed_in_the_middle_is_a_refusal_and_another_takes_its_place(sandbox):
    async def both() -> PieceOutcome:
        slow = asyncio.to_thread(
            sandbox.outcome, [SandboxPiece("x = 3 ** 100000\nwhile True:\n    x = x * x")], {}, BRIEF
        )
        return await slow

    assert asyncio.run(both()).refusal in (SandboxRefusal.TIME, SandboxRefusal.MEMORY)
    assert to_the_end(sandbox, "submit(1)")[0].answer == 1


@linux
@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("llm_map([p] * 10**5)", SandboxRefusal.MEMORY),
        ("llm('a', [p] * 10**5)", SandboxRefusal.MEMORY),
        ("rlm('a', [p] * 10**5)", SandboxRefusal.MEMORY),
        ("rlm('a', context={p: {(1, p): [[p] * 1000] * 1000}})", SandboxRefusal.MEMORY),
        ("import asyncio\nawait asyncio.gather(*[rlm('a', [p]) for n in range(30)])", SandboxRefusal.MEMORY),
        ("submit([p] * 10**5)", SandboxRefusal.ANSWER),
        ("submit({n: (p, [p]) for n in range(10**4)})", SandboxRefusal.ANSWER),
        ("class W:\n    def items(self):\n        return [([p] * 10**5, 1)]\ndef locals():\n    return W()", None),
    ],
)
def test_a_value_that_is_huge_only_when_written_is_refused_and_its_process_lives_on(sandbox, code, refusal):
    """msgspec's ``encode`` ends the process where memory ends (``actors/sandbox/value_size.py``)."""
    assert sandbox.outcome([SandboxPiece("1")], {}, BOUNDS).refusal is None
    children = _children(os.getpid())
    outcome = sandbox.outcome([SandboxPiece(f"p = 'x' * 10**7\n{code}")], {}, BOUNDS, recurses=True)
    assert outcome.refusal == refusal, outcome
    assert _children(os.getpid()) == children


@pytest.mark.parametrize("value", ["'x' * {n}", "b'x' * {n}", "'é' * ({n} // 2)", "[1] * (({n} - 1) // 2)"])
def test_an_answer_may_have_as_many_bytes_as_are_allowed_and_not_one_more(sandbox, value):
    bounds = SandboxBounds(answer_bytes=2_001)
    assert to_the_end(sandbox, f"submit({value.format(n=2_001)})", bounds)[0].submitted
    assert to_the_end(sandbox, f"submit({value.format(n=2_003)})", bounds)[0].refusal == SandboxRefusal.ANSWER


@linux
def test_a_child_that_dies_is_a_refusal_and_another_takes_its_place(monkeypatch):
    box, others = Sandbox(), _children(os.getpid())
    assert box.outcome([SandboxPiece("1")], {}, BOUNDS).refusal is None
    (child,) = set(_children(os.getpid())).difference(others)

    def write_and_kill(stream: Any, body: bytes) -> None:
        os.kill(child, signal.SIGKILL)
        write(stream, body)

    with monkeypatch.context() as patched:
        patched.setattr(child_pool, "write", write_and_kill)
        assert box.outcome([SandboxPiece("submit(1)")], {}, BOUNDS).refusal == SandboxRefusal.CRASHED
    assert box.outcome([SandboxPiece("submit(2)")], {}, BOUNDS).answer == 2
    box.close()


@linux
def test_a_child_that_is_silent_is_killed_and_so_is_its_interpreter(monkeypatch):
    monkeypatch.setattr(child_pool, "SILENT_S", 0.5)
    box, others = Sandbox(), _children(os.getpid())
    assert box.outcome([SandboxPiece("1")], {}, BOUNDS).refusal is None
    (child,) = set(_children(os.getpid())).difference(others)
    interpreters = _children(child)
    assert interpreters
    os.kill(child, signal.SIGSTOP)
    outcome = box.outcome([SandboxPiece("submit(1)")], {}, BRIEF)
    assert outcome.refusal == SandboxRefusal.TIME and "silent" in outcome.why
    assert box.outcome([SandboxPiece("submit(2)")], {}, BOUNDS).answer == 2
    until_gone(interpreters)
    box.close()


@linux
async def test_a_worker_that_runs_what_means_no_good_serves_the_next_and_is_not_stuck():
    others = set(_children(os.getpid()))
    worker = Worker("worker:1", Runtime(Program(sandbox=declared)))

    async def ran(code: str, time_s: float = 30.0) -> PieceOutcome:
        arguments = msgspec.msgpack.encode({"pieces": [{"code": code}], "names": {}, "bounds": {"time_s": time_s}})
        while not (blob := await worker.run("p", b"{}", "sandbox", arguments, "j/1/t", PATIENCE_S)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it begins only as many as it has children
        value, _, failure = msgspec.msgpack.decode(blob)
        assert failure is None
        return msgspec.convert(value, PieceOutcome)

    assert (await ran("while True:\n    pass", 0.4)).refusal == SandboxRefusal.TIME
    many = await asyncio.gather(
        *(ran(code) for code in ("import socket", "'x' * 10**12", "submit(1)", "1 / 0", "submit(2)"))
    )
    assert [each.refusal or each.answer for each in many] == [
        SandboxRefusal.FORBIDDEN,
        SandboxRefusal.MEMORY,
        1,
        SandboxRefusal.RAISED,
        2,
    ]
    assert not worker.busy
    await worker.close()
    assert set(_children(os.getpid())) <= others


def test_a_large_context_costs_little_each_time_it_is_run_again(sandbox):
    context = "a line of some length, as they come\n" * 30_000  # 1 MB
    code = "n = 0\nfor line in context.splitlines()[:30]:\n    n += len(llm(line[:5]))\nsubmit(n)"

    def took_s(given: str) -> float:
        began_s = time.monotonic()
        outcome, pauses = to_the_end(sandbox, code, SandboxBounds(calls=40), given)
        assert (outcome.answer, pauses) == (7 * 30, 30)
        return time.monotonic() - began_s

    for _ in range(TRIES):
        small_s, large_s = took_s(context[:2_000]), took_s(context)
        # What a small one takes tells how busy the machine is.
        if large_s < (most_s := max(10.0, 30 * small_s)):
            break
    assert large_s < most_s


def test_bounds_make_sense():
    with pytest.raises(ValueError, match="time_s must be above 0"):
        SandboxBounds(time_s=0)


@linux
def test_the_interpreters_end_with_whoever_began_them():
    code = (
        "from actors.sandbox.child_pool import Sandbox\nfrom cortex.state.sandbox import SandboxPiece\n"
        "box = Sandbox()\nbox.outcome([SandboxPiece('1')], {})\nprint('there', flush=True)\nimport time\ntime.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}
    )
    assert child.stdout is not None and child.stdout.readline() == "there\n"
    children = _children(child.pid)
    children += [each for one in children for each in _children(one)]
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert len(children) == 2
    until_gone(children)


def until_gone(pids: list[int]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while any(_runs(each) for each in pids):
        assert time.monotonic() < end_s, "a process outlived who began it"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    found = [int(each) for each in os.listdir("/proc") if each.isdigit() and _stat(each)[1:2] == [str(pid)]]
    return [each for each in found if _runs(each)]


def _runs(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def _stat(pid: int | str) -> list[str]:
    """State and parent of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
