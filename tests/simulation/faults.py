"""Faults of a plan, carried out at their times."""

from __future__ import annotations

from typing import Any

from tests.simulation.invariants import awake
from tests.simulation.loop import NOBODY, Life
from tests.simulation.scenario import Trouble


class Faults:
    """Executor of a plan's faults. ``drivers`` kills and restarts drivers, which are not actors of the runtime."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._loop = world.loop
        self._chance = world.plan.chance("faults")
        for trouble in world.plan.troubles_at:
            self._later(trouble.at_s, getattr(self, trouble.kind), trouble)
        self._later(world.plan.quiet_s, self.calm)

    def _later(self, at_s: float, what: Any, *args: Any) -> None:
        self._loop.call_at(at_s, what, *args, context=NOBODY)

    def _victim(self, trouble: Trouble) -> Life | None:
        found = sorted(name for name in self._world.lives if name.partition(":")[0] == trouble.target)
        return self._world.lives[found[int(trouble.amount * len(found))]] if found else None

    def calm(self) -> None:
        """Stop all faults."""
        world = self._world
        world.tell("the faults stop")
        world.calm = True
        world.cut.clear()
        world.provider.trouble.clear()
        world.provider.blocked = False
        world.disk.fatal.clear()
        for node in world.nodes:
            node.lag_s, node.up = 0.0, True

    # -- lives ---------------------------------------------------------------------------------------------------------

    def crash(self, trouble: Trouble) -> None:
        """kill -9 after some callbacks: at any await."""
        life = self._victim(trouble)
        if life is not None and not life.halted:
            life.fuse = 1 + int(self._chance.random() ** 2 * 40)
            life.halted = True

    def crash_in_commit(self, trouble: Trouble) -> None:
        """kill -9 inside the next commit, which is made or not; or a full disk."""
        life = self._victim(trouble)
        if life is not None:
            self._world.disk.fatal[life.name] = self._chance.choice(("before", "after", "after", "full"))

    def stand_still(self, trouble: Trouble) -> None:
        """Suspend a life and resume it later."""
        life = self._victim(trouble)
        if life is not None and not life.halted:
            self._world.freeze(life, trouble.for_s)

    def hung(self, trouble: Trouble) -> None:
        """Suspend a life for good: it must be killed."""
        life = self._victim(trouble)
        if life is not None and not life.halted:
            self._world.tell(f"{life.name} hangs")
            life.frozen = life.halted = True

    def keeps_dying(self, trouble: Trouble) -> None:
        """Kill every actor of this name soon after its start, repeatedly."""
        life = self._victim(trouble)
        if life is not None:
            self._die_again(life.name, self._loop.time() + trouble.for_s)

    def _die_again(self, name: str, until_s: float) -> None:
        life = self._world.lives.get(name)
        if life is not None and not life.halted:
            life.fuse = 1 + int(self._chance.random() * 20)
            life.halted = True
        if self._loop.time() < until_s and not self._world.calm:
            self._later(self._loop.time() + 0.3, self._die_again, name, until_s)

    def crash_while_open(self, trouble: Trouble) -> None:
        """Kill the cortex as soon as a breaker is open, if one opens within a while."""
        self._look_for_open(self._loop.time() + trouble.for_s)

    def _look_for_open(self, until_s: float) -> None:
        life = self._world.lives.get("cortex")
        state = getattr(life.seat._actor, "_state", None) if life is not None and not life.halted else None
        if state is not None and any(route.breaker.state == "open" for route in state.routes.values()):
            self._world.kill(life, back_s=0.05)
        elif self._loop.time() < until_s and not self._world.calm:
            self._later(self._loop.time() + 0.2, self._look_for_open, until_s)

    def cut_off(self, trouble: Trouble) -> None:
        """Block all messages between a life and the cortex."""
        life = self._victim(trouble)
        if life is not None and trouble.target != "cortex":
            self._world.tell(f"{life.name} is cut off from the cortex for {trouble.for_s} s")
            self._world.cut.add(life.name)
            self._later(self._loop.time() + trouble.for_s, self._world.cut.discard, life.name)

    def thought_dead(self, trouble: Trouble) -> None:
        """Start another actor of the same name while the life is only suspended; then both exist for a while."""
        life = self._victim(trouble)
        if life is None or life.halted or trouble.target == "driver":
            return
        self._world.replace(life)
        self._later(self._loop.time() + 0.2 + trouble.for_s, self._loop.thaw, life)
        self._later(self._loop.time() + 0.2 + 3 * trouble.for_s, self._world.kill, life)

    def opened_late(self, trouble: Trouble) -> None:
        """Restart a channel twice: the first process is suspended before it has begun, and opens its job only after the
        second one has; then it dies. The second is fenced by it, and nobody tells.
        """
        life = self._victim(trouble)
        if life is not None and not life.halted:
            self._world.kill(life, back_s=0.05)
            self._later(self._loop.time() + 0.05, self._opens_late, life.name, trouble.for_s)

    def _opens_late(self, name: str, for_s: float) -> None:
        life = self._world.lives.get(name)
        if life is not None and not life.halted:
            self._world.replace(life)
            self._later(self._loop.time() + for_s, self._loop.thaw, life)
            after_s = self._chance.choice((0.02, 0.1, 0.5))
            self._later(self._loop.time() + for_s + after_s, self._world.kill, life)

    def gone(self, trouble: Trouble) -> None:
        """End a branch or worker, without an automatic restart."""
        life = self._victim(trouble)
        if life is not None and trouble.target in ("branch", "worker"):
            self._world.kill(life, gone=True)

    def node_dies(self, trouble: Trouble) -> None:
        """Kill all actors of a node at once, except for the node with the disk."""
        world = self._world
        if len(world.nodes) < 2:
            return
        node = world.nodes[1 + int(trouble.amount * (len(world.nodes) - 1))]
        world.tell(f"node {node.name} dies")
        node.up = False
        self._later(self._loop.time() + trouble.for_s, self._node_back, node)
        for name in sorted(name for name, life in world.lives.items() if life.node is node):
            world.kill(world.lives[name])

    def _node_back(self, node: Any) -> None:
        node.up = True

    def power_lost(self, trouble: Trouble) -> None:
        """Cut the power of the machine with the state folder, whose disk has lied about flushes, but of one file."""
        world = self._world
        node = world.nodes[0]
        if node.up:
            self._later(self._loop.time() + trouble.for_s, self._node_back, node)
            world.lose_power(node, trouble.amount, trouble.target)

    def node_slow(self, trouble: Trouble) -> None:
        """Delay messages from and to a node."""
        node = self._chance.choice(self._world.nodes)
        node.lag_s = 0.05 + 1.5 * trouble.amount
        self._world.tell(f"node {node.name} is slow by {node.lag_s:.2f} s")
        self._later(self._loop.time() + trouble.for_s, self._node_quick, node)

    def _node_quick(self, node: Any) -> None:
        node.lag_s = 0.0

    def clock_jumps(self, trouble: Trouble) -> None:
        """Set the wall clock of a node forwards or backwards: by a little, a minute, a day, a year."""
        node = self._chance.choice(self._world.nodes)
        by_s = (trouble.amount - 0.5) * self._chance.choice((2.0, 60.0))
        by_s *= (1.0, 1.0, 1.0, 3_000.0, 1_000_000.0)[int(trouble.amount * 1_000) % 5]
        node.wall_offset_s += by_s
        node.set_s = self._loop.time()
        self._world.tell(f"the clock of {node.name} jumps by {by_s:.1f} s")

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _journal_of(self, trouble: Trouble) -> str:
        """Return a batch with a journal: those of jobs with child jobs are read by others too."""
        jobs = [job.name for job in self._world.plan.jobs if job.program == "batch" and job.shards == 1]
        found = [job for job in jobs if job in self._world.disk.jobs()]
        return found[int(trouble.amount * len(found))] if found else ""

    def bit_flips(self, trouble: Trouble) -> None:
        """Flip a bit in the journal of a job."""
        job = self._journal_of(trouble)
        if job and self._world.watch.job(job).seq:
            where = self._world.disk.flip(job, self._chance.random)
            self._world.tell(f"a bit of the journal of {job} flips: {where}")

    def unlinked(self, trouble: Trouble) -> None:
        """Remove the journal of a job that runs: after its end a channel looks at it no more."""
        job = self._journal_of(trouble)
        life = self._world.lives.get(f"channel:{job}")
        k = self._world.watch.job(job).k
        if life is not None and not life.halted and awake(life) and k is not None and not k.outcome:
            self._world.tell(f"the journal of {job} is removed")
            self._world.disk.unname(job, self._loop.time())

    # -- the provider --------------------------------------------------------------------------------------------------

    def overloaded(self, trouble: Trouble) -> None:
        """Fail a share of all requests for a while."""
        self._trouble("overloaded", 0.3 + 0.7 * trouble.amount, trouble.for_s)

    def hangs(self, trouble: Trouble) -> None:
        """Leave a share of all requests unanswered."""
        self._trouble("hangs", 0.2 + 0.5 * trouble.amount, trouble.for_s)

    def _trouble(self, kind: str, share: float, for_s: float) -> None:
        provider = self._world.provider
        self._world.tell(f"the provider: {share:.0%} {kind} for {for_s} s")
        endpoint = self._chance.choice(("", "sim"))
        provider.trouble[endpoint] = (share, kind)
        self._later(self._loop.time() + for_s, provider.trouble.pop, endpoint, None)

    def blocked(self, trouble: Trouble) -> None:
        """Block the account, and unblock it later."""
        self._world.tell(f"the account is blocked for {trouble.for_s} s")
        self._world.provider.blocked = True
        self._later(self._loop.time() + trouble.for_s, self._unblocked)

    def _unblocked(self) -> None:
        self._world.provider.blocked = False

    def throttles(self, trouble: Trouble) -> None:
        """Change the provider's rate limits."""
        for pool in self._world.provider.pools.values():
            pool.requests_per_s = (1.0 + 10.0 * trouble.amount) if pool.requests_per_s else 0.0
