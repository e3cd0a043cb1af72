"""A results file whose rows were changed between two runs, by a disk or a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.files.errors import SinkError
from actors.files.sinks.jsonl_sink import FileSink
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from cortex.values.limits import Limits
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, reply, rows


@pytest.mark.parametrize("changed", [False, True])
async def test_a_run_does_not_go_on_in_a_file_whose_rows_were_changed(tmp_path: Path, changed: bool) -> None:
    path, limits, folder = tmp_path / "out.jsonl", Limits(concurrency=2), StateFolder(tmp_path / "st")
    stops = FunctionModel(lambda body: reply("ok") if len(stops.complete) < 5 else None)

    def run(own: bool, model: FunctionModel) -> Run:
        made = Run(tmp_path / "st", model, source=ListSource(rows(12)), sink=FileSink(str(path)), limits=limits)  # type: ignore[arg-type]
        made.driver._own = own
        return made

    await run(False, stops).crash_after(lambda: len(stops.complete) > 4 and last_state(folder, "j").written_rows > 0)
    k = last_state(folder, "j")
    assert k.written_rows and k.written_checksum >= 0
    found = bytearray(path.read_bytes())
    found[k.written_bytes // 2] ^= changed
    path.write_bytes(found)
    if changed:
        with pytest.raises(SinkError, match="is not as this job left it"):
            await run(True, FunctionModel()).to_end()
        assert path.read_bytes() == found
    else:
        assert (await run(True, FunctionModel()).to_end()).facts["outcome"] == "complete"
        assert path.read_bytes().count(b"\n") == 12
