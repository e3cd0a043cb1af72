"""``rlm``: what the writing model sees and does not see, turns and errors, calls side by side, recursion, resuming."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex.programs.parts.rlm_prompts import code_of, described, unquoted
from cortex.programs.rlm import rlm
from cortex.state.sandbox import SandboxBounds
from cortex.values.limits import Limits
from tests.edge.support.in_process_job import FunctionModel, Run, reply
from tests.support.patience import PATIENCE_S

CONTEXT = "\n".join(f"record {n}: {'apple' if n % 3 else 'pear'}" for n in range(60))
MAP = (
    "lines = context.splitlines()\n"
    "parts = [lines[at:at + 10] for at in range(0, len(lines), 10)]\n"
    "replies = llm_map(['Count the apples:\\n' + '\\n'.join(part) for part in parts])\n"
)
SUBMIT = "submit(sum(int(each.split()[0]) for each in replies))"


class Scripted(FunctionModel):
    """Writes these pieces one after the other; sub-calls are answered by a function of their prompt."""

    def __init__(self, *pieces: str, sub: Callable[[str], str] | None = None, pause_s: float = 0.0) -> None:
        super().__init__(self._said, pause_s=pause_s)
        self.pieces = list(pieces)
        self.sub = sub or (lambda prompt: f"{prompt.count('apple') - 1} apples, secretly")
        self.writing: list[str] = []
        """Prompts of the writing model, their system text apart."""
        self.prompts: list[str] = []

    def _said(self, body: bytes) -> Any:
        asked = msgspec.json.decode(body)
        prompt = asked["messages"][0]["content"]
        if "You answer a question by writing a program" in asked.get("system", ""):
            self.writing.append(prompt)
            return reply(f"Like this:\n\n```python\n{self.pieces[len(self.writing) - 1]}\n```\nThat is all.")
        self.prompts.append(prompt)
        return reply(self.sub(prompt))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that never ends has half a second, and the others all the time that a busy machine takes."""
    module = importlib.import_module("cortex.programs.rlm")
    run = module.ran

    async def ran(ctx: Any, kept: Any, code: str, names: Any, bounds: SandboxBounds, *more: Any) -> Any:
        time_s = 0.5 if "while True" in code else PATIENCE_S
        return await run(ctx, kept, code, names, msgspec.structs.replace(bounds, time_s=time_s), *more)

    monkeypatch.setattr(module, "ran", ran)


class Together(Scripted):
    """Answers no sub-call before so many are under way at once."""

    def __init__(self, count: int, *pieces: str) -> None:
        super().__init__(*pieces)
        self.count, self.here, self.all_here = count, 0, asyncio.Event()

    async def call(self, body: bytes, **given: Any) -> Any:
        if b"writing a program" not in body:
            self.here += 1
            if self.here == self.count:
                self.all_here.set()
            try:
                await self.all_here.wait()
            finally:
                self.here -= 1
        return await super().call(body, **given)


async def solved(folder: Path, model: FunctionModel, **params: Any) -> Run:
    given = {"question": "How many apples?", "context": CONTEXT, "returns": "number"} | params
    return await Run(folder, model, program=rlm(**given)).to_end()


async def test_the_model_writes_pieces_until_one_submits(tmp_path):
    model = Scripted("print(len(context))\nlines = 5", MAP + SUBMIT)
    run = await solved(tmp_path, model)
    assert (run.facts["outcome"], run.answer) == ("complete", 40)
    assert (len(model.writing), len(model.prompts)) == (2, 6)
    assert "context: str, 989 characters, 60 lines" in model.writing[0]
    assert "record 0: pear" in model.writing[0] and "record 59: apple" in model.writing[0]
    assert "It printed:\n989" in model.writing[1] and "Names: lines: int" in model.writing[1]
    assert "This is turn 2 of 8." in model.writing[1]


