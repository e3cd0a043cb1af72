"""Prompts of the writing model of ``rlm``: the question, names, types and sizes in K, and printed output.

Answers to calls do not appear in them, unless a program printed them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from cortex.state.sandbox import DefinedName
from cortex.values.prompt import Part, Prompt, Role, Rule

SYSTEM = """You answer a question by writing a program. Its material stands in the variable `context`, which may be far too long to read; the question stands in `question`. Reply with one piece of Python in a fenced block, ```python … ```, and nothing that matters outside of it. It is run; you are shown what it prints, and may write the next piece. Names stay from piece to piece.

There is, besides Python's builtins:
- llm(prompt) -> str: ask a model. It sees the prompt and nothing else, so put the material into it, in pieces of a few thousand characters.
- llm_map(prompts) -> list[str]: ask many at once, answers in order. The same: `import asyncio` and `await asyncio.gather(*[llm(p) for p in prompts])`.{recursion}
- submit(answer): the end. The answer must be a {returns}.

Judge meaning with llm; count, filter, sort and join in code. What you print is all that you see, and only its beginning and end if it is long: do not print whole answers. A call that failed raises RuntimeError.

The dialect is a subset of Python. There are: functions, async functions, simple classes without bases, dataclasses, comprehensions, f-strings, match, try, and the modules re, json, math, collections, itertools, functools, datetime, random, asyncio. There are not: yield, del, class inheritance, input, open, files, network, environment, and the modules statistics, string, textwrap, concurrent.futures, numpy."""  # noqa: E501 - paragraphs of the prompt
RECURSION = "\n- rlm(question, context) -> str: let a model answer a question about a context by programs of its own."
ITEMS_MAX = 10
"""Entries of a dict or list whose types are shown."""
NAME_CHARS = 60
"""Characters of a dict key that are shown."""
GRAM = 8
"""Number of equal consecutive characters from which a match with an answer is no coincidence."""

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
_QUOTED = re.compile(r"'[^']+'|\"[^\"]+\"")
_WORDS = re.compile(r"(\w+(?: \(line \d+\))?: (?:[\w.]*(?:Error|Exception): )?)(.*)", re.DOTALL)


class ShownTurn(msgspec.Struct, frozen=True):
    """Earlier turn, as shown to the model."""

    code: str
    output: str
    names: tuple[DefinedName, ...] = ()
    fault: str = ""


def writing(
    question: str,
    context: Any,
    returns: str,
    preview: int,
    told: Sequence[ShownTurn],
    turn: int,
    turns: int,
    recurses: bool,
) -> Prompt:
    """Return the prompt for the next piece of program."""
    system = SYSTEM.format(returns=returns, recursion=RECURSION if recurses else "")
    parts = [
        Part(Role.SYSTEM, system), Part(Role.GOAL, f"Question: {question}"),
        Part(Role.DOCUMENT, described(context, preview), 50, Rule.CUT),
    ]  # fmt: skip
    for number, each in enumerate(told):
        parts.append(Part(Role.ANNOTATION, turned(number + 1, each), number, Rule.DROP, f"Piece {number + 1}"))
    text = f"This is turn {turn} of {turns}." if turns > 1 else "You have this one turn."
    parts.append(Part(Role.ANNOTATION, text + (" Submit an answer now." if turn == turns else ""), 100))
    return Prompt("writing", tuple(parts))


def turned(number: int, told: ShownTurn) -> str:
    """Return the text of an earlier turn: its code, its output, its names, its fault."""
    lines = [f"```python\n{told.code}\n```"]
    if told.output:
        lines.append(f"It printed:\n{told.output}")
    if told.fault:
        lines.append(f"It was refused, {told.fault}. Write it again, otherwise.")
    elif not told.output:
        lines.append("It printed nothing.")
    names = [_named(each) for each in told.names if each.name not in ("context", "question")]
    if names:
        lines.append(f"Names: {', '.join(names)}")
    return "\n".join(lines)


def _named(name: DefinedName) -> str:
    return f"{name.name}: {name.type}" + (f" of {name.size:,}" if name.size >= 0 else "")


def described(context: Any, preview: int) -> str:
    """Return name, type, size and a bounded preview of the context."""
    if isinstance(context, str):
        lines = context.count("\n") + 1 if context else 0
        return _shown(f"context: str, {len(context):,} characters, {lines:,} lines", context, preview)
    if isinstance(context, dict):
        text = f"context: dict of {len(context):,}"
        for key, value in list(context.items())[:ITEMS_MAX]:
            size = f" of {len(value):,}" if isinstance(value, (str, list, dict)) else ""
            text += f"\ncontext[{str(key)[:NAME_CHARS]!r}]: {type(value).__name__}{size}"
        return _shown(text, _text(next(iter(context.values()), "")), preview)
    if isinstance(context, list):
        kinds = ", ".join(sorted({type(each).__name__ for each in context}))
        text = f"context: list of {len(context):,}" + (f" ({kinds})" if kinds else "")
        return _shown(text, "\n".join(_text(each)[:preview] for each in context[:ITEMS_MAX]), preview)
    return _shown(f"context: {type(context).__name__}", _text(context), preview)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shown(message: str, text: str, preview: int) -> str:
    if preview == 0 or not text:
        return message
    if len(text) <= preview:
        return f"{message}\n<preview>\n{text}\n</preview>"
    head = preview * 2 // 3
    return f"{message}\n<preview>\n{text[:head]}\n[…]\n{text[len(text) - (preview - head) :]}\n</preview>"


def code_of(reply: str) -> str:
    """Return the program in a reply: the content of its code fences, joined; empty if there is none."""
    return "\n".join(each.strip("\n") for each in _FENCED.findall(reply)).strip()


def unquoted(why: str, answers: Sequence[str], code: str) -> str:
    """Return an error text without quotations of answers: the model sees of answers only what its program prints.

    A text in quotes that occurs in an answer and not in the code is such a quotation, and so is a whole answer that
    occurs as a word. The whole error text is replaced if it is an answer, or shares eight consecutive characters with
    one.
    """
    found = _WORDS.match(why)
    message = "\0".join(filter(None, answers))
    if found is None or not message:
        return why
    head, words = found.groups()

    def quoted(each: re.Match[str]) -> str:
        text = each[0][1:-1]
        foreign = text not in code and (text in message or any(one and one in text for one in answers))
        return "'…'" if foreign else each[0]

    words = _QUOTED.sub(quoted, words)
    grams = {words[at : at + GRAM] for at in range(len(words) - GRAM + 1)}
    last = words.rpartition(": ")[2]
    if (last and last in message) or any(gram in message and gram not in code for gram in grams):
        return head + "(its words quote an answer: print what you want to see)"
    for one in sorted({each.strip() for each in answers}, key=lambda each: (-len(each), each)):  # deterministic order
        if one and one in words and one not in code:
            words = re.sub(rf"(?<!\w){re.escape(one)}(?!\w)", "…", words)
    return head + words
