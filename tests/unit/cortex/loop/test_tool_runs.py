"""Tools on a worker and observations of a changing world."""

from __future__ import annotations

import pytest

from cortex.state import commands, events
from cortex.state.changes import Ask, Goal, Item, Observe, Reopen, Resolve, RunTool
from cortex.state.program import tool
from cortex.state.state import Observation, Status
from cortex.values.limits import Limits
from policies.failures.retry import RetryPolicy
from policies.failures.timeout import TimeoutPolicy
from tests.support.state_machine_harness import Stage, asked, failure, of, prompt, puppet

QUICK = Limits(retry=RetryPolicy(base_s=1.0, attempts_max=3))


@tool(repeatable=True)
def read(name: str) -> str:
    """Reads; runs nowhere here."""
    return name


@tool()
def deed(what: str) -> str:
    """Does; runs nowhere here."""
    return what


TOOLS = {"read": read, "deed": deed}


def doer(name: str = "deed", tells_begun: bool = False, **methods: object) -> Stage:
    """A reply asks for one run of a tool."""
    absorb = lambda k, goal, reply: [RunTool(goal, name, {"what": reply.text})]  # noqa: E731
    return Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb, tools=TOOLS, **methods), QUICK, tells_begun=tells_begun)


def ran(stage: Stage, value: object = None, kind: str = "", at_s: float | None = None, **more: object) -> list:
    """The latest tool run under way comes back."""
    command = of(stage.said, commands.StartToolRun)[-1]
    bad = failure(kind, **more) if kind else None
    read_at_s = stage.k.at_s if at_s is None else at_s
    return stage.turn(events.Observed(command.goal, command.attempt, value, read_at_s, bad), at_s=at_s)


# -- tools -------------------------------------------------------------------------------------------------------------


def test_a_tool_is_run_and_its_value_is_the_goals_answer():
    stage = doer()
    (command,) = of(stage.answer("dig"), commands.StartToolRun)
    assert (command.tool, command.arguments, command.key) == ("deed", {"what": "dig"}, "j/1/tool-2")
    assert stage.goal(1).status == Status.WAITING
    ran(stage, {"depth": 3})
    assert stage.goal(1).answer == {"depth": 3}
    assert stage.k.outcome == "complete"


def test_a_run_under_way_keeps_the_job_going():
    stage = doer()
    stage.answer()
    stage.turn(events.Ticked())
    assert stage.k.outcome == ""


@pytest.mark.parametrize(
    ("yields", "status"),
    [
        ([], "asked"),
        (["item"], "asked"),
        (["reopen"], "asked"),
        (["tool"], "waiting"),
        (["resolve"], "resolved"),
        (["malformed"], "asked"),
    ],
)
def test_what_a_program_may_make_of_a_tools_value(yields, status):
    """Without a word on the goal it is open again, and select goes on from what is in K now."""
    from cortex.values.reply import Malformed

    def absorbed(k, goal, value):
        if yields == ["malformed"] and goal.sample == "0":
            raise Malformed("this value is none")
        makers = {
            "item": Item("found", value), "reopen": Reopen(goal), "tool": RunTool(goal, "deed", {"what": "more"}),
            "resolve": Resolve(goal, value),
        }  # fmt: skip
        return [makers[name] for name in yields if name in makers]

    stage = doer(absorbed=absorbed)
    stage.answer()
    ran(stage, "value")
    assert stage.goal(1).status.name.lower() == status
    assert stage.k.tally.failures == ({"malformed": 1} if yields == ["malformed"] else {})


def test_a_tools_value_that_the_program_chokes_on_fails_the_goal():
    stage = doer(absorbed=lambda k, goal, value: 1 / 0)
    stage.answer()
    ran(stage)
    assert stage.goal(1).failure.message == "the program's absorbed raised ZeroDivisionError: division by zero"


UNKNOWN = ["lost", "timed_out", "transient", "cancelled"]


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_deed_that_may_have_been_done_is_not_done_again(kind):
    stage = doer()
    stage.answer()
    ran(stage, kind=kind, message="no word from it")
    assert stage.goal(1).status == Status.FAILED
    assert stage.goal(1).failure.message == "effect unknown: no word from it"
    assert len(of(stage.said, commands.StartToolRun)) == 1