async def test_mapped_calls_are_side_by_side_and_bare_ones_one_after_the_other(tmp_path):
    mapped = Together(6, MAP + SUBMIT)
    await asyncio.wait_for(solved(tmp_path / "mapped", mapped), PATIENCE_S)
    assert mapped.all_here.is_set() and len(mapped.prompts) == 6
    gathered = MAP.replace("replies = llm_map([", "import asyncio\nreplies = await asyncio.gather(*[llm(").replace(
        " for part in parts])", ") for part in parts])"
    )
    together = Together(6, gathered + SUBMIT)
    await asyncio.wait_for(solved(tmp_path / "gathered", together), PATIENCE_S)
    assert together.all_here.is_set() and sorted(together.prompts) == sorted(mapped.prompts)
    one_by_one = MAP.replace("llm_map([", "[llm_query(").replace(
        "part) for part in parts])", "part)) for part in parts]"
    )
    bare = Scripted(one_by_one + SUBMIT)
    run = await solved(tmp_path / "bare", bare)
    assert run.answer == 40 and bare.most_at_once == 1


async def test_no_answer_to_a_call_stands_in_a_later_prompt_unless_it_was_printed(tmp_path):
    secret = "the total is seventeen-and-a-half"
    pieces = [
        "r = llm('one')\nn = len(r)",
        "x = int(r)",
        "d = {}\nd[r]",
        "raise ValueError(r)",
        "raise ValueError('I got ' + r[4:20])",
        "print(r[:10])",
        "submit('done')",
    ]
    model = Scripted(*pieces, sub=lambda prompt: secret)
    run = await solved(tmp_path, model, returns="text", errors=5, turns=9)
    assert run.answer == "done"
    grams = {secret[at : at + 6] for at in range(len(secret) - 5)}
    for number, prompt in enumerate(model.writing[:6]):
        assert not [gram for gram in grams if gram in prompt], (number, prompt)
    assert "ValueError: invalid literal for int() with base 10: '…'" in model.writing[2]
    assert "raised (line 2): KeyError" in model.writing[3]
    assert "It printed:\nthe total " in model.writing[6]
    assert secret not in model.writing[6]


async def test_errors_go_back_bounded_and_at_most_n_times(tmp_path, impatient):
    pieces = ["x = (", "1 / 0", "import socket", "while True:\n    pass", MAP + SUBMIT]
    model = Scripted(*pieces)
    run = await solved(tmp_path, model, errors=4, turns=1)
    assert run.answer == 40
    text = model.writing[-1]
    for words in (
        "refused, syntax (line 1)",
        "ZeroDivisionError: division by zero",
        "forbidden (line 1)",
        "refused, time",
    ):
        assert words in text
    assert "You have this one turn. Submit an answer now." in text
    model = Scripted(*["raise ValueError('x' * 100000)"] * 3)
    run = await solved(tmp_path / "more", model, errors=2)
    assert (run.facts["outcome"], len(model.writing)) == ("failed", 3)
    assert "no answer after 3 pieces of program; the last: raised (line 1): ValueError: xxx" in run.facts["failed_said"]
    assert len(model.writing[2]) < 6_000


@pytest.mark.parametrize(
    ("returns", "submitted", "fits"),
    [
        ("text", "'four'", True), ("text", "4", False), ("number", "4", True), ("number", "4.5", True),
        ("number", "True", False), ("number", "'4'", False), ("list", "['a']", True), ("list", "{'a': 1}", False),
        ("json", "{'a': [1, None]}", True), ("text", "None", False),
    ],
)  # fmt: skip
async def test_what_is_submitted_is_checked(tmp_path, returns, submitted, fits):
    model = Scripted(f"submit({submitted})", "x = 1")
    run = await solved(tmp_path, model, returns=returns, errors=0, turns=1)
    assert (run.facts["rows_failed"] == 0) is fits
    if not fits:
        assert f"submit wants a {returns}" in run.facts["failed_said"]


async def test_without_a_preview_the_model_sees_name_type_and_size_alone(tmp_path):
    model = Scripted("print(context[:9])", "submit(1)")
    await solved(tmp_path, model, preview=0)
    assert "context: str, 989 characters, 60 lines" in model.writing[0]
    assert "record" not in model.writing[0]
    assert "record 0:" in model.writing[1]


async def test_a_reply_without_code_is_an_error_like_others(tmp_path):
    model = Scripted("unused")
    model._answer = lambda body: reply("I would rather talk about it.")
    run = await solved(tmp_path, model, errors=1)
    assert "no fenced code" in run.facts["failed_said"]
    assert len(model.asked) == 2


