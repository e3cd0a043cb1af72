"""An order to end a job reaches its channel, however often that is restarted meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.common.process_owner import this_owner
from actors.driver import control_note
from actors.driver.control_note import ControlRequest
from actors.driver.driver import LOOK_S, ChannelLost
from actors.driver.stop_order import ANSWER_S, AWAY_PATIENCE_S
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.ports.runtime import PeerUnavailable
from cortex.values.limits import Limits
from tests.edge.support.in_process_job import FunctionModel, ListSink, ListSource, Run, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually

LIMITS = Limits(concurrency=4, window_rows=16)


class Refusing(VirtualRuntime):
    """Runtime whose channel does not take the first orders to stop. ``how`` says what becomes of these: ``refused``,
    ``hangs`` (never answered) or ``lost`` (on disk, and the answer is lost)."""

    def __init__(self, how: str, times: int) -> None:
        super().__init__()
        self.how, self.times = how, times
        self.orders: list[tuple[Any, ...]] = []
        self.gone = False
        """True while the channel is being restarted: it refuses every question."""
        self.gone_for = ""
        """Question that alone is refused."""

    def peer(self, name: str) -> Any:
        real, runtime = super().peer(name), self
        if not name.startswith("channel:"):
            return real

        class Channel:
            near = True

            def __getattr__(self, attribute: str) -> Any:
                return getattr(real, attribute)

            async def ask(self, method: str, *args: Any) -> Any:
                if runtime.gone or method == runtime.gone_for:
                    raise PeerUnavailable(name)
                if method != "stop":
                    return await real.ask(method, *args)
                runtime.orders.append(args)
                if len(runtime.orders) > runtime.times:
                    return await real.ask(method, *args)
                if runtime.how == "hangs":
                    await asyncio.Event().wait()
                if runtime.how == "lost":
                    await real.ask(method, *args)
                raise PeerUnavailable(name)

        return Channel()


def _run(folder: Path, runtime: VirtualRuntime, count: int = 4_000) -> Run:
    model = FunctionModel(pause_s=1.0)
    return Run(folder, model, source=ListSource(rows(count)), limits=LIMITS, runtime=runtime)


@pytest.mark.parametrize("how", ["refused", "hangs", "lost"])
def test_a_drain_that_the_channel_did_not_take_is_given_again_until_it_does(tmp_path: Path, how: str) -> None:
    async def drained() -> tuple[Refusing, float]:
        runtime = Refusing(how, times=3)
        run = _run(tmp_path, runtime)
        driving = asyncio.create_task(run.driver.run())
        await asyncio.sleep(5.0)
        told_s = runtime.monotonic_s()
        await run.driver.stop("drain", "ann")
        facts = await driving
        assert facts["outcome"] == "partial"
        await runtime.close()
        return runtime, runtime.monotonic_s() - told_s

    runtime, took_s = virtually(drained())
    assert took_s < (4 * ANSWER_S if how == "hangs" else 10.0)
    assert {*runtime.orders} == {("drain", "ann")}
    assert len(runtime.orders) == 4 or how == "lost"
    assert last_state(StateFolder(tmp_path), "j").stopped_by == "ann"


def test_orders_that_the_channel_has_are_not_given_again(tmp_path: Path) -> None:
    async def stopped() -> Refusing:
        runtime = Refusing("refused", times=0)
        run = _run(tmp_path, runtime)
        driving = asyncio.create_task(run.driver.run())
        await asyncio.sleep(5.25)  # its calls are under way for another 0.75 s
        await run.driver.stop("drain", "ann")
        await run.driver.stop("drain", "bob")
        await run.driver.stop("cancel", "eve")
        assert (await driving)["outcome"] == "cancelled"
        await runtime.close()
        return runtime

    assert virtually(stopped()).orders == [("drain", "ann"), ("cancel", "eve")]


@pytest.mark.parametrize(("how", "outcome"), [("drain", "partial"), ("cancel", "cancelled")])
def test_a_request_of_another_process_stays_until_the_channel_has_it(tmp_path: Path, how: str, outcome: str) -> None:
    async def obeyed() -> None:
        runtime = Refusing("refused", times=4)
        run = _run(tmp_path, runtime)
        folder = StateFolder(tmp_path)
        driving = asyncio.create_task(run.driver.run())
        await asyncio.sleep(5.0)
        assert control_note.leave(folder, "j", ControlRequest(how=how, who="bob", owner=this_owner("inline")))
        while len(runtime.orders) < 4:
            await asyncio.sleep(0.1)
            assert control_note.waits(folder, "j"), "nothing is in the journal yet"
        assert (await driving)["outcome"] == outcome
        assert not control_note.waits(folder, "j")
        await runtime.close()

    virtually(obeyed())


@pytest.mark.parametrize("away", ["stop", "all"])
def test_an_order_whose_author_went_away_holds_once_the_channel_is_back(tmp_path: Path, away: str) -> None:
    async def obeyed() -> None:
        runtime = Refusing("refused", times=10_000)
        run = _run(tmp_path, runtime)
        folder, owner = StateFolder(tmp_path), this_owner("inline")
        driving = asyncio.create_task(run.driver.run())
        await asyncio.sleep(5.0)
        runtime.gone = away == "all"
        assert control_note.leave(folder, "j", ControlRequest(how="drain", who="bob", owner=owner))
        await asyncio.sleep(45.0)
        wanted = control_note.read(folder, "j", owner)
        assert wanted is not None and wanted.taken, "its author may be told that the run keeps it"
        control_note.obeyed(folder, "j")  # its author takes it back, as it does in the end
        runtime.gone, runtime.times = False, 0
        assert (await driving)["outcome"] == "partial"
        await runtime.close()

    virtually(obeyed())
    assert last_state(StateFolder(tmp_path), "j").stopped_by == "bob"


@pytest.mark.parametrize("question_s", [0.0, 30.0])
def test_a_driver_counts_its_pauses_and_not_the_time_of_a_question(tmp_path: Path, question_s: float) -> None:
    class Away:
        asked = 0

        async def ask(self, method: str) -> None:
            self.asked += 1
            await asyncio.sleep(question_s)
            raise PeerUnavailable("channel:j")

    async def waited() -> None:
        runtime, peer = VirtualRuntime(), Away()
        begun_s = runtime.monotonic_s()
        with pytest.raises(ChannelLost, match="does not answer: cortex resume j"):
            await _run(tmp_path, runtime).driver._patiently(peer, "status")  # type: ignore[arg-type]
        assert peer.asked == 1 + AWAY_PATIENCE_S / LOOK_S
        assert runtime.monotonic_s() - begun_s == pytest.approx(AWAY_PATIENCE_S + peer.asked * question_s)
        await runtime.close()

    virtually(waited())


@pytest.mark.parametrize("away", ["question", "change"])
def test_limits_whose_author_went_away_hold_once_the_channel_is_back(tmp_path: Path, away: str) -> None:
    """Whether the run asks for news while its channel is away, or has just read the limits; and so do the next ones."""

    async def obeyed() -> None:
        runtime = Refusing("refused", times=0)
        run = _run(tmp_path, runtime, count=400)
        folder, owner = StateFolder(tmp_path), this_owner("inline")
        driving = asyncio.create_task(run.driver.run())
        await asyncio.sleep(5.0)
        if away == "question":
            runtime.gone = True
            await asyncio.sleep(5.0)
        else:
            runtime.gone_for = "set_limits"
        for limits in ({"max_failed": 7}, {"concurrency": 3}):
            assert control_note.leave(folder, "j", ControlRequest(how="set", who="bob", owner=owner, limits=limits))
            await asyncio.sleep(25.0)
            wanted = control_note.read(folder, "j", owner)
            assert wanted is not None, "nothing is in the journal yet"
            if away == "change" and limits != {"max_failed": 7}:
                continue  # the run still waits with the first ones
            assert wanted.taken, "its author may be told that the run keeps it"
            control_note.obeyed(folder, "j")  # its author takes it back, as it does in the end
        runtime.gone, runtime.gone_for = False, ""
        await driving
        assert not control_note.waits(folder, "j")
        await runtime.close()

    virtually(obeyed())
    found = last_state(StateFolder(tmp_path), "j").terms.limits
    assert (found.max_failed, found.concurrency) == (7, 3)


def test_a_drain_before_the_start_is_given_before_any_row_is_read(tmp_path: Path) -> None:
    async def begun() -> Run:
        run = _run(tmp_path, Refusing("refused", times=3))
        await run.driver.stop("drain", "ann")
        return await run.to_end()

    run = virtually(begun())
    assert (run.facts["outcome"], run.facts["position"]) == ("partial", 0)


def test_a_driver_that_failed_at_its_beginning_stops_a_channel_that_is_being_restarted(tmp_path: Path) -> None:
    class Unwritable(ListSink):
        def open(self, rows: int, size_bytes: int, own: bool) -> int:
            raise OSError("the results cannot be written")

    async def failed() -> None:
        runtime = Refusing("refused", times=3)
        run = Run(tmp_path, FunctionModel(), source=ListSource(rows(9)), sink=Unwritable(), runtime=runtime)
        with pytest.raises(OSError, match="the results cannot"):
            await run.driver.run()
        await runtime.close()

    virtually(failed())
    assert last_state(StateFolder(tmp_path), "j").outcome == "partial"
