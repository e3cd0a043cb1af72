"""Every command and snippet of the README and of docs/ is run as it stands, and its links lead somewhere.

The shell is a real one, its ``cortex`` and ``python`` start quickly (``tests.support.warm_cli``). Where a page names a provider's
model, the environment leads its calls to a simulated one over HTTP, so that neither a key nor a network is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.cli_runner import requests, started
from tests.cli.table_files import table
from tests.support import warm_cli
from tests.support.doc_pages import Block, anchors, blocks, like, links, pages, run
from tests.support.patience import PATIENCE_S

PAGES = pages()
BLOCKS = {page: blocks(page, text) for page, text in PAGES.items()}
LEFT_OUT = {
    "CONTRIBUTING.md": ["installs packages", "needs a checkout", "needs a checkout"],
    "README.md": ["installs packages"],
    "docs/clusters.md": ["needs a cluster", "needs a cluster", "needs a cluster"],
    "docs/jobs.md": ["needs a database"],
    "docs/observing.md": [
        "needs a container engine",
        "installs packages; `make e2e` does it", "serves until a signal comes",
        "needs Kubernetes",
        "needs Kubernetes",
        "changes the checkout",
        "needs an Alertmanager",
        "needs jq",
    ],
    "docs/providers.md": [
        "needs an account at a cloud",
        "needs accounts at two providers",
        "needs an account at Azure",
        "needs accounts at two clouds",
        "needs a model server",
        "needs a gateway",
    ],
    "docs/runbook.md": ["needs Kubernetes", "needs an Alertmanager", "needs an Alertmanager"],
    "docs/schedules.md": ["needs Kubernetes"],
    "docs/tables.md": ["needs a bucket"],
    "docs/tutorial.md": ["installs packages"],
}
"""What no test can do, and why: no more than this is left out."""
SLOW = {
    "docs/limits.md": ["a batch is looked after every few seconds"],
    "docs/observing.md": ["waits for a collector that is not there"],
    "docs/tutorial.md": ["a model of 135 million parameters on two cores"],
}
"""What `make e2e` does, and why."""
ALONE = "docs/observing.md"
"""Each of its blocks is for another receiver: what one exports does not hold for the next."""
TABLE = "tutorial.md#a-table"
"""A page that links to this stands on the table that is made there."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a reader: our commands on the PATH, a key, and a provider on this machine."""
    folder = tmp_path_factory.mktemp("road")
    with warm_cli.served(folder) as commands, started("simulate", "--port", "0", "-s", "error=0") as provider:
        assert provider.stdout is not None
        address = re.search(r"http://\S+", provider.stdout.readline())
        assert address
        own = {name: value for name, value in os.environ.items() if not name.startswith("CORTEX_")}
        yield {
            **own,
            "ANTHROPIC_API_KEY": "sk-ant-api03-of-a-test",
            "ANTHROPIC_BASE_URL": address[0].rstrip("/"),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "COLUMNS": "110",
            "NO_COLOR": "1",
        }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(page: str, shell: dict[str, str], tmp_path: Path) -> None:
    here, outputs = tmp_path / "here", tmp_path / "outputs"
    here.mkdir()
    outputs.mkdir()
    table(here / "tickets.csv", 6)  # what a reader has: rows, and requests
    requests(here / "requests.jsonl", 6)
    before = (
        [block for block in BLOCKS["docs/tutorial.md"] if block.heading == "A table"] if TABLE in PAGES[page] else []
    )
    wrong = run([*before, *BLOCKS[page]], here, outputs, shell, timeout_s=PATIENCE_S, alone=page == ALONE)
    assert not wrong, "\n\n".join(wrong)


