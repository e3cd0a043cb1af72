"""What is plain is done on a fast path, and would come to the same on the general one.

The general path is what the loop has for everything: it is all that is left where each fast path hands back the first
that it is given. Here both take the same turns; and each stage, whatever its test is about, has both too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.calls import attempts, program_hooks, voting
from cortex.calls.request import fast_request, rendered
from cortex.goals import apply_changes
from cortex.journal import codec
from cortex.loop import event_handlers, step
from cortex.programs.batch import Batch
from cortex.programs.table import Table
from cortex.state import events
from cortex.state.changes import Ask, Change, Emit, Resolve
from cortex.state.program import Program
from cortex.state.state import Goal, State
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.prompt import Part, Prompt, Role, fast_text_body, request_body, text_frame
from cortex.values.reply import Malformed, Reply
from policies.estimates.tokens import body_tokens_bound, text_body_tokens_bound, tokens_bound
from tests.support.fault_injection import World
from tests.support.sample_programs import Elector, Planner
from tests.support.state_machine_harness import PRICE, Flat, fed, taken

TERMS = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=Route(endpoint="http://x", model="m"))


class Window(Program, frozen=True):
    """So many goals at a time; now and then a reply is refused, a result comes too, a text is long or no English."""

    keeps = False
    asks_once = True
    rows_are_goals = False

    count: int = 40
    ahead: int = 6

    def begin(self, k: State) -> Iterable[Change]:
        for number in range(self.ahead):
            yield Goal("row", number)

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("row"):
            text = "grüß dich " * (90 if goal.value % 5 == 0 else 1) + str(goal.value)
            yield Ask(goal, Prompt("row", (Part(Role.SYSTEM, "be brief"), Part(Role.GOAL, text))))

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        if reply.text.endswith("7"):
            raise Malformed("no sevens")
        if goal.value % 3 == 0:
            yield Emit({"row": goal.value, "said": reply.text, "took": k.took.nusd if k.took else None})
        if goal.value + self.ahead < self.count:
            until_s = k.at_s + 400 if goal.value % 4 == 1 else 0.0
            yield Goal("row", goal.value + self.ahead, deadline_at_s=until_s)
        yield Resolve(goal, [goal.value, reply.text])


class Steps(Elector, frozen=True):
    """Each step voted on, and told as a result of its own; some replies are red flags."""

    keeps = False
    rows_are_goals = False


PROGRAMS: dict[str, Program] = {
    "flat": Flat(texts=tuple(f"t{index}" for index in range(30))),
    "equal questions": Flat(texts=("a", "b", "a", "a", "c", "b") * 3),
    "window": Window(),
    "batch": Batch(),
    "ordered batch": Batch(ordered=True),
    "table": Table(),
    "planned": Planner(roots=("b", "h"), deep=2),
    "voted on": Elector(),
    "voted steps": Steps(length=5),
}
LIMITS = (
    Limits(concurrency=8), Limits(concurrency=8, max_cost_nusd=900_000), Limits(concurrency=8, goal_timeout_s=9.0),
    Limits(concurrency=8, hedge_after_s=2.0), Limits(concurrency=8, max_job_tokens=9_000, output_tokens_max=64),
    Limits(concurrency=8, requests_per_min=90.0), Limits(concurrency=8, warm_prefix=True),
)  # fmt: skip


def lived(name: str, seed: int, limits: Limits, faults: float) -> World:
    """A run of this program, as chance will have it."""
    streams = name in ("batch", "ordered batch", "table")
    world = World(
        PROGRAMS[name], seed, limits=limits, permits=6, faults=faults, late=faults > 0, together=1 + seed % 5,
        price=PRICE if seed % 2 else None, streams=streams, slow=5 if seed % 3 == 0 else 0,
    )  # fmt: skip
    if streams:
        for start in (0, 12):
            keys = [f"{'!' if index % 9 == 4 else ''}row-{index}" for index in range(start, start + 12)]
            world._heard(world.stage.turn(fed(*keys, start=start * 10, ended=start > 0)))
    world.run()
    return world


def told(program: Program, turns: Iterable[events.Turn], general: bool) -> list[Any]:
    """What each turn came to: commands and K, to the byte, and the goals that it made and ended."""
    with pytest.MonkeyPatch.context() as patch:
        if general:
            patch.setattr(step, "fast_absorb", lambda k, program, happened, out: next(happened, None))
            patch.setattr(step, "fast_ask", lambda k, wishes, once, out: next(wishes, None))
            patch.setattr(event_handlers, "may_apply_fast", lambda *given: False)
            patch.setattr(program_hooks, "may_apply_fast", lambda *given: False)
            patch.setattr(voting, "fast_request", lambda *given: None)
        found = []
        for out, k in taken(program, turns):
            goals = [[(goal.id, goal.status) for goal in some] for some in (out.made, out.ended)]
            found.append((codec.encode_batch(out), codec.encode_state(k), goals))  # type: ignore[arg-type]
        return found


@pytest.mark.parametrize("name", PROGRAMS)
@given(st.integers(0, 10**9), st.sampled_from(LIMITS), st.sampled_from((0.0, 0.2)))
@settings(max_examples=15)
def test_both_paths_come_to_the_same(name, seed, limits, faults):
    stage = lived(name, seed, limits, faults).stage
    assert told(stage.other, stage.turns, general=False) == told(stage.other, stage.turns, general=True)


@pytest.mark.parametrize("name", ["flat", "batch", "table", "voted steps"])
def test_what_is_plain_goes_the_fast_path(name, monkeypatch):
    """Else nothing would be gained, and nothing compared."""
    seen = []

    def noted(place: Any, function: str) -> None:
        general = getattr(place, function)
        monkeypatch.setattr(place, function, lambda *given, **named: seen.append(function) or general(*given, **named))

    stage = lived(name, 1, LIMITS[0], 0.0).stage
    for place, function in ((step, "ask"), (attempts, "answered"), (apply_changes, "_checked")):
        noted(place, function)
    told(stage.other, stage.turns, general=False)
    assert len(stage.said) > 40
    assert len(seen) <= 3, seen  # what begins the job, and rows that were refused


TEXT = st.text(max_size=40)


@given(TEXT, TEXT, TEXT, TEXT, st.integers(1, 10**6), st.sampled_from(("\n\n", "", " | ")))
def test_a_request_of_texts_alone_is_the_same_request(system, first, second, lead, tokens, separator):
    parts = (Part(Role.SYSTEM, system), Part(Role.GOAL, first, title=second), Part(Role.DOCUMENT, second))
    prompt = Prompt("c", parts, separator, lead)
    body = fast_text_body(*prompt.both(), "m", tokens)
    assert body == request_body(prompt, "m", tokens)
    assert text_body_tokens_bound(body) == body_tokens_bound(body)


@given(
    st.sampled_from(Role), TEXT | st.text("ub \"\\\n/\x7f", max_size=20), st.sampled_from(("", "", "title")),
    st.sampled_from(("", "", "lead")), st.sampled_from(("\n\n", "", "¦")), st.sampled_from(("m", "modèle", "a\\b", "\x01")),
)  # fmt: skip
def test_a_request_of_one_text_is_the_same_request(role, text, title, lead, separator, model):
    k = State(terms=msgspec.structs.replace(TERMS, route=Route(endpoint="http://x", model=model)))
    change = Ask(Goal("row", 1), Prompt("c", (Part(role, text, title=title),), separator, lead))
    made = rendered(k, change, 9, 10**6, 0)
    assert fast_request(k, change, 9, 10**6, text_frame(model, 9)) == made
    fits = tokens_bound(change.prompt.text())
    assert fast_request(k, change, 9, fits, text_frame(model, 9)) == made
    assert fast_request(k, change, 9, fits - 1, text_frame(model, 9)) is None


@pytest.mark.parametrize(
    "text", ["type", "tools", "mcp_servers", "output_config", '"type": "image"', "\\u0041", '"tools":[]']
)
def test_words_of_requests_are_no_more_than_text_where_they_are_said(text):
    body = fast_text_body(text, text, text, 9)
    assert text_body_tokens_bound(body) == body_tokens_bound(body)
