"""Branch between a fake cortex and a fake channel, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from actors.branch.branch import Branch
from actors.messaging.report_sender import REPORT_S
from actors.ports.runtime import PeerUnavailable
from actors.routing.model_factory import ConnectionSpec, encode, lend
from cortex.journal import codec
from cortex.scheduler.reports import BreakerStanding, ProgressReport, ReportAnswer, RouteSignals
from cortex.state import commands, events
from policies.limits.limit import RateLimits
from tests.edge.support.in_process_job import body, reply
from tests.edge.support.virtual_clock import VirtualRuntime, virtually


class Model:
    """Model that answers by a function of the body's text, after ``pause_s``. With ``stubborn_s``, it ignores
    cancellation for that long.
    """

    endpoint = "test"
    rate: RateLimits | None = None

    def __init__(
        self, answer: Callable[[str], Any] = lambda _: reply("ok"), pause_s: float = 0.0, stubborn_s: float = 0.0
    ) -> None:
        self.answer, self.pause_s, self.stubborn_s = answer, pause_s, stubborn_s
        self.asked: list[str] = []
        self.counting_s = 0.0
        self.closed = False

    async def call(self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Any = None) -> Any:
        text = msgspec.json.decode(body)["messages"][0]["content"]
        self.asked.append(text)
        try:
            await asyncio.sleep(self.pause_s)
        except asyncio.CancelledError:
            if not self.stubborn_s:
                raise
            await asyncio.sleep(self.stubborn_s)
        return self.answer(text)

    async def count_tokens(self, body: bytes) -> int | None:
        await asyncio.sleep(self.counting_s)
        return 5

    async def close(self) -> None:
        self.closed = True


class Cortex:
    """Fake cortex that records reports. The next ``deaf`` reports fail."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, ProgressReport]] = []
        self.deaf = 0
        self.wanted_s = REPORT_S
        self.incarnation = "cortex/1"
        self.breakers: tuple[BreakerStanding, ...] | None = ()
        """Breakers that the next answers tell of."""

    async def report(self, blob: bytes) -> bytes:
        self.reports.append((asyncio.get_running_loop().time(), msgspec.msgpack.decode(blob, type=ProgressReport)))
        if self.deaf:
            self.deaf -= 1
            raise PeerUnavailable("cortex")
        return msgspec.msgpack.encode(ReportAnswer(self.wanted_s, self.incarnation, self.breakers))

    async def close(self) -> None:
        pass


class Channel:
    """Fake channel that records events."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Any]] = []

    async def deliver(self, sender: str, incarnation: str, blob: bytes) -> None:
        self.heard += [(asyncio.get_running_loop().time(), event) for event in codec.decode_batch(blob)]

    async def close(self) -> None:
        pass

    def kinds(self) -> list[str]:
        return [_kind(event) for _, event in self.heard]


def _kind(event: Any) -> str:
    if isinstance(event, events.AttemptFailed):
        return str(event.failure.kind)
    return "answered" if isinstance(event, events.Answered) else "given back"


class Scene:
    """Branch between a cortex and a channel, on virtual time."""

    def __init__(self, *models: Model) -> None:
        self.models = models or (Model(),)
        self.runtime = VirtualRuntime()
        self.cortex, self.channel = Cortex(), Channel()
        self.runtime._actors |= {"cortex": self.cortex, "channel:j": self.channel}
        self.branch = Branch("branch:0", self.runtime, self._made)
        self.number = 0

    def _made(self, blob: bytes) -> Any:
        given = msgspec.msgpack.decode(blob, type=ConnectionSpec).given
        return next(model for model in self.models if id(model) == given)

    async def arm(self) -> None:
        own, *others = (
            ConnectionSpec(endpoint="test", given=lend(model), route_name=f"r{place}", pool_name=f"p{place}")  # type: ignore[arg-type]
            for place, model in enumerate(self.models)
        )
        await self.branch.set_credential("j", encode(msgspec.structs.replace(own, fallbacks=tuple(others))))

    async def send(self, *calls: commands.Call) -> str:
        text, _ = await self.ask(*calls, waits=False)
        return text

    async def ask(
        self, *calls: commands.Call, on_disk: int = 0, waits: bool = True
    ) -> tuple[str, tuple[events.Event, ...]]:
        """Send calls to the branch; return its answer, and the events sent with it."""
        self.number += 1
        message = msgspec.msgpack.encode(calls)
        answer = await self.branch.work("j", 1, self.branch.incarnation, self.number, message, (), on_disk, waits)
        return (answer, ()) if isinstance(answer, str) else (answer[0], codec.decode_batch(answer[1]))

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def signals(self) -> list[RouteSignals]:
        return [signals for _, report in self.cortex.reports for signals in report.routes]


def call(goal: int, text: str = "hi", *, timeout_s: float = 10.0, route: int = 0, generation: int = 0) -> commands.Call:
    return commands.Call(goal, "0", 1, b"h" * 16, body(text), 8, 10_000, timeout_s, route, generation)


def on_stage(play: Callable[[Scene], Any], *models: Model) -> None:
    """Run a test on virtual time; assert that nothing waits at the end."""

    async def whole() -> None:
        scene = Scene(*models)
        await scene.arm()
        await play(scene)
        await scene.branch.close()
        await scene.runtime.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtually(whole())
