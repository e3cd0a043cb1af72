"""The control runtime, command by command: tasks, subtasks, branches."""

from __future__ import annotations

from typing import Any

import pytest

from cortex.control import CommandRefused, ControlBounds, ControlTask, TaskStatus, progression
from cortex.control.machine import handle
from cortex.control.tasks import ENDED, MOVES
from tests.support.control_runner import NEXT, TWO, branched, cmd, push, refused, run, said, started, statuses

# -- the table -------------------------------------------------------------------------------------------------------

WHATS = sorted({what for what, _ in MOVES})


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("what", WHATS)
def test_a_move_is_in_the_table_or_refused(what: str, status: TaskStatus) -> None:
    task = ControlTask(7, "x", status=status)
    if (what, status) in MOVES:
        assert task.moved(what).status == MOVES[what, status]
    else:
        with pytest.raises(CommandRefused, match=f"^task 7 is {status}: it cannot {what}$"):
            task.moved(what)


def test_what_has_ended_stays_so_but_for_a_retry() -> None:
    assert {what for (what, status) in MOVES if status in ENDED} == {"retry"}
    assert not [what for (what, status) in MOVES if status == TaskStatus.DROPPED]


# -- recursive decomposition -----------------------------------------------------------------------------------------


def test_children_run_one_after_the_other_and_the_parent_hears_what_each_returned() -> None:
    c = run(TWO)
    assert statuses(c) == ["active", "pending", "pending"]
    done = handle(c, NEXT)
    assert (done.handed, done.control.active, statuses(done.control)) == (True, 2, ["waiting", "active", "pending"])
    c = progression.answered(done.control, "fine")
    assert (c.active, c.tasks[2].value, statuses(c)) == (1, "fine", ["active", "done", "pending"])
    c, text = progression.pending_result(c)
    assert text == "task 2 returned: fine"
    c = progression.answered(run(NEXT, c=c), "well")
    assert said(c, NEXT) == "no task is left. 2: fine; 3: well"
    c = progression.answered(c, "all of it")
    assert (c.ended, c.root.value, c.active) == ("answered", "all of it", 0)


def test_code_splits_the_items() -> None:
    c = run(cmd("push_subtasks", at_most=2), items=("a", "b", "c"))
    assert [(task.goal, task.items, task.tools, task.returns) for task in c.children(c.root)] == [
        ("label a, b", ("a", "b"), ("read",), "counts"), ("label c", ("c",), ("read",), "counts"),
    ]  # fmt: skip


def test_children_have_children_of_their_own() -> None:
    c = run(TWO, NEXT, TWO, NEXT)
    assert [(task.id, task.parent, task.depth, str(task.status)) for task in c.tasks.values()] == [
        (1, 0, 0, "waiting"), (2, 1, 1, "waiting"), (3, 1, 1, "pending"), (4, 2, 2, "active"), (5, 2, 2, "pending"),
    ]  # fmt: skip


LIMITS = [
    (ControlBounds(depth_max=0), [], TWO, "at depth 0 of 0 there are no more subtasks"),
    (ControlBounds(depth_max=1), [TWO, NEXT], TWO, "at depth 1 of 1"),
    (ControlBounds(breadth_max=2), [TWO], push({}), "2 children and 1 more are over 2"),
    (ControlBounds(tasks_max=2), [], TWO, "1 tasks and 2 more are over 2"),
    (ControlBounds(retries_max=0), [push({}), NEXT, "fail"], cmd("retry", task=2), "task 2 was tried 1 times"),
]


@pytest.mark.parametrize(("bounds", "before", "command", "why"), LIMITS)
def test_limits_of_depth_breadth_number_and_retries(
    bounds: ControlBounds, before: list[Any], command: Any, why: str
) -> None:
    c = started(bounds)
    for each in before:
        c = progression.failed(c, "bad") if each == "fail" else run(each, c=c)
    assert why in refused(c, command)


