"""Every ready program asked of the real small model: to an answer, or to a typed and labelled end; said beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cortex
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.providers.local import model as local
from actors.providers.local.model import LocalModelServer, local_model
from tests.support.program_cases import BY_NAME

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(not local.installed(), reason="the extra `local` is not installed"),
]
BOUNDS = {"prompt_tokens_max": 900, "max_output_tokens": 40, "deadline": "+4m"}
"""Within which it must come to its end."""
LONG = {
    **dict.fromkeys(("flow", "recovery", "rlm"), pytest.mark.long),
    **dict.fromkeys(("chatloop", "convex", "hanoi", "ralph"), pytest.mark.release),
}
"""Ten seconds and more on two busy cores, and those that tell little more."""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalModelServer]:
    with LocalModelServer() as started:
        yield started


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LONG[name]) if name in LONG else name for name in BY_NAME]
)
def test_the_small_model_comes_to_the_end_that_is_expected(
    name: str, server: LocalModelServer, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    system = BY_NAME[name]
    done = cortex.run(
        (system.local or system.made)(tmp_path), job=name, model=local_model(server), cluster="inline", state=str(tmp_path / "state"),
        progress=False, **BOUNDS, max_job_tokens=system.local_tokens,
    )  # fmt: skip
    tell(f"{name}: {done.outcome}, {done.calls} calls, failed attempts {done.failures}, {done.why or 'answered'}"[:300])
    k = last_state(StateFolder(tmp_path / "state"), name)
    assert k.ledger.output_tokens > 0, "no real reply is in the journal"
    if system.local_end == "answer":
        assert done.outcome == "complete" and done.answer is not None, done
    else:
        assert done.outcome in ("failed", "partial"), done
        assert done.why.startswith(f"{system.local_end}: "), done
