"""``cancel``, ``drain`` and ``set``: control of a started job, run by this machine, by a cluster, or by no process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from actors.cli.control.drain import HERE, cluster_meant, drain_all, drain_node, node_named
from actors.cli.control.limit import asked_cortex
from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import OVER, JobStatus, headline
from actors.cli.jobs.resting import was_cut_off
from actors.cli.jobs.settings import base_urls_of, limits_of, named_folder
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import BOUNDS, Options
from actors.cli.run.sinks import complete_output
from actors.common.errors import CommandError, UserError
from actors.common.process_owner import Owner
from actors.driver import control_note
from actors.files.errors import SinkError
from actors.history.catalog import last_owner, last_places, last_state
from actors.jobs.limit_options import changes
from actors.jobs.spec import who
from actors.jobs.wait_reasons import roles_at
from actors.journal.journal import JobEnded, StateFolder
from actors.journal.state_folder import advised
from actors.maintenance import offline_edits
from actors.maintenance.cancel_batches import withdraw
from actors.ports.runtime import ClusterError, Peer, PeerGone, PeerUnavailable
from actors.providers.credentials.base_url import is_by_name
from actors.routing.routes import ModelSpec, remembered, spec_at
from actors.routing.server_change import refuse_servers
from cortex.state.state import State
from cortex.values.limits import Limits
from policies.estimates.price import usd_text

OBEDIENCE_S = 60.0
"""Longest wait in seconds for a run to obey a control message. A run looks for messages twice a second, unless it was
stopped itself (SIGSTOP)."""
_LOOK_S = 0.05
_KEPT = {"set": ("new limits", "them"), "answer": ("answers", "them"), "servers": ("servers", "them")}
"""Words for an order that a run keeps, besides those to end its job."""
DRAINING = "draining: calls in flight are finished first"
KEPT = "the drain is kept in its journal, and only a resume by hand undoes it; its calls in flight may be asked again"

Sender = Callable[[Peer], Awaitable[Any]]
"""Function that sends a message to a channel."""


# -- cancel --------------------------------------------------------------------------------------------------------


def cancel(job: str, options: Options) -> int:
    """Run ``cortex cancel`` and return the exit code: 0 if the job has ended."""
    folder = named_folder(options)
    k = last_state(folder, job)
    if k.outcome in OVER:
        return _change_text(
            standing_of(folder, job, k), options, f"job {job} is already {k.outcome}: nothing to cancel"
        )
    left: list[tuple[int, str]] = []
    if not send_to_run(folder, job, "cancel") and not send_to_cluster(folder, job, _stopping("cancel"), by_force=True):
        k = last_state(folder, job)
        if k.outcome not in OVER:
            left = [(made.route, made.name) for made in k.submissions.values() if made.name]
            offline_edits.cancel(folder, job, who())
    k = last_state(folder, job)
    status = standing_of(folder, job, k)
    if k.outcome == "cancelled" and not folder.is_held(job):
        try:
            complete_output(folder, job, status.facts, k.terms.places, k.terms.program, False)
        except SinkError as error:  # the job is cancelled all the same, and so are its message batches
            reason = str(error).partition(", or give --overwrite")[0]  # an option of other commands
            print_error(f"its results are not completed: {reason}; {status.command('results', '-o FILE')} writes them")
        except OSError:
            pass
    if left and k.outcome == "cancelled":
        _withdrawn(folder, job, k, left)
    return _change_text(status, options, f"cancelled by {who()}" if k.outcome == "cancelled" else "")


def _withdrawn(folder: StateFolder, job: str, k: State, batches: list[tuple[int, str]]) -> None:
    """Have the provider cancel the batches (route, name) of a job that no process runs; report batches that
    continue.
    """
    spec = remembered(last_places(folder, job, k.terms))
    for place in sorted({place for place, _ in batches}):
        _withdrawn_there(spec_at(spec, k.terms, place), k, [name for at, name in batches if at == place])


def _withdrawn_there(spec: ModelSpec, k: State, names: list[str]) -> None:
    try:
        left = asyncio.run(withdraw(spec, k.terms.limits, taken_environ(), names))
    except UserError as error:
        left = dict.fromkeys(names, str(error))
    if done := [name for name in names if name not in left]:
        print_error(f"cancelled at the provider: {', '.join(done)}")
    for name, why in left.items():
        print_error(f"message batch {name} still runs at the provider and is billed: cancel it there ({why})")


def _change_text(status: JobStatus, options: Options, text: str) -> int:
    if text:
        print_error(text)
    print_error(headline(status))
    if options.as_json:
        print(status.as_json(), flush=True)
    return COMPLETE if status.outcome in OVER else FAILED


# -- drain ---------------------------------------------------------------------------------------------------------


def drain(job: str, node: str, branch: str, every: bool, within: str, restart: bool, options: Options) -> int:
    """Run ``cortex drain`` and return the exit code: 0 if the job rests. Calls in flight are finished first.

    Exactly one of ``job``, ``node``, ``branch`` and ``every`` is given. For a node, a branch or all jobs of a cluster,
    the scheduler is told, and draining goes on after the command has ended unless ``within`` is given.
    """
    if sum(map(bool, (job, node, branch, every))) != 1:
        raise CommandError("nothing to drain: give a job, --node NAME, --branch NAME or --all with --cluster ADDRESS")
    if within and not (node or every):
        raise CommandError("--within is for --node and --all: for a job, the command waits until it rests")
    if restart and not every:
        raise CommandError("--for-restart is for --all: a machine that ends takes all its jobs along")
    if every:
        return drain_all(within, restart, options)
    if node and (within or node == HERE):
        return drain_node(node, within, options)
    return _drained_there(node or branch, options) if node or branch else _drained(job, options)


def _drained_there(subject: str, options: Options) -> int:
    cluster = cluster_meant(options, "nodes and branches")

    async def send(peer: Peer) -> int:
        named = node_named(subject, (await peer.ask("status"))["nodes"])
        await peer.ask("drain", who(), named)
        print_error(f"{subject} of {cluster} drains: calls in flight are finished, no new ones begin")
        return COMPLETE

    return asyncio.run(asked_cortex(cluster, send))


def _drained(job: str, options: Options) -> int:
    folder = named_folder(options)
    k = last_state(folder, job)
    if k.outcome in OVER:
        return _rests(folder, job, k, options, f"job {job} is already {k.outcome}: nothing to drain")
    known = send_to_run(folder, job, "drain")
    if known:
        print_error(DRAINING)
        while folder.is_held(job):
            time.sleep(_LOOK_S)
    known = known or send_to_cluster(folder, job, _stopping("drain"))
    k = last_state(folder, job)
    if not known and _goes_on_by_itself(folder, job, k):
        k = offline_edits.drain(folder, job, who())
        return _rests(folder, job, k, options, f"no channel of job {job} answers: {KEPT}")
    return _rests(folder, job, k, options, "" if known else f"job {job} does not run: nothing to drain")


def _goes_on_by_itself(folder: StateFolder, job: str, k: State) -> bool:
    """Return whether a job whose channel is gone may go on without a person: by Ray, which starts the channel again, by
    a head that is back, or by ``cortex tend``."""
    owner = last_owner(folder, job)
    return owner is not None and not owner.ends_with_its_driver and was_cut_off(k)


def _rests(folder: StateFolder, job: str, k: State, options: Options, text: str) -> int:
    status = standing_of(folder, job, k)
    _change_text(status, options, text)
    if status.resume:
        print_error(f"to go on: {status.resume}")
    return FAILED if status.outcome == "running" else COMPLETE


# -- set -----------------------------------------------------------------------------------------------------------


def change(job: str, options: Options) -> int:
    """Run ``cortex set`` and return the exit code: 0 if the job has the limits that were asked for."""
    folder = named_folder(options)
    k = last_state(folder, job)
    bounds = any(getattr(options, name) not in ("", None) for name in BOUNDS)
    if options.base_url:
        if bounds:
            raise CommandError("--base-url: set servers and limits one after the other")
        return _change_servers(folder, job, k, options)
    if not bounds:
        raise CommandError("nothing to set: give --max-cost, --deadline, --concurrency, --base-url or the like")
    before, after = k.terms.limits, limits_of(options, k.terms.limits)
    if k.outcome in OVER:
        raise CommandError(f"job {job} is already {k.outcome}: its limits cannot be changed")
    unpriced = next((at for at, route in enumerate(k.terms.routes) if route.price is None), None)
    if after.max_cost_nusd is not None and unpriced is not None:
        model = k.terms.routes[unpriced].model
        role = next(iter(roles_at(k, unpriced)), "")
        how = f"run it again with --role {role}={model},input=3,output=15" if role else "resume it with --price"
        raise CommandError(f"no price is known for {model!r}, so --max-cost cannot hold: {how}")
    lines = changes(before, after)
    if not lines:
        print_error(f"job {job} already has these limits")
        return COMPLETE
    changed = {name: now for name in Limits.__struct_fields__ if (now := getattr(after, name)) != getattr(before, name)}
    blob = msgspec.json.encode(changed)

    async def send(peer: Peer) -> None:
        await peer.ask("set_limits", who(), blob)

    if not send_to_run(folder, job, "set", changed) and not send_to_cluster(folder, job, send):
        offline_edits.set_limits(folder, job, who(), changed)
    k = last_state(folder, job)
    if any(getattr(k.terms.limits, name) != now for name, now in changed.items()):
        raise CommandError(f"job {job} did not take the new limits: look at `{advised(folder, 'status', job)}`", FAILED)
    print_error(f"{job}: {', '.join(lines)}, set by {who()}")
    for line in filter(None, (_passed_already(k), what_now(folder, job, k))):
        print_error(line)
    return COMPLETE


def _change_servers(folder: StateFolder, job: str, k: State, options: Options) -> int:
    """Let a running job's work be shared by these servers, and by no others."""
    if k.outcome in OVER:
        raise CommandError(f"job {job} is already {k.outcome}: its servers cannot be changed")
    refuse_servers(k.terms)
    spec = remembered(last_places(folder, job, k.terms))
    if not spec.base_url:
        raise CommandError(f"job {job} asks its provider, not servers at addresses: --base-url changes nothing there")
    if spec.dns:
        raise CommandError(f"job {job}: its servers are those of {spec.dns}, which is looked up while it runs")
    addresses = tuple(base_urls_of(options, spec.row))
    if not addresses:
        raise CommandError("--base-url: name at least one server")
    if any(map(is_by_name, addresses)):
        again = advised(folder, "resume", job, f"--base-url {addresses[0]}")
        raise CommandError(f"a running job takes servers at addresses, not of a name: drain it, then {again}")
    if not send_to_run(folder, job, "servers", servers=addresses):
        again = advised(folder, "resume", job, " ".join(f"--base-url {each}" for each in addresses))
        raise CommandError(f"no process of this state folder runs job {job}: {again}")
    k = last_state(folder, job)
    taken = [route.endpoint for place, route in enumerate(k.terms.routes) if not k.terms.is_closed(place)]
    if len(taken) != len(set(addresses)):
        raise CommandError(f"job {job} did not take these servers: look at `{advised(folder, 'status', job)}`", FAILED)
    many = f"{len(taken)} server" + ("s" if len(taken) > 1 else "")
    print_error(f"{job}: its work is shared by {many} from now on, set by {who()}")
    return COMPLETE


