"""A worker runs the tools of programs. It never calls a model and holds no secret."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import msgspec

from actors.ports import Runtime
from cortex.transitions import plain
from policies.failure import Failure, FailureKind


class Worker:
    """Runs each tool in a thread of its own, so that a slow one holds up nobody."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.incarnation = runtime.incarnation(name)
        self._runtime = runtime
        self._running = 0

    @property
    def busy(self) -> bool:
        """Whether it runs a tool."""
        return self._running > 0

    async def run(
        self, program: str, params_json: bytes, tool: str, arguments: bytes, key: str, timeout_s: float
    ) -> bytes:
        """Run one tool: its value, when it was read, and how it failed, if it did; msgpack.

        A tool with a parameter named ``idempotency_key`` gets the call's id, so that a repeated run can be recognised.
        """
        read_at_s = self._runtime.now_s()
        value: Any = None
        failure: Failure | None = None
        self._running += 1
        try:
            function = self._runtime.load_program(program, params_json, key.partition("/")[0]).tools[tool]
            given = msgspec.msgpack.decode(arguments, type=dict[str, Any])
            if "idempotency_key" in inspect.signature(function).parameters:
                given["idempotency_key"] = key
            value = plain(await asyncio.wait_for(asyncio.to_thread(function, **given), timeout_s))
        except KeyError:
            failure = Failure(FailureKind.FAULTY, f"the program has no tool {tool!r}")
        except TimeoutError:
            failure = Failure(FailureKind.TIMED_OUT, f"effect unknown: {tool} ran for more than {timeout_s:.0f} s")
        except Exception as error:  # an author's tool may raise anything
            failure = Failure(FailureKind.FAULTY, f"the tool {tool} raised {type(error).__name__}: {error}")
        finally:
            self._running -= 1
        return msgspec.msgpack.encode((value, read_at_s, failure))

    async def beat(self, job: str) -> dict[str, Any]:
        """Signs of life."""
        return {"incarnation": self.incarnation, "phase": "idle", "armed": True}

    async def close(self) -> None:
        """Nothing to let go of."""
