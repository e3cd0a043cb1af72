"""Table of the page of providers, made from the registry: ``python -m actors.providers.overview docs/providers.md``.

The command rewrites the part of the page between the two markers; a test fails while the two differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from actors.providers.registry import APIS, PROVIDERS, Provider, named

BEGIN: Final = "<!-- providers: begin, made by python -m actors.providers.overview docs/providers.md -->"
END: Final = "<!-- providers: end -->"
HEAD: Final = (
    "`--provider`", "API", "credential", "schema as", "limits told by", "`--via batches`", "prices", "tested",
)  # fmt: skip


def code(text: str) -> str:
    """Return a text as code of Markdown; empty for none."""
    return f"`{text}`" if text else ""


def given(row: Provider) -> str:
    """Return what ``--provider`` is given, with an example of the account's place."""
    return code(",".join(filter(None, (row.name, row.place_example))))


def credential(row: Provider) -> str:
    """Return what opens a provider: the variable of its key, else the first clause of its advice; and its extra."""
    opened = code(row.key_variable) or row.advice.partition(";")[0]
    return f"{opened} (extra {code(row.extra)})" if row.extra else opened


def cells(row: Provider) -> tuple[str, ...]:
    """Return the cells of a provider, in the order of ``HEAD``."""
    apis = [name for name, client in APIS.items() if client == row.client]
    return (
        given(row), ", ".join(map(code, apis)), credential(row), code(row.schema_as),
        code(row.limits_told) or "refusals", "yes" if row.batches else "", code(row.price_id), ", ".join(row.tested),
    )  # fmt: skip


def table(rows: Iterable[Provider]) -> str:
    """Return the table as Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replaced(page: str, text: str) -> str:
    """Return the page with the text between its markers. Raise ``ValueError`` if a marker is missing or repeated."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs {BEGIN!r} and {END!r}, once each and in this order")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def present(page: str) -> str:
    """Return the page with the table of the present registry."""
    return replaced(page, table(PROVIDERS[name] for name in named()))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(present(path.read_text()))
