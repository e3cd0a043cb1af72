"""Cost of the scheduler and the channels by the number of nodes: ``python -m benchmarks.nodes --json``.

``ray``: CPU of the scheduler's process a call, on 1, 2 and 4 real Ray nodes of this machine (``ray_nodes``).

No larger cluster is started. Three more parts; the first two for 1, 10, 100 and 1,000 nodes with a branch each:

``cortex``: the real ``cortex.scheduler.step.step`` in virtual time with 100 calls of 10 s in flight at each branch
(100,000 places) and 16 jobs. CPU time by kind of event, for each call and each second; cost of starting all branches,
of the death of a branch and of the loss of a node; messages and bytes in and out.

``actors``: real scheduler, channels and branches in the simulation (``tests/simulation``: transport, clock, disk and
provider are simulated), without faults, 4 jobs, 20 calls of 2 s in flight at each branch, also 10 calls a second.
Messages, bytes, journal bytes and commits for each call at full load. In virtual time a turn takes no time and nothing
gathers during a commit, so commits and messages are upper bounds.

``paper``: computed values for ``--calls`` at ``--places``, at several latencies: rates, shards, CPU shares, journal
rates, and the first bound met. The measured figures are multiplied; the channel's cost of a Ray message and of a call
and the time of a commit are arguments with values measured by other benchmarks.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter, defaultdict
from typing import Any

import msgspec

from actors.channel.dispatch.dispatcher import BEAT_LINKS, BEAT_S
from benchmarks.harness import figures
from benchmarks.nodes import ray_nodes
from benchmarks.scheduler import ROUTE, Load
from cortex.scheduler.protocol import (
    ChannelJoined,
    Command,
    MemberDied,
    MemberReported,
    MembersChanged,
    MemberStarted,
    NodesChanged,
    StartMember,
    TimePassed,
)
from cortex.scheduler.reports import Grant, ProgressReport, RouteSignals
from cortex.scheduler.state import SchedulerSettings
from cortex.scheduler.step import step
from policies.limits.limit import LimitPolicy
from tests.simulation.loop import NOBODY
from tests.simulation.runner import Simulation, quiet
from tests.simulation.scenario import JobPlan, Plan, ProviderPlan

NODES = (1, 10, 100, 1000)
PLACES = 100
CALL_S = 10.0
SIMULATED_S = 2.0
"""Seconds of a call in the simulation, whose timeouts are short."""
JOBS = 16
BEATS = "channel > branch: beat"
LATENCIES_S = (1.0, 3.0, 10.0, 30.0)


def size(value: Any) -> int:
    """Return the encoded size in bytes."""
    return len(value) if isinstance(value, bytes) else len(msgspec.msgpack.encode(value))


class Spread(Load):
    """Load with branches on nodes of their own. Counts CPU by kind of event, messages and bytes sent."""

    def __init__(self, nodes: int) -> None:
        self.cpu_s: dict[type, float] = defaultdict(float)
        self.events: Counter[type] = Counter()
        self.out: Counter[type] = Counter()
        self.bytes_in = self.bytes_out = 0
        super().__init__(JOBS, nodes, PLACES * nodes, CALL_S)

    def tell(self, event: Any) -> None:
        begun_s = time.process_time()
        commands = step(self.state, event)
        spent_s = time.process_time() - begun_s
        self.spent_s += spent_s
        self.steps += 1
        kind = type(event)
        self.cpu_s[kind] += spent_s
        self.events[kind] += 1
        sent = {MemberReported: "report", ChannelJoined: "claims"}.get(kind)
        self.bytes_in += size(getattr(event, sent)) if sent else 0
        for command in commands:
            self.out[type(command)] += 1
            self.bytes_out += size(command) if isinstance(command, Grant) else 0
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, StartMember):
            self.tell(MemberStarted(self.at_s, command.name, _node(int(command.name.partition(":")[2])), command.name))
        else:
            super().obey(command)

    def report(self, branch: int, calls: int) -> None:
        self.number[branch] += 1
        name, number = f"branch:{branch}", self.number[branch]
        signals = RouteSignals(
            ROUTE, ROUTE, 0, calls, calls, latency_s=calls * CALL_S, input_tokens=500 * calls, output_tokens=50 * calls,
            samples=((CALL_S, 50),) * min(calls, 16), in_flight=PLACES,
        )  # fmt: skip
        one = ProgressReport(name, name, _node(branch), number, "calling", PLACES, done=number, routes=(signals,))
        self.tell(MemberReported(self.at_s, one))

    def clear(self) -> None:
        """Reset the counts."""
        for counter in (self.cpu_s, self.events, self.out):
            counter.clear()
        self.bytes_in = self.bytes_out = 0


def _node(place: int) -> str:
    return f"node-{place}"


def cortex(nodes: int, seconds: float) -> dict[str, Any]:
    """Measure the scheduler's decisions over ``seconds`` of full load."""
    load = Spread(nodes)
    start_ms, tellings = 1e3 * sum(load.cpu_s.values()), load.out[MembersChanged]
    load.stretch(130.0)  # until all buffers are full and have been cut once
    load.clear()
    found = load.stretch(seconds)
    events = sum(load.events.values()) - load.events[TimePassed]
    return {
        "calls": found["calls"],
        "us_a_call": found["us_a_call"],
        "share_of_a_core": round(load.spent_s / seconds, 4),
        "us_an_event": {kind.__name__: round(1e6 * load.cpu_s[kind] / n, 1) for kind, n in load.events.items()},
        "events_per_s": {kind.__name__: round(n / seconds, 1) for kind, n in load.events.items()},
        "messages_a_call": round((events + load.out[Grant]) / found["calls"], 4),
        "bytes_a_call": round((load.bytes_in + load.bytes_out) / found["calls"], 1),
        "state_mb": round(found["state_kb"] / 1e3, 2),
        "start_ms": round(start_ms, 1),
        "told_of_branches_at_start": tellings,
        **_losses(load, nodes),
    }