@pytest.mark.parametrize(
    ("child", "why"),
    [
        ({"tools": ["read", "erase"]}, "task 1 has no tool erase to give: read, record"),
        ({"commands": ["fly"]}, "there is no command fly"),
        ({"goal": " "}, "a child needs a goal"),
        ({"returns": "poem"}, "there is no return protocol 'poem'"),
        ({"returns": "choice:one"}, "there is no return protocol"),
        ({"stop": {"on": "submit"}, "commands": []}, "needs that command"),
        ({"stop": {"on": "tool:record"}, "tools": ["read"]}, "needs that tool"),
        ({"stop": {"on": "whenever"}}, "stops on answer, submit or tool:NAME"),
        ({"stop": {"turns_max": 0}}, "one turn at least"),
        ({"stop": {"covers": "erase"}}, "needs that tool"),
        ({"stop": {"on": 3}}, "push_subtasks: Expected `str`, got `int`"),
        ({"shows": [9]}, "there is no task 9"),
        ({"colour": "red"}, "push_subtasks: Object contains unknown field `colour`"),
    ],
)
def test_a_child_that_cannot_be_is_refused_and_no_sibling_is_made(child: dict[str, Any], why: str) -> None:
    assert why in refused(started(), push({}, child))


def test_tools_only_narrow_on_the_way_down() -> None:
    c = run(push({"tools": ["read"]}), NEXT)
    assert "has no tool record to give" in refused(c, push({"tools": ["record"]}))
    assert run(push({}), c=c).tasks[3].tools == ("read",)
    c = run(push({"tools": ["read"], "grants": []}), c=started(tools=(), grants=("read", "record")))
    assert (c.tasks[2].tools, c.tasks[2].grants) == (("read",), ())
    assert "has no tool erase to give" in refused(c, push({"tools": [], "grants": ["erase"]}))


# -- suspend, resume, defer, drop, retry -----------------------------------------------------------------------------


def test_a_task_puts_itself_aside_and_is_resumed_where_it_stopped() -> None:
    c = run(TWO, NEXT, cmd("suspend", why="I need the other"))
    assert (c.active, statuses(c), c.inbox) == (
        1,
        ["active", "suspended", "pending"],
        {1: "task 2 is suspended: I need the other"},
    )
    c = progression.answered(run(NEXT, c=progression.pending_result(c)[0]), "other")
    assert said(progression.pending_result(c)[0], NEXT).startswith("no task is left (suspended: 2). ")
    done = handle(progression.pending_result(c)[0], cmd("resume", task=2))
    assert (done.handed, done.control.active, done.control.inbox) == (True, 2, {2: "resumed"})
    assert "task 3 is done: it cannot resume" in refused(progression.pending_result(c)[0], cmd("resume", task=3))
    assert "task 1 has no child 9" in refused(progression.pending_result(c)[0], cmd("resume", task=9))


def test_deferred_work_comes_when_nothing_else_is_pending() -> None:
    c = run(push({}, {}, {}), cmd("defer", task=2), NEXT)
    assert c.active == 3
    c = run(cmd("defer", why="later"), c=c)
    assert (c.active, statuses(c)) == (1, ["active", "deferred", "deferred", "pending"])
    order = []
    for _ in range(3):
        c = run(NEXT, c=progression.pending_result(c)[0])
        order.append(c.active)
        c = progression.answered(c, "x")
    assert order == [4, 2, 3]


def test_the_first_task_has_nobody_to_go_back_to() -> None:
    for command in (cmd("suspend"), cmd("defer")):
        assert "the first task has no parent" in refused(started(), command)


def test_a_dropped_child_takes_its_own_with_it_and_marks_the_run() -> None:
    c = run(TWO, NEXT, TWO, cmd("suspend"))
    c = run(cmd("drop", task=2), c=progression.pending_result(c)[0])
    assert statuses(c) == ["active", "dropped", "pending", "dropped", "dropped"]
    assert c.degraded == ("task 2 was dropped",)
    assert "task 2 is dropped: it cannot drop" in refused(c, cmd("drop", task=2))


