"""Piece of a program, if the request wants one in a fence and names the functions to call.

Two forms: count lines of a kind, one call for some lines; or ask of every piece of the text, then of the replies. The
code holds data of the request: the question, the type of the context, the function names, and names in the question
that code can search for. The material is known only as far as the request shows it.
"""

import re
from typing import Final

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.line_counts import counted
from actors.simulator.reasoning.thought import Thought

_MANY: Final = re.compile(r"\b(llm_map|llm_query_batched)\(")
_ONE: Final = re.compile(r"\b(llm|llm_query)\(")
_FENCE: Final = re.compile(r"```(\w+)")
_QUESTION: Final = re.compile(r"^(?:question|answer the following)\s*:\s*(.+)$", re.MULTILINE | re.IGNORECASE)
_KIND: Final = re.compile(r"\bcontext(?: is a|:) (str|dict|list)\b")
_SHOWN: Final = ("<preview>", "It printed:", "REPL output")
_MUST: Final = ("You have this one turn", "Submit an answer now")
_WHOLE: Final = {"dict": '"\\n".join(str(each) for each in context.values())',
                 "list": '"\\n".join(str(each) for each in context)'}  # fmt: skip
LINES: Final = 20
"""Lines in one call."""
CHARACTERS: Final = 4_000
"""Characters of text in one call."""

_COUNT: Final = """import re

text = {text}
lines = [line for line in text.splitlines() if line.strip(){names}]
parts = [lines[at:at + {size}] for at in range(0, len(lines), {size})]
asked = {question} + " Answer with a number alone.\\n\\n<lines>\\n"
replies = {many}([asked + "\\n".join(part) + "\\n</lines>" for part in parts])
numbers = [int(found[0]) if (found := re.search(r"\\d+", reply)) else 0 for reply in replies]
print(len(lines), "lines in", len(parts), "parts")
{end}"""
_ASK: Final = """text = {text}
parts = [text[at:at + {size}] for at in range(0, len(text), {size})]
asked = {question} + " If the text says nothing of it, answer: nothing.\\n\\n<text>\\n"
replies = {many}([asked + part + "\\n</text>" for part in parts])
notes = [reply for reply in replies if reply.strip().lower().rstrip(".") != "nothing"]
print(len(parts), "parts,", len(notes), "of them say something")
{end}"""


def program(reading: ParsedPrompt) -> Thought | None:
    """Return the next piece, in the fence that the request shows."""
    text = f"{reading.system}\n{reading.text}" if "```" in reading.system or "```" in reading.text else ""
    many = _MANY.search(text)
    asked = _QUESTION.search(reading.text) if many else None
    ends = "submit(" if "submit(" in text else 'answer["content"]' if 'answer["content"]' in text else ""
    if many is None or asked is None or not ends:
        return None
    fence = _FENCE.search(text)
    name = fence[1] if fence else "python"
    if not any(each in reading.text for each in (*_SHOWN, *_MUST)):
        return _fenced(name, "print(type(context), len(context))\nprint(str(context)[:600])", ())
    one = _ONE.search(text)
    question, kind = asked[1].strip(), _KIND.search(reading.text)
    known = {
        "text": _WHOLE.get(kind[1] if kind else "str", "context"), "many": many[1], "question": repr(question),
    }  # fmt: skip
    wanted = counted(question)
    if wanted is not None:
        total = "sum(numbers)" if "must be a number" in text else "str(sum(numbers))"
        names = "".join(f" and {each!r} in line" for each in wanted.names)
        code = _COUNT.format(size=LINES, names=names, end=_end(ends, total), **known)
        forgets, calls = code.removeprefix("import re\n"), code.replace("import re", "import statistics", 1)
        return _fenced(name, code, (forgets, calls))
    last = f'{one[1] if one else "llm"}({known["question"]} + "\\n\\n<notes>\\n" + "\\n".join(notes) + "\\n</notes>")'
    code = _ASK.format(size=CHARACTERS, end=_end(ends, last), **known)
    misnames, imports = code.replace("for part in parts]", "for part in piece]", 1), f"import textwrap\n{code}"
    return _fenced(name, code, (misnames, imports))


def _end(how: str, value: str) -> str:
    return f"submit({value})" if how == "submit(" else f'answer["content"] = {value}\nanswer["ready"] = True'


def _fenced(name: str, code: str, wrong: tuple[str, ...]) -> Thought:
    """Return the code with possible errors: a forgotten import, a call of an unknown name, or prose without a fence."""
    prose = "I would split the context into parts and ask of each of them."
    return Thought(f"```{name}\n{code}\n```", tuple(f"```{name}\n{each}\n```" for each in wrong), prose)
