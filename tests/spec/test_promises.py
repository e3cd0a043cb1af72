"""What the design promises of the pure core, a test each: how decisions are made, and what K holds.

What it promises of a crash is beside this; what needs a disk, a process or a provider, with the edge and the cluster.
"""

from __future__ import annotations

import ast
import inspect
import tracemalloc
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

import cortex
from cortex.goals.apply_changes import apply
from cortex.journal import codec
from cortex.loop.step import step
from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.changes import Ask, Goal, Item, Reopen, Resolve, RunTool, Spawn, Wait
from cortex.state.state import IllegalTransition, State
from cortex.values.limits import Limits, Route
from cortex.values.reply import Malformed, Usage
from policies.failures.failure import RULES, FailureKind
from policies.failures.retry import RetryPolicy
from tests.support.fault_injection import World, meaning
from tests.support.sample_programs import Planner, Voter, deed, read
from tests.support.state_machine_harness import Flat, Stage, asked, fed, of, prompt, puppet, reply, terms

TOOLS = {"read": read, "deed": deed}

# -- 1. one line: (state, event) -> commands ---------------------------------------------------------------------------


def test_the_same_state_and_event_give_the_same_commands_to_the_byte() -> None:
    stage = Stage(Planner(roots=("b",)), permits=0)
    turn = events.Turn(500.0, ((events.PermitsGranted(3),),))
    twins = [codec.decode_state(codec.encode_state(stage.k)) for _ in range(2)]
    parts = [msgspec.msgpack.encode(step(twin, stage.program, turn)) for twin in twins]
    assert parts[0] == parts[1] and parts[0] != msgspec.msgpack.encode([])