def test_a_task_that_failed_is_begun_anew_and_told_why_then_its_parent_is() -> None:
    c = run(push({"framing": "as a lawyer"}), NEXT, bounds=ControlBounds(retries_max=1))
    c = progression.failed(c, "no end after 3 turns")
    assert (c.active, c.task.life, c.task.tries, c.task.turns) == (2, 2, 2, 0)
    assert c.task.brief == "An earlier try ended so: failed: no end after 3 turns"
    c = progression.failed(c, "no end")
    assert (c.active, c.inbox, c.degraded) == (1, {1: "task 2 failed: no end"}, ("task 2 failed: no end",))
    assert c.tasks[2].status == TaskStatus.FAILED


def test_retry_with_altered_framing() -> None:
    c = progression.answered(run(push({"framing": "as a lawyer"}), NEXT), "guilty")
    c = run(cmd("retry", task=2, framing="as a doctor"), c=progression.pending_result(c)[0])
    task = c.tasks[2]
    assert (str(task.status), task.framing, task.life, task.value) == ("pending", "as a doctor", 2, None)
    assert task.brief == "An earlier try ended so: guilty"
    assert "task 2 is pending: it cannot retry" in refused(c, cmd("retry", task=2))


# -- branches --------------------------------------------------------------------------------------------------------


def test_a_fork_asks_the_same_under_each_framing() -> None:
    c = run(cmd("fork", framings=["short", "long"]), items=("a",))
    assert [(task.goal, task.framing, task.group, task.items) for task in c.children(c.root)] == [
        ("all", "short", 1, ("a",)), ("all", "long", 1, ("a",)),
    ]  # fmt: skip
    assert {"fork", "push_subtasks"} & set(c.tasks[2].commands) == set()
    assert run(cmd("fork", framings=["x", "y"]), c=c).tasks[5].group == 2
    assert "two framings or more" in refused(c, cmd("fork", framings=["one"]))


MERGES = [
    (("yes", "no", "yes"), "text", "majority", "yes"),
    (("yes", "no"), "text", "majority", "refused: no majority: 'yes' 1, 'no' 1"),
    (("bug: 2, wish: 1", "bug: 1"), "counts", "sum", "bug: 3, wish: 1"),
    (("2", "3.5"), "number", "sum", "5.5"),
    (("a", "b"), "text", "sum", "refused: the result of task 2 is neither a number nor counts"),
    (("a", "b"), "text", "first", "a"),
    (("a", "b"), "text", "list", "task 2 (view 0): a\ntask 3 (view 1): b"),
    (("FAIL", "b"), "text", "first", "b"),
    (("FAIL", "FAIL"), "text", "first", "refused: none of them came to a result"),
]


@pytest.mark.parametrize(("values", "returns", "how", "expected"), MERGES)
def test_merge(values: tuple[str, ...], returns: str, how: str, expected: str) -> None:
    c = branched(*values, returns=returns)
    done = handle(c, cmd("merge", how=how, group=1))
    assert done.text == expected
    if "FAIL" in values and not done.failed:
        assert done.control.degraded[-1] == "merged without task 2: failed: bad"


def test_nothing_is_merged_before_all_have_ended() -> None:
    c = run(TWO)
    assert refused(c, cmd("merge", how="first")) == "not yet: 2, 3 have not ended"
    assert "has no group 4" in refused(c, cmd("merge", how="first", group=4))
    assert "has no children" in refused(started(), cmd("compare"))
    with pytest.raises(CommandRefused, match="tasks 2, 3 have not ended"):
        progression.answered(c, "done")


def test_compare() -> None:
    assert said(branched("yes", "no", "yes"), cmd("compare", group=1)) == (
        "task 2 (view 0): yes\ntask 3 (view 1): no\ntask 4 (view 2): yes\n2 of 3 agree"
    )
