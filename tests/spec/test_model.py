"""The model's own claims, a test each, in the order in which its text makes them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

import cortex
from cortex.journal import codec
from cortex.programs.notes import Notes
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.limits import Limits
from policies.estimates.tokens import body_tokens_bound
from policies.failures.failure import FailureKind
from tests.support.scripted_notes_reader import QUESTION, reader, several, task
from tests.support.state_machine_harness import Flat, Stage, asked, prompt, puppet
from tests.support.synchronous_driver import Driver

# -- the state -------------------------------------------------------------------------------------------------------


def test_bookkeeping_costs_no_call() -> None:
    """Two thousand items are filed, counted and sorted; calls are made for the two judgements alone."""

    def begin(k: State) -> Iterable[Any]:
        for number in range(2_000):
            yield cortex.Item("record", number)
        for topic in ("odd", "even"):
            yield cortex.Goal("judge", topic)

    def select(k: State) -> Iterable[Any]:
        for goal in k.open("judge"):
            wanted = sorted(item.value for item in k.items_of("record") if item.value % 2 == (goal.value == "odd"))
            yield cortex.Ask(goal, prompt(f"{goal.value}: {wanted[:3]} of {len(wanted)}"))

    stage = Stage(puppet(begin=begin, select=select))
    lines = [asked(call) for call in stage.calls.values()]
    stage.answer_all()
    assert lines == ["odd: [1, 3, 5] of 1000", "even: [0, 2, 4] of 1000"]
    assert stage.k.ledger.attempts == 2


def test_the_goal_is_the_first_thing_in_the_state_and_sub_goals_are_further_ones() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(6, 1_200, 2)), reader(), limits=M(3_000))
    top = driver.k.goals[1]
    assert (top.kind, top.value, top.parent) == ("analyse", QUESTION, 0)
    driver.run()
    assert all(goal.parent in driver.k.goals for goal in driver.k.goals.values() if goal.id != top.id)


def test_what_a_call_makes_is_an_item_that_says_from_what_by_which_call_and_that_it_lost_something() -> None:
    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        source = next(iter(k.items_of("page")))
        yield cortex.Item("summary", reply.text, sources=(source.id,), lossy=True)
        yield cortex.Resolve(goal)

    stage = Stage(puppet(begin=lambda k: [cortex.Item("page", "long text"), cortex.Goal("sum", "x")], absorb=absorb))
    stage.answer("short")
    (summary,) = stage.k.items_of("summary")
    assert (summary.value, summary.lossy, summary.call) == ("short", True, "j/1/0")
    assert [stage.k.items[source].value for source in summary.sources] == ["long text"]


def test_large_state_small_window_every_prompt_is_within_the_bound() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(40, 2_000, 9)), reader(), limits=M(1_500))
    driver.run()
    assert sum(item.size_bytes for item in driver.k.items_of("note")) > 50_000
    assert driver.calls
    assert all(driver.counter(text) <= 1_500 for text in driver.texts())


def test_what_cannot_be_made_to_fit_is_never_sent() -> None:
    stage = Stage(Flat(texts=("x" * 5_000, "short")), M(500))
    assert [asked(call) for call in stage.calls.values()] == ["short"]
    assert stage.goal(1).failure is not None
    assert stage.goal(1).failure.kind == FailureKind.TOO_LARGE


# -- select ----------------------------------------------------------------------------------------------------------


def test_the_framing_is_a_part_of_the_choice_and_is_kept() -> None:
    """The same two items under two constructors: two questions, told apart in the journal."""

    def select(k: State) -> Iterable[Any]:
        a, b = (item.value for item in k.items_of("claim"))
        for goal in k.open("list"):
            yield cortex.Ask(goal, cortex.Prompt("side by side", _parts(a, b)))
        for goal in k.open("oppose"):
            connection = cortex.Part(cortex.Role.CONNECTION, "The second contradicts the first. Resolve it.")
            yield cortex.Ask(goal, cortex.Prompt("in opposition", (*_parts(a, b), connection)))

    def begin(k: State) -> Iterable[Any]:
        yield from (cortex.Item("claim", "it rises"), cortex.Item("claim", "it falls"))
        yield from (cortex.Goal("list"), cortex.Goal("oppose"))

    stage = Stage(puppet(begin=begin, select=select))
    first, second = stage.calls.values()
    assert {stage.goal(1).constructor, stage.goal(2).constructor} == {"side by side", "in opposition"}
    assert first.hash != second.hash
    stage.answer_all()
    again = codec.replay(None, stage.turns, stage.program)
    assert [goal.constructor for goal in again.goals.values()] == ["side by side", "in opposition"]


def _parts(*texts: str) -> tuple[cortex.Part, ...]:
    return tuple(cortex.Part(cortex.Role.DOCUMENT, text) for text in texts)


def test_context_has_two_costs_so_a_prompt_is_bounded_in_parts_as_well_as_in_tokens() -> None:
    many = tuple(cortex.Part(cortex.Role.DOCUMENT, str(n), priority=n, rule=cortex.Rule.DROP) for n in range(50))
    limits = Limits(parts_max=7)
    stage = Stage(puppet(begin=lambda k: [cortex.Goal("g")], select=_ask_parts(many)), limits)
    assert asked(stage.call()).split() == [str(n) for n in range(43, 50)]


def _ask_parts(parts: tuple[cortex.Part, ...]) -> Any:
    return lambda k: [cortex.Ask(goal, cortex.Prompt("parts", parts)) for goal in k.open("g")]


def test_select_is_code_and_no_model_is_asked_what_to_do_next() -> None:
    """The same state gives the same choice, however often it is asked, and asking changes nothing."""
    stage = Stage(Flat(texts=("a", "b", "c")), permits=0)
    before = codec.encode_state(stage.k)
    choices = [[asked_of(spec) for spec in stage.program.select(stage.k)] for _ in range(3)]
    assert choices == [["a", "b", "c"]] * 3
    assert codec.encode_state(stage.k) == before


def asked_of(wish: Any) -> str:
    assert isinstance(wish, cortex.Ask) and wish.prompt is not None
    return wish.prompt.user()


def test_where_code_cannot_decide_it_selects_a_planning_call_whose_result_is_goals() -> None:
    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        if goal.kind == "plan":
            for line in reply.text.splitlines():
                yield cortex.Goal("step", line, parent=goal.id)
            yield cortex.Wait(goal)
        else:
            yield cortex.Resolve(goal, reply.text)

    def select(k: State) -> Iterable[Any]:
        for goal in k.open("plan"):
            done = [child.answer for child in k.children(goal)]
            yield cortex.Resolve(goal, done) if goal.joined else cortex.Ask(goal, prompt("plan!"))
        for goal in k.open("step"):
            yield cortex.Ask(goal, prompt(str(goal.value)))

    stage = Stage(puppet(begin=lambda k: [cortex.Goal("plan")], select=select, absorb=absorb))
    stage.answer("wash\ndry")
    assert sorted(asked(call) for call in stage.calls.values()) == ["dry", "wash"]
    stage.answer_all(lambda call: asked(call) + " done")
    assert stage.program.answer(stage.k) == ["wash done", "dry done"]


def test_each_choice_depends_on_what_came_before() -> None:
    """A result changes what is selected next: no fixed graph could have been drawn beforehand."""

    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        if reply.text != "stop":
            yield cortex.Goal("text", f"{goal.value}{reply.text}")
        yield cortex.Resolve(goal, reply.text)

    stage = Stage(puppet(begin=lambda k: [cortex.Goal("text", "")], absorb=absorb))
    seen = []
    for text in ("l", "r", "l", "stop"):
        seen.append(asked(stage.call()))
        stage.answer(text)
    assert seen == ["", "l", "lr", "lrl"]
    assert stage.k.outcome == "complete"


# -- call ------------------------------------------------------------------------------------------------------------


def test_each_call_sees_only_what_was_chosen_for_it() -> None:
    """A clean context: nothing of an earlier call or its reply stands in a later request unless it was put there."""
    stage = Stage(Flat(texts=("first secret", "second secret")), permits=1)
    first = stage.call().body
    stage.answer("a reply with words of its own")
    second = stage.call().body
    assert b"first" in first and b"first" not in second
    assert b"words of its own" not in second


def test_calls_err_so_a_refused_reply_is_discarded_and_asked_again_never_repaired() -> None:
    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        yield cortex.Resolve(goal, cortex.as_choice(reply, ("yes", "no")))

    stage = Stage(puppet(begin=lambda k: [cortex.Goal("g", "?")], absorb=absorb))
    samples = []
    for text in ("perhaps", "yes and no", "Yes."):
        samples.append(stage.call().sample)
        stage.answer(text)
    assert samples == ["0", "1", "2"]
    assert stage.goal(1).answer == "yes"


# -- absorb ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_calls_may_run_together_and_the_order_of_their_results_changes_nothing(seed: int) -> None:
    answers = {}
    for order in (None, seed):
        driver = Driver(Notes(question=QUESTION, notes=several(8, 900, 3)), reader(), limits=M(3_000), order=order)
        driver.run()
        answers[order] = driver.answer
    assert driver.in_flight_max > 3
    assert answers[None] == answers[seed]


def test_a_result_need_not_be_an_answer() -> None:
    """A label, a list of claims and a set of goals, each from one reply, in one state."""

    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        if goal.kind == "label":
            yield cortex.Item("label", reply.text)
        elif goal.kind == "claims":
            yield from (cortex.Item("claim", line) for line in reply.text.split(";"))
        else:
            yield from (cortex.Goal("later", line) for line in reply.text.split(";"))
        yield cortex.Resolve(goal)

    kinds = ("label", "claims", "goals")
    stage = Stage(puppet(begin=lambda k: [cortex.Goal(kind, kind) for kind in kinds], absorb=absorb))
    for call in list(stage.calls.values()):
        stage.turn(stage.answered(call, "a;b" if call.goal > 1 else "a"))
    assert [item.value for item in stage.k.items_of("label")] == ["a"]
    assert [item.value for item in stage.k.items_of("claim")] == ["a", "b"]
    assert [goal.value for goal in stage.k.goals_of("later")] == ["a", "b"]


# -- satisfied -------------------------------------------------------------------------------------------------------


def test_the_loop_ends_when_the_goal_is_met_whatever_is_still_open() -> None:
    stage = Stage(puppet(
        begin=lambda k: [cortex.Goal("text", str(n)) for n in range(10)],
        satisfied=lambda k: any(goal.answer == "found" for goal in k.goals.values()),
    ), permits=2)  # fmt: skip
    stage.answer("nothing")
    stage.answer("found")
    assert stage.k.outcome == "complete"
    assert stage.k.ledger.attempts == 3
    assert any(isinstance(command, commands.AbandonAttempt) for command in stage.said)


def test_where_code_cannot_tell_whether_it_is_met_a_verifying_call_is_asked_and_its_result_read() -> None:
    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        yield cortex.Resolve(goal, reply.text)
        if goal.kind == "draft":
            yield cortex.Goal("verify", reply.text)
        elif reply.text == "no":
            yield cortex.Goal("draft", "better!")

    def satisfied(k: State) -> bool:
        return any(goal.answer == "yes" for goal in k.goals_of("verify"))

    stage = Stage(puppet(begin=lambda k: [cortex.Goal("draft", "write!")], absorb=absorb, satisfied=satisfied))
    for text in ("bad", "no", "good"):
        stage.answer(text)
        assert stage.k.outcome == ""
    assert asked(stage.call()) == "good"
    stage.answer("yes")
    assert stage.k.outcome == "complete"


# -- the loop --------------------------------------------------------------------------------------------------------


def test_hierarchy_is_goals_in_the_state_and_the_loop_is_flat() -> None:
    """Three levels deep; every call is made by the same step, and the levels are only what goals say of each other."""
    driver = Driver(Notes(question=QUESTION, notes=several(60, 2_000, 20)), reader(), limits=M(1_500))
    driver.run()
    kinds = {goal.kind for goal in driver.k.goals.values()}
    assert {"analyse", "plan", "filter", "summarise"} <= kinds
    assert max(goal.depth for goal in driver.k.goals.values()) >= 1
    turns = [turn for turn in driver.turns if any(isinstance(e, events.Answered) for b in turn.batches for e in b)]
    assert len(turns) == len(driver.answered)


def test_iteration_and_recursion_are_two_presentations_of_one_thing() -> None:
    """A goal answered by a child program's answer ends as the same goal answered in place."""

    class Outer(cortex.Program, frozen=True):
        def begin(self, k: State) -> Iterable[Any]:
            yield cortex.Goal("sub")

        def select(self, k: State) -> Iterable[Any]:
            for goal in k.open("sub"):
                yield cortex.Spawn(goal, Flat(texts=("q",)))

    inner = Stage(Flat(texts=("q",)))
    inner.answer("42")
    outer = Stage(Outer())
    (launch,) = [command for command in outer.said if isinstance(command, commands.LaunchChildJob)]
    outer.turn(events.ChildJobEnded(launch.goal, launch.attempt, inner.program.answer(inner.k)))
    assert outer.k.outcome == "complete"
    assert outer.program.answer(outer.k) == inner.program.answer(inner.k) == "42"


