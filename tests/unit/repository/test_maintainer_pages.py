"""Tests of the pages for maintainers: names that they cite exist, and the map of packages is the import contract."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.citations import STATE, errors, exists
from tests.support.repository_rules import PACKAGES, ROOT

PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
MAP = (ROOT / "docs" / "architecture.md").read_text()
GLOSSARY_TERMS_MAX = 60


@pytest.mark.parametrize("page", PAGES)
def test_each_name_of_a_page_exists(page: str) -> None:
    assert errors(page, (ROOT / page).read_text()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("`actors.no_such_module`", "no such module or name"),
        ("`cortex.loop.step.no_such_function`", "no such module or name"),
        ("`cortex.loop.step.step.inner`", "no such module or name"),
        ("`actors.channel.channel.Channel.no_such_method`", "no such module or name"),
        ("`docs/no-such-page.md`", "no such file"),
        ("`tests/unit/test_no_such.py`", "no such file"),
        ("a line\nwith `make no-such-target`", "no such target of the Makefile"),
        ("`k.no_such_field`", "no such field of K"),
        ("`NoSuchClass`", "no such class"),
        ("`Journal.no_such_method`", "Journal has no no_such_method"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, problem: str) -> None:
    (error,) = errors("a.md", text)
    assert error.endswith(problem)


@pytest.mark.parametrize(
    "text",
    [
        "`cortex.loop.step.step`", "`cortex.loop`", "`actors.channel.channel.Channel._turn`", "`cortex.state.state.State.goals`",
        "`tests/support/state_machine_harness.py`", "`docs/`", "`Makefile`", "`make test`", "`k.goals`", "`Journal.append`", "`AttemptFailed`", "`True`",
        "`cortex batch in.jsonl -o out.jsonl`", "`https://example.org/a`", "```sh\n`no/such/file.py`\n```",
    ],
)  # fmt: skip
def test_names_that_exist_and_other_words_pass(text: str) -> None:
    assert errors("a.md", text) == []


def test_a_private_or_imported_name_exists_too() -> None:
    assert exists("cortex.loop.event_handlers._TAKE")
    assert exists("cortex.journal.codec.step")
    assert not exists("cortex.journal.codec.no")


# ------------------------------------------------------------------------------------------ the architecture page


def layers_of_page(package: str, text: str) -> list[set[str]]:
    """Packages below one root by layer, top to bottom, as the page lists them."""
    found: dict[int, set[str]] = {}
    for layer, name in re.findall(rf"^\| (\d+) \| `{package}\.(\w+)` \|", text, re.MULTILINE):
        found.setdefault(int(layer), set()).add(name)
    assert list(found) == list(range(1, len(found) + 1)), f"layers of {package} are numbered {list(found)}"
    return list(found.values())


def layers_of_contract(package: str) -> list[set[str]]:
    """Packages below one root by layer, as the import contract lists them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == [package])
    return [set(map(str.strip, re.split(r"[|:]", line))) for line in layers]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_lists_each_package_in_the_layers_of_the_contract(package: str) -> None:
    assert layers_of_page(package, MAP) == layers_of_contract(package)


def test_a_package_missing_or_in_another_layer_is_found() -> None:
    assert layers_of_page("cortex", MAP.replace("| 3 | `cortex.loop` |", "| 4 | `cortex.loop` |")) != layers_of_contract("cortex")
    assert layers_of_page("cortex", MAP.replace("| 3 | `cortex.loop` |", "| 3 | `cortex.no` |")) != layers_of_contract("cortex")


def test_each_field_of_k_has_its_group_once() -> None:
    from cortex.state.state import State

    rows = re.findall(r"^\| [\w ]+ \| (`k\.[^|]*) \|", MAP, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`k\.(\w+)`", row)]
    assert sorted(named) == sorted({*State.__struct_fields__, *_of_the_class()})


def _of_the_class() -> set[str]:
    """Class attributes of K: no part of K, and written in the table all the same."""
    from cortex.state import state

    return {name for name in state.State.__annotations__ if exists(f"{STATE}.{name}")} - set(state.State.__struct_fields__)


def test_the_glossary_is_short_and_in_order() -> None:
    terms = re.findall(r"^\| ([^|]+) \| ", MAP.partition("## Glossary")[2], re.MULTILINE)[1:]
    assert 40 <= len(terms) <= GLOSSARY_TERMS_MAX
    assert terms == sorted(terms, key=str.casefold)
    assert len(set(terms)) == len(terms)