async def test_a_failed_call_is_an_error_in_the_program(tmp_path):
    model = Scripted("try:\n    llm('x')\nexcept RuntimeError as e:\n    submit(str(e))")
    model.sub = lambda prompt: ""
    refuse = model._answer

    def declined(body: bytes) -> Any:
        return refuse(body) if b"writing a program" in body else reply("no", stop_reason="refusal")

    model._answer = declined
    run = await solved(tmp_path, model, returns="text")
    assert run.answer.startswith("the call failed: refused: ")


@pytest.mark.parametrize(("text", "stop_reason", "why"), [
    ("```python\nsubmit(1)", "max_tokens", "syntax: the reply was cut at 2,000 tokens: write less"),
    ("", "end_turn", "syntax: the reply is empty"),
])  # fmt: skip
async def test_the_writing_model_is_told_that_its_program_was_cut(tmp_path, text, stop_reason, why):
    model = Scripted("unused", "submit(7)")
    answer, replies = model._answer, iter([reply(text, stop_reason=stop_reason)])
    model._answer = lambda body: next(replies, None) or answer(body)
    model.writing.append("")
    run = await solved(tmp_path, model)
    assert run.answer == 7
    assert why in model.writing[1]


@pytest.mark.parametrize(("text", "stop_reason", "kind"), [("half", "max_tokens", "cut"), ("", "end_turn", "empty")])
async def test_a_call_without_a_whole_answer_is_an_error_in_the_program(tmp_path, text, stop_reason, kind):
    model = Scripted("try:\n    llm('x')\nexcept RuntimeError as e:\n    submit(str(e))")
    answer = model._answer
    model._answer = lambda body: answer(body) if b"writing a program" in body else reply(text, stop_reason=stop_reason)
    run = await solved(tmp_path, model, returns="text")
    assert run.answer.startswith(f"the call failed: {kind}: ")


async def test_equal_prompts_of_a_piece_are_different_samples_and_an_error_pays_for_none_again(tmp_path):
    votes = "votes = llm_map(['vote'] * 3)\n"
    model = Scripted(votes + "undefined_name", votes + "submit(len(votes))")
    run = await solved(tmp_path, model)
    assert run.answer == 3
    assert model.prompts == ["vote"] * 3
    assert run.facts["reused_calls"] == 3


async def test_the_bound_of_calls_holds_for_all_pieces_also_those_that_were_not_kept(tmp_path, impatient):
    first = "for n in range(10):\n    llm(f'first {n}')\nwhile True:\n    pass"
    model = Scripted(
        first, "llm_map([f'second {n}' for n in range(6)])", "submit(len(llm_map([f'first {n}' for n in range(9)])))"
    )
    run = await solved(tmp_path, model, calls=15)
    assert "time" in model.writing[1] and "calls: more than 15 calls, with those before" in model.writing[2]
    assert run.answer == 9
    assert len(model.prompts) == 10


async def test_it_recurses_to_the_stated_depth_by_child_jobs(tmp_path):
    def write(model: Scripted, prompt: str) -> str:
        inner = "Question: inner" in prompt
        return "submit(str(len(context)))" if inner else "submit([rlm('inner', context[:n]) for n in (5, 7)])"

    model = Scripted("")
    model._answer = lambda body: reply(
        f"```python\n{write(model, msgspec.json.decode(body)['messages'][0]['content'])}\n```"
    )
    run = await solved(tmp_path, model, returns="list", depth=1)
    assert run.answer == ["5", "7"]
    assert len(list((tmp_path / "jobs").glob("j~*"))) == 2
    flat = Scripted("submit(rlm('inner', ''))", "submit(0)")
    run = await solved(tmp_path / "flat", flat)
    assert "NameError: name 'rlm' is not defined" in flat.writing[1]
    assert "rlm(question" not in flat.asked[0].decode()


async def test_it_recurses_no_deeper_than_is_stated(tmp_path):
    model = Scripted("")
    code = "try:\n    found = rlm('deeper', context)\nexcept NameError:\n    found = 'the end'\nsubmit(found + '!')"
    model._answer = lambda body: reply(f"```python\n{code if len(model.asked) < 9 else 'submit(0)'}\n```")
    run = await solved(tmp_path, model, returns="text", depth=2, context="a")
    assert run.answer == "the end!!!"
    assert len(list((tmp_path / "jobs").glob("j~*.sqlite"))) == 2


