"""Errors of files in the words of Python: arguments in place of the options of the command line."""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = (
    "encoding|delimiter|quoting|skip-lines|no-header|id|answer-as|columns-prefix|with-input|bad|overwrite|schema-as|"
    "logprobs|top-logprobs|votes|votes-by|schema"
)
_FLAGS: Final = frozenset({"no-header", "with-input", "overwrite", "logprobs"})
"""Options without a value."""
_GIVEN: Final = re.compile(rf"\b(give|or|with) --({_NAMES})(?![\w-])(?: ('.'|[\w.-]+))?")
"""Option that an error says to give, and the word that follows."""
_NAMED: Final = re.compile(rf"(?<![\w-])--({_NAMES})(?![\w-])")


def in_python(text: str) -> str:
    """Return an error that names options of the command line with the arguments of ``cortex.batch`` instead."""
    return _NAMED.sub(lambda found: _argument(found[1]), _GIVEN.sub(_given, text))


def _given(found: re.Match[str]) -> str:
    how, name, value = found.groups()
    if name in _FLAGS:
        return f"{how} {_argument(name)}=True{f' {value}' if value else ''}"
    if not value:
        return f"{how} {_argument(name)}="
    shown = value if value.isdecimal() or value.startswith("'") else f'"{value}"'
    return f"{how} {_argument(name)}={shown}"


def _argument(option: str) -> str:
    return option.replace("-", "_")