def test_what_is_left_out_is_known(tell: Callable[[str], None]) -> None:
    left_out = {page: [block.left_out for block in each if block.left_out] for page, each in BLOCKS.items()}
    slow = {page: [block.slow for block in each if block.slow] for page, each in BLOCKS.items()}
    ran = [
        block for each in BLOCKS.values() for block in each
        if block.language in ("sh", "python") and not block.left_out and not block.slow
    ]  # fmt: skip
    lines = [f"{page}: {reason}" for page, reasons in left_out.items() for reason in reasons]
    tell("\n".join([f"{len(ran)} blocks of commands and programs are run; not these:", *lines]))
    assert {page: reasons for page, reasons in left_out.items() if reasons} == LEFT_OUT
    assert {page: reasons for page, reasons in slow.items() if reasons} == SLOW
    assert len(ran) > 40


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    from tests.support.repository_rules import ROOT

    for target, path, anchor in links(page, PAGES[page]):
        assert (ROOT / path).exists(), target
        assert not anchor or anchor in anchors((ROOT / path).read_text()), target


def test_every_page_is_reached_from_the_first() -> None:
    reached, open_ = set(), ["README.md"]
    while open_:
        page = open_.pop()
        if page in PAGES and page not in reached:
            reached.add(page)
            open_ += [path for _, path, _ in links(page, PAGES[page])]
    assert reached == set(PAGES)


def test_the_first_page_is_short_and_so_is_its_program() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 72
    (program,) = [block for block in BLOCKS["README.md"] if block.language == "python"]
    assert len(program.text.splitlines()) <= 20


# ------------------------------------------------------------------------------------- that it can fail


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```sh\ntrue\nfalse\ntrue\n```\n", "a.md:1 fails"),
        ("```sh\ntrue\n```\n\n```sh\ncortex batc x\n```\n", "No such command 'batc'"),
        ("```sh\ncortex jobs --nope\n```\n", "No such option: --nope"),
        ("```python\nimport cortex\ncortex.nope\n```\n", "AttributeError"),
        ("```sh\ncortex jobs | cat\ncortex status nope | cat\n```\n", "no job 'nope'"),
        ("```sh\necho 3 rows\n```\n\n```text\n4 rows\n```\n", "and this comes:\n3 rows"),
        ("```sh\necho a; echo b\n```\n\n```text\na\n```\n", "and this comes"),
        ("```python\n# a.py\nprint(1)\n```\n\n```sh\npython a.py\n```\n\n```text\n2\n```\n", "and this comes:\n1"),
    ],
)  # fmt: skip
def test_a_broken_page_is_found(text: str, words: str, shell: dict[str, str], tmp_path: Path) -> None:
    here, outputs = tmp_path / "here", tmp_path / "outputs"
    here.mkdir()
    outputs.mkdir()
    wrong = run(blocks("a.md", text), here, outputs, shell, timeout_s=PATIENCE_S)
    assert len(wrong) == 1
    assert words in wrong[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```bash\ntrue\n```\n", "a block of bash"),
        ("```sh skip\ntrue\n```\n", "what does 'skip' mean"),
        ("```text\na\n```\n", "behind what writes it"),
        ("```sh\ntrue\n", "not closed"),
    ],
)
def test_a_fence_that_says_nothing_known_is_found(text: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        blocks("a.md", text)


@pytest.mark.parametrize(
    ("shown", "said", "about", "same"),
    [
        ("a\n…\nd", "a\nb\nc\nd\n", False, True),
        ("a …, $0.12", "a b c, $0.31\n", False, False),
        ("a …, $0.12", "a b c, $1,231\n", True, True),
        ("a  b", "a      b", False, True),
        ("a", "a\nb\n", False, False),
        ("…", "", False, True),
    ],
)
def test_what_is_shown_is_compared(shown: str, said: str, about: bool, same: bool) -> None:
    assert like(shown, said, about) is same


def test_what_stands_in_a_page() -> None:
    found = blocks(
        "a.md", "# A b!\n\n```python\n# x.py\n1\n```\n\n```sh not-run: why\nls\n```\n\n```text about\nc\n```\n"
    )
    assert found == [
        Block("a.md", 3, "python", "", "# x.py\n1\n", heading="A b!"),
        Block("a.md", 8, "sh", "not-run: why", "ls\n", shown="c\n", about=True, heading="A b!"),
    ]
    assert (found[0].file, found[1].left_out) == ("x.py", "why")
    assert anchors("# A b, c!\n```sh\n# no\n```\n## `D`-e\n") == {"a-b-c", "d-e"}