def rejoined(begun: bool, **more: object) -> Stage:
    """A job with a deed under way, whose channel has died; ``begun``: its journal knows that the deed had begun."""
    stage = doer(**more)
    stage.answer()
    (command,) = of(stage.said, commands.StartToolRun)
    if begun:
        stage.turn(events.ToolRunBegun(command.goal, command.attempt, "worker:0"))
    stage.turn(events.Rejoined(2))
    return stage


def test_a_deed_that_had_begun_when_its_channel_died_is_of_unknown_effect():
    stage = rejoined(True, tells_begun=True)
    assert stage.goal(1).failure.message == "effect unknown: the worker that ran deed died"


def test_a_deed_that_never_began_is_run_when_its_channel_is_back():
    stage = rejoined(False, tells_begun=True)
    first, second = of(stage.said, commands.StartToolRun)
    assert (first.key, first.told, second.told) == (second.key, True, True)
    stage.turn(events.ToolRunBegun(first.goal, first.attempt), events.Rejoined(3))
    assert stage.goal(1).status == Status.WAITING, "late news of the run that is not awaited any more"
    stage.turn(events.ToolRunBegun(1, of(stage.said, commands.StartToolRun)[-1].attempt), events.Rejoined(4))
    assert stage.goal(1).failure.message.startswith("effect unknown")


def test_in_a_journal_that_tells_no_beginnings_any_deed_may_have_begun():
    stage = rejoined(False)
    assert not of(stage.said, commands.StartToolRun)[0].told
    assert stage.goal(1).failure.message.startswith("effect unknown")


def test_the_bounds_of_a_tool_are_its_own():
    @tool(timeout_s=30, at_once=2)
    def slow(what: str) -> str:
        return what

    seen = []
    for name in ("deed", "slow"):
        absorb = lambda k, goal, reply, name=name: [RunTool(goal, name, {"what": "x"})]  # noqa: E731
        limits = Limits(timeout=TimeoutPolicy(floor_s=20.0, ceiling_s=20.0))
        stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb, tools={**TOOLS, "slow": slow}), limits)
        (command,) = of(stage.answer(), commands.StartToolRun)
        seen.append((command.timeout_s, command.at_once))
    assert seen == [(3_600.0, 0), (30, 2)], "the time of an attempt at a provider is not a tool's"


@pytest.mark.parametrize("bounds", [{"timeout_s": 0}, {"timeout_s": -1.0}, {"timeout_s": float("inf")}, {"at_once": 0}])
def test_bounds_of_a_tool_that_make_no_sense_are_refused(bounds):
    with pytest.raises(ValueError, match=next(iter(bounds))):
        tool(**bounds)


def test_a_deed_that_raised_says_what_it_raised():
    stage = doer()
    stage.answer()
    ran(stage, kind="faulty", message="KeyError: 'x'")
    assert stage.goal(1).failure.message == "KeyError: 'x'"


def test_what_may_be_repeated_is_run_again_under_the_same_key():
    stage = doer("read")
    stage.answer()
    ran(stage, kind="timed_out", at_s=110.0)
    assert (stage.goal(1).status, of(stage.said, commands.StartToolRun)[1:]) == (Status.WAITING, [])
    due_at_s = stage.k.due_at_s()
    assert due_at_s is not None and due_at_s > 110.0
    stage.turn(events.Ticked(), at_s=due_at_s)
    first, second = of(stage.said, commands.StartToolRun)
    assert (first.key, first.arguments) == (second.key, second.arguments)
    assert first.attempt < second.attempt
    ran(stage, "at last")
    assert stage.goal(1).answer == "at last"


def test_what_may_be_repeated_and_raises_is_not_run_again():
    stage = doer("read")
    stage.answer()
    ran(stage, kind="faulty")
    assert stage.goal(1).status == Status.FAILED


def test_what_may_be_repeated_is_run_so_often_and_no_more():
    stage = doer("read")
    stage.answer()
    for _ in range(2):
        ran(stage, kind="lost")
        stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    ran(stage, kind="lost", message="dead again")
    assert stage.goal(1).failure.message == "dead again"
    assert len(of(stage.said, commands.StartToolRun)) == 3


