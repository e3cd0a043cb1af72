"""Roles on the command line and from Python: which model got which prompt, as the far side tells it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cortex as public
from actors.history.catalog import last_state, last_terms
from actors.journal.journal import StateFolder
from actors.routing.routes import SetupError
from tests.cli.cli_runner import Done, environment, started, until
from tests.edge.support.scripted_http_server import MESSAGE, Asked, http, scripted
from tests.support.patience import PATIENCE_S

FLOWS = """
import cortex


@cortex.flow
async def reviewed(ctx, rounds: int = 6) -> list[str]:
    async def one(place: int) -> str:
        draft = await ctx.ask(f"Draft {place}")
        said = await ctx.ask(f"Judge {place}: {draft}", model="judge")
        return await ctx.ask(f"Final {place}: {said}", model="writer")

    return await ctx.map(one, range(rounds))


@cortex.flow
async def written(ctx) -> str:
    return await ctx.ask("Sub: what a written program asks", model="sub")


@cortex.flow
async def above(ctx) -> list[str]:
    return await ctx.run(reviewed(rounds=2))


@cortex.flow
async def chain(ctx, steps: int = 400) -> str:
    said = "nothing"
    for step in range(steps):
        said = await ctx.ask(f"{step} after {said[:20]}", model="judge" if step % 2 else "")
    return said
"""
TASKS = {"Draft": "small", "Judge": "large", "Final": "small"}
"""Which model each prompt is for."""


class Far:
    """A provider with several models, and what it was asked: (model, prompt), in order."""

    def __init__(self) -> None:
        self.url = ""
        self.pause_s = 0.0
        """Seconds before each answer."""
        self.asked: list[tuple[str, str]] = []
        self.bad: dict[str, list[Any]] = {}
        """By model: how it answers instead, each once, the last for ever; None: as it should."""

    async def answer(self, asked: Asked) -> Any:
        await asyncio.sleep(self.pause_s)
        body = asked.json
        text = body["messages"][0]["content"]
        self.asked.append((body["model"], text))
        bad = self.bad.get(body["model"])
        if bad:
            instead = bad[0] if len(bad) == 1 else bad.pop(0)
            if instead is not None:
                return instead
        content = [{"type": "text", "text": f"{body['model']} on {text.split(':')[0]}"}]
        return http({**MESSAGE, "model": body["model"], "content": content})

    def models(self, word: str) -> set[str]:
        """The models that were asked something that begins so."""
        return {model for model, text in self.asked if text.startswith(word)}


@contextmanager
def serving() -> Iterator[Far]:
    """A far side in a thread of its own."""
    far, loop, there = Far(), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        async with scripted(far.answer) as server:
            far.url = server.url
            there.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert there.wait(PATIENCE_S)
    try:
        yield far
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()


@pytest.fixture
def cortex(cortex, monkeypatch) -> Callable[..., Done]:
    """The same with a key, which each command takes out of the environment."""

    def keyed(*arguments: object) -> Done:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        return cortex(*arguments)

    return keyed


@pytest.fixture
def far(cortex, monkeypatch) -> Iterator[Far]:
    """The far side, and a file of flows in the working folder."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    Path("flows.py").write_text(FLOWS)
    with serving() as far:
        yield far


def run(far: Far, flow: str = "reviewed", *more: object) -> tuple[object, ...]:
    """A command with two models."""
    return ("run", f"flows.py:{flow}", "--model", "small", "--base-url", far.url, "--role", "judge=large", "--job",
            "mine", *more)  # fmt: skip


def test_the_model_of_written_programs_has_an_option_of_its_own(cortex, far):
    command = ("run", "flows.py:written", "--model", "small", "--base-url", far.url, "--sub-model", "tiny")
    assert cortex(*command).code == 0
    assert far.models("Sub") == {"tiny"}
    cortex(*command, "--role", "sub=other").refused("--role sub is given twice")


def right(far: Far) -> None:
    """Each prompt went to the model that it was for, and to no other."""
    assert {word: far.models(word) for word in TASKS} == {word: {model} for word, model in TASKS.items()}


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def test_each_prompt_goes_to_the_model_of_its_role(cortex, far):
    done = cortex(*run(far), "--json")
    assert done.code == 0, done.err
    assert done.last["answer"] == [f"small on Final {place}" for place in range(6)]
    right(far)
    assert Counter(model for model, _ in far.asked) == {"small": 12, "large": 6}
    assert "model small, judge=large" in done.err