def _passed_already(k: State) -> str:
    """Return a warning if a cap is below the amount already spent: such a cap stops the job, and refunds nothing."""
    cap = k.terms.limits.max_cost_nusd
    if cap is None or k.ledger.committed_nusd <= cap:
        return ""
    return f"{usd_text(k.ledger.committed_nusd)} are already spent or reserved: the job sends no more calls"


def what_now(folder: StateFolder, job: str, k: State) -> str:
    """Return a line on how to continue a job that no process runs; empty if one does."""
    status = standing_of(folder, job, k)
    if status.outcome == "detached" and folder.is_attended(job) is False:
        status.facts["outcome"] = "interrupted"  # what was just written has begun its channel's lease anew
    return f"the job does not run: {status.resume}" if status.resume and status.outcome != "detached" else ""


# -- control messages ----------------------------------------------------------------------------------------------


def send_to_run(
    folder: StateFolder, job: str, how: str, limits: dict[str, Any] | None = None,
    answers: dict[str, Any] | None = None, servers: tuple[str, ...] = (),
) -> bool:  # fmt: skip
    """Leave a control message for the process that runs the job, and wait until it has obeyed. Return False if none
    runs it.

    Raises ``CommandError`` after ``OBEDIENCE_S`` without an answer.
    """
    owner = last_owner(folder, job)
    if owner is None:
        return False
    wanted = control_note.ControlRequest(
        how=how, who=who(), owner=owner, limits=limits or {}, answers=answers or {}, servers=servers
    )  # fmt: skip
    until_s = time.monotonic() + OBEDIENCE_S
    left = False
    while folder.is_held(job):
        if not left:
            left = control_note.leave(folder, job, wanted)
        elif not control_note.waits(folder, job):
            return True
        if time.monotonic() > until_s:
            raise CommandError(_not_obeyed(folder, job, owner, left), FAILED)
        time.sleep(_LOOK_S)
    if left and not control_note.waits(folder, job):
        return True  # the run obeyed, and had already released the job
    _take_back(folder, job, owner)
    return False