def test_the_outside_world_changes_so_what_was_read_of_it_is_believed_for_a_time_only() -> None:
    def select(k: State) -> Iterable[Any]:
        page = next(iter(k.items_of("page")), None)
        for goal in k.open():
            if page is None:
                yield cortex.Observe(goal, "page", "fetch", {}, trust_s=10.0)
            else:
                yield cortex.Ask(goal, prompt(f"{page.value} {goal.value}"), uses=(page,))

    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        yield cortex.Resolve(goal)
        yield from () if goal.value else (cortex.Goal("late", 1),)

    tools = {"fetch": lambda: "a worker runs it"}
    stage = Stage(puppet(begin=lambda k: [cortex.Goal("early", 0)], select=select, absorb=absorb, tools=tools))
    stage.turn(events.Observed(1, 1, "old page", stage.k.at_s))
    assert asked(stage.call()) == "old page 0"
    stage.turn(stage.answered(stage.call()), at_s=stage.k.at_s + 60)
    assert not stage.calls, "a stale reading must not be shown to a model"
    stage.turn(events.Observed(2, 1, "new page", stage.k.at_s))
    assert asked(stage.call()) == "new page 1"


# -- the canonical example -------------------------------------------------------------------------------------------


def test_many_notes_one_question_plan_filter_synthesise() -> None:
    """Too much for one call, but the relevant ones fit: a plan, a filter a note, one synthesis over the notes."""
    driver = Driver(Notes(question=QUESTION, notes=several(12, 1_200, 3)), reader(), limits=M(3_000))
    driver.run()
    kinds = [kind for kind, _ in itertools.groupby(task(text) for text in driver.texts())]
    assert kinds == ["plan", "filter", "answer"]
    assert driver.answer["notes"] == ["n000", "n001", "n002"]


