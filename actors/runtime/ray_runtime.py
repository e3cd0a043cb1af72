"""Runtime over Ray: each actor in a process of its own, detached, found by name. The only file that imports ray."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import ray
import ray.util.metrics
from msgspec.structs import replace
from ray import cloudpickle, exceptions
from ray._private import services, state
from ray._private import worker as ray_worker
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster import node_inventory
from actors.cluster.actor_classes import have_classes
from actors.cluster.bootstrap import (
    OBJECT_STORE_BYTES,
    PATIENT,
    PYTHONS_THAT_FIT,
    PrivateRay,
    asked_again,
    checked_address,
    code_paths,
    environment,
    first_line,
    lean,
    loopback,
    see_same,
    take_signals_back,
    token_environ,
)
from actors.cluster.compatibility import NODES_S, installed_here, mismatch_line, see_fitting
from actors.cluster.connection import RayConnection, to_log
from actors.cluster.node_watchdog import LOOK_S, NodeWatchdog
from actors.cluster.orphan_cleanup import end_processes
from actors.cluster.pinned_thread import PinnedThread
from actors.cluster.placement import (
    awaited,
    host_address,
    host_name,
    in_turn,
    lost_since,
    missing,
    selector,
    shapes,
    tied,
    was_ended,
)
from actors.cluster.preflight import see_admitted, see_usable
from actors.cluster.ray_peer import RayPeer
from actors.cluster.shipping.kv_store import ClusterNotes, ClusterStore
from actors.cluster.sockets.addresses import sockets_of
from actors.cluster.sockets.client import SocketConnections
from actors.common import boot_clock
from actors.common.process_owner import Owner, this_owner
from actors.journal.journal import Journal
from actors.ports.runtime import ClusterError, Peer, PeerGone, PeerUnavailable
from actors.ports.telemetry import NullObserver, Telemetry
from actors.routing.model_factory import make_model
from actors.runtime.host import LocalDisk, own_cores
from actors.runtime.ray_actor import process_class, taken
from cortex import __version__
from cortex.state.program import Program

NAMESPACE = "cortex"
CALLS_AT_ONCE = 10_000
"""Calls that one actor accepts at once; a call that waits for results is also counted."""
BRANCHES = 2
ACTORS = BRANCHES + 2
"""Actors started at once: the branches, the cortex and a channel. Ray starts as many processes ahead as it has CPUs."""
CLOSE_S = 5.0  # seconds that an actor may take to close its files before it is ended

_ray_thread = PinnedThread("cortex ray")
_connection: RayConnection | None = None


# -- the connection of this process ----------------------------------------------------------------------------------


def _connect(cluster: str, environ: Mapping[str, str]) -> RayConnection:
    """Start a private Ray, or join the one at an address. Raises ``ClusterError``."""
    global _connection
    if _connection is not None:
        if _connection.cluster != cluster:
            checked_address(cluster)  # an address that does not answer is reported first
            raise ClusterError(f"this process is connected to --cluster {_connection.cluster}: use one at a time")
        _connection.users += 1
        return _connection
    if ray.is_initialized():
        see_same(cluster, ray.get_runtime_context().gcs_address)
        _connection = RayConnection(cluster, None, shut=None)
    elif cluster == "local":
        _connection = _private(environ)
    else:
        _connection = _joined(cluster, environ)
    return _connection


def _private(environ: Mapping[str, str]) -> RayConnection:
    private = PrivateRay.prepare()
    try:
        with environment(environ, private.environ()), lean(Node), loopback(services):
            _init(
                address="local", _temp_dir=private.rays, _node_ip_address="127.0.0.1", include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES, num_cpus=ACTORS,
            )  # fmt: skip
    except BaseException:
        end_processes(private.processes(), private.mark)
        private.remove()
        raise
    made = RayConnection("local", private, _shut)
    atexit.register(lambda: made.close() if made is _connection else None)
    return made


def _joined(cluster: str, environ: Mapping[str, str]) -> RayConnection:
    address = checked_address(cluster)
    with environment(environ, {**PYTHONS_THAT_FIT, **PATIENT, **token_environ(address, os.environ)}):
        _read_anew()
        has_token = bool(AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))
        see_admitted(address, os.environ, has_token, GcsClient, services.find_node_ids)
        see_usable(address, services._find_address_from_flag("--raylet_socket_name"))
        _init(address=address)
    return RayConnection(cluster, None, _shut)


def _init(**options: Any) -> None:
    ray_worker.print_to_stdstream = to_log  # type: ignore[assignment]  # what Ray would print among the user's results
    _read_anew()
    try:
        quiet: Any = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        asked_again(lambda: ray.init(namespace=NAMESPACE, **quiet, **options))
    except Exception as error:
        if options["address"] == "local":
            raise ClusterError(f"Ray does not start: {first_line(error)}") from None
        where = f"the Ray at {options['address']}"
        if other := mismatch_line(str(error)):
            raise ClusterError(f"{where} does not fit: it has {other}: install the same") from None
        raise ClusterError(f"no connection to {where}: {first_line(error)}") from None


def _read_anew() -> None:
    """Make Ray read the environment again: it was read before the change."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _shut() -> None:
    if ray.is_initialized():
        ray.shutdown()