@pytest.mark.parametrize("which", ["the same twice", "an earlier run", "another goal"])
def test_a_value_that_comes_twice_or_late_is_dropped(which):
    stage = doer("read", absorbed=lambda k, goal, value: [Item("seen", value), Reopen(goal)])
    stage.answer()
    (command,) = of(stage.said, commands.StartToolRun)
    late = events.Observed(1, command.attempt, "late", 0.0)
    if which == "the same twice":
        ran(stage, "once")
        stage.turn(late)
        assert [item.value for item in stage.k.items_of("seen")] == ["once"]
    elif which == "an earlier run":
        ran(stage, kind="lost")
        stage.turn(late)
        stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
        stage.turn(late)
        assert (stage.k.items, stage.goal(1).status) == ({}, Status.WAITING)
    else:
        stage.turn(events.Observed(7, 1, "what", 0.0), events.ChildJobEnded(1, command.attempt, "no child job"))
        assert stage.goal(1).status == Status.WAITING


def test_a_new_incarnation_runs_again_what_may_be_and_fails_what_may_not():
    def absorb(k, goal, reply):
        yield RunTool(goal, "read" if goal.value == "r" else "deed", {})

    begin = lambda k: [Goal("x", "r"), Goal("x", "d"), Goal("x", "held")]  # noqa: E731
    stage = Stage(puppet(begin=begin, absorb=absorb, tools=TOOLS))
    stage.answer_all()
    out = stage.turn(events.Rejoined(2, ((3, 2),)))
    (again,) = of(out, commands.StartToolRun)
    assert (again.goal, again.attempt, again.key) == (1, 3, "j/1/tool-2")
    assert stage.goal(2).failure.message == "effect unknown: the worker that ran deed died"
    assert stage.goal(3).status == Status.WAITING, "a worker holds it still"
    stage.turn(events.Observed(3, 2, "done", 0.0))
    assert stage.goal(3).answer == "done"


def test_a_goal_that_ends_while_its_tool_runs_lets_it_go():
    stage = doer("read")
    stage.answer()
    out = stage.turn(events.Stopped("someone", "cancel"))
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, 2)]
    assert stage.k.errands == {}
    ran(stage, "too late")
    assert stage.goal(1).status == Status.FAILED


# -- observations ------------------------------------------------------------------------------------------------------


def watcher(trust_s: float = 10.0, pages: tuple[str, ...] = ("page",), goals: int = 1, permits: int = 8) -> Stage:
    """Asks with all of the pages; reads each first."""

    def select(k):
        known = {item.observation.arguments["name"]: item for item in k.items.values()}
        listed = {item.id for item in k.items_of("page")}
        for goal in k.open("x"):
            missing = next((name for name in pages if name not in known), None)
            if missing is not None:
                yield Observe(goal, "page", "read", {"name": missing}, trust_s=trust_s)
                return
            used = [known[name] for name in pages]
            if all(item.id in listed for item in used):
                yield Ask(
                    goal, prompt(" ".join(str(item.value) for item in used) + f" for {goal.id}"), uses=tuple(used)
                )

    begin = lambda k: [Goal("x") for _ in range(goals)]  # noqa: E731
    return Stage(puppet(begin=begin, select=select, tools=TOOLS), QUICK, permits=permits)


def test_an_observation_is_an_item_from_its_first_reading_on():
    stage = watcher()
    assert list(stage.k.items_of("page")) == []
    assert not stage.k.fresh(stage.k.items[1]), "what was never read is not believed, however long the trust"
    ran(stage, "first")
    (item,) = stage.k.items_of("page")
    seen = item.observation
    assert (item.value, item.size_bytes, seen.tool, seen.arguments) == ("first", 5, "read", {"name": "page"})
    assert asked(stage.call()) == "first for 1"


def test_unread_is_not_believed_even_for_ever():
    stage = watcher(trust_s=float("inf"))
    assert not stage.k.fresh(stage.k.items[1])