def test_where_the_relevant_ones_do_not_fit_they_are_clustered_and_summarised_first() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(30, 2_000, 15)), reader(), limits=M(1_500))
    driver.run()
    kinds = [kind for kind, _ in itertools.groupby(task(text) for text in driver.texts())]
    assert (kinds[0], kinds[1], kinds[-1]) == ("plan", "filter", "answer")
    assert driver.goals("summarise")
    assert driver.answer["counts"]["summaries"] > 0


# -- why the separation pays -------------------------------------------------------------------------------------------


def test_what_code_can_derive_before_the_call_need_not_be_derived_in_it() -> None:
    """Frontloading never makes the prompt larger: the result takes the place of the material it was derived from."""
    chance = random.Random(7)
    numbers = [chance.randrange(10_000) for _ in range(200)]
    inside = cortex.Prompt("raw", _parts("Is the mean of these above 5000?", " ".join(map(str, numbers))))
    before = cortex.Prompt("frontloaded", _parts("Is the mean above 5000?", f"mean: {sum(numbers) / len(numbers)}"))
    assert body_tokens_bound(before.text().encode()) < body_tokens_bound(inside.text().encode())


def test_prompts_do_not_grow_with_what_was_done_before() -> None:
    """The hundredth call is no larger than the first: the books are kept in the state, not in the conversation."""

    def absorb(k: State, goal: cortex.Goal, reply: cortex.Reply) -> Iterable[Any]:
        yield cortex.Resolve(goal, reply.text)
        yield from (cortex.Goal("step", goal.value + 1),) if goal.value < 199 else ()

    stage = Stage(puppet(begin=lambda k: [cortex.Goal("step", 100)], absorb=absorb))
    sizes = []
    while stage.calls:
        sizes.append(len(stage.call().body))
        stage.answer("a reply of some length")
    assert len(sizes) == 100
    assert set(sizes) == {sizes[0]}


def M(tokens: int) -> Limits:
    """M, the bound of one call's context."""
    return Limits(prompt_tokens_max=tokens)