def _losses(load: Spread, nodes: int) -> dict[str, float]:
    """Return CPU milliseconds until a dead branch is replaced, and of a lost node; medians."""
    begun_s = time.process_time()
    load.tell(MemberDied(load.at_s, "branch:0", _node(0)))
    while load.state.members["branch:0"].state != "up":
        load.at_s = max(load.at_s, load.state.due_s)
        load.tell(TimePassed(load.at_s))
    found = {"death_ms": round(1e3 * (time.process_time() - begun_s), 2)}
    if nodes > 1:
        begun_s = time.process_time()
        load.tell(NodesChanged(load.at_s, tuple(map(_node, range(nodes))), 0))
        load.tell(NodesChanged(load.at_s, tuple(map(_node, range(nodes - 1))), 0))
        found["node_lost_ms"] = round(1e3 * (time.process_time() - begun_s), 2)
    return found


class Counted(Simulation):
    """Simulated world whose branches are all present when its jobs begin. Counts messages and commits."""

    def __init__(self, nodes: int, places: int, rows: int, jobs: int) -> None:
        each = nodes * places // jobs
        made = Plan(
            1, branches=nodes, nodes=nodes, trouble=0.0, quiet_s=0.0, limit_start=nodes * places, ends_s=1e5,
            provider=ProviderPlan(latency_s=SIMULATED_S, jitter=0.5),
            jobs=[JobPlan(f"j{n}", rows=rows, concurrency=each, window_rows=2 * each) for n in range(jobs)],
        )  # fmt: skip
        super().__init__(made)
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.commits = self.journal_bytes = 0
        self.world.watch.alone()
        self._post, self.world.transport.post = self.world.transport.post, self._seen  # type: ignore[method-assign]
        self._appended, self.world.watch.appended = self.world.watch.appended, self._kept  # type: ignore[method-assign]

    def set_up(self) -> None:
        nodes = self.plan.branches
        settings = SchedulerSettings(
            branches_min=nodes, branches_max=nodes, workers_max=0, limit=LimitPolicy(start=self.plan.limit_start)
        )
        self.world.spawn("cortex", "cortex", (1, nodes, 0, settings), self.world.nodes[0])
        for job in self.plan.jobs:
            self.world.loop.call_at(job.begins_s, self._drive, job, context=NOBODY)

    def _seen(self, life: Any, name: str, method: str, args: Any, future: Any) -> None:
        key = f"{life.name.partition(':')[0]} > {name.partition(':')[0]}: {method}"
        self.messages[key] += 1
        self.bytes[key] += sum(map(size, args))
        self._post(life, name, method, args, future)

    def _kept(self, job: str, epoch: int, seq: int, blobs: Any) -> None:
        self.commits += 1
        self.journal_bytes += sum(map(len, blobs))
        self._appended(job, epoch, seq, blobs)

    def clear(self) -> None:
        """Reset the counts."""
        self.messages.clear()
        self.bytes.clear()
        self.commits = self.journal_bytes = 0


def actors(nodes: int, places: int, seconds: float, jobs: int = 4) -> dict[str, Any]:
    """Measure messages and commits over ``seconds`` virtual seconds of full load."""
    warm_s = 3 * SIMULATED_S
    rows = int(nodes * places / jobs / SIMULATED_S * (warm_s + seconds + SIMULATED_S)) + 50
    with quiet():
        world = Counted(nodes, places, rows, jobs)
        world.world.loop.call_soon(world.set_up, context=NOBODY)
        world.world.run(world.over, warm_s)
        world.clear()
        before = world.world.watch.calls
        world.world.run(world.over, warm_s + seconds)
        calls = world.world.watch.calls - before
    own = {key: n for key, n in world.messages.items() if not key.startswith("driver")}
    ours = {pair: sum(n for key, n in own.items() if pair in key) for pair in ("channel > branch", "branch > channel")}
    cortexes = sum(n for key, n in own.items() if "cortex" in key)
    return {
        "places": nodes * places,
        "calls": calls,
        "calls_per_s": round(calls / seconds, 1),
        "messages_a_call": {key: round(n / calls, 4) for key, n in sorted(own.items())},
        "channel_messages_a_call": round(sum(ours.values()) / calls, 3),
        "cortex_messages_a_call": round(cortexes / calls, 4),
        "cortex_messages_per_s": round(cortexes / seconds, 1),
        "bytes_a_call": {key: round(world.bytes[key] / calls, 1) for key in sorted(own)},
        "commits_a_call": round(world.commits / calls, 3),
        "journal_bytes_a_call": round(world.journal_bytes / calls, 1),
    }


