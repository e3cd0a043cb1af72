"""The blocks of the pages that take long: a real small model, message batches, a receiver that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_pages import ALONE, BLOCKS, SLOW, TABLE, shell
from tests.cli.test_pages import PAGES as TEXTS
from tests.support.doc_pages import run

__all__ = ["shell"]


@pytest.mark.parametrize("page", SLOW)
def test_a_page_runs_with_what_takes_long(page: str, shell: dict[str, str], tmp_path: Path) -> None:
    from tests.cli.cli_runner import requests

    here, outputs = tmp_path / "here", tmp_path / "outputs"
    here.mkdir()
    outputs.mkdir()
    requests(here / "requests.jsonl", 6)
    before = [block for block in BLOCKS["docs/tutorial.md"] if block.heading == "A table"] if TABLE in TEXTS[page] else []
    wrong = run([*before, *BLOCKS[page]], here, outputs, shell, timeout_s=300, alone=page == ALONE, slow=True)
    assert not wrong, "\n\n".join(wrong)