def test_what_was_answered_is_remembered_as_that_models(cortex, far):
    cortex(*run(far))
    asked = len(far.asked)
    assert cortex(*run(far), "--job", "again", "--json").last["reused_calls"] == 18
    assert len(far.asked) == asked, "the same models: nothing is asked again"
    done = cortex("run", "flows.py:reviewed", "--model", "small", "--base-url", far.url, "--role", "judge=other",
                  "--job", "mine", "--json")  # fmt: skip
    assert "begins anew" in done.err
    assert far.models("Judge") == {"large", "other"}
    assert Counter(model for model, _ in far.asked[asked:])["other"] == 6


def test_a_role_is_paid_at_its_price_within_the_cap(cortex, far):
    prices = ("--price", "input=1,output=1", "--max-cost", 1)
    done = cortex(*run(far), *prices)
    done.refused("no price known for 'large'", "--role judge=large,input=3,output=15")
    assert not far.asked
    command = [f"{each},input=100,output=100" if each == "judge=large" else each for each in run(far)]
    done = cortex(*command, *prices, "--json")
    tokens = 10 + 3 + 4 + 2  # of which 3 are written to the cache, at 1.25 of the price
    once = (tokens + 3 * 0.25) / 1e6
    assert done.last["cost_usd"] == pytest.approx(12 * once + 6 * 100 * once)
    assert cortex(*[*command[:-2], "--job", "less"], *prices[:2], "--max-cost", "0.00001").code == 3


def test_a_cap_that_is_set_later_needs_the_roles_price_too(cortex, far):
    far.bad["large"] = [http(LOW, 400)]
    assert cortex(*run(far), "--price", "input=1,output=1").code == 3
    cortex("set", "mine", "--max-cost", 1).refused(
        "no price is known for 'large'", "--role judge=large,input=3,output=15"
    )
    del far.bad["large"]
    command = [f"{each},input=3,output=15" if each == "judge=large" else each for each in run(far)]
    done = cortex(*command, "--price", "input=1,output=1", "--max-cost", 1, "--json")
    assert (done.code, done.last["outcome"]) == (0, "complete")
    assert Counter(text for _, text in far.asked if text.startswith("Draft")).most_common(1)[0][1] == 1


def test_a_child_job_has_the_same_roles(cortex, far):
    assert cortex(*run(far, "above"), "--json").last["answer"] == ["small on Final 0", "small on Final 1"]
    right(far)


def test_two_roles_with_one_model_and_one_with_the_jobs_own(cortex, far):
    done = cortex(*run(far), "--role", "writer=large", "--role", "critic=small", "--json")
    assert done.code == 0, done.err
    assert (far.models("Judge"), far.models("Final")) == ({"large"}, {"large"})
    terms = last_terms(_folder(), "mine")
    assert terms is not None
    assert (terms.roles, [route.model for route in terms.routes]) == (
        {"judge": 1, "writer": 1, "critic": 0}, ["small", "large"],
    )  # fmt: skip


def test_status_says_which_model_has_which_role(cortex, far):
    cortex(*run(far))
    assert f"small at {far.url[7:]}; judge: large at {far.url[7:]}" in cortex("status", "mine").out
    routes = cortex("status", "mine", "--json").last["routes"]
    assert [(each["route"].split()[0], each["roles"]) for each in routes] == [("small", []), ("large", ["judge"])]


