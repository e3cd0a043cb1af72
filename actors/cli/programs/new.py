"""``program list`` and ``program new``: the built-in programs, and a template for a new one."""

from __future__ import annotations

import inspect
import keyword
import shlex
from pathlib import Path

import msgspec

from actors.cli.jobs.programs import parameters_of
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.programs import loader
from cortex.programs import READY

_NEW = '''"""{name}: what it is for, in one line."""

from typing import Literal

import cortex

Label = Literal["bug", "praise", "question"]


@cortex.flow
async def {name}(ctx, texts: list[str] = ["It crashes when I save.", "I love it."]) -> list[str]:
    """A label for each text, and a second opinion where something is a bug."""

    async def label(text: str) -> str:
        said = await ctx.ask(f"What is this?\\n\\n{{text}}", returns=Label)
        if said == "bug":
            votes = await ctx.ask(f"A bug, praise or a question?\\n\\n{{text}}", returns=Label, samples=3)
            said = max(votes, key=votes.count)
        ctx.log(f"{{said}}: {{text}}")
        return said

    return await ctx.map(label, texts)


def test_{name}(tmp_path):
    """`pytest {file}`: the simulated provider answers, so nothing is paid."""
    texts = ["It crashes.", "I love it.", "Where is the manual?"]
    result = cortex.run({name}(texts=texts), model="sim", state=str(tmp_path))
    assert result.outcome == "complete"
    assert len(result.answer) == len(texts)
    assert set(result.answer) <= {{"bug", "praise", "question"}}
'''


def list_programs(options: Options) -> int:
    """Run ``cortex program list`` and return the exit code."""
    entries = []
    for name in sorted(READY):
        type_ = loader.find(name)
        first = inspect.cleandoc(type_.__doc__ or "").partition("\n")[0]
        parameters = [{"name": p, "type": kind, "default": default} for p, kind, default in parameters_of(type_)]
        entries.append({"program": name, "does": first, "parameters": parameters})
    if options.as_json:
        print(msgspec.json.encode({"programs": entries}).decode())
        return COMPLETE
    for each in entries:
        print(f"{each['program']}: {each['does']}")
        for parameter in each["parameters"]:
            print(f"    -p {parameter['name']}=…   {parameter['type']}, {parameter['default']}")  # type: ignore[index]
    print("\nyour own program: cortex program new FILE.py; details of a program: cortex run PROGRAM --help")
    return COMPLETE


def new_program(file: str) -> int:
    """Run ``cortex program new`` and return the exit code."""
    path = Path(file)
    name = path.stem.replace("-", "_")
    if path.suffix != ".py" or not name.isidentifier() or keyword.iskeyword(name):
        raise CommandError(f"{file} is no name for a flow: give a Python file, like triage.py, named like the flow")
    try:
        with path.open("x", encoding="utf-8") as new:
            new.write(_NEW.format(name=name, file=shlex.quote(file)))
    except FileExistsError:
        raise CommandError(f"{file} exists: give the name of a new file") from None
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror or error}") from None
    where = shlex.quote(file)
    print_error(f"{file} is written: cortex run {where} --model sim; cortex run {where} --help; pytest {where}")
    return COMPLETE