def test_a_fresh_one_is_not_read_again():
    stage = watcher(trust_s=10.0, goals=2, permits=1)
    ran(stage, "first", at_s=110.0)
    stage.turn(stage.answered(stage.call()), at_s=119.0)
    assert asked(stage.call()) == "first for 1", "the one that read it was open again last"
    assert len(of(stage.said, commands.StartToolRun)) == 1


def test_a_stale_one_is_read_again_before_it_is_used():
    stage = watcher(trust_s=10.0, goals=2, permits=1)
    ran(stage, "first", at_s=110.0)
    stage.turn(stage.answered(stage.call()), at_s=125.0)
    assert not stage.calls, "it is not believed"
    ran(stage, "changed", at_s=126.0)
    assert asked(stage.call()) == "changed for 1"
    assert stage.k.items[1].value == "changed" and len(stage.k.items) == 1


def test_age_counts_from_the_reading_not_from_its_arrival():
    stage = watcher(trust_s=10.0)
    (command,) = of(stage.said, commands.StartToolRun)
    stage.turn(events.Observed(1, command.attempt, "slow", 100.0), at_s=150.0)
    assert stage.calls, "it was read for this very turn"
    assert not stage.k.fresh(stage.k.items[1]) or stage.k.at_s == 150.0
    stage.turn(events.Ticked(), at_s=150.1)
    assert not stage.k.fresh(stage.k.items[1])


def test_without_trust_it_is_read_for_every_use():
    stage = watcher(trust_s=0.0, goals=3, permits=1)
    for value in ("one", "two", "three"):
        ran(stage, value)
        assert asked(stage.call()).startswith(value)
        stage.answer()
    assert stage.k.outcome == "complete"


def test_one_reading_serves_all_that_ask_meanwhile():
    stage = watcher(trust_s=5.0, goals=4, permits=4)
    ran(stage, "first", at_s=110.0)
    assert len(stage.calls) == 4
    assert len(of(stage.said, commands.StartToolRun)) == 1


def test_several_pages_without_trust_are_believed_together():
    """Read one after the other, for this prompt; else it would be read for ever."""
    stage = watcher(trust_s=0.0, pages=("a", "b", "c"))
    for _ in range(8):
        if stage.calls:
            break
        ran(stage, f"v{len(of(stage.said, commands.StartToolRun))}")
    reads = [command.arguments["name"] for command in of(stage.said, commands.StartToolRun)]
    assert reads == ["a", "b", "c"]
    assert asked(stage.call()) == "v1 v2 v3 for 1"


def test_pages_that_grew_stale_while_permits_were_short_are_read_again():
    """What was read together is believed together in that turn, and not whenever its turn may come."""
    stage = watcher(trust_s=0.0, pages=("a", "b"), permits=1)
    ran(stage, "a1")
    command = of(stage.said, commands.StartToolRun)[-1]
    stage.turn(events.PermitsGranted(0), events.Observed(1, command.attempt, "b1", stage.k.at_s))
    assert not stage.calls
    stage.turn(events.PermitsGranted(1))
    assert not stage.calls
    ran(stage, "a2")
    ran(stage, "b2")
    assert asked(stage.call()) == "a2 b2 for 1"


def test_a_reading_that_fails_is_tried_again_then_fails_its_goal():
    stage = watcher()
    for _ in range(2):
        ran(stage, kind="faulty", message="the page is away")
        assert (stage.goal(1).status, len(stage.k.items)) == (Status.WAITING, 1)
        stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    ran(stage, kind="faulty", message="the page is away")
    assert stage.goal(1).failure.message == "the page is away"
    assert len(of(stage.said, commands.StartToolRun)) == 3


def test_a_reading_that_failed_once_serves_in_the_end():
    stage = watcher()
    ran(stage, kind="lost")
    stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    ran(stage, "there")
    assert asked(stage.call()) == "there for 1"


