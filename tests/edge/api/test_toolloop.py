"""A tool loop under explicit control: what each bounded call is offered and told, and what happens around its tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import cortex
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex import control
from cortex.control import ControlBounds, ControlTask, DispatchRules, ToolKit, begun, progression
from cortex.control.commands import KINDS
from cortex.programs.toolloop import toolloop
from cortex.values.conversation import ToolDef
from tests.support.control_runner import cmd, push
from tests.support.control_runner import run as state_after
from tests.support.scripted_conversation import Talker, ended, ran, results, scripted

EXACT = SimulatorSettings(error=0)
FAILS: list[int] = []


@cortex.tool(repeatable=True)
def look(item: str) -> str:
    """Look at an item."""
    return f"{item} is\nred"


@cortex.tool(repeatable=True)
def flaky(item: str) -> str:
    """Fails twice, then works."""
    FAILS.append(1)
    if len(FAILS) % 3:
        raise RuntimeError("busy")
    return f"{item} at last"


TOOLS = (look, flaky)
ALL = tuple(KINDS)


@cortex.flow
async def worked(
    ctx: cortex.Context, task: dict[str, Any], bounds: ControlBounds = ControlBounds(), rules: DispatchRules = DispatchRules()  # noqa: B008
) -> Any:  # fmt: skip
    """A task with these tools; how it ended, and its trace."""
    first = msgspec.convert(
        {"id": 1, "goal": "Go.", "tools": ["look", "flaky"], "commands": list(ALL), **task}, ControlTask
    )
    kit = ToolKit(TOOLS, {tool.__name__: ToolDef.of(tool) for tool in TOOLS})
    done = await control.run(ctx, begun(first, bounds, rules), kit)
    trace = [f"{entry.task} {entry.what}" for entry in done.trace]
    return {"value": done.root.value, "ended": done.ended, "degraded": list(done.degraded), "trace": trace}


def use(command: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    return ("control", cmd(command, **fields))


def pushed(*children: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("control", push(*children))


PARTS = pushed({"goal": "one part"}, {"goal": "another part"})
NEXT = use("next_task")


def work(
    model: Any, folder: Path, bounds: ControlBounds | None = None, rules: DispatchRules | None = None, **task: Any
) -> Any:
    done = ran(worked(task=task, bounds=bounds or ControlBounds(), rules=rules or DispatchRules()), model, folder)
    assert done.outcome == "complete", done
    return done.answer


def offered(request: dict[str, Any]) -> set[str]:
    return {tool["name"] for tool in request.get("tools", ())}


def first_text(request: dict[str, Any]) -> str:
    return str(request["messages"][0]["content"][0]["text"])


# -- the ready program -------------------------------------------------------------------------------------------------


class Heard(SimulatedModel):
    """Keeps what it was asked."""

    def __init__(self, settings: SimulatorSettings) -> None:
        super().__init__(settings)
        self.asked: list[dict[str, Any]] = []

    async def call(self, body: bytes, **more: Any) -> Any:
        self.asked.append(msgspec.json.decode(body))
        return await super().call(body, **more)


@pytest.mark.parametrize("apart", [False, True])
def test_it_comes_to_the_right_counts_in_bounded_calls(apart: bool, tmp_path: Path) -> None:
    model = Heard(EXACT)
    done = ran(toolloop(count=15, at_most=5, apart=apart), model, tmp_path, job="mine")
    answer = done.answer
    assert (answer["right"], answer["ended"], answer["degraded"], answer["tasks"]) == (True, "answered", [], 4)
    assert answer["spent"]["tools"] == 30
    assert answer["spent"]["turns"] == 3 * 11 + 7
    surfaces = {frozenset(offered(each)) for each in model.asked}
    assert surfaces == {frozenset({"control"}), frozenset({"read", "record"})}
    for each in model.asked:  # a subtask's context holds its own items and nobody else's
        if "read" in offered(each):
            listed = first_text(each).partition("Items: ")[2].partition("\n")[0]
            assert len(listed.split(",")) == 5
            assert len(each["messages"]) <= 2 * 10 + 1
    assert len(StateFolder(tmp_path).jobs()) == (4 if apart else 1)


def test_an_item_passed_over_is_asked_for_and_a_failed_subtask_begun_anew(tmp_path: Path) -> None:
    """At an error rate at which the chat loop never ends right, the loop under control mostly does."""
    right = []
    for seed in range(5):
        done = ran(
            toolloop(count=12, at_most=4),
            SimulatedModel(SimulatorSettings(seed=seed, error=0.05)),
            tmp_path / str(seed),
        )
        right.append(done.answer["ended"] == "answered" and sum(done.answer["answer"].values()) == 12)
    assert sum(right) >= 4


# -- capability surface ------------------------------------------------------------------------------------------------


def test_each_subtask_has_its_own_tools_stop_condition_and_return_protocol(tmp_path: Path) -> None:
    model = scripted(
        pushed(
            {"goal": "find", "tools": ["look"], "commands": ["submit"], "stop": {"on": "submit"}, "returns": "number"},
            {"goal": "use it", "tools": ["flaky"], "commands": [], "stop": {"on": "tool:look"}, "returns": "text"},
        ),
        "so",
    )
    work(model, tmp_path / "a")
    assert "needs that tool" in results(model.asked[1])[0]
    model = scripted(
        pushed(
            {"goal": "find", "tools": ["look"], "commands": ["submit"], "stop": {"on": "submit"}, "returns": "number"},
            {"goal": "see it", "tools": ["look"], "commands": [], "stop": {"on": "tool:look"}, "returns": "text"},
        ),
        NEXT, "it is 12", ("flaky", {"item": "a"}), use("next_task"), use("submit", value="twelve"), use("submit", value="12"),
        NEXT, ("look", {"item": "b"}), "both",
    )  # fmt: skip
    assert work(model, tmp_path / "b")["value"] == "both"
    assert [sorted(offered(each)) for each in model.asked] == [
        ["control", "flaky", "look"], ["control", "flaky", "look"], *[["control", "look"]] * 5,
        ["control", "flaky", "look"], ["look"], ["control", "flaky", "look"],
    ]  # fmt: skip
    child = model.asked[6]
    assert first_text(child).startswith("find")
    control_of = next(tool for tool in child["tools"] if tool["name"] == "control")
    assert control_of["input_schema"]["properties"]["command"] == {"enum": ["submit"]}
    assert results(child) == [
        "there is no tool flaky",
        "refused: next_task is none of the commands of task 2: submit",
        "refused: the result is no number: 'twelve'",
    ]
    assert results(model.asked[-1]) == ["2 tasks: 2, 3", "task 2 returned: 12", "task 3 returned: b is\nred"]
    assert "End this task with the command submit." in str(child["messages"])


@pytest.mark.parametrize(("text", "stop_reason", "ending"), [
    ("It is re", "max_tokens", "cut"), ("It is re", "model_context_window_exceeded", "cut"),
    ("I will", "pause_turn", "paused"),
])  # fmt: skip
def test_a_fragment_does_not_end_a_task_and_the_model_is_told(
    tmp_path: Path, text: str, stop_reason: str, ending: str
) -> None:
    model = scripted(ended(text, stop_reason), "It is red.")
    assert work(model, tmp_path)["value"] == "It is red."
    told = model.asked[1]["messages"]
    assert (told[-2]["role"], told[-2]["content"][0]["text"]) == ("assistant", text)
    assert f"This reply is no whole answer: it is {ending} ({stop_reason})" in str(told[-1])


@pytest.mark.parametrize(("stop_reason", "ending"), [("max_tokens", "cut"), ("end_turn", "empty")])
def test_thinking_alone_fails_a_try_of_its_task(tmp_path: Path, stop_reason: str, ending: str) -> None:
    model = scripted(*[ended("", stop_reason)] * 9)
    done = work(model, tmp_path, bounds=ControlBounds(retries_max=1))
    assert done["ended"] == f"failed: {ending}: the reply ended ({stop_reason}) before any text"


def test_a_command_that_hands_the_loop_over_stands_alone(tmp_path: Path) -> None:
    model = scripted(PARTS, [("look", {"item": "a"}), NEXT], [NEXT], "one", NEXT, "two", "all")
    assert work(model, tmp_path)["value"] == "all"
    assert results(model.asked[2])[1:] == ["a is\nred", "refused: next_task must be the only use of a tool in its turn"]


def test_branches_are_compared_and_merged(tmp_path: Path) -> None:
    model = scripted(
        use("fork", framings=["Be short.", "Be kind.", "Be exact."]), NEXT, "yes", NEXT, "no", NEXT, "yes",
        [use("compare", group=1), use("merge", how="majority", group=1)], "yes",
    )  # fmt: skip
    assert work(model, tmp_path)["value"] == "yes"
    assert [first_text(each) for each in model.asked[2:7:2]] == [
        "Be short.\n\nGo.",
        "Be kind.\n\nGo.",
        "Be exact.\n\nGo.",
    ]
    assert results(model.asked[-1])[-1] == "yes" and "2 of 3 agree" in results(model.asked[-1])[-2]


def test_branches_that_are_framed_alike_are_asked_apart(tmp_path: Path) -> None:
    """A question is asked once; votes of one framing are three."""
    model = scripted(
        use("fork", framings=["So."] * 3), NEXT, "a", NEXT, "b", NEXT, "c", use("merge", how="list"), "done"
    )
    assert work(model, tmp_path)["value"] == "done"
    assert results(model.asked[-1])[-1] == "task 2 (So.): a\ntask 3 (So.): b\ntask 4 (So.): c"


def test_what_is_projected_into_a_subtask_is_all_that_it_is_shown(tmp_path: Path) -> None:
    model = scripted(
        pushed({"goal": "find"}, {"goal": "doubt"}), NEXT, "42", NEXT, "not at all",
        pushed({"goal": "use it", "shows": [2]}), NEXT, "used", "all",
    )  # fmt: skip
    assert work(model, tmp_path)["value"] == "all"
    assert first_text(model.asked[7]) == "use it\n\ntask 2 (find): 42"
    assert len(model.asked[7]["messages"]) == 1


def test_a_task_that_was_suspended_goes_on_in_its_own_conversation(tmp_path: Path) -> None:
    model = scripted(
        PARTS, NEXT, ("look", {"item": "a"}), use("suspend", why="need more"),
        NEXT, "other", use("resume", task=2), "and done", "all",
    )  # fmt: skip
    assert work(model, tmp_path)["value"] == "all"
    assert results(model.asked[4]) == ["2 tasks: 2, 3", "task 2 is suspended: need more"]
    assert results(model.asked[7]) == ["a is\nred", "resumed"]
    assert results(model.asked[8])[-1] == "task 2 returned: and done"


def test_a_checkpoint_cuts_the_conversation_back(tmp_path: Path) -> None:
    model = scripted(
        use("checkpoint", name="here", note="a was red"), ("look", {"item": "b"}), use("restore", name="here"), "done"
    )
    assert work(model, tmp_path)["value"] == "done"
    assert results(model.asked[2]) == ["kept as here", "b is\nred"]
    assert results(model.asked[3]) == ["kept as here"]
    assert "back at here. a was red" in str(model.asked[3]["messages"][-1])


def test_a_fresh_context_holds_the_state_in_short_and_nothing_else(tmp_path: Path) -> None:
    model = scripted(("look", {"item": "a"}), use("fresh", note="only b is left"), "done")
    assert work(model, tmp_path, items=["a", "b"])["value"] == "done"
    assert len(model.asked[2]["messages"]) == 1
    assert first_text(model.asked[2]) == "Go.\n\n1 uses of tools so far.\nDone so far: a\nonly b is left"


def test_a_context_that_has_grown_too_large_is_begun_afresh(tmp_path: Path) -> None:
    parts = iter([*[("look", {"item": f"{n} {'x' * 300}"}) for n in range(6)], "done"])
    model = Talker(lambda request: next(parts))
    done = ran(worked(task={"commands": []}), model, tmp_path, prompt_tokens_max=400)
    assert done.answer["value"] == "done"
    assert "1 its context had grown too large" in done.answer["trace"]
    assert any("uses of tools so far" in first_text(each) for each in model.asked)


# -- dispatch side: nothing of it stands in what the model is shown ------------------------------------------------------


def test_retries_and_transforms_wrap_the_tools_without_the_models_knowing(tmp_path: Path) -> None:
    FAILS.clear()
    rules = DispatchRules(retries={"flaky": 2}, transforms={"look": ("lines:1", "head:4")})
    model = scripted(("flaky", {"item": "a"}), ("look", {"item": "b"}), "done")
    answer = work(model, tmp_path, rules=rules)
    assert results(model.asked[2]) == ["a at last", "b is"]
    assert len(FAILS) == 3
    assert answer["trace"] == ["1 flaky was run again", "1 flaky was run again", "1 flaky", "1 look", "1 returned done"]


def test_without_retries_the_model_hears_of_the_failure(tmp_path: Path) -> None:
    FAILS.clear()
    model = scripted(("flaky", {"item": "a"}), "done")
    work(model, tmp_path)
    (text,) = results(model.asked[1])
    assert "busy" in text


def test_a_transform_that_there_is_none_of_is_refused_at_birth() -> None:
    for bad in ("upper", "head:0", "head:many", "fields:"):
        with pytest.raises(ValueError, match="no transform"):
            DispatchRules(transforms={"look": (bad,)})


BUDGETS = [
    (ControlBounds(turns_max=3), "over budget: turns: 3 of 3"),
    (ControlBounds(tokens_max=30), "over budget: tokens: 36 of 30"),
    (ControlBounds(tools_max=2), "over budget: tools: 2 of 2"),
    (ControlBounds(usd_max=0.5), "over budget: no price is known, so money cannot be counted"),
]


@pytest.mark.parametrize(("bounds", "ended"), BUDGETS)
def test_a_budget_stops_it_labelled(bounds: ControlBounds, ended: str, tmp_path: Path) -> None:
    model = Talker(lambda request: ("look", {"item": str(len(request["messages"]))}))
    answer = work(model, tmp_path, bounds=bounds)
    assert (answer["ended"], answer["value"], answer["degraded"]) == (ended, None, [ended])


def test_money_is_counted_at_the_routes_price(tmp_path: Path) -> None:
    model = Talker(lambda request: ("look", {"item": str(len(request["messages"]))}))
    bounds = ControlBounds(usd_max=0.00009)
    done = ran(
        worked(task={}, bounds=bounds), model, tmp_path, price="input=3,output=1"
    )  # 10 and 2 tokens: 32 millionths
    assert done.answer["ended"] == "over budget: USD: 9.6e-05 of 9e-05"


def test_time_is_a_budget_too(tmp_path: Path) -> None:
    model = Talker(lambda request: ("look", {"item": str(len(request["messages"]))}))
    answer = work(model, tmp_path, bounds=ControlBounds(seconds_max=0.2, turns_max=0))
    assert answer["ended"].startswith("over budget: seconds: ")


def test_a_child_that_comes_to_no_end_is_tried_again_and_then_its_parent_hears_of_it(tmp_path: Path) -> None:
    def said(request: dict[str, Any]) -> Any:
        if "go on" in first_text(request):
            return ("look", {"item": str(len(request["messages"]))})
        lines = results(request)
        return "gave up" if len(lines) == 2 else NEXT if lines else pushed({"goal": "go on", "stop": {"turns_max": 2}})

    model = Talker(said)
    answer = work(model, tmp_path, bounds=ControlBounds(retries_max=1))
    assert (answer["value"], answer["degraded"]) == ("gave up", ["task 2 failed: no end after 2 turns"])
    tries = [first_text(each) for each in model.asked if first_text(each).startswith("go on")]
    assert tries == ["go on"] * 2 + ["go on\n\nAn earlier try ended so: failed: no end after 2 turns"] * 2


def test_the_state_is_kept_in_k_turn_by_turn(tmp_path: Path) -> None:
    def said(request: dict[str, Any]) -> Any:
        k = last_state(StateFolder(tmp_path), "mine")
        kept = [goal.kept for goal in k.goals.values() if goal.kept]
        if kept:
            seen.append(kept[0][0]["value"]["control"]["spent"]["turns"])
        return ("look", {"item": str(len(request["messages"]))}) if len(request["messages"]) < 9 else "done"

    seen: list[int] = []
    done = ran(worked(task={}), Talker(said), tmp_path, job="mine")
    assert done.answer["value"] == "done"
    assert seen and seen == sorted(seen) and seen[-1] >= 3


def test_a_task_that_is_a_job_of_its_own_takes_its_projection_along() -> None:
    c = state_after(push({"goal": "find"}), cmd("next_task"))
    c = progression.pending_result(progression.answered(c, "42"))[0]
    c = state_after(push({"goal": "use it", "shows": [2], "apart": True}), cmd("next_task"), c=c)
    first = control.alone(c)
    assert (first.goal, first.shows, first.apart, first.brief) == ("use it", (), False, "task 2 (find): 42")
    begun(first)
