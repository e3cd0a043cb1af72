"""No ready program ever sends a prompt over M: the simulated provider counts, and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import cortex
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex.programs import READY
from tests.support.program_cases import BY_NAME, SYSTEMS

REPLY_TOKENS = 512


@pytest.mark.parametrize("name", BY_NAME)
def test_the_largest_prompt_ever_sent_is_within_m(name: str, tmp_path: Path) -> None:
    system = BY_NAME[name]
    model = SimulatedModel(SimulatorSettings(error=0, context_window=system.prompt_tokens_max + REPLY_TOKENS))
    done = cortex.run(
        system.made(tmp_path), model=model, cluster="inline", state=str(tmp_path / "state"), progress=False,
        prompt_tokens_max=system.prompt_tokens_max, max_output_tokens=REPLY_TOKENS,
    )  # fmt: skip
    assert (done.outcome, done.why) == ("complete", ""), done
    assert system.right(done.answer, done.rows), done
    tally = model.provider.tally
    assert tally.prompts_too_long == 0
    assert 0 < tally.largest_prompt_tokens <= system.prompt_tokens_max


def test_every_ready_program_is_among_them() -> None:
    """``batch`` and ``table`` have their rows from the user, and their own tests everywhere."""
    assert {*READY} - {"batch", "embed", "table"} <= {system.name for system in SYSTEMS}