def paper(found: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Compute the table from the measured figures of most nodes."""
    most = str(max(map(int, found["cortex"])))
    core, whole = found["cortex"][most], found["actors"][str(max(map(int, found["actors"])))]
    message_s, call_s = given.message_us / 1e6, given.channel_us / 1e6
    beats = whole["messages_a_call"].get(BEATS, 0.0)
    messages_a_call = whole["channel_messages_a_call"] - beats
    channel_s = call_s + messages_a_call * message_s
    core_s = given.core_share - BEAT_LINKS / BEAT_S * message_s  # liveness messages cost at most that
    reports_per_s = core["events_per_s"][MemberReported.__name__]
    rows = []
    for latency_s in LATENCIES_S:
        rate = given.places / latency_s
        shards = max(1, -(-rate * channel_s // core_s))
        decisions = core["share_of_a_core"]
        messages_per_s = reports_per_s + shards * given.claims_per_s
        rows.append({
            "latency_s": latency_s,
            "calls_per_s": round(rate),
            "run_s": round(given.calls / rate),
            "shards": int(shards),
            "cortex_share_of_a_core": round(decisions + messages_per_s * message_s, 3),
            "cortex_messages_per_s": round(messages_per_s),
            "channel_messages_per_s": round(rate * messages_a_call + shards * BEAT_LINKS / BEAT_S),
            "journal_mb_per_s": round(rate * (whole["journal_bytes_a_call"] + given.text_bytes) / 1e6, 1),
            "journal_gb": round(given.calls * (whole["journal_bytes_a_call"] + given.text_bytes) / 1e9, 1),
            "commits_per_s_a_shard": round(rate / shards * whole["commits_a_call"]),
        })  # fmt: skip
    limits = {
        "one channel, calls a second": round(core_s / channel_s),
        "commits of one journal, calls a second": round(1e6 / given.commit_us / whole["commits_a_call"]),
        "the driver, calls a second": round(given.core_share * 1e6 / given.driver_us),
        "the cortex, shards": round((given.core_share - core["share_of_a_core"] - reports_per_s * message_s)
                                    / (given.claims_per_s * message_s)),
    }  # fmt: skip
    return {"calls": given.calls, "places": given.places, "latencies": rows, "limits": limits}


def main() -> None:
    """Measure, compute and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--nodes", default=",".join(map(str, NODES)))
    parser.add_argument("--ray-nodes", default="1,2,4", help="numbers of real nodes, separated by commas; empty: none")
    parser.add_argument("--ray-seconds", type=float, default=20.0, help="seconds of full load on real nodes")
    parser.add_argument("--rounds", type=int, default=2, help="rounds on real nodes, in turns")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of full load for the scheduler")
    parser.add_argument("--actors-places", type=int, default=20, help="calls in flight at a branch of the simulation")
    parser.add_argument("--actors-seconds", type=float, default=4.0)
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--places", type=int, default=100_000)
    parser.add_argument("--message-us", type=float, default=500.0, help="CPU of a message of Ray at either end")
    parser.add_argument("--channel-us", type=float, default=50.0, help="CPU of a call in a channel, without messages")
    parser.add_argument("--driver-us", type=float, default=20.0, help="CPU of a call in the driver")
    parser.add_argument("--commit-us", type=float, default=300.0, help="one commit of SQLite on this kind of disk")
    parser.add_argument("--claims-per-s", type=float, default=1.0, help="claims a second of each shard: 0.2 to 4")
    parser.add_argument("--text-bytes", type=int, default=2_000, help="bytes of prompt and reply of one call")
    parser.add_argument("--core-share", type=float, default=0.7, help="share of a core that one process may use")
    given = parser.parse_args()
    found: dict[str, Any] = {"benchmark": "nodes", **figures.machine(), "ray": ray_nodes.rounds(given)}
    found |= {"cortex": {}, "actors": {}}
    gc.freeze()
    for nodes in map(int, given.nodes.split(",")):
        found["cortex"][str(nodes)] = own = cortex(nodes, given.seconds)
        figures.said(f"cortex {nodes:5} nodes: {own}", given.json)
    for nodes in map(int, given.nodes.split(",")):
        found["actors"][str(nodes)] = own = actors(nodes, given.actors_places, given.actors_seconds)
        figures.said(f"actors {nodes:5} nodes: {own}", given.json)
    found["paper"] = paper(found, given)
    for row in found["paper"]["latencies"]:
        figures.said(f"paper: {row}", given.json)
    figures.said(f"limits: {found['paper']['limits']}", given.json)
    figures.tell(found)


if __name__ == "__main__":
    main()
