"""The public face in a real Jupyter kernel: a loop is running there, and objects are shown by their repr."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.support.patience import PATIENCE_S

PROGRAM = '''
import cortex

class Label(cortex.Program):
    texts: list[str]

    def begin(self, k):
        for text in self.texts:
            yield cortex.Goal("label", text)

    def select(self, k):
        for goal in k.open("label"):
            text = f"Answer with one of: bug, praise.\\n\\n{goal.value}"
            yield cortex.Ask(goal, cortex.Prompt("plain", (cortex.Part(cortex.Role.GOAL, text),)))

    def absorb(self, k, goal, reply):
        yield cortex.Resolve(goal, cortex.as_choice(reply, ("bug", "praise")))

TEXTS = ["I love it, praise to you", "another bug, it crashes"] * 10
'''


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A kernel in which the program is defined, and a state folder of its own."""
    folder = tmp_path_factory.mktemp("notebook")
    root = Path(__file__).resolve().parents[2]
    notebook = nbformat.v4.new_notebook()
    client = NotebookClient(
        notebook, timeout=PATIENCE_S, startup_timeout=PATIENCE_S, kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    with client.setup_kernel():
        begin = f"import sys, os; sys.path.insert(0, {str(root)!r}); os.environ['CORTEX_STATE'] = {str(folder)!r}"
        _run(client, begin)
        _run(client, PROGRAM)
        yield client


def _run(client: Any, source: str) -> str:
    """Everything that the cell shows: what it prints, and the repr of its last expression."""
    cell = nbformat.v4.new_code_cell(source)
    client.nb.cells.append(cell)
    client.execute_cell(cell, len(client.nb.cells) - 1)
    shown = [out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    return "\n".join(shown)


def test_a_run_shows_a_readable_result(kernel: Any) -> None:
    shown = _run(kernel, "cortex.run(Label(texts=TEXTS), model='sim', progress=False)")
    assert "complete; 20 rows; 20 calls" in shown
    assert "object at 0x" not in shown


def test_the_same_cell_again_pays_nothing(kernel: Any) -> None:
    """The journal has it: the same figures, from the same job."""
    code = "four = [f'praise number {i}' for i in range(4)]; "
    code += "first = cortex.run(Label(texts=four), model='sim', progress=False); "
    code += "again = cortex.run(Label(texts=four), model='sim', progress=False); "
    code += "print(first.job == again.job, again.facts['paid_calls'], sorted(first.rows) == sorted(again.rows))"
    assert _run(kernel, code).split() == ["True", "4", "True"]


def test_a_changed_class_is_noticed(kernel: Any) -> None:
    """The kernel knows the class under the same name; its source has changed."""
    _run(kernel, PROGRAM.replace('"plain"', '"other"').replace("Answer with", "Say"))
    shown = _run(kernel, "r = cortex.run(Label(texts=TEXTS[:4]), model='sim', progress=False); print(r.calls)")
    assert shown.split() == ["4"]
    constructors = "from actors.api.client import last_state; from actors.journal.journal import StateFolder; import os; "
    constructors += "k = last_state(StateFolder(os.environ['CORTEX_STATE']), r.job); "
    constructors += "print({goal.constructor for goal in k.goals.values()})"
    assert _run(kernel, constructors).strip() == "{'other'}"


def test_a_job_can_be_awaited_and_iterated_in_the_running_loop(kernel: Any) -> None:
    code = "job = cortex.submit(Label(texts=TEXTS[:6]), model='sim')\nseen = [x async for x in job]\n"
    code += "result = await job\nprint(len(seen), sorted(seen) == sorted(result.rows), result.outcome)"
    assert _run(kernel, code).split() == ["6", "True", "complete"]


def test_what_goes_wrong_is_one_clear_line(kernel: Any) -> None:
    with pytest.raises(CellExecutionError) as raised:
        _run(kernel, "cortex.run(Label(texts=['x']), model='claude-sonnet-4-5', progress=False)")
    shown = str(raised.value)
    assert "SetupError: no key in the environment" in shown
    assert "Traceback" not in shown
    assert "destination.py" not in shown


FLOW = '''
from typing import Literal

ASK = "Say {word}"

def worded(word):
    return ASK.format(word=word)

class Kind:
    """Of another cell."""

@cortex.flow
async def said(ctx, word: str):
    ctx.log("asks for", word)
    first = await ctx.ask(worded(word))
    return [first, await ctx.ask(f"again {word}")]
'''
EDITS = {
    "so": ('f"again {word}"', 'f"once more {word}"'),
    "thus": ('"Say {word}"', '"Speak {word}"'),
    "indeed": ("return ASK", "return 'Please: ' + ASK"),
}
"""By the word that is asked for, so that each is another question: in the flow's own cell, in a constant of another one,
in a function of another one."""


@pytest.mark.parametrize("word", EDITS)
def test_a_flow_whose_cell_was_edited_begins_anew_and_pays_for_what_is_new_alone(kernel: Any, word: str) -> None:
    run = f"r = cortex.run(said(word={word!r}), model='sim', progress=False); print(r.job, r.facts['paid_calls'], r.calls)"
    _run(kernel, FLOW)
    job, *counts = _run(kernel, run).split()
    assert counts == ["2", "2"]
    assert _run(kernel, run).split() == [job, *counts]
    changed = FLOW.replace(*EDITS[word])
    assert changed != FLOW
    _run(kernel, changed)
    assert _run(kernel, run).split() == [job, "3", "4"], "two calls before, two now: one was another, one remembered"


def test_what_a_flow_logs_is_shown_below_the_cell(kernel: Any) -> None:
    _run(kernel, FLOW)
    assert ": asks for hush" in _run(kernel, "r = cortex.run(said(word='hush'), model='sim')")


def test_a_table_comes_back_as_a_table(kernel: Any) -> None:
    """A loop is running in the kernel; the answers have the rows' order and their types."""
    code = "import pandas; frame = pandas.DataFrame({'ticket': [7, 8], 'text': ['It crashes', 'I love it']}); "
    code += "answers = cortex.batch(frame, 'Answer with one of: bug, praise. {{text}}', id='ticket', model='sim', "
    code += "progress=False); print(answers.to_pandas()['ticket'].tolist(), len(answers)); answers"
    shown = _run(kernel, code)
    assert "[7, 8] 2" in shown
    assert "complete; 2 rows; 2 calls" in shown
    bad = "try:\n    cortex.batch(frame, '{{texxt}}', model='sim')\nexcept ValueError as error:\n    print(error)"
    assert _run(kernel, bad).strip() == "the table has no column 'texxt', which the prompt names: did you mean text?"