def _let_go(connection: RayConnection) -> None:
    global _connection
    connection.users -= 1
    if connection.users == 0:
        _connection = None
        connection.close()


# -- the runtime -----------------------------------------------------------------------------------------------------


async def start_runtime(
    cluster: str, environ: Mapping[str, str], begin: bool = True, needs: Sequence[str] = ()
) -> RayRuntime:  # fmt: skip
    """Connect to a Ray; with ``begin``, make sure that a cortex is alive there. Raises ``ClusterError``.

    ``cluster``: ``local`` for a private Ray that ends with this process, else an address. ``environ`` holds the user's
    key: no process of Ray sees it. ``needs``: distributions that every node must have.
    """
    connection = await _ray_thread.run(lambda: _connect(cluster, environ))
    take_signals_back()
    runtime = RayRuntime(cluster, connection)
    try:
        if begin and cluster != "local":
            await _ray_thread.run(lambda: _see_fitting(cluster, needs))
        starting = [runtime.start_actor("cortex", "cortex", BRANCHES)] if begin else []
        if cluster == "local":  # no other process can have started them: in parallel is faster
            starting += [runtime.start_actor("branch", f"branch:{slot}") for slot in range(BRANCHES)]
        await asyncio.gather(*starting)
    except BaseException:
        await runtime.close()
        raise
    return runtime


def _see_fitting(cluster: str, needs: Sequence[str]) -> None:
    ask = partial(node_inventory.taken, ray, NodeAffinitySchedulingStrategy, code_paths(), NODES_S)
    living = [row["NodeID"] for row in ray.nodes() if row["Alive"]]  # type: ignore[no-untyped-call]
    see_fitting(cluster, installed_here(), needs, code_paths(), living, ClusterNotes(internal_kv), ask)


async def nodes_of(cluster: str, environ: Mapping[str, str], timeout_s: float) -> list[node_inventory.NodeReport]:
    """Return the report of each node of a Ray on its installed software, and those of lost nodes. Raises
    ``ClusterError``."""
    given = (ray, NodeAffinitySchedulingStrategy, lambda: _connect(cluster, environ), _let_go, _missing, timeout_s)
    return await _ray_thread.run(lambda: node_inventory.of(*given))


def _missing() -> dict[str, tuple[str, float]]:
    """Return the lost nodes of the connected Ray; none while its head does not say."""
    worker: Any = ray_worker.global_worker
    try:
        found = worker.gcs_client.get_all_node_info(timeout=LOOK_S)
    except Exception:  # any error of Ray
        return {}
    return missing({node.hex(): info for node, info in found.items()}, time.time())


