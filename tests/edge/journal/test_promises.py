"""DESIGN 6 and 7 on the real road: what may leave when, and whom one may believe."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.branch.branch import Branch
from actors.journal.journal import DiskFull, Journal, StateFolder, StoreError
from actors.programs import loader
from actors.routing.model_factory import ConnectionSpec, encode, lend
from actors.runtime.inline import InlineRuntime
from cortex.journal import codec
from cortex.state import commands, events
from cortex.values.limits import Limits
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, body, reply, rows
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("append", range(1, 9))
async def test_no_call_leaves_before_the_commit_that_holds_its_cause(tmp_path: Path, append: int) -> None:
    """The disk fills up at the n-th commit. Whatever was asked follows from what is on disk, and from nothing else."""
    model = FunctionModel()
    run = Run(tmp_path, model, source=ListSource(rows(60)), limits=Limits(concurrency=5, window_rows=10))
    original = Journal.append
    count = 0

    def full_at(self: Journal, blobs: Any) -> int:
        nonlocal count
        count += 1
        if count >= append:
            raise DiskFull("full")
        return original(self, blobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", full_at)
        with pytest.raises(StoreError):
            async with asyncio.timeout(PATIENCE_S):
                await run.to_end()
    source = StateFolder(tmp_path).journal("j")
    caused: list[commands.Command] = []
    turns = [turn for _, turn in source.turns()]
    if turns:
        codec.replay(None, turns, lambda terms: loader.load(terms.program, terms.params_json), caused.append)
    allowed = {command.body for command in caused if isinstance(command, commands.Call)}
    assert set(model.asked) <= allowed
    assert append < 6 or model.asked


async def test_a_stale_instruction_is_refused_and_a_doubled_one_is_taken_once(tmp_path: Path) -> None:
    model = FunctionModel(pause_s=0.001)
    runtime = InlineRuntime(lambda blob: model)
    branch = Branch("branch:0", runtime, lambda blob: model)
    await branch.set_credential("j", encode(ConnectionSpec(endpoint="test", given=lend(model))))
    call = commands.Call(1, "0", 1, b"h" * 16, body("hello"), 8, 10_000, 30.0)
    message = msgspec.msgpack.encode([call])
    assert await branch.work("j", 2, branch.incarnation, 1, message) == branch.incarnation
    assert await branch.work("j", 2, branch.incarnation, 1, message) == branch.incarnation
    assert await branch.work("j", 1, branch.incarnation, 2, message) == ""
    while not model.complete:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert len(model.asked) == 1
    await branch.close()


async def test_a_reply_is_kept_until_a_channel_has_it_on_disk(tmp_path: Path) -> None:
    """The channel is away when the reply comes, and dies once while it is told: the branch brings it again."""
    model = FunctionModel()
    runtime = InlineRuntime(lambda blob: model)
    branch = Branch("branch:0", runtime, lambda blob: model)
    runtime._actors["branch:0"] = branch
    await branch.set_credential("j", encode(ConnectionSpec(endpoint="test", given=lend(model))))
    call = commands.Call(1, "0", 1, b"h" * 16, body("hello"), 8, 10_000, 30.0)
    await branch.work("j", 1, branch.incarnation, 1, msgspec.msgpack.encode([call]))
    while not model.complete:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    assert (await branch.held("j", 1))[2] == ((1, 1),)
    taken: list[bytes] = []

    class Deaf:
        """Breaks at the first word, then takes all."""

        async def deliver(self, sender: str, incarnation: str, blob: bytes) -> None:
            taken.append(blob)
            if len(taken) == 1:
                raise StoreError("fenced")

        async def close(self) -> None:
            pass

    runtime._actors["channel:j"] = Deaf()
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < 2:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    (event,) = codec.decode_batch(taken[-1])
    assert isinstance(event, events.Answered)
    assert event.reply == reply("ok")
    async with asyncio.timeout(PATIENCE_S):
        while (await branch.held("j", 1))[2]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    await branch.close()
    await runtime.close()


async def test_an_idle_runtime_does_nothing(tmp_path: Path) -> None:
    """After the last job has ended no task is left that would wake up by itself."""
    run = await Run(tmp_path, FunctionModel(), source=ListSource(rows(5))).to_end()
    assert run.facts["outcome"] == "complete"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
