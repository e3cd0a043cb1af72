"""Run of one job, from its spec to its end: shared by the command line and the Python client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from actors.channel.batches.submissions import bounds
from actors.channel.leases.budget_client import as_if_paid, unpriced
from actors.common.errors import UserError
from actors.common.harmless import harmless
from actors.common.process_owner import Owner, this_owner
from actors.driver.driver import ChannelLost, Driver
from actors.history.catalog import in_use_message, last_owner, last_state, last_terms
from actors.jobs.opening import Opening
from actors.jobs.spec import JobSpec, who, whole
from actors.jobs.summary import UNREADABLE, counted
from actors.journal.journal import JobHeld, StateFolder
from actors.limits.budgets import books_of
from actors.limits.set_budgets import refuse_lost
from actors.limits.shared_accounts import PLACE, accounts_at
from actors.maintenance.kept_results import OVERWRITES, refuse_losing
from actors.observability.logs.ray_actor_logs import shown
from actors.observability.metrics.endpoint import MetricsEndpoint
from actors.observability.wiring import hand_over, of_environ
from actors.ports.model import Model
from actors.ports.rows import Sink, Source
from actors.ports.runtime import ChannelNotStarted, ClusterError, Peer, PeerGone, PeerUnavailable
from actors.programs import loader
from actors.providers.credentials.credential import Credential
from actors.providers.registry import SIMULATED, row_of
from actors.routing.api_detection import wants_schemas, with_apis
from actors.routing.embeddings import for_vectors
from actors.routing.key_rotation import rotation
from actors.routing.log_probabilities import refuse_without
from actors.routing.model_factory import ConnectionSpec, with_prepared
from actors.routing.own_server import at_server
from actors.routing.routes import ResolvedRoute, SetupError, destination, remember, structured_lanes
from actors.routing.server_change import JobServers, at_their_places, refuse_servers, spec_at_their_places
from actors.routing.server_discovery import NamedServers, NameWatch, looked_up, named_servers
from actors.runtime.inline import InlineRuntime
from actors.simulator.frontends.account import encode
from actors.simulator.settings import SimulatorSettings
from cortex.programs.batch import Batch
from cortex.scheduler.budgets import covering
from cortex.state.program import params_of
from cortex.values.limits import JobTerms, Limits

COMING_BACK_S = 30.0
"""Longest wait in seconds for a channel that a cluster restarts; after it the channel is begun anew."""
ASK_S = 12.0
"""Longest wait in seconds for a channel's status: a little more than the time for which a channel asks its callers to
wait (``actors.runtime.ray_actor``)."""
LOOK_S = 0.5


class JobInUse(SetupError):
    """Another run works on the job."""


class NoHostForChannel(Exception):
    """The job's channel waits for another host."""


class RunOutcome(msgspec.Struct, frozen=True):
    """End of a run: the job's last status, and its answer."""

    facts: dict[str, Any]
    answer: Any = None


