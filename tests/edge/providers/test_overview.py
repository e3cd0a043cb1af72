"""Page of providers: its table is that of the registry, and says nothing that the code does not do."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from actors.providers import overview
from actors.providers.chat_completions import rate_limit_headers as chat
from actors.providers.messages import rate_limit_headers as messages
from actors.providers.registry import (
    CHAT_CLIENT,
    MESSAGES_CLIENT,
    PROVIDERS,
    RESPONSES_CLIENT,
    TESTED,
    Provider,
    named,
    row_of,
)
from tests.support.repository_rules import ROOT

PAGE = ROOT / "docs" / "providers.md"
NAMED = [row_of(name) for name in named()]
READERS: dict[str, tuple[ModuleType, str]] = {
    MESSAGES_CLIENT: (messages, "requests-limit"), CHAT_CLIENT: (chat, "limit-requests"),
    RESPONSES_CLIENT: (chat, "limit-requests"),
}  # fmt: skip
"""By client: the reader of its rate limits, and the rest of a header's name behind the prefix of the table."""


def test_the_table_of_the_page_is_that_of_the_registry() -> None:
    page = PAGE.read_text()
    assert page == overview.present(page), "run python -m actors.providers.overview docs/providers.md"
    assert all(f"| `{name}" in page for name in named())


@pytest.mark.parametrize(
    "changed", [{"batches": False}, {"limits_told": ""}, {"tested": ("real",)}, {"key_variable": "K"}, {"schema_as": "tool"}]
)
def test_a_changed_row_is_found(changed: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    row = msgspec.structs.replace(row_of("anthropic"), **changed)
    monkeypatch.setitem(PROVIDERS, "anthropic", row)
    page = PAGE.read_text()
    assert page != overview.present(page)


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.name)
def test_a_row_says_how_it_is_opened_and_how_it_was_tested(row: Provider) -> None:
    assert all(overview.cells(row)[at] for at in (0, 1, 2, 3, 4, 7))
    assert row.tested and set(row.tested) <= set(TESTED)


@pytest.mark.parametrize("row", [row for row in NAMED if row.limits_told], ids=lambda row: row.name)
def test_the_headers_of_the_table_are_read(row: Provider) -> None:
    reader, rest = READERS[row.client]
    headers = {row.limits_told.replace("*", rest): "5"}
    assert reader.reports_limits(headers) and reader.rate_limits(headers).requests.limit == 5


@pytest.mark.parametrize("page", ["", overview.BEGIN, f"{overview.END}{overview.BEGIN}", PAGE.read_text() * 2])
def test_a_page_without_its_markers_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        overview.replaced(page, "")