async def test_killed_in_the_middle_it_goes_on_and_pays_for_nothing_twice(tmp_path):
    straight = Scripted("print(1)", MAP, SUBMIT)
    answer = (await solved(tmp_path / "straight", straight)).answer
    model = Scripted("print(1)", MAP, SUBMIT, pause_s=0.01)
    program = rlm(question="How many apples?", context=CONTEXT, returns="number")
    for after in (1, 4, 8):  # in the first piece, among the calls of the second, before the last
        run = Run(tmp_path / "killed", model, program=program, limits=Limits(concurrency=1))
        await run.crash_after(lambda after=after: len(model.complete) >= after)
    run = await Run(tmp_path / "killed", model, program=program, limits=Limits(concurrency=1)).to_end()
    assert (run.facts["outcome"], run.answer) == ("complete", answer)
    assert len(model.complete) <= len(straight.complete) + 3  # one in flight at each death


async def test_the_journal_does_not_hold_the_context_once_a_pause(tmp_path):
    context = "a line of some length, as they come\n" * 6_000  # 216 KB
    code = "n = 0\nfor line in context.splitlines()[:30]:\n    n += len(llm(line))\nsubmit(n)"
    await solved(tmp_path, Scripted(code, sub=lambda prompt: "ok"), context=context)
    written = sum(place.stat().st_size for place in tmp_path.rglob("*") if place.is_file())
    assert written < 4 * len(context) + 500_000


async def test_every_prompt_is_within_m(tmp_path):
    settings = SimulatorSettings(error=0.0, context_window=3_000)
    model = SimulatedModel(settings)
    context = "\n".join(
        f"Review {n} of K-{n % 9}: the {'delivery was late' if n % 4 else 'colour is fine'}." for n in range(2_000)
    )
    program = rlm(question="How many of the reviews of K-3 mention a late delivery?", context=context, returns="number")
    run = await Run(tmp_path, model, program=program, limits=Limits(output_tokens_max=200)).to_end()  # type: ignore[arg-type]
    assert run.answer == sum(n % 9 == 3 and n % 4 > 0 for n in range(2_000))
    tally = model.provider.tally
    assert not tally.prompts_too_long and 0 < tally.largest_prompt_tokens < 3_000


# -- pure ----------------------------------------------------------------------------------------------------------


def test_code_is_what_stands_in_fences():
    assert code_of("a\n```python\nx = 1\n```\nb\n```\ny = 2\n```") == "x = 1\ny = 2"
    assert code_of("```repl\nx = 1") == "x = 1"
    assert code_of("no code, `x` alone") == ""


def test_what_is_in_k_is_described_by_type_and_size():
    assert described("ab\nc", 0) == "context: str, 4 characters, 2 lines"
    assert (
        described({"a": "xyz", "b": [1, 2]}, 0) == "context: dict of 2\ncontext['a']: str of 3\ncontext['b']: list of 2"
    )
    assert described([1, 2, 3], 0) == "context: list of 3 (int)"
    assert len(described("x" * 10_000, 100)) < 200
    assert len(described(["x" * 10_000] * 50, 100)) < 250
    assert len(described({str(n) * 99: "y" * 10_000 for n in range(50)}, 100)) < 1_500


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("raised: NameError: name 'foo' is not defined", "raised: NameError: name 'foo' is not defined"),
        ("raised: KeyError: yes", "raised: KeyError: (its words quote an answer: print what you want to see)"),
        ("raised (line 3): ValueError: bad 'yes, all of it'", "raised (line 3): ValueError: bad '…'"),
        (
            "raised: Exception: it said yes, all of it",
            "raised: Exception: (its words quote an answer: print what you want to see)",
        ),
        ("raised: ValueError: I got yes!", "raised: ValueError: I got …!"),
        ("raised: ValueError: eyes", "raised: ValueError: eyes"),
        ("time: it was stopped", "time: it was stopped"),
        ("", ""),
    ],
)
def test_an_error_does_not_quote_answers(why, said):
    assert unquoted(why, ["yes, all of it", "yes"], "foo(1)") == said