def test_an_item_that_the_program_read_itself_is_believed_from_now():
    seen = Observation("read", {"name": "page"}, 95.0, 10.0)
    begin = lambda k: [Item("page", "given", observation=seen), Goal("x")]  # noqa: E731
    select = lambda k: [Ask(g, prompt(str(k.items[1].value)), uses=(k.items[1],)) for g in k.open("x")]  # noqa: E731
    stage = Stage(puppet(begin=begin, select=select, tools=TOOLS), permits=0)
    assert [item.value for item in stage.k.items_of("page")] == ["given"]
    assert stage.k.fresh(stage.k.items[1])
    stage.turn(events.PermitsGranted(1), at_s=106.0)
    assert not stage.calls
    ran(stage, "new")
    assert asked(stage.call()) == "new"


def test_items_that_are_no_observations_are_always_believed():
    stage = watcher()
    assert stage.k.fresh(Item("note", "text"))


# -- a job that begins nothing any more --------------------------------------------------------------------------------


def _stopped(stage: Stage, how: str) -> None:
    if how == "drain":
        stage.turn(events.Stopped("ann", "drain"))
    else:
        limits = Limits(retry=QUICK.retry, deadline_at_s=stage.k.at_s + 0.5)
        stage.turn(events.LimitsSet("ann", limits))
        stage.turn(events.Ticked(), at_s=stage.k.at_s + 1.0)


def _goes_on(stage: Stage) -> list:
    return stage.turn(events.LimitsSet("ann", QUICK), events.Resumed("ann"))


@pytest.mark.parametrize("how", ["drain", "deadline"])
def test_a_run_that_a_late_reply_asks_for_is_made_when_the_job_goes_on(how):
    """At its deadline a job begins nothing new, not for a reply either that was under way; and loses nothing of it."""
    stage = doer()
    _stopped(stage, how)
    assert of(stage.answer("dig"), commands.StartToolRun) == []
    assert (stage.k.outcome, stage.goal(1).status) == ("partial", Status.WAITING)
    stage.turn(events.Rejoined(2))
    (command,) = of(_goes_on(stage), commands.StartToolRun)
    assert (command.arguments, command.key) == ({"what": "dig"}, "j/1/tool-2")
    ran(stage, "done")
    assert (stage.k.outcome, stage.goal(1).answer) == ("complete", "done")


@pytest.mark.parametrize("how", ["drain", "deadline"])
def test_a_run_that_waits_to_be_repeated_does_not_keep_a_job_from_its_end(how):
    stage = doer("read")
    stage.answer("dig")
    ran(stage, kind="transient")
    _stopped(stage, how)
    assert (stage.k.outcome, stage.goal(1).status) == ("partial", Status.WAITING)
    assert len(of(_goes_on(stage), commands.StartToolRun)) == 1
    ran(stage, "done")
    assert stage.k.outcome == "complete"


@pytest.mark.parametrize("known", [False, True])
def test_a_reading_under_way_at_a_sudden_end_is_made_when_the_job_goes_on(known: bool) -> None:
    """Nobody else would read an item that was never read; a program that has asked for it once asks no more."""
    stage = watcher(trust_s=10.0, goals=2, permits=1)
    if known:  # a second reading, of a value that has grown stale
        ran(stage, "old", at_s=110.0)
        stage.turn(stage.answered(stage.call()), at_s=125.0)
    (*_, command) = of(stage.said, commands.StartToolRun)
    out = stage.turn(events.Stopped("the cortex", "condemn", "its channel died 5 times"))
    assert [(gone.goal, gone.attempt) for gone in of(out, commands.AbandonAttempt)] == [(command.goal, command.attempt)]
    assert stage.k.outcome == "partial"
    stage.turn(events.Observed(command.goal, command.attempt, "too late", 126.0))
    assert stage.k.items[1].value == ("old" if known else None)
    stage.turn(events.Rejoined(2))
    (again,) = of(_goes_on(stage), commands.StartToolRun)
    assert (again.goal, again.arguments) == (command.goal, command.arguments)
    ran(stage, "new", at_s=130.0)
    stage.turn(events.PermitsGranted(1))
    assert asked(stage.call()).startswith("new")


def test_cancelled_at_rest_what_was_held_back_is_never_sent():
    stage = doer()
    _stopped(stage, "drain")
    stage.answer("dig")
    out = stage.turn(events.Stopped("ann", "cancel"))
    assert (of(out, commands.StartToolRun), stage.k.errands, stage.k.outcome) == ([], {}, "cancelled")
