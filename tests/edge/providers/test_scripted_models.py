"""Models for tests of programs: scripts, functions, recorded jobs, and the fixture that pytest finds."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
import pytest

import cortex
from actors.api.result import NoAnswer
from actors.journal.journal import StoreError
from actors.routing.routes import SetupError
from cortex.state.changes import Ask, Resolve
from cortex.state.program import Program
from cortex.state.state import Goal
from cortex.testing import NoReply, RecordedModel, ScriptedModel
from cortex.values.prompt import Part, Prompt, Role
from tests.support.repository_rules import ROOT

Side = Literal["bug", "praise"]


class Verdict(msgspec.Struct):
    """What a judge says."""

    sure: bool
    why: str


@cortex.flow
async def triage(ctx, texts: list[str]) -> list[str]:
    """A label for each text, and a second opinion where something is a bug."""

    async def label(text: str) -> str:
        answer = await ctx.ask(f"Which is it?\n\n{text}", returns=Side)
        if answer == "bug":
            verdict = await ctx.ask(f"Surely a bug?\n\n{text}", returns=Verdict, model="judge", again=1)
            return answer if verdict.sure else "unsure"
        return answer

    return await ctx.map(label, texts)


@cortex.flow
async def says(ctx, prompts: list[str], system: str = "") -> list[str]:
    return [await ctx.ask(prompt, system=system) for prompt in prompts]


@cortex.flow
async def inner(ctx) -> list[str]:
    return await ctx.ask("Say a number", samples=3)


@cortex.flow
async def outer(ctx) -> list[str]:
    return await ctx.run(inner())


TEXTS = ["It crashes.", "I love it!"]
SCRIPT = {"Surely": {"sure": True, "why": "it says so"}, "crashes": "bug", "love": "praise"}


@pytest.fixture(autouse=True)
def made(tmp_path, monkeypatch):
    """The passing folders that are made; none of them is left, nor anything in the working folder."""
    monkeypatch.chdir(tmp_path)
    folders: list[str] = []
    make = tempfile.mkdtemp

    def noted(*args, **named):
        folder = make(*args, **named)
        folders.extend([folder] if os.path.basename(folder).startswith("cortex-") else [])
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    yield folders
    assert os.listdir(tmp_path) in ([], ["kept"])
    assert not [folder for folder in folders if os.path.exists(folder)]


# -- scripts -----------------------------------------------------------------------------------------------------------


def test_a_program_is_tested_in_five_lines(made):
    model = ScriptedModel(SCRIPT)
    done = cortex.run(triage(TEXTS), model=model)
    assert done.answer == ["bug", "praise"]
    assert len(model.calls) == 3 and not model.unused
    assert len(made) == 1
    assert "Surely a bug?\n\nIt crashes." in model.prompts[-1]


def test_it_stands_in_cortex_testing():
    assert cortex.testing.ScriptedModel is ScriptedModel
    assert cortex.testing.__all__ == ["Asked", "NoReply", "RecordedModel", "ScriptedModel"]
    with pytest.raises(AttributeError, match="has no attribute 'Scripted'"):
        cortex.testing.Scripted  # noqa: B018


def test_nothing_is_remembered_from_one_run_to_the_next():
    assert [cortex.run(says(["a"]), model=ScriptedModel([word])).answer for word in "xy"] == [["x"], ["y"]]


def test_roles_are_told_apart():
    model = ScriptedModel().on("", {"sure": False, "why": "no"}, role="judge").on("crashes", "bug").on("love", "praise")
    done = cortex.run(triage(TEXTS), model=model, roles={"judge": model})
    assert done.answer == ["unsure", "praise"]
    assert [(call.role, call.model) for call in model.calls] == [("", "given"), ("", "given"), ("judge", "judge")]
    own, judge = ScriptedModel({"crashes": "bug"}), ScriptedModel([{"sure": True, "why": ""}])
    assert cortex.run(triage(TEXTS[:1]), model=own, roles={"judge": judge}).answer == ["bug"]
    assert (len(own.calls), len(judge.calls), judge.calls[0].role) == (1, 1, "judge")


def test_what_a_prompt_is_matched_with():
    model = ScriptedModel({re.compile(r"^Be brief\.\n\nq\d$"): "pattern", "q": "text", "": "anything"})
    done = cortex.run(says(["q1", "q", "z"], system="Be brief."), model=model)
    assert done.answer == ["pattern", "text", "anything"]
    assert model.calls[0].request["system"] == "Be brief."
    assert model.calls[2].reply == "anything"


def test_replies_one_after_the_other():
    assert cortex.run(says(["a", "b"]), model=ScriptedModel(["1", "2"])).answer == ["1", "2"]
    model = ScriptedModel({"a": ["first", "second"], "": "other"})
    assert cortex.run(says(["a", "b", "aa"]), model=model).answer == ["first", "other", "second"]


def test_a_reply_that_does_not_fit_is_asked_again():
    model = ScriptedModel().on("Surely", "perhaps", {"sure": True, "why": ""}).on("crashes", "bug")
    assert cortex.run(triage(TEXTS[:1]), model=model).answer == ["bug"]
    assert "Your last answer was refused" in model.prompts[-1]


def test_failures_are_scripted_by_their_kind():
    @cortex.flow
    async def careful(ctx) -> str:
        answer = await ctx.ask("a", on_failure="keep")
        return f"{answer.kind}" if isinstance(answer, cortex.CallFailed) else answer

    model = ScriptedModel([cortex.FailureKind.REFUSED])
    assert cortex.run(careful(), model=model).answer == "refused"
    failed = cortex.run(says(["a"]), model=ScriptedModel([cortex.FailureKind.REFUSED]))
    assert (failed.outcome, failed.failures) == ("failed", {"refused": 1})
    with pytest.raises(NoAnswer, match=r"is failed and has no answer: refused: .*the script says refused"):
        failed.answer  # noqa: B018 - to ask for it is an error
    assert "1 failed, the last: " in repr(failed) and "the script says refused" in repr(failed)


# -- functions ---------------------------------------------------------------------------------------------------------


async def slow(prompt: str) -> str:
    await asyncio.sleep(0)
    return prompt.upper()


FUNCTIONS = {
    "of the prompt": (lambda prompt: prompt.upper(), "ABC"),
    "of the prompt and the request": (lambda prompt, request: request["model"] + prompt, "givenabc"),
    "async": (slow, "ABC"),
    "a method": ("{}!".format, "abc!"),
    "of JSON": (lambda prompt: [prompt], '["abc"]'),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_a_model(name):
    function, text = FUNCTIONS[name]
    assert cortex.run(says(["abc"]), model=function).answer == [text]


def test_a_function_may_have_a_role():
    done = cortex.run(
        triage(["x"]), model=lambda prompt: "bug", roles={"judge": lambda prompt: {"sure": True, "why": ""}}
    )
    assert done.answer == ["bug"]


# -- what goes wrong -----------------------------------------------------------------------------------------------------


def test_a_prompt_that_no_entry_matches_is_one_line_that_shows_it():
    model = ScriptedModel(SCRIPT)
    with pytest.raises(NoReply) as error:
        cortex.run(triage(["It explodes."]), model=model)
    text = str(error.value)
    assert text.startswith("the script has no reply to the prompt 'Which is it?\\n\\nIt explodes.")
    assert text.endswith("; it has replies to 'Surely', 'crashes', 'love'")
    assert "\n" not in text
    assert len(model.calls) == 1
    assert cortex.run(triage(TEXTS), model=model).answer == ["bug", "praise"], "the next run is none the worse"


WRONG = {
    "an empty script": (ScriptedModel(), "the script has no reply to the prompt 'a'; it is empty"),
    "all was said": (ScriptedModel(["1"]), "the script has 1 replies, and is asked once more: 'b'"),
    "all was said to it": (
        ScriptedModel({"b": [], "": "x"}),
        "'b' of the script has 0 replies, and is asked once more: 'b'",
    ),
    "for a role alone": (ScriptedModel().on("a", "x", role="judge"), "it has replies to 'a' of role judge"),
    "no reply at all": (ScriptedModel([object()]), "is not a valid reply"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_script_says_so(name):
    model, text = WRONG[name]
    with pytest.raises(NoReply) as error:
        cortex.run(says(["a", "b"]), model=model)
    assert text in str(error.value)


def test_what_a_function_raises_is_raised_where_the_job_was_run():
    def broken(prompt: str) -> str:
        raise KeyError("a mistake of the test's own")

    with pytest.raises(KeyError, match="a mistake of the test's own") as error:
        cortex.run(says(["a"]), model=broken)
    assert error.traceback[-1].name == "broken"


@pytest.mark.parametrize("given", [3, ScriptedModel, object(), None])
def test_what_is_no_model_is_one_line(given):
    with pytest.raises(SetupError, match=r"^model: give a name, a function of the prompt or a model, not "):
        cortex.run(says(["a"]), model=given)


@pytest.mark.parametrize("given", [says, "says", None])
def test_what_is_no_program_is_one_line(given):
    with pytest.raises(SetupError, match=r"^give a program with its parameters, like (says|triage)\(\.\.\.\), not "):
        cortex.run(given, model="sim")


def test_a_flow_that_lacks_what_it_needs_is_refused_at_once():
    with pytest.raises(SetupError, match=r"^triage needs texts$"):
        cortex.run(triage(), model="sim")


@pytest.mark.parametrize("script", ["a text", 3, b"bytes"])
def test_what_is_no_script(script):
    with pytest.raises(TypeError, match="a script is a dict of patterns"):
        ScriptedModel(script)
    with pytest.raises(TypeError, match="a pattern is a text"):
        ScriptedModel().on(3, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="what is said to it"):
        ScriptedModel().on("a")


def test_it_lives_in_this_process_alone(monkeypatch):
    with pytest.raises(SetupError, match="a model object lives in this process: give --cluster inline"):
        cortex.run(says(["a"]), model=ScriptedModel(["x"]), cluster="local")
    with pytest.raises(SetupError, match="a model object lives in this process"):
        cortex.run(says(["a"]), model="sim", roles={"judge": ScriptedModel(["x"])}, cluster="host:6379")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert cortex.run(says(["a"]), model=ScriptedModel(["x"])).answer == ["x"]


async def test_inside_a_running_loop_as_in_a_notebook():
    model = ScriptedModel({"": "x"})
    assert cortex.run(says(["a"]), model=model).answer == ["x"]
    assert (await cortex.submit(says(["b"]), model=model)).answer == ["x"]
    with pytest.raises(NoReply):
        await cortex.submit(says(["b"]), model=ScriptedModel())


# -- a state folder that is kept, and what a job has recorded --------------------------------------------------------------


def test_a_folder_that_is_named_is_kept_and_the_job_goes_on_there():
    state = str(Path("kept").resolve())
    low = ScriptedModel({"a": "x", "b": cortex.FailureKind.BLOCKED})
    assert cortex.run(says(["a", "b"]), model=low, state=state, job="j").outcome == "partial"
    model = ScriptedModel({"b": "y"})
    assert cortex.run(says(["a", "b"]), model=model, state=state, job="j").answer == ["x", "y"]
    assert model.prompts == ["b"], "a was answered in the run before"


def _recorded(job: str = "j") -> str:
    state = str(Path("kept").resolve())
    simulated = {"model": "sim", "roles": {"judge": "sim,seed=5,error=0"}, "progress": False}
    assert cortex.run(triage(TEXTS), state=state, job=job, **simulated).outcome == "complete"
    return state


def test_a_job_is_run_again_on_what_it_recorded():
    state = _recorded()
    model = RecordedModel("j", state=state)
    done = cortex.run(triage(TEXTS), model=model)
    before = cortex.attach("j", state=state).result()
    assert (done.answer, len(model.calls)) == (before.answer, before.calls)
    assert (
        cortex.run(triage(TEXTS), model=RecordedModel("j", state=state), roles={"judge": model}).answer == done.answer
    )


def test_what_was_not_recorded_is_named():
    model = RecordedModel("j", state=_recorded())
    with pytest.raises(NoReply) as error:
        cortex.run(triage(["It explodes."]), model=model)
    assert str(error.value).startswith("job j has recorded no reply to the prompt 'Which is it?\\n\\nIt explodes.")
    with pytest.raises(StoreError, match="no job 'k'"):
        RecordedModel("k", state="kept")


def test_samples_and_child_jobs_are_recorded_too():
    state = str(Path("kept").resolve())
    numbers = ScriptedModel(["1", "2", "3"])
    assert cortex.run(outer(), model=numbers, state=state, job="j").answer == ["1", "2", "3"]
    assert cortex.run(outer(), model=RecordedModel("j", state=state)).answer == ["1", "2", "3"]


# -- pytest ------------------------------------------------------------------------------------------------------------


def test_the_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("users")
    (folder / "test_mine.py").write_text("""
