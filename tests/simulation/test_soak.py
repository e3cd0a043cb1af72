"""A soak that is stopped: its workers end with it, and it tells how far it came."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.support.repository_rules import ROOT

ENDED_S = 240.0
"""Seconds after which a worker counts as left behind: on a busy machine it takes long to end the world that it is at. One
that is left behind would go on for thousands of worlds."""
SCRIPT = """
import sys
from tests.simulation import soak

if __name__ == "__main__":
    soak.LOOK_EVERY_S = 0.0
    sys.exit(soak.soak(0, 5_000, 1))
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.long),
    ],
)
def test_no_worker_outlives_a_soak(number: signal.Signals, code: int) -> None:
    """Workers hold the output of their parent, so that its end is read when the last of them has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert "of 5000 seeds" in process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=ENDED_S)
    assert process.returncode == code
    assert "Traceback" not in err
    if number != signal.SIGKILL:
        assert re.match(r"stopped: \d+ of 5,000 seeds in \d+ s on 1 core: .* 0 failed$", out), out