class Session:
    """Runner of a job spec. ``model``: a model object of the caller, for inline runs; ``others``: model objects of the
    fallbacks; ``players``: model objects of roles."""

    def __init__(
        self, order: JobSpec, environ: Mapping[str, str], *, source: Source | None = None, sink: Sink | None = None,
        progress: Callable[[dict[str, Any]], None] = lambda facts: None, model: Model | None = None,
        others: tuple[Model | None, ...] = (), players: Mapping[str, Model] | None = None,
    ) -> None:  # fmt: skip
        self.order = order
        self.job = order.named()
        self.folder = StateFolder(order.state)
        self._environ = environ
        self._source = source
        self._sink = sink
        self.progress = progress
        self.log: Callable[[str], None] = lambda line: None
        """Callback for each log line of the program."""
        self.on_credential: Callable[[Credential], None] = lambda credential: None
        """Callback for each credential in use, or read during the run, so that errors can redact it."""
        self.notify = ""
        """URL of the webhook for notifications of this run (``actors.channel.webhooks``)."""
        self.endpoint = MetricsEndpoint(environ)
        """Metrics endpoint of the run; may be closed."""
        self._models = (model, *others)
        self._players = dict(players or {})
        self._driver: Driver | None = None
        self._prepares: asyncio.Task[ConnectionSpec] | None = None
        self._stopped: tuple[str, str] | None = None
        self.destination: ResolvedRoute | None = None
        self.lookup = looked_up
        """Lookup of a name whose addresses are the servers."""
        self._named: NamedServers | None = None
        """Servers found under such a name."""
        self.note = ""
        """Further information on the run for the user, in one line."""
        self.attached = False
        """True if the job was found running in a cluster."""

    async def run(self) -> RunOutcome:
        """Run the job to its end. Raises ``SetupError``, ``StoreError``, and the errors of source and sink."""
        self.folder.prepare()
        try:
            with self.folder.hold(self.job):
                async with self.endpoint:
                    return await self._run()
        except JobHeld:
            raise JobInUse(in_use_message(self.folder, self.job)) from None

    async def _run(self) -> RunOutcome:
        found = self.destination = self._nowhere() or await self._resolved()
        try:
            for credential in self._credentials():
                self.on_credential(credential)
            cluster = self.cluster()
            terms = self.terms(found, cluster)
            self._refuse_unpriced(terms, cluster)
            owner = last_owner(self.folder, self.job)
            if owner is not None:
                self._clear_leftovers(owner)
            if cluster != "inline":  # while Ray starts; otherwise each branch would import the SDK, which takes 2 s
                self._prepares = asyncio.create_task(with_prepared(found.connection))
            runtime = await self._runtime(cluster)
            try:
                await self._see_disk(runtime, cluster)
                return await self._drive(runtime, terms, found, cluster)
            finally:
                await runtime.close()
        finally:
            if self._prepares is not None:
                self._prepares.cancel()
            found.close()

    async def _resolved(self) -> ResolvedRoute:
        """Return the destination, with the APIs of servers of the user's own found out."""
        spec, notice = self.order.model_spec, ""
        if not self._own_objects():
            before = last_terms(self.folder, self.job)
            endpoints = () if before is None else [route.endpoint for route in before.routes]
            chat = isinstance(self.order.program, Batch) and bool(self.order.program.api)
            spec, notice = await with_apis(spec, self._environ, endpoints, chat, wants_schemas(self.order.program))
        if spec.dns and not self._own_objects():
            goes_on = self.folder.has(self.job) and not self.order.fresh
            k = last_state(self.folder, self.job) if goes_on else None
            before, quiet = (None, True) if k is None else (k.terms, not k.flights)
            self._named = await named_servers(spec, before, self.lookup, quiet)
            spec, notice = self._named.spec, "; ".join(filter(None, (notice, self._named.notice)))
        refuse_without(self.order.program, spec, self._environ, self._models)
        found = destination(
            spec, self.order.limits, self._environ, self._models[0], self._models[1:], self._players
        )  # fmt: skip
        try:
            found = for_vectors(self.order.program, found)
        except SetupError:
            found.close()
            raise
        closed = self._closed(found)
        return msgspec.structs.replace(found, closed=closed, notice="; ".join(filter(None, (notice, found.notice))))

    def _closed(self, found: ResolvedRoute) -> tuple[str, ...]:
        """Return the endpoints of servers that get no calls: the name under which the others are found, and those that
        are gone."""
        if self._named is None:
            return ()
        routes = (found.route, *found.fallbacks)
        return tuple(
            route.endpoint
            for route, url in zip(routes, self._named.spec.servers, strict=False)
            if url not in self._named.open
        )

    @property
    def begun(self) -> bool:
        """Return whether this run has begun the job: from then on calls may have been sent."""
        return self._driver is not None and self._driver.begun

    async def stop(self, how: str, by: str) -> None:
        """Ask the job to end. ``how``: ``drain`` or ``cancel``."""
        self._stopped = (how, by)
        if self._driver is not None:
            await self._driver.stop(how, by)

    async def look(self) -> dict[str, Any]:
        """Return the job's present figures; empty if the job does not run or its channel does not answer."""
        if self._driver is None:
            return {}
        with contextlib.suppress(UserError, ChannelLost):
            return await self._driver.refresh()
        return {}

    def terms(self, found: ResolvedRoute, cluster: str) -> JobTerms:
        """Return the terms for the journal: all data that a resumed run needs, without secrets."""
        order = self.order
        where = loader.place_of(type(order.runs()))
        params = params_of(order.runs())
        places = {
            **order.places, "wish": remember(order.model_spec), "cluster": cluster, "input": whole(order.input),
            "output": whole(order.output), **({OVERWRITES: "1"} if order.overwrite else {}),
        }  # fmt: skip
        given = order.concurrency_given or found.route.batched
        limits = at_server(order.limits, found.route.endpoint, given=given, servers=1 + found.peers - len(found.closed))
        if found.concurrency_max is not None and limits.concurrency > found.concurrency_max:
            limits = msgspec.structs.replace(limits, concurrency=found.concurrency_max)
        if found.route.batched:
            own = limits.concurrency != Limits().concurrency
            limits = bounds(limits, simulated=row_of(found.connection.provider).quick_batches, own=own)
        return JobTerms(
            job=self.job, program=where, params_json=params, fingerprint=loader.fingerprint(where, params),
            route=found.route, fallbacks=found.fallbacks, peers=found.peers, closed=found.closed,
            role_routes=found.role_routes, roles=found.roles,
            limits=limits, streams=self._source is not None and order.shards == 1,
            fresh=order.fresh, keeps_text=order.keeps_text, places=places, labels=order.labels,
            rows_readable=counted(places.get("rows", "")), rows_unreadable=counted(places.get(UNREADABLE, "")),
            structured_lanes=self._structured(found),
        )  # fmt: skip

    def _structured(self, found: ResolvedRoute) -> tuple[int, ...]:
        """Return the lanes that ask by structured outputs: none for a job that began in words, since replies are
        remembered by their requests."""
        before = None if self.order.fresh else last_terms(self.folder, self.job)
        return structured_lanes(found) if before is None or before.structured_lanes else ()

    def _refuse_unpriced(self, terms: JobTerms, cluster: str) -> None:
        """Raise ``SetupError`` if a budget covers the job and no price is known, and ``StoreError`` if that budget is
        gone. A cluster checks its own budgets itself."""
        shared = terms.places.get(PLACE, "")
        if shared:
            accounts_at(shared).prepare()
        if terms.labels and (shared or cluster in ("inline", "local")):
            there = books_of(self.folder, shared).read()
            if not shared:
                refuse_lost(self.folder, there, terms.labels)
            for budget in covering(there.values(), terms.labels):
                if text := unpriced(terms, budget.name):
                    raise SetupError(text)
                self.note = as_if_paid(terms, f"the budget {budget.name}") or self.note
        elif terms.labels:
            self.note = as_if_paid(terms, "a budget of its labels")

    def cluster(self) -> str:
        """Return the place of the job. ``auto`` is the Ray of ``RAY_ADDRESS``, else this process; model objects need
        this process."""
        if self.order.cluster != "auto":
            return self.order.cluster
        if self._own_objects():
            return "inline"
        return self._environ.get("RAY_ADDRESS") or "inline"

    # -- parts -----------------------------------------------------------------------------------------------------

    def _nowhere(self) -> ResolvedRoute | None:
        """Return a placeholder destination for a complete job that is asked for again unchanged; else None.

        Nothing will be sent, so no key is needed and no model is started. Jobs with a source are checked by its opener.
        """
        order = self.order
        before = last_terms(self.folder, self.job)
        if before is None or order.fresh or self._source is not None:
            return None
        where, params = loader.place_of(type(order.runs())), params_of(order.runs())
        same = before.program == where and loader.is_unchanged(where, params, before.fingerprint)
        if not same or before.places.get("wish") != remember(order.model_spec) or self._own_objects():
            return None
        if last_state(self.folder, self.job).outcome != "complete":
            return None
        nowhere = ConnectionSpec(
            endpoint=before.route.endpoint, provider=SIMULATED, settings=encode(SimulatorSettings())
        )
        return ResolvedRoute(
            before.route, nowhere, fallbacks=before.fallbacks, role_routes=before.role_routes, roles=before.roles,
            peers=before.peers, closed=before.closed,
        )  # fmt: skip

    def _own_objects(self) -> bool:
        return any(self._models) or bool(self._players)

    def _credentials(self) -> list[Credential]:
        """Return the credentials of the job's routes."""
        assert self.destination is not None, "the destination is set before the credentials are read"
        connection = self.destination.connection
        return [each.credential for each in (connection, *connection.fallbacks) if each.credential is not None]

    async def _runtime(self, cluster: str) -> Any:
        if cluster == "inline":
            return InlineRuntime(telemetry=of_environ(self._environ, counts=self.endpoint.is_open))
        if self._own_objects():
            raise SetupError("a model object lives in this process: give --cluster inline, or name a model")
        from actors.cluster.bootstrap import hidden
        from actors.cluster.compatibility import needs_of
        from actors.runtime.ray_runtime import start_runtime

        try:
            with hidden(self._credentials()):
                wishes = (
                    self.order.model_spec,
                    *self.order.model_spec.further,
                    *self.order.model_spec.roles.values(),
                )
                limits = self.order.places.get(PLACE, "")
                needs = needs_of({spec.provider for spec in wishes}, self.order.state, limits)
                runtime = await start_runtime(cluster, self._environ, needs=needs)
            await hand_over(runtime.peer("cortex"), self._environ, cluster)
            return runtime
        except ClusterError as error:
            raise SetupError(str(error)) from None

    async def _see_disk(self, runtime: Any, cluster: str) -> None:
        """Raise ``SetupError`` unless the cluster sees the state folder: the channel writes the journal there."""
        if cluster in ("inline", "local") or self.folder.remote:
            return
        mark = self.folder.path / f".seen-{secrets.token_hex(8)}"
        mark.touch()
        try:
            if not await runtime.sees(str(mark.resolve())):
                raise SetupError(
                    f"{cluster} runs on another machine, or as another user, and does not see "
                    f"{self.folder.path.resolve()}, the folder of this job's journal: give --state postgresql://…, "
                    "or have the job run there: --cluster http://…:8265"
                )
        finally:
            mark.unlink(missing_ok=True)

    def _clear_leftovers(self, owner: Owner) -> None:
        """Fence the actors of a killed run, then end them: they may still send calls and write."""
        if owner.cluster != "local" or owner.pid == os.getpid():
            return
        from actors.cluster.orphan_cleanup import end_leftovers

        journal = self.folder.journal(self.job)
        try:
            journal.take_epoch(msgspec.json.encode(this_owner("local")))
        finally:
            journal.close()
        end_leftovers(owner)

    async def _drive(self, runtime: Any, terms: JobTerms, found: ResolvedRoute, cluster: str) -> RunOutcome:
        runtime.share_program(terms.program, terms.params_json, self.job)
        before = last_terms(self.folder, self.job)
        own = before is not None and before.places.get("output") == terms.places["output"]
        decided, reopened = self.order.decided, self.order.reopened
        opening = Opening(
            terms=terms, owner=runtime.owner(), who=who(), decided=decided, reopened=reopened, notify=self.notify
        )
        attach = self.attached = await self._lives(runtime)
        kept: Any = self._sink if hasattr(self._sink, "kept") else None
        if before is not None and own and kept is not None:
            own = refuse_losing(self.folder, self.order, before, None if attach else opening, kept)
        if self._sink is not None and hasattr(self._sink, "check"):
            self._sink.check()
        connection = found.connection if self._prepares is None else await self._prepares
        given = terms
        if attach and before is not None:
            further = self._named is not None  # a name's new addresses join when it is looked up again
            now = last_state(self.folder, self.job).terms  # its servers may have changed since it was opened
            terms, connection = at_their_places(self.job, terms, connection, now, further)
        self._driver = Driver(
            runtime, self.folder.address, opening, connection, source=self._source, sink=self._sink,
            progress=self.progress, attach=attach, own=own, narrow=found.narrow,
            rotation=rotation(terms, connection, self.on_credential), log=self.log, program=self.order.runs(),
            servers=None if self._own_objects() else self._servers(given, terms, connection), names=self._names(terms),
            run_of=last_owner(self.folder, self.job) if attach else None,
        )  # fmt: skip
        if self._stopped is not None:
            await self._driver.stop(*self._stopped)
        self.endpoint.serve(runtime, self.job)
        async with shown(opening.owner.ray_folder):
            facts = await self._driver.run()
        answer = await self._driver.answer() if facts["outcome"] in ("complete", "partial") else None
        for name in await runtime.names(f"channel:{self.job}~") if self.order.shards > 1 else ():
            await runtime.end_actor(name)
        if facts["outcome"] != "running":
            await runtime.end_actor(f"channel:{self.job}")
        return RunOutcome(facts, answer)

    def _servers(self, given: JobTerms, terms: JobTerms, connection: ConnectionSpec) -> JobServers:
        spec = self.order.model_spec if self._named is None else self._named.spec
        placed, schemas = spec_at_their_places(spec, given, terms), wants_schemas(self.order.program)
        return JobServers(placed, terms, connection, self._environ, schemas)

    def _names(self, terms: JobTerms) -> NameWatch | None:
        """Return the lookups of the servers' name while the job runs; None where none is looked up, or the job takes
        other servers between two runs only."""
        if self._named is None:
            return None
        try:
            refuse_servers(terms)
        except SetupError as error:
            self.log(f"the servers of {self._named.spec.dns} stay those of now: {error}")
            return None
        return NameWatch(self._named, self.lookup)

    async def _lives(self, runtime: Any) -> bool:
        """Return whether the job runs on a cluster without a driver; then the run attaches to it."""
        if runtime.cluster in ("inline", "local"):
            return False
        name = f"channel:{self.job}"
        try:
            facts = await self._settled(runtime.peer(name), runtime)
        except NoHostForChannel:  # the journal has moved to this host, and the channel waits for another
            await runtime.kill_actor(name)
            return False
        except (PeerUnavailable, PeerGone, UserError):  # a fault that persists is reported when the job is begun anew
            return False
        if facts["outcome"] == "running" and not facts["broken"]:
            there = facts.get("state", self.folder.address)
            if there != self.folder.address and not self.folder.remote:  # one database may have several addresses
                raise JobInUse(f"another job {self.job}, of {there}, runs on {runtime.cluster}: give another --job")
            return True
        await runtime.end_actor(name)
        return False

    async def _settled(self, channel: Peer, runtime: Any) -> Any:
        """Return the channel's status. Wait for the end of a drain or cancellation under way: a run that attached to
        the job would end with it.
        """
        facts = msgspec.json.decode(await self._patiently(channel, runtime))
        if facts["outcome"] == "running" and facts.get("stopping"):
            log = harmless(self.log, "the log of the job")
            log(f"job {self.job} is still ending there: it goes on when its calls in flight are finished")
        while facts["outcome"] == "running" and facts.get("stopping") and not facts["broken"]:
            await asyncio.sleep(LOOK_S)
            facts = msgspec.json.decode(await self._patiently(channel, runtime))
        return facts

    async def _patiently(self, channel: Peer, runtime: Any) -> Any:
        """Return the channel's status. Wait for a channel that the cluster restarts: beginning the job anew would end
        it again.

        Raises ``NoHostForChannel`` if the channel waits for a lost host, ``PeerUnavailable`` after ``COMING_BACK_S``.
        """
        end_s = time.monotonic() + COMING_BACK_S
        while True:
            if await runtime.awaits(channel.name):
                raise NoHostForChannel
            try:
                async with asyncio.timeout(ASK_S):  # a cluster may hold the request until the channel is back
                    return await channel.ask("status")
            except ChannelNotStarted:
                raise
            except (PeerUnavailable, TimeoutError):
                if time.monotonic() >= end_s:
                    raise PeerUnavailable(channel.name) from None
                await asyncio.sleep(LOOK_S)


__all__ = ["JobInUse", "RunOutcome", "Session", "SetupError"]