def test_the_loop_reads_like_the_model() -> None:
    """Its step calls, in this order: absorb, satisfied, select, satisfied."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(step))) if isinstance(node, ast.Call)]
    names = [(call.lineno, call.col_offset, call.func.id) for call in calls if isinstance(call.func, ast.Name)]
    verbs = [name for _, _, name in sorted(names) if name in ("absorb", "satisfied", "select")]
    assert verbs == ["absorb", "satisfied", "select", "satisfied"]


@pytest.mark.parametrize("seed", range(8))
def test_results_that_arrive_together_mean_the_same_in_any_order(seed: int) -> None:
    straight, other = World(Planner(roots=("b", "e")), 0), World(Planner(roots=("b", "e")), seed, together=6)
    assert meaning(other.run(), other.stage.emitted) == meaning(straight.run(), straight.stage.emitted)


def test_where_the_first_ones_are_asked_for_the_journal_decides_and_replay_repeats_it() -> None:
    """Two orders, two winners; each journal gives its own again."""
    winners = []
    for first in (2, 3):
        stage = Stage(Voter(kind="any"))
        stage.answer(f"by {first}", goal=first)
        winners.append(stage.goal(1).answer)
        again = codec.replay(None, stage.turns, stage.program)
        assert again.goals[1].answer == stage.goal(1).answer
    assert winners == [["by 2"], ["by 3"]]


def test_a_finished_call_frees_its_place_and_waits_for_no_sibling() -> None:
    stage = Stage(Flat(texts=tuple("abcdef")), permits=2)
    slow = stage.call(1)
    for _ in range(5):
        quick = next(call for call in stage.calls.values() if call is not slow)
        stage.turn(stage.answered(quick))
    assert len(stage.emitted) == 5
    assert list(stage.calls.values()) == [slow]


# -- 4. K, goals and calls ---------------------------------------------------------------------------------------------


def test_k_is_changed_by_step_alone() -> None:
    """What a program may read, and what it yields, leaves K as it was until the loop has taken it."""
    stage = Stage(Planner(roots=("b",)))
    before = codec.encode_state(stage.k)
    goal = stage.goal(1)
    list(stage.program.select(stage.k))
    list(stage.program.absorb(stage.k, goal, reply("split:3")))
    stage.program.satisfied(stage.k)
    stage.program.answer(stage.k)
    assert codec.encode_state(stage.k) == before


def test_a_derived_item_says_that_it_is_lossy_and_leads_back() -> None:
    begin = lambda k: [Item("note", "all of it"), Goal("sum", "s")]  # noqa: E731
    absorb = lambda k, goal, said: [Item("summary", said.text, sources=(1,), lossy=True), Resolve(goal)]  # noqa: E731
    stage = Stage(puppet(begin=begin, absorb=absorb))
    stage.answer("some of it")
    (summary,) = stage.k.items_of("summary")
    assert summary.lossy and summary.call == "j/1/0"
    assert [stage.k.items[source].value for source in summary.sources] == ["all of it"]


def test_a_large_value_is_stored_once() -> None:
    """A thousand goals about one item cost K that item once."""
    page = "word " * 2_000

    def begin(k: State) -> Iterable[Any]:
        yield Item("page", page)
        yield from (Goal("ask", {"page": 1, "n": n}) for n in range(1_000))

    stage = Stage(puppet(begin=begin), permits=0)
    assert len(codec.encode_state(stage.k)) < len(page) + 1_000 * 1_024


def test_an_illegal_step_raises_changes_nothing_and_tells_the_story() -> None:
    stage = Stage(Flat(texts=("a",)))
    stage.fail("rejected", "bad field", status=400)
    before = codec.encode_state(stage.k)
    with pytest.raises(IllegalTransition, match=r"goal 1 .text. is failed after 1 tries; rejected: bad field"):
        apply(stage.k, [Goal("good"), Reopen(stage.goal(1))], [], by=None, program=stage.program)
    assert codec.encode_state(stage.k) == before


def test_a_join_that_cannot_be_met_in_full_delivers_a_labelled_part() -> None:
    stage = Stage(Voter(kind="quorum", votes=2))
    stage.answer("one", goal=2)
    stage.fail("refused", goal=3)
    assert (stage.goal(1).answer, stage.goal(1).partial) == (["one"], True)


@pytest.mark.parametrize("bound", [{"plan_goals_max": 2}, {"goals_max": 3}, {"depth_max": 1}])
def test_a_plan_beyond_its_bounds_is_refused_as_malformed(bound: dict[str, int]) -> None:
    """In breadth, in all, in depth; the reply is discarded whole and the next sample asked."""
    deep = lambda k, goal, said: [*(Goal("x", n, parent=goal.id) for n in range(3)), Wait(goal)]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=deep), Limits(**bound))  # type: ignore[arg-type]
    stage.answer()
    if bound.get("depth_max"):
        stage.answer(goal=2)
    assert stage.k.tally.failures == {"malformed": 1}
    assert stage.call().sample == "1"


def test_recursion_shards_and_saved_programs_are_one_thing_a_child_job() -> None:
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=lambda k: [Spawn(g, Flat()) for g in k.open("x")]))
    (launch,) = of(stage.said, commands.LaunchChildJob)
    stage.turn(events.ChildJobEnded(1, launch.attempt, ["its", "answer"]))
    assert stage.program.answer(stage.k) == ["its", "answer"]


def test_ids_come_from_k_and_replay_asks_the_same_ones() -> None:
    stage = Stage(Planner(roots=("b",)))
    stage.answer("split:2")
    stage.answer_all()
    parts: list[commands.Command] = []
    codec.replay(None, stage.turns, stage.program, parts.append)
    assert of(parts, commands.Call) == of(stage.said, commands.Call)
    call = of(parts, commands.Call)[-1]
    assert stage.k.call_id(call.goal, call.sample) == f"j/{call.goal}/{call.sample}"


# what differs -> is it another question?
IDENTITY = [
    ({}, False),
    ({"route": Route(endpoint="sim", model="m", credential="another key")}, False),
    ({"route": Route(endpoint="api", model="m")}, True),
    ({"route": Route(endpoint="sim", model="n")}, True),
    ({"text": "another prompt"}, True),
    ({"params": {"stop_sequences": ["."]}}, True),
    ({"sample": "1"}, True),
]


@pytest.mark.parametrize(("difference", "other"), IDENTITY)
def test_a_question_is_its_endpoint_model_prompt_parameters_and_sample(difference: dict[str, Any], other: bool) -> None:
    def hash_of(route: Route | None = None, text: str = "p", **ask: Any) -> bytes:
        select = lambda k: [Ask(goal, prompt(text), **ask) for goal in k.open("x")]  # noqa: E731
        program = puppet(begin=lambda k: [Goal("x")], select=select)
        return Stage(program, opened=events.Opened(terms(route=route), 1)).call().hash

    assert (hash_of(**difference) != hash_of()) is other


def test_a_resample_takes_the_next_number_and_a_discarded_reply_stays_discarded() -> None:
    def absorb(k: State, goal: Goal, said: cortex.Reply) -> Iterable[Any]:
        if said.text == "bad":
            raise Malformed("bad")
        yield Resolve(goal, said.text)

    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb))
    first = stage.call()
    stage.answer("bad")
    stage.turn(
        events.Answered(1, "0", 1, first.hash, reply("bad")), events.ReplyRecalled(1, "0", first.hash, reply("bad"))
    )
    assert (stage.call().sample, stage.statuses()) == ("1", ["asked"])
    stage.answer("good")
    assert stage.goal(1).answer == "good"


def test_equal_calls_at_the_same_time_share_one_attempt_and_equal_rows_do_not() -> None:
    assert len(Stage(Flat(texts=("same",) * 5)).calls) == 1
    batch = Stage(Batch(), streams=True)
    batch.turn(fed("a", "b"))
    assert len({call.hash for call in batch.calls.values()}) == 2


def test_a_deed_of_unknown_effect_fails_its_goal_and_what_may_be_repeated_is_under_its_key() -> None:
    for tool, again in (("deed", 0), ("read", 1)):
        absorb = lambda k, goal, said, tool=tool: [RunTool(goal, tool, {})]  # noqa: E731
        stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb, tools=TOOLS))
        stage.answer()
        (first,) = of(stage.said, commands.StartToolRun)
        stage.turn(events.Rejoined(2))
        rest = of(stage.said, commands.StartToolRun)[1:]
        assert [run.key for run in rest] == [first.key] * again
        if not again:
            assert stage.goal(1).failure is not None and "effect unknown" in stage.goal(1).failure.message


def test_in_batch_memory_is_flat() -> None:
    """After a thousand rows K is as small as after a hundred."""
    sizes = []
    for rows in (100, 1_000):
        stage = Stage(Batch(), Limits(concurrency=10, window_rows=50), permits=10, streams=True)
        fed_rows = 0
        while not stage.k.outcome:
            wanted = min(stage.k.rows_wanted(), rows - fed_rows)
            if wanted:
                keys = [f"{fed_rows + n:09}" for n in range(wanted)]
                stage.turn(fed(*keys, start=10 * fed_rows, ended=fed_rows + wanted == rows))
                fed_rows += wanted
            stage.turn(*[stage.answered(call) for call in list(stage.calls.values())])
        sizes.append(len(codec.encode_state(stage.k)))
    assert sizes[1] - sizes[0] < 30


@pytest.mark.parametrize("kind", ["item", "goal"])
def test_what_a_program_keeps_costs_under_a_kilobyte_beyond_its_value(kind: str) -> None:
    k, program = codec.open_job(terms()), Flat()
    many = 3_000
    changes = [Item("x", n) if kind == "item" else Goal("x", n) for n in range(many)]
    tracemalloc.start()
    try:
        for change in [msgspec.structs.replace(change) for change in changes]:
            apply(k, [change], [], by=None, program=program)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / many < 1_000


def test_m_is_the_window_less_the_reply_or_less_if_the_user_says_so() -> None:
    assert Stage(Flat(), Limits(output_tokens_max=100), window=1_000).call().prompt_tokens_max == 900
    assert (
        Stage(Flat(), Limits(output_tokens_max=100, prompt_tokens_max=500), window=1_000).call().prompt_tokens_max
        == 500
    )


def test_a_prompt_that_does_not_fit_sends_its_goal_back_to_select() -> None:
    """Which sees it, and asks for less; what is too large is never sent."""
    select = lambda k: [Ask(g, prompt("x" * (4_000 if not g.too_large else 40))) for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=select), Limits(prompt_tokens_max=300))
    assert [len(asked(call)) for call in of(stage.said, commands.Call)] == [40]


def test_the_estimate_is_calibrated_by_reported_usage_and_tightened_by_a_refusal() -> None:
    stage = Stage(Flat(texts=tuple(f"{n} " + "word " * 200 for n in range(30))), permits=30)
    text = "word " * 1_000
    cautious = stage.k.tokens(text)
    for call in list(stage.calls.values()):
        stage.turn(stage.answered(call, usage=Usage(len(call.body) // 4, 1)))
    learnt = stage.k.tokens(text)
    assert len(text) // 4 <= learnt < cautious
    again = Stage(Flat(), permits=1)
    before = again.k.tokens(text)
    again.fail("too_large", status=413)
    assert again.k.tokens(text) > before


def test_a_failure_is_no_answer() -> None:
    """It is data of its own kind wherever it travels; a goal that failed has no answer, and its words are in no prompt."""
    stage = Stage(Flat(texts=("a", "b")))
    stage.fail("rejected", "I am an error message", goal=1, status=400)
    goal = stage.goal(1)
    assert (goal.answer, goal.failure is not None) == (None, True)
    assert stage.program.answer(stage.k) == []
    stage.answer()
    assert stage.emitted == ["ok"]


AGAIN = {
    "throttled": "after", "overloaded": "backoff", "transient": "backoff", "unreadable": "backoff",
    "expired": "backoff", "timed_out": "policy", "malformed": "resample",
    "refused": "no", "cut": "no", "paused": "no", "empty": "no", "tool_use": "no", "too_large": "select", "blocked": "hold", "unauthorised": "hold", "rejected": "no", "lost": "backoff",
    "faulty": "no", "over_budget": "no", "cancelled": "no",
}  # fmt: skip


def test_the_failures_are_a_closed_list_and_each_says_whether_again() -> None:
    assert {kind.value: RULES[kind].again for kind in FailureKind} == AGAIN


def test_a_bad_hour_never_multiplies_the_load() -> None:
    """Every attempt fails for an hour: what is asked beyond the first round is the floor of the budget, and then a
    trickle that waits the longest wait each time."""
    retry = RetryPolicy(base_s=0.1, cap_s=60.0, budget_floor=10, attempts_max=1_000)
    stage = Stage(Flat(texts=tuple(map(str, range(50)))), Limits(retry=retry), permits=50)
    while stage.k.at_s < 100.0 + 600.0:
        if stage.calls:
            stage.turn(
                *[stage.broke(call, "overloaded", status=529) for call in list(stage.calls.values())], at_s=stage.k.at_s
            )
        else:
            due_at_s = stage.k.due_at_s()
            assert due_at_s is not None
            stage.turn(events.Ticked(), at_s=due_at_s)
    made = len(of(stage.said, commands.Call))
    assert made <= 50 + 10 + 50 * 11, "in ten minutes: once each, the floor, then less than once a minute each"


def test_text_that_was_paid_for_reaches_the_user_whatever_its_stop_reason() -> None:
    for reason in ("end_turn", "max_tokens", "refusal", "stop_sequence"):
        stage = Stage(Batch(), streams=True)
        stage.turn(fed("a", ended=True))
        call = stage.call()
        stage.turn(events.Answered(1, "a", call.attempt, call.hash, reply("half a sent", stop_reason=reason)))
        (line,) = map(msgspec.json.decode, stage.emitted)
        assert line["result"]["type"] == "succeeded", reason