def _not_obeyed(folder: StateFolder, job: str, owner: Owner, left: bool) -> str:
    """Take back the control message that waits, and return why it was not obeyed in time. ``left``: it is this
    process's own. An order that the run keeps holds all the same."""
    waits, whom = control_note.read(folder, job, owner), f"process {owner.pid} on {owner.host}"
    _take_back(folder, job, owner)
    if waits is None or not waits.taken:
        return f"{whom}, which runs job {job}, does not answer: end that process"
    what, them = _KEPT.get(waits.how, (waits.how, "it"))
    kept = f"the channel of job {job} does not answer: {whom} keeps the {what} of {waits.who}"
    look = f"`{advised(folder, 'status', job)}` tells" if left else "give the command again then"
    return f"{kept} and gives {them} as soon as the channel is back; {look}"


def _take_back(folder: StateFolder, job: str, owner: Owner) -> None:
    """Remove the control message that no process will obey."""
    if control_note.read(folder, job, owner) is not None:
        control_note.obeyed(folder, job)


def send_to_cluster(folder: StateFolder, job: str, send: Sender, by_force: bool = False) -> bool:
    """Send a message to the channel of a job that runs in a cluster without a driver. Return False if there is no
    channel; with ``by_force``, also if it does not answer.

    Raises ``CommandError`` for a channel that lives and does not answer: an event that is written to its journal beside
    it would fence it, and lose its paid calls in flight.
    """
    owner = last_owner(folder, job)
    if owner is None or owner.ends_with_its_driver:
        return False
    unreachable = ""
    try:
        if asyncio.run(_send_to_channel(job, owner.cluster, send)):
            return True
    except ClusterError as error:
        unreachable = str(error)
    lives, under_way = folder.is_attended(job), not last_state(folder, job).outcome
    if lives and under_way and not by_force:
        reason = f" ({unreachable})" if unreachable else ""
        raise CommandError(
            f"the channel of job {job} lives, but does not answer from here{reason}: look at "
            f"`{advised(folder, 'status', job)}`, and give the command again, or on a machine of {owner.cluster}",
            FAILED,
        )
    if unreachable:
        fenced = "; actors that may still run there can no longer write to this job" if under_way else ""
        print_error(f"{unreachable}{fenced}")
    return False


async def _send_to_channel(job: str, cluster: str, send: Sender) -> bool:
    from actors.runtime.ray_runtime import start_runtime

    runtime = await start_runtime(cluster, taken_environ())
    try:
        peer = runtime.peer(f"channel:{job}")
        await send(peer)
        if await _ended(peer):
            await runtime.end_actor(f"channel:{job}")
        return True
    except (PeerUnavailable, PeerGone, JobEnded):  # a channel that takes in nothing more: the journal is amended
        return False
    finally:
        await runtime.close()


def _stopping(how: str) -> Sender:
    """Return a function that stops the job (``how``: cancel or drain) and waits until it has stopped."""

    async def stop(peer: Peer) -> None:
        await peer.ask("stop", how, who())
        if how == "drain":
            print_error(DRAINING)
        while not await _ended(peer):  # noqa: ASYNC110 - the channel is another process
            await asyncio.sleep(_LOOK_S)

    return stop


async def _ended(peer: Peer) -> bool:
    return bool(msgspec.json.decode(await peer.ask("status"))["outcome"] != "running")
