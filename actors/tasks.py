"""A channel's errands: tools run on workers, child jobs run by channels of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from actors.opening import Opening, this_owner
from actors.ports import Away, ClusterError, Gone, Runtime
from actors.store import StoreError
from cortex import commands, events
from cortex.limits import Terms
from cortex.state import State
from policies.failure import Failure, FailureKind

CHILD_LOOK_S = 0.5
"""How long one look at a child job waits for news."""


def child_name(job: str, goal: int) -> str:
    """The child job that answers a goal; ``~`` stands in no name that a user can give."""
    return f"{job}~{goal}"


class Errands:
    """Begins errands and puts what came of them into the inbox."""

    def __init__(
        self, job: str, folder: str, runtime: Runtime, put: Callable[[list[events.Event]], None]
    ) -> None:
        self._job = job
        self._folder = folder
        self._runtime = runtime
        self._put = put
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unarmed: dict[str, tuple[str, ...]] = {}
        self.workers: tuple[str, ...] = ()

    def unarmed(self) -> set[str]:
        """Branches that hold no credential for a child job: it has the driver of its parent, and no other."""
        return {branch for branches in self._unarmed.values() for branch in branches}

    def begin(self, command: commands.RunTool | commands.Launch, k: State) -> None:
        """Start an errand; its event follows."""
        if isinstance(command, commands.RunTool):
            work = self._tool(command, k.terms)
        else:
            work = self._child(command, k.terms)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop waiting. A child job has its own journal and is joined again by its name."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tool(self, command: commands.RunTool, terms: Terms) -> None:
        self._turn += 1
        worker = self._runtime.peer(self.workers[self._turn % len(self.workers)] if self.workers else "worker:0")
        arguments = msgspec.msgpack.encode(command.arguments)
        failure: Failure | None = None
        value: Any = None
        read_at_s = self._runtime.now_s()
        try:
            blob = await worker.ask(
                "run", terms.program, terms.params_json, command.tool, arguments, command.key, command.timeout_s
            )
            value, read_at_s, failure = msgspec.msgpack.decode(blob, type=tuple[Any, float, Failure | None])
        except (Away, Gone):
            failure = Failure(FailureKind.LOST, f"effect unknown: the worker that ran {command.tool} died")
        self._put([events.Observed(command.goal, command.attempt, value, read_at_s, failure)])

    async def _child(self, command: commands.Launch, parent: Terms) -> None:
        name = child_name(self._job, command.goal)
        event: events.Returned | None = None
        while event is None:
            try:
                await self._open_child(name, command, parent)
                event = await self._returned(name, command)
            except (Away, Gone):  # whoever it needs is being started again: it is joined by its name
                await asyncio.sleep(CHILD_LOOK_S)
            except (StoreError, ClusterError, ValueError) as error:
                failure = Failure(FailureKind.FAULTY, str(error))
                event = events.Returned(command.goal, command.attempt, None, failure=failure)
        self._unarmed.pop(name, None)
        self._put([event])

    async def _open_child(self, name: str, command: commands.Launch, parent: Terms) -> None:
        limits = msgspec.structs.replace(
            parent.limits, max_cost_nusd=command.max_cost_nusd, max_job_tokens=command.max_job_tokens
        )
        terms = msgspec.structs.replace(
            parent, job=name, program=command.program, params_json=command.params_json, limits=limits, streams=False,
            fingerprint=self._runtime.fingerprint(command.program, command.params_json), places={},
        )  # fmt: skip
        self._runtime.share_program(command.program)
        peer = await self._runtime.start_actor("channel", f"channel:{name}", name, self._folder)
        opening = Opening(terms=terms, owner=this_owner("child"), who=f"job {self._job}")
        await peer.ask("start", msgspec.msgpack.encode(opening))

    async def _returned(self, name: str, command: commands.Launch) -> events.Returned:
        """Wait for the child's end, however often its channel is started again meanwhile. Raises ``Gone``."""
        peer = self._runtime.peer(f"channel:{name}")
        while True:
            try:
                await peer.ask("results", 1 << 60, CHILD_LOOK_S)
                facts = msgspec.json.decode(await peer.ask("status"))
                self._unarmed[name] = tuple(facts["unarmed"])
                if facts["outcome"] == "running" and not facts["broken"]:
                    continue
                answer = msgspec.json.decode(await peer.ask("answer"))
                break
            except Away:
                await asyncio.sleep(CHILD_LOOK_S)
        failure = None
        if facts["outcome"] != "complete":
            kind = FailureKind.OVER_BUDGET if "over_budget" in facts["why"] else FailureKind.FAULTY
            failure = Failure(kind, f"child job {name} ended {facts['outcome']}: {facts['why'] or facts['broken']}")
        await self._runtime.end_actor(f"channel:{name}")
        return events.Returned(
            command.goal, command.attempt, answer, facts["known_nusd"], facts["assumed_nusd"],
            facts["input_tokens"] + facts["cache_read_tokens"] + facts["cache_creation_tokens"],
            facts["output_tokens"], failure,
        )  # fmt: skip