import cortex

@cortex.flow
async def label(ctx, text):
    return await ctx.ask(f"Label this: {text}")

def test_right(cortex_model):
    cortex_model.on("crashes", "bug")
    assert cortex.run(label("It crashes."), model=cortex_model).answer == "bug"
    assert len(cortex_model.calls) == 1

def test_wrong(cortex_model):
    cortex_model.on("crashes", "bug")
    cortex.run(label("It explodes."), model=cortex_model)
""")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "actors.fakes.pytest_plugin",
        "-q",
        "-p",
        "no:cacheprovider",
        str(folder),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # installed it loads by itself
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    line = "the script has no reply to the prompt 'Label this: It explodes.'; it has replies to 'crashes'"
    assert re.search(rf"^E +cortex\.testing\.NoReply: {re.escape(line)}$", done.stdout, re.MULTILINE), done.stdout


class Late(Program, frozen=True):
    """Its first goal is made by select, and not when it begins."""

    name: ClassVar[str] = "late"

    def select(self, k):
        """One goal, then its question."""
        if not k.goals:
            yield Goal("one", 1)
        for goal in k.open("one"):
            yield Ask(goal, Prompt("late", (Part(Role.GOAL, "Which?"),)), output_tokens_max=9)

    def absorb(self, k, goal, reply):
        """As it was answered."""
        yield Resolve(goal, reply.text)

    def satisfied(self, k):
        """When that goal is done."""
        return k.next_goal > 1 and not k.live

    def answer(self, k):
        """So many goals were made."""
        return k.next_goal - 1


def test_a_program_may_make_its_first_goal_when_it_selects():
    done = cortex.run(Late(), model=ScriptedModel(["this"]))
    assert (done.outcome, done.answer) == ("complete", 1)
