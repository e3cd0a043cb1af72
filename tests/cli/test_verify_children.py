"""``cortex verify``: the journals of child jobs that a job began must be there, and must be its own."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.cli_runner import requests


def test_a_childs_journal_that_is_gone_or_exchanged_is_told(cortex):
    requests(Path("in.jsonl"), 40)
    given = ("--model", "sim", "--shards", "2", "--job", "a")
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", *given).code == 0
    assert cortex("fork", "a", "--job", "b", "--at", "2", "-o", "b.jsonl").code in (0, 2)
    whole = cortex("verify", "a")
    assert whole.code == 0 and "a~" in whole.out
    jobs = Path(os.environ["CORTEX_STATE"], "jobs")
    one, other = sorted(each for each in jobs.glob("a~*.sqlite"))
    for name, to in ((one, jobs / "x"), (other, one), (jobs / "x", other)):
        name.rename(to)
    done = cortex("verify", "a")
    assert done.code == 1 and done.err.count("its journal is that of the job") == 2
    assert "its journal is that of the job" in cortex("results", "a").err
    for name, to in ((one, jobs / "x"), (other, one), (jobs / "x", other)):
        name.rename(to)
    one.unlink()
    done = cortex("verify", "a")
    assert done.code == 1
    assert f"the journal of its child job {one.stem} is missing; bring back a backup" in done.err
    assert cortex("rm", "a").code == 0