LOW = {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low"}}


def test_a_replay_asks_nothing_anew_and_prices_a_roles_new_calls_as_its_own(cortex, far):
    command = [f"{each},input=100,output=100" if each == "judge=large" else each for each in run(far)]
    cortex(*command, "--price", "input=1,output=1")
    reported = json.loads(cortex("replay", "mine", "--json").out)
    assert (reported["reused_calls"], reported["new_calls"]) == (18, [])
    Path("others.py").write_text(FLOWS.replace("Judge {place}", "Judge anew {place}"))
    new = json.loads(cortex("replay", "mine", "--program", "others.py:reviewed", "--json").out)["new_calls"]
    assert len(new) == 6
    assert all(each["cost_usd"] == pytest.approx((each["input_tokens"] + each["output_tokens"]) / 1e4) for each in new)


def test_while_a_role_is_blocked_the_rest_is_asked_and_resume_goes_on(cortex, far):
    far.bad["large"] = [http(LOW, 400)]
    done = cortex(*run(far))
    assert done.code == 3
    assert "credit balance is too low" in done.err
    assert len([text for _, text in far.asked if text.startswith("Draft")]) == 6, "the drafts are all there"
    del far.bad["large"]
    assert cortex("resume", "mine", "--json").last["answer"] == [f"small on Final {place}" for place in range(6)]
    right(far)
    assert Counter(text for _, text in far.asked if not text.startswith("Judge")).most_common(1)[0][1] == 1


def test_while_a_role_is_throttled_the_rest_goes_on(cortex, far):
    limited = http({"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}}, 429, retry_after="1")
    far.bad["large"] = [limited, None]
    done = cortex(*run(far), "--json")
    assert (done.code, done.last["failures"].keys()) == (0, {"throttled"})
    first = next(place for place, (_, text) in enumerate(far.asked) if text.startswith("Judge"))
    last = max(place for place, (_, text) in enumerate(far.asked) if text.startswith("Draft"))
    assert last < first + 12, "no draft waits for the judge"
    right(far)


@pytest.mark.long
def test_killed_three_times_with_two_models_it_ends_with_the_same_answer(cortex, far):
    straight = cortex(*run(far, "chain"), "--job", "straight", "--state", "other", "--json").last
    far.pause_s = 0.02
    for calls, command in ((60, run(far, "chain")), (150, ("resume", "mine")), (250, ("resume", "mine"))):
        with started(*command, env=environment(ANTHROPIC_API_KEY="sk-test")) as child:
            until(lambda calls=calls: _calls() >= calls)
            child.kill()
    assert _calls() < 400, "it was to be killed in the middle"
    far.pause_s = 0.0
    done = cortex("resume", "mine", "--json").last
    assert (done["outcome"], done["answer"]) == ("complete", straight["answer"])
    assert done["paid_calls"] <= straight["paid_calls"] + 3


def _calls() -> int:
    try:
        return last_state(_folder(), "mine").tally.calls
    except Exception:
        return 0


@pytest.mark.parametrize(("said", "words"), [
    (["judge"], ["--role 'judge': write NAME=MODEL"]),
    (["=large"], ["--role '': write NAME=MODEL"]),
    (["judge="], ["--role 'judge=': write NAME=MODEL"]),
    (["a judge=large"], ["--role 'a judge': write NAME=MODEL", "no blank"]),
    (["1st=large"], ["the name begins with a letter"]),
    (["judge=large@ftp://x"], ["'large': an address begins with http:// or https://"]),
    (["judge=large@https://user:secret@x"], ["large: its address holds a password"]),
    (["judge=large,inputs=3"], ["cannot read 'inputs=3'"]),
    (["judge=large,input=3"], ["input and output must both be given"]),
    (["judge=large", "judge=small"], ["--role judge is given twice"]),
    (["judge=small,input=3,output=4"], ["--role judge=small: --model names it without this price"]),
    (["judge=large,input=3,output=4", "critic=large,input=3,output=5"], ["--role critic=large: --role judge names it"]),
])  # fmt: skip
def test_a_role_that_makes_no_sense_is_one_line(cortex, far, said, words):
    roles = [part for each in said for part in ("--role", each)]
    done = cortex("run", "flows.py:reviewed", "--model", "small", "--base-url", far.url, *roles)
    done.refused(*words)
    assert "secret" not in done.err
    assert not far.asked


def test_python_takes_names_and_objects(far, monkeypatch, tmp_path):
    @public.flow
    async def asks(ctx):
        return [await ctx.ask("Draft"), await ctx.ask("Judge", model="judge")]

    options = {"model": "small", "base_url": far.url, "progress": False, "state": str(tmp_path)}
    done = public.run(asks(), roles={"judge": "large"}, **options)
    assert done.answer == ["small on Draft", "large on Judge"]
    for wrong in ({"judge": ""}, {"a judge": "large"}, {"": "large"}):
        with pytest.raises(SetupError, match="write NAME=MODEL"):
            public.run(asks(), roles=wrong, **options)


def test_the_simulator_counts_requests_by_model(cortex):
    assert json.loads(json.dumps(_stats()["models"])) == {"claude-test": 2, "other": 1}


def _stats() -> dict[str, Any]:
    from actors.simulator.api.provider import SimulatedProvider
    from actors.simulator.settings import SimulatorSettings

    provider = SimulatedProvider(SimulatorSettings())
    for model in ("claude-test", "other", "claude-test"):
        body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
        provider.decide(json.dumps(body).encode(), 0.0)
    return provider.tally.to_json()
