"""``drain --all``, ``drain --node NAME --within TIME`` and ``down``: a cluster, or a node of it, is emptied."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from actors.cli.jobs.settings import shared_cluster
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.errors import COMPLETE, FAILED, say
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.units import duration_s
from actors.jobs.spec import who
from actors.ports.runtime import Away, ClusterError, Gone

HERE = "here"
"""The node that the command itself runs on."""
LOOK_S = 0.2
HEARD_S = 10.0
"""How long a driver may take to write what its job had, once the job rests."""
CLOSE_S = 5.0
_SAID = {
    "running": "still has something in flight", "partial": "rests, and can be resumed",
    "let go": "rests, and can be resumed",
}  # fmt: skip
_ROUNDS = 5
"""An actor that was just being started may appear after its name was looked for."""


def seconds(within: str) -> float:
    """The patience that ``--within`` gives; without it there is no end. Raises ``CommandError``."""
    try:
        return duration_s(within) if within else float("inf")
    except ValueError as error:
        raise CommandError(f"--within: {error}") from None


def cluster_meant(options: Options, what: str) -> str:
    """The cluster's address. Raises ``CommandError`` where none is meant."""
    if cluster := shared_cluster(options):
        return cluster
    raise CommandError(f"{what} are a cluster's: give --cluster ADDRESS, or set RAY_ADDRESS")


def drain_all(within: str, options: Options) -> int:
    """``cortex drain --all``; the exit code: 0 when all jobs of the cluster rest."""
    return _carried_out(cluster_meant(options, "all jobs"), options, seconds(within), _drained)


def drain_node(node: str, within: str, options: Options) -> int:
    """``cortex drain --node here``, or ``--node NAME --within TIME``; the exit code: 0 when nothing of ours is there.

    Without ``--within`` it is not waited for.
    """

    async def emptied(runtime: Any, until_s: float) -> tuple[int, dict[str, Any]]:
        return await _emptied(runtime, runtime.node() if node == HERE else node, until_s, bool(within))

    return _carried_out(cluster_meant(options, "nodes"), options, seconds(within), emptied)


def down(within: str, options: Options) -> int:
    """``cortex down``; the exit code: 0 when nothing of ours is left in the cluster."""
    return _carried_out(cluster_meant(options, "actors"), options, seconds(within), _ended)


def _carried_out(cluster: str, options: Options, patience_s: float, work: Callable[[Any, float], Any]) -> int:
    async def carry_out() -> int:
        from actors.runtime.ray_runtime import start_runtime

        runtime = await start_runtime(cluster, taken_environ(), begin=False)
        try:
            code, facts = await work(runtime, time.monotonic() + patience_s)
        finally:
            await runtime.close()
        if options.as_json:
            print(msgspec.json.encode({"cluster": cluster, **facts}).decode(), flush=True)
        return int(code)

    return asyncio.run(carry_out())


# -- jobs ----------------------------------------------------------------------------------------------------------


async def _drained(runtime: Any, until_s: float) -> tuple[int, dict[str, Any]]:
    """All jobs finish what is in flight, and rest."""
    names = [name for name in await runtime.names("channel:") if "~" not in name]
    found = await asyncio.gather(*(_rested(runtime, name, until_s) for name in names))
    jobs = [{"job": name.partition(":")[2], "outcome": outcome} for name, outcome in zip(names, found, strict=True)]
    for each in jobs:
        say(f"job {each['job']} {_SAID.get(each['outcome'], 'is ' + each['outcome'])}")
    if not jobs:
        say("no job runs there")
    return FAILED if "running" in found else COMPLETE, {"jobs": jobs}


async def _rested(runtime: Any, name: str, until_s: float) -> str:
    """Have a job rest; how it stands when it does, or when the time is over."""
    peer = runtime.peer(name)
    outcome = "running"
    try:
        await peer.ask("stop", "drain", who())
        while True:
            outcome = str(msgspec.json.decode(await peer.ask("status"))["outcome"])
            if outcome != "running" or time.monotonic() > until_s:
                return outcome
            await asyncio.sleep(LOOK_S)
    except (Away, Gone):  # its driver let it go
        return "let go" if outcome == "running" else outcome


# -- a node --------------------------------------------------------------------------------------------------------


async def _emptied(runtime: Any, node: str, until_s: float, waits: bool) -> tuple[int, dict[str, Any]]:
    """Nothing more goes to a node; what is in flight there is finished, and its branches and workers are gone."""
    if not await runtime.names("cortex"):
        say("no cortex runs there: nothing to drain")
        return COMPLETE, {"node": node, "left": []}
    cortex = runtime.peer("cortex")
    try:
        await cortex.ask("drain", who(), node)
        if not waits:
            say(f"node {node} drains: what is in flight there is finished, nothing new begins")
            return COMPLETE, {"node": node, "left": _of(node, await cortex.ask("status"))}
        while left := _of(node, await cortex.ask("status")):
            if time.monotonic() > until_s:
                say(f"node {node} still has {', '.join(left)}")
                return FAILED, {"node": node, "left": left}
            await asyncio.sleep(LOOK_S)
    except ValueError as error:  # a node that it has not seen has nothing of ours
        raise CommandError(str(error)) from None
    except (Away, Gone):
        raise ClusterError("the cortex does not answer now: try again") from None
    say(f"node {node} is empty, and gets nothing more")
    return COMPLETE, {"node": node, "left": []}


def _of(node: str, status: dict[str, Any]) -> list[str]:
    return sorted(name for name, one in status["staff"].items() if one["node"] == node)


# -- all of it -----------------------------------------------------------------------------------------------------


async def _ended(runtime: Any, until_s: float) -> tuple[int, dict[str, Any]]:
    """All jobs rest, then every actor of ours ends, and what we noted in the cluster is removed. Journals stay."""
    _, facts = await _drained(runtime, until_s)
    heard_s = time.monotonic() + HEARD_S
    while await runtime.names("channel:") and time.monotonic() < min(until_s, heard_s):  # noqa: ASYNC110 - elsewhere
        await asyncio.sleep(LOOK_S)
    ended: set[str] = set()
    for _ in range(_ROUNDS):
        names = await runtime.names("")
        if not names:
            break
        ended.update(names)
        if "cortex" in names:  # first: it would start again what ends
            await _end(runtime, "cortex")
        await asyncio.gather(*(_end(runtime, name) for name in names if name != "cortex"))
    left = list(await runtime.names(""))
    runtime.notes.clear()
    say(f"{len(ended - {*left})} actors of the cluster ended; journals and results stay where they are")
    if left:
        say(f"still there: {', '.join(left)}")
    return FAILED if left else COMPLETE, {**facts, "ended": sorted(ended - {*left}), "left": left}


async def _end(runtime: Any, name: str) -> None:
    with contextlib.suppress(Exception):  # whatever it answers, it ends
        await asyncio.wait_for(runtime.peer(name).ask("close"), CLOSE_S)
    await runtime.kill_actor(name)
