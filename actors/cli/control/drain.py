"""``drain --all``, ``drain --node NAME --within TIME`` and ``down``: drain a cluster or one of its nodes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from logging import WARNING
from typing import Any

import msgspec

from actors.cli.jobs.resting import halt
from actors.cli.jobs.settings import named_folder, shared_cluster
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.units import duration_s
from actors.driver.stop_order import ANSWER_S, AWAY_PATIENCE_S
from actors.jobs.spec import who
from actors.journal.journal import JobEnded, StoreError
from actors.ports.runtime import ChannelNotStarted, ClusterError, ClusterLost, PeerGone, PeerUnavailable
from cortex.state.events import NODE_ENDED

HERE = "here"
"""Value of ``--node`` for the node that runs the command."""
LOOK_S = 0.2
RESULTS_S = 10.0
"""Longest wait in seconds for drivers to write their last results, once their jobs rest."""
CLOSE_S = 5.0
_STATE_TEXTS = {
    "running": "still has calls in flight", "partial": "rests, and can be resumed",
    "let go": "rests, and can be resumed", "away": "does not answer, and may still run: give the command again",
}  # fmt: skip
_ROUNDS = 5
"""Rounds of listing and ending actors. An actor that was just starting may appear after the first listing."""


def seconds(within: str) -> float:
    """Return ``--within`` in seconds; infinity if not given. Raises ``CommandError``."""
    try:
        return duration_s(within) if within else float("inf")
    except ValueError as error:
        raise CommandError(f"--within: {error}") from None


def cluster_meant(options: Options, what: str) -> str:
    """Return the address of the cluster. Raises ``CommandError`` if none is given."""
    if cluster := shared_cluster(options):
        return cluster
    raise CommandError(f"{what} need a cluster: give --cluster ADDRESS, or set RAY_ADDRESS")


def drain_all(within: str, restart: bool, options: Options) -> int:
    """Run ``cortex drain --all`` and return the exit code: 0 if all jobs of the cluster rest. ``restart``: for the end
    of this machine, not of the jobs: ``cortex tend`` here ends, and the next one continues them."""
    cluster = cluster_meant(options, "all jobs")
    if restart:
        try:
            halt(named_folder(options), time.time())
        except StoreError as error:  # the jobs must rest all the same
            print_error(str(error), level=WARNING)
    return _carried_out(cluster, options, seconds(within), partial(_drained, by=NODE_ENDED if restart else who()))


def drain_node(node: str, within: str, options: Options) -> int:
    """Run ``cortex drain --node here`` or ``--node NAME --within TIME`` and return the exit code: 0 if the node is
    empty.

    Without ``--within`` the command does not wait.
    """

    async def emptied(runtime: Any, until_s: float) -> tuple[int, dict[str, Any]]:
        return await _emptied(runtime, runtime.node() if node == HERE else node, until_s, bool(within))

    return _carried_out(cluster_meant(options, "nodes"), options, seconds(within), emptied)


def down(within: str, options: Options) -> int:
    """Run ``cortex down`` and return the exit code: 0 if no actor of Cortex is left in the cluster."""
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


async def _drained(runtime: Any, until_s: float, by: str) -> tuple[int, dict[str, Any]]:
    """Drain all jobs, in the name of ``by``: calls in flight are finished, then the jobs rest."""
    names = [name for name in await runtime.names("channel:") if "~" not in name]
    found = await asyncio.gather(*(_rested(runtime, name, until_s, by) for name in names))
    jobs = [{"job": name.partition(":")[2], "outcome": outcome} for name, outcome in zip(names, found, strict=True)]
    for each in jobs:
        print_error(f"job {each['job']} {_STATE_TEXTS.get(each['outcome'], 'is ' + each['outcome'])}")
    if not jobs:
        print_error("no job runs there")
    return FAILED if {"running", "away"} & {*found} else COMPLETE, {"jobs": jobs}


async def _rested(runtime: Any, name: str, until_s: float, by: str) -> str:
    """Drain a job and return its outcome, once it rests or the time is over: ``let go`` if it has no channel any more,
    ``away`` if the channel did not answer at last. A channel that is being restarted is asked again, until it has not
    answered for ``AWAY_PATIENCE_S``: the new process goes on with the job.
    """
    peer, told = runtime.peer(name), False
    outcome, heard_s = "running", time.monotonic()
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                if not told:
                    with contextlib.suppress(JobEnded):  # its outcome is told
                        await peer.ask("stop", "drain", by)
                    told = True
                outcome = str(msgspec.json.decode(await peer.ask("status"))["outcome"])
            heard_s = time.monotonic()
        except ClusterLost:  # this process is cut off, and knows nothing of the job
            return "away"
        except (PeerGone, ChannelNotStarted):  # its driver released it, or it has never begun
            return "let go"
        except (PeerUnavailable, TimeoutError):
            outcome = "away"
        now_s = time.monotonic()
        if outcome not in ("running", "away") or now_s > until_s or now_s - heard_s > AWAY_PATIENCE_S:
            return outcome
        await asyncio.sleep(LOOK_S)


# -- a node --------------------------------------------------------------------------------------------------------


async def _emptied(runtime: Any, node: str, until_s: float, waits: bool) -> tuple[int, dict[str, Any]]:
    """Drain a node: it gets no new calls, calls in flight are finished, then its branches and workers end."""
    if not await runtime.names("cortex"):
        print_error("no scheduler runs in the cluster: nothing to drain")
        return COMPLETE, {"node": node, "left": []}
    cortex = runtime.peer("cortex")
    try:
        node = node_named(node, (await cortex.ask("status"))["nodes"])
        await cortex.ask("drain", who(), node)
        if not waits:
            print_error(f"node {node} drains: calls in flight are finished, no new ones begin")
            return COMPLETE, {"node": node, "left": _of(node, await cortex.ask("status"))}
        while left := _of(node, await cortex.ask("status")):
            if time.monotonic() > until_s:
                print_error(f"node {node} still has {', '.join(left)}")
                return FAILED, {"node": node, "left": left}
            await asyncio.sleep(LOOK_S)
    except ValueError as error:  # the scheduler does not know the node, so no actor of Cortex is on it
        raise CommandError(str(error)) from None
    except (PeerUnavailable, PeerGone):
        raise ClusterError("the scheduler does not answer: try again") from None
    print_error(f"node {node} is empty, and gets no more work")
    return COMPLETE, {"node": node, "left": []}


def node_named(name: str, nodes: dict[str, Any]) -> str:
    """Return the node whose pod or host has this name, as the nodes of a status tell it; else the name itself, a node's
    id. Raises ``CommandError`` if several nodes have the name.
    """
    found = sorted(node for node, facts in nodes.items() if name and facts.get("host") == name)
    if len(found) > 1:
        raise CommandError(f"{len(found)} nodes are on {name}: name one by its id: {', '.join(found)}")
    return found[0] if found else name


def _of(node: str, status: dict[str, Any]) -> list[str]:
    return sorted(name for name, one in status["staff"].items() if one["node"] == node)


# -- the whole cluster ----------------------------------------------------------------------------------------------


async def _ended(runtime: Any, until_s: float) -> tuple[int, dict[str, Any]]:
    """Drain all jobs, end every actor of Cortex, and remove the notes in the cluster's key-value store. Journals
    stay.
    """
    _, facts = await _drained(runtime, until_s, who())
    heard_s = time.monotonic() + RESULTS_S
    while await runtime.names("channel:") and time.monotonic() < min(until_s, heard_s):  # noqa: ASYNC110 - elsewhere
        await asyncio.sleep(LOOK_S)
    ended: set[str] = set()
    for _ in range(_ROUNDS):
        names = await runtime.names("")
        if not names:
            break
        ended.update(names)
        if "cortex" in names:  # the scheduler first: it would restart the actors that end
            await _end(runtime, "cortex")
        await asyncio.gather(*(_end(runtime, name) for name in names if name != "cortex"))
    left = list(await runtime.names(""))
    runtime.notes.clear()
    print_error(f"{len(ended - {*left})} actors of the cluster ended; journals and results stay where they are")
    if left:
        print_error(f"actors that did not end: {', '.join(left)}")
    return FAILED if left else COMPLETE, {**facts, "ended": sorted(ended - {*left}), "left": left}


async def _end(runtime: Any, name: str) -> None:
    with contextlib.suppress(Exception):  # the actor is killed below in any case
        await asyncio.wait_for(runtime.peer(name).ask("close"), CLOSE_S)
    await runtime.kill_actor(name)