class RayRuntime:
    """Runtime of an actor or a driver on a Ray cluster. Only a driver's has a connection of its own."""

    # The clocks themselves, not methods around them: one call reads them ten times.
    now_s = staticmethod(time.time)
    """Seconds since 1970."""
    monotonic_s = staticmethod(time.monotonic)
    """Seconds since a fixed moment of this host."""
    steady_s = staticmethod(boot_clock.steady_s)
    boot_id = staticmethod(boot_clock.boot_id)

    def __init__(self, cluster: str, connection: RayConnection | None = None, job: str = "") -> None:
        self.cluster = cluster
        self.telemetry: Telemetry = NullObserver()
        self._connection = connection
        self._store = ClusterStore(internal_kv, cloudpickle.CloudPickler, job, own=connection is not None)
        self.notes = ClusterNotes(internal_kv)
        self._handles: dict[str, Any] = {}
        self._hosts: dict[str, str] = {}
        self._node = ray.get_runtime_context().get_node_id()
        have_classes(ray_worker.global_worker, process_class, ray.actor._modify_class, internal_kv, cloudpickle)
        self.watchdog = NodeWatchdog(str(self._node), self.nodes) if connection is not None else None
        """Watchdog of a driver; None for an actor, which dies with its node."""
        self.lines = SocketConnections(sockets_of(ray_worker.global_worker.node, str(self._node)), self.background)
        self._tasks: set[asyncio.Task[Any]] = set()

    def node(self) -> str:
        """Return Ray's id of the node."""
        return str(self._node)

    async def awaits(self, name: str) -> str:
        """Return the address of the host that a channel waits for, since its journal is there; empty if it waits for
        none.
        """
        host = await asyncio.to_thread(self._store.host_of, name.partition(":")[2])
        try:
            handle = await self.handle(name)
        except PeerGone:
            return ""
        row = await asyncio.to_thread(state.actors, handle._actor_id.hex())
        return awaited(row.get("State", ""), host, await asyncio.to_thread(ray.nodes))

    def incarnation(self, name: str) -> str:
        """Return an id that names this process, so that the cluster can be asked whether the process has ended."""
        return f"{name}.{self._node}.{os.getpid()}.{time.time_ns():x}"

    async def is_dead(self, name: str, incarnation: str) -> bool:
        """Return whether Ray has recorded the end of the process that this incarnation names."""
        try:
            handle = self.known(name) or await self.handle(name)
        except PeerGone:
            return True
        row = await asyncio.to_thread(state.actors, handle._actor_id.hex())
        if row.get("State") != "ALIVE":
            return row.get("State") in ("RESTARTING", "DEAD")
        return f"{name}.{row['Address']['NodeID']}.{row['Pid']}." != incarnation[: incarnation.rfind(".") + 1]

    def owner(self) -> Owner:
        """Return this process as owner of a run, with what is needed to find its leftovers if it is killed."""
        private = self._connection.private if self._connection is not None else None
        mine = this_owner(self.cluster)
        if private is None:
            return mine
        return replace(mine, ray_folder=private.folder, ray_mark=private.mark, ray_pids=private.processes())

    # -- disk and programs -----------------------------------------------------------------------------------------

    def store(self, folder: str) -> LocalDisk:
        """Return the state folder of this name on the host's disk, or in the database that the name gives."""
        return LocalDisk(folder)

    def apart(self, journal: Journal) -> bool:
        """Return False: the process of one channel serves nothing else, and a thread costs a commit 0.1 ms."""
        return False

    def share_program(self, where: str, params_json: bytes, job: str = "") -> None:
        """Let a job's actors find a program of this process."""
        self._store.share(where, params_json, job)

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        """Return a program as the driver of the job has it. Raises ``ValueError`` with one clear line."""
        return self._store.load(where, params_json, job)

    def fingerprint(self, where: str, params_json: bytes) -> str:
        """Return the hash over a program's source, its parameters and the release."""
        return self._store.fingerprint(where, params_json)

    # -- actors ----------------------------------------------------------------------------------------------------

    def peer(self, name: str) -> Peer:
        """Return the peer of an actor by name, alive or not."""
        return RayPeer(name, self, exceptions)

    async def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of the live actors that begin with the prefix."""
        found = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
        return tuple(a["name"] for a in found if a["namespace"] == NAMESPACE and a["name"].startswith(prefix))

    async def nodes(self) -> tuple[str, ...]:
        """Return Ray's ids of the live nodes.

        Raises Ray's error if the head is unavailable, or was restarted without its state: ``ray.nodes`` would end this
        process then.
        """
        worker: Any = ray_worker.global_worker
        living = GcsNodeInfo.GcsNodeState.ALIVE
        found = await asyncio.to_thread(worker.gcs_client.get_all_node_info, timeout=LOOK_S, state_filter=living)
        self._hosts = {node.hex(): host_name(info) for node, info in found.items()}
        return tuple(sorted(self._hosts))

    async def ended_nodes(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those of these nodes of which Ray says that they were ended on purpose. Raises as ``nodes`` does."""
        worker: Any = ray_worker.global_worker
        dead = GcsNodeInfo.GcsNodeState.DEAD
        found = await asyncio.to_thread(worker.gcs_client.get_all_node_info, timeout=LOOK_S, state_filter=dead)
        return tuple(node.hex() for node, info in found.items() if node.hex() in names and was_ended(info))

    async def lost_nodes(self, since_s: float) -> dict[str, tuple[str, float]]:
        """Return the nodes that were lost since a Unix time and are not back, of Ray's own record. Raises as ``nodes``
        does."""
        worker: Any = ray_worker.global_worker
        found = await asyncio.to_thread(worker.gcs_client.get_all_node_info, timeout=LOOK_S)
        return lost_since({node.hex(): info for node, info in found.items()}, since_s)

    def hosts(self) -> dict[str, str]:
        """Return the names of the pods or hosts of the live nodes, as ``nodes`` found them last."""
        return self._hosts

    async def cores(self) -> int:
        """Return the number of CPUs that Ray reports; for a private Ray, which is given another number, that of the
        machine.
        """
        facts = {"CPU": own_cores()} if self.cluster == "local" else await asyncio.to_thread(ray.cluster_resources)
        return int(facts.get("CPU", 0))

    async def sees(self, path: str) -> bool:
        """Return whether actors on the disk of this runtime's node would find a file of this process."""
        if not self.cluster.startswith("ray://"):
            return True  # that node is on this machine
        there = NodeAffinitySchedulingStrategy(self._node, soft=False)
        return await asyncio.to_thread(node_inventory.finds, ray, there, path)

    async def make_room(self, branches: int, workers: int) -> None:
        """Tell Ray's autoscaler, if there is one, for how many branches and workers a core is wanted."""
        if self.cluster == "local":
            return
        from ray.autoscaler.sdk import request_resources  # takes 0.3 s, and only this needs it

        bundles, labels = shapes(branches, workers, await asyncio.to_thread(ray.nodes))
        await asyncio.to_thread(request_resources, bundles=bundles, bundle_label_selectors=labels)

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Peer:
        """Return the actor of this name, alive, made if there is none. Raises ``ClusterError`` if it cannot run."""
        where, nodes = self._where(role, args), await asyncio.to_thread(ray.nodes)
        bound = role == "channel" and not isinstance(where, str)  # tied to the host whose disk has the journal
        labels, host = ({}, host_address(self._node, nodes)) if bound else (selector(role, nodes, avoid), "")
        if host:  # this node, or a later one on the same host
            where = NodeAffinitySchedulingStrategy(self._node, soft=True)
        spec = in_turn(name, nodes, labels, avoid) if where == "SPREAD" else {"label_selector": labels or None}
        self._handles[name] = await asyncio.to_thread(self._made, role, name, args, where, spec, host)
        peer = self.peer(name)
        try:
            release, _ = await peer.ask("hello")
        except PeerGone as gone:
            raise ClusterError(f"{name} cannot start on {self.cluster}: {gone.__cause__ or gone}") from None
        except PeerUnavailable:
            return peer  # it exists, and is being restarted
        if release != __version__:
            raise ClusterError(f"{self.cluster} runs cortex {release}, this is {__version__}: use the same release")
        return peer

    def _made(
        self, role: str, name: str, args: tuple[Any, ...], where: Any, spec: dict[str, Any], host: str
    ) -> Any:  # fmt: skip
        remote: Any = ray.remote(process_class(role))
        actor = remote.options(
            name=name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, max_restarts=-1,
            max_task_retries=0, max_concurrency=CALLS_AT_ONCE, num_cpus=0, scheduling_strategy=where,
            resources=tied(host), **spec,
        )  # fmt: skip
        return actor.remote(code_paths(), role, name, args, self.cluster)

    def _where(self, role: str, args: tuple[Any, ...]) -> Any:
        """Return the scheduling strategy: a channel stays on this node if its journal is on this disk and in no
        database; branches and workers are spread.
        """
        if role == "channel" and not self.store(args[-1]).remote:
            return NodeAffinitySchedulingStrategy(self._node, soft=False)
        return "DEFAULT" if role == "cortex" else "SPREAD"

    async def end_actor(self, name: str) -> None:
        """End an actor for good, after it has closed its files."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.peer(name).ask("close"), CLOSE_S)
        with contextlib.suppress(exceptions.RayError):  # the head is unavailable, or was restarted and knows no actor
            if (handle := self._handles.pop(name, None)) is not None:
                await asyncio.to_thread(ray.kill, handle, no_restart=True)
            self._store.clear(name)
        self.lines.forget(name)

    async def kill_actor(self, name: str) -> None:
        """End an actor by force."""
        with contextlib.suppress(PeerGone):
            await asyncio.to_thread(ray.kill, await self.handle(name), no_restart=True)
        self._handles.pop(name, None)
        self.lines.forget(name)

    async def end_self(self) -> None:
        """End the actor of this runtime."""
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def handle(self, name: str) -> Any:
        """Return Ray's handle of an actor. Raises ``PeerGone``."""
        try:
            found = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
        except ValueError:
            raise PeerGone(name) from None
        self._handles[name] = found
        return found

    def known(self, name: str) -> Any:
        """Return the handle, if it was looked up before; else None."""
        return self._handles.get(name)

    def forget(self, name: str) -> None:
        """Drop the handle of a dead actor: the next actor of this name is a different one."""
        self._handles.pop(name, None)

    def settle(self, job: str) -> None:
        """Store the host of this channel: a restarted channel waits for that host."""
        self._store.set_host(job, host_address(self._node, ray.nodes()))  # type: ignore[no-untyped-call]

    def background(self, work: Any) -> None:
        """Run a call without waiting for its result."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Disconnect from the cluster; a private one ends."""
        for task in list(self._tasks):
            task.cancel()
        self.lines.close()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.private is not None and connection.users == 1:
            await asyncio.gather(*(self.end_actor(name) for name in [*self._handles] if name.startswith("channel:")))
        await _ray_thread.run(lambda: _let_go(connection))

    def make_model(self, blob: bytes) -> Any:
        """Return the model that a connection spec describes."""
        return make_model(blob)


# -- the process of an actor -----------------------------------------------------------------------------------------


def make_host(role: str, name: str, args: tuple[Any, ...], cluster: str) -> Any:
    """Return the host of an actor, in its own process."""
    again = bool(ray.get_runtime_context().was_current_actor_reconstructed)
    runtime = RayRuntime(cluster, job=name.partition(":")[2] if role == "channel" else "")
    return taken(role, name, args, runtime, again, ray_worker, ray.util.metrics.Gauge)
