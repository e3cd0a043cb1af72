"""Watch: checks after every event that no invariant is violated, at a cost independent of the length of a run.

The watch keeps its own K of every job, folded only from committed turns. So it knows what a channel may do, and detects
a channel that does more.
"""

from __future__ import annotations

from itertools import count, takewhile
from typing import Any

import msgspec

from actors.channel.channel import FAULT
from actors.programs import loader
from cortex.journal import codec
from cortex.loop.invariants import check
from cortex.loop.step import step
from cortex.scheduler.state import SchedulerState
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State
from tests.simulation import invariants_shards, transcript
from tests.simulation.loop import Life

SLACK_S = 2.5
"""Seconds by which an event may be late: messages, sweeps and turns take time."""
STANDING_S = 1.0
"""Seconds between two checks for events that should have happened by themselves."""
CHECK_EVERY = 37
"""Turns between two checks of the whole K; with more goals in K, as many turns as goals, so the cost of a turn is
constant."""
FOR_GOOD = ("over_budget", "max_failed", "deadline")
"""Reasons for which a job may end partial without being resumed."""
LOST_S = 25.0
"""Seconds after which a channel that takes turns must have noticed that its journal was removed: it looks each second,
and may stand still between its look and its commit."""
MISSING = object()
"""Placeholder of the result of a row that is asked again, with results in input order."""

_calls = msgspec.msgpack.Decoder(tuple[commands.Call, ...])


class Broken(AssertionError):
    """An invariant does not hold."""


class JobWatch:
    """Committed history of one job, and what follows from it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.k: State | None = None
        self.program: Program | None = None
        self.epoch = 0
        self.seq = 0
        self.turns = 0
        self.allowed: set[tuple[int, int]] = set()
        """Calls that a committed turn asked for."""
        self.emitted: list[Any] = []
        self.before: dict[int | str, Any] = {}
        """Earlier results of reopened rows, by row, or by place with results in the order of the input."""
        self.keys: set[str] = set()
        self.fed: set[str] = set()
        self.cap_nusd: int | None = None
        self.due_s: float | None = None
        """Time at which K will change by time alone, by the loop's clock."""


class Observer:
    """Further watch. It observes the events for which it overrides a method."""

    by_turns = False
    """True if all that it records of a job follows from the job's turns: it forgets a job in ``lost``, and then takes
    the turns that are left once more."""

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """The disk has lost the last turns of a job. ``record`` is what it was, ``gone`` has the commands of each."""

    def rebuilt(self, record: JobWatch) -> None:
        """The record of such a job was made anew, of the turns that are left."""

    def took(self, job: str, epoch: int) -> None:
        """A channel has become a job's only writer."""

    def sent(self, life: Life, name: str, method: str, args: Any) -> None:
        """A message leaves a life."""

    def answered(self, message: Any, value: Any) -> None:
        """The answer to a claim has reached its sender."""

    def stepped(self, state: SchedulerState, event: Any, out: list[Any]) -> None:
        """A cortex has taken a step."""

    def began(self, life: Life, role: str) -> None:
        """A life begins."""

    def died(self, life: Life) -> None:
        """A life has ended."""

    def made(self, batch: Any, life: Life) -> None:
        """The provider has made a message batch."""

    def asked(self, request: Any) -> None:
        """A request reaches the provider."""

    def billed(self, request: Any) -> None:
        """The provider has answered completely, whether or not the caller still waits."""

    def standing(self) -> None:
        """Periodic check for due events that have not happened."""


_TOLD = tuple(name for name in vars(Observer) if not name.startswith("_"))


class Watch:
    """Watch of a world, which it only reads."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._loop = world.loop
        self.jobs: dict[str, JobWatch] = {}
        self.broken: list[str] = []
        self.errors: list[BaseException] = []
        self.events = 0
        self.reopened = 0
        self.calls = 0
        self._turns: dict[str, list[tuple[bytes, list[commands.Command]]]] = {}
        """By job: turns on disk and the commands of each, where a disk lies about flushes."""
        self._again = False
        """True while a record is made anew: what holds of its turns was checked when they were taken."""
        self._told: dict[str, list[Any]] = {name: [] for name in _TOLD}
        """Methods of further watches, by the event."""

    def attend(self, observer: Observer) -> None:
        """Add a further watch for all events for which it has a method."""
        for name, entries in self._told.items():
            if getattr(type(observer), name) is not getattr(Observer, name):
                entries.append(getattr(observer, name))

    def alone(self) -> None:
        """Remove all further watches."""
        for entries in self._told.values():
            entries.clear()

    def say(self, text: str, error: BaseException | None = None) -> None:
        """Record a violation."""
        if self._again and error is None:
            return
        self.broken.append(f"at {self._loop.time():.3f} s: {text}")
        if error is not None:
            self.errors.append(error)
        self._world.tell(f"!!! {text}")

    def look(self) -> None:
        """Raise ``Broken`` with all violations, if any."""
        found = self.broken + [f"nobody looked at: {answer}" for answer in self._loop.complaints]
        if found:
            raise Broken("\n".join(found[:20])) from (self.errors[0] if self.errors else None)

    def job(self, name: str) -> JobWatch:
        """Return the record of a job."""
        found = self.jobs.get(name)
        if found is None:
            found = self.jobs[name] = JobWatch(name)
        return found

    # -- lives ---------------------------------------------------------------------------------------------------------

    def began(self, life: Life, role: str) -> None:
        """A life begins."""
        for tell in self._told["began"]:
            tell(life, role)

    def died(self, life: Life) -> None:
        """A life ends, or is thought to have ended."""
        for tell in self._told["died"]:
            tell(life)

    # -- the journal ---------------------------------------------------------------------------------------------------

    def took(self, job: str, epoch: int) -> None:
        """A channel has become a job's only writer."""
        record = self.job(job)
        if epoch <= record.epoch:
            self.say(f"{job}: epoch {epoch} was taken after epoch {record.epoch}")
        record.epoch = epoch
        for tell in self._told["took"]:
            tell(job, epoch)

    def appended(self, job: str, epoch: int, seq: int, blobs: Any) -> None:
        """Turns are on disk."""
        record = self.job(job)
        if epoch != record.epoch:
            self.say(f"{job}: epoch {epoch} has appended, the journal is of epoch {record.epoch}")
        for blob in blobs:
            record.seq += 1
            try:
                out = self._turn(record, codec.decode_turn(blob))
                if self._world.disk.lies:
                    self._turns.setdefault(job, []).append((blob, out))
            except Exception as error:  # otherwise the error would end the channel, and be reported only at the end
                self.say(f"{job}: {type(error).__name__}: {error}", error)
        self._compare(record)
        if seq != record.seq:
            self.say(f"{job}: turn {seq} was written as number {record.seq}")
        unnamed_s = self._world.disk.unnamed_s.get(job)
        if unnamed_s is not None and self._loop.time() > unnamed_s + LOST_S:
            self.say(f"{job} writes on {self._loop.time() - unnamed_s:.0f} s after its journal was removed")

    def lost(self, job: str) -> None:
        """Make the record of a job anew, of the turns that a loss of power has left in its journal."""
        record, turns, events_seen, reopened = self.job(job), self._turns.get(job, []), self.events, self.reopened
        epoch, left = self._world.disk.stand(job)
        if (epoch, left) == (record.epoch, record.seq):
            return
        gone, self._turns[job] = [out for _, out in turns[left:]], []
        self._tell_all("lost", record, gone)
        self.jobs[job] = made = JobWatch(job)
        made.epoch, tells = epoch, self._told["turned"]
        self._told["turned"] = [tell for tell in tells if tell.__self__.by_turns]
        self._again, self._world.tells, told = True, False, self._world.tells
        try:
            self.appended(job, epoch, left, [blob for blob, _ in turns[:left]])
        finally:
            self._again, self._world.tells, self._told["turned"] = False, told, tells
        self.events, self.reopened = events_seen, reopened
        self._tell_all("rebuilt", made)

    def _tell_all(self, name: str, *args: Any) -> None:
        for tell in self._told[name]:
            tell(*args)

    def _compare(self, record: JobWatch) -> None:
        """Check that the channel's K is what its journal implies."""
        life = self._world.lives.get(f"channel:{record.name}")
        k = getattr(life.seat._actor, "_k", None) if life is not None else None
        if k is not None and k.epoch == record.epoch and record.k is not None and record.turns > 1:
            found = same(k, record.k)
            if found:
                self.say(f"{record.name}: the channel's K is not what its journal makes of it: {found}")

    def _turn(self, record: JobWatch, turn: events.Turn) -> list[commands.Command]:
        turn = self._filled(record, turn)
        terms = codec.opening(turn)
        if terms is not None:
            record.k = codec.open_job(terms)
            record.program = loader.load(terms.program, terms.params_json)
        k, program = record.k, record.program
        assert k is not None
        assert program is not None
        spent = k.ledger.committed_nusd
        edition, held = k.edition, dict(k.held)
        out = step(k, program, turn)
        if k.edition > edition:
            self._reopened(record, turn, held)
        for command in out:
            if type(command) is commands.Call:
                record.allowed.add((command.goal, command.attempt))
            elif type(command) is commands.EmitResult:
                self._emit(record, command)
            elif type(command) is commands.FinishJob and self._world.tells:
                self._world.tell(f"{record.name} is {command.outcome} {command.why}")
        self.events += sum(len(batch) for batch in turn.batches)
        if self._world.tells:
            self._world.tell(f"{record.name} turn {record.seq}: {transcript.told(turn)}")
        self._money(record, k, spent)
        record.turns += 1
        due_at_s = None if k.outcome else k.due_at_s()
        record.due_s = None if due_at_s is None else self._loop.time() + max(0.0, due_at_s - turn.at_s)
        if record.turns % (CHECK_EVERY + len(k.goals)) == 0:
            check(k)
        for tell in self._told["turned"]:
            tell(record, turn, out)
        return out

    def _filled(self, record: JobWatch, turn: events.Turn) -> events.Turn:
        """Read remembered replies from the journal, as a replay does."""
        if not any(type(event) is events.ReplyRecalled and event.reply is None for b in turn.batches for event in b):
            return turn
        disk = self._world.disk
        with disk.as_written(record.name):
            return disk.journal(record.name, Life("watch", None))._filled(turn)  # type: ignore[no-any-return]

    def _reopened(self, record: JobWatch, turn: events.Turn, held: dict[int, Any]) -> None:
        """Mark the results of reopened rows as missing. ``held``: results that waited for their turn before."""
        event = next(e for batch in turn.batches for e in batch if isinstance(e, events.RowsReopened))
        gone = set(event.lines)
        for row, line in zip(event.keys, event.lines, strict=True):
            value = record.emitted[line] if line < len(record.emitted) else MISSING
            value = held.get(line, MISSING) if value is MISSING else value
            if value is not MISSING:
                record.before[line if event.ordered else row] = value
            record.keys.discard(row)
        kept: list[object] = [v for at, v in enumerate(record.emitted) if event.ordered or at not in gone]
        record.emitted = [MISSING if event.ordered and at in gone else v for at, v in enumerate(kept)]
        self.reopened += 1

    def _emit(self, record: JobWatch, command: commands.EmitResult) -> None:
        if command.index < len(record.emitted) and record.emitted[command.index] is MISSING:
            record.emitted[command.index] = command.value
        else:
            if command.index != len(record.emitted):
                self.say(f"{record.name}: result {command.index} after {len(record.emitted)} results")
            record.emitted.append(command.value)
        if isinstance(command.value, bytes):
            key = msgspec.json.decode(command.value)["custom_id"]
            if key in record.keys:
                self.say(f"{record.name}: row {key} has a second result")
            record.keys.add(key)

    def _money(self, record: JobWatch, k: State, before_nusd: int) -> None:
        cap, now_nusd = k.terms.limits.max_cost_nusd, k.ledger.committed_nusd
        if self._world.plan.provider.bills > 1 or self._world.provider.overbilled:
            return  # `BillsWatch` knows by how much a cap may be passed
        if cap is not None and now_nusd > cap and now_nusd > before_nusd:
            self.say(f"{record.name}: {now_nusd} nUSD known, assumed and reserved; the cap is {cap}")
        if k.terms.shard and now_nusd > before_nusd:
            invariants_shards.money(self, record)

    # -- messages ------------------------------------------------------------------------------------------------------

    def sent(self, life: Life, name: str, method: str, args: Any) -> None:
        """A message leaves a life."""
        if life.dead:
            self.say(f"{life.name} is dead and speaks")
        if method == "work":
            self._work(life, args)
        for tell in self._told["sent"]:
            tell(life, name, method, args)

    def stepped(self, state: Any, event: Any, out: Any) -> None:
        """A cortex has taken a step."""
        for tell in self._told["stepped"]:
            tell(state, event, out)

    def answered(self, message: Any, value: Any) -> None:
        """The answer to a claim has reached its sender."""
        for tell in self._told["answered"]:
            tell(message, value)

    def _work(self, life: Life, args: Any) -> None:
        record = self.job(args[0])
        for call in _calls.decode(args[4]):
            if (call.goal, call.attempt) not in record.allowed:
                self.say(f"{life.name} asks for attempt {call.attempt} of goal {call.goal}, which no turn asked for")

    # -- the provider --------------------------------------------------------------------------------------------------

    def made(self, batch: Any, life: Life) -> None:
        """The provider has made a message batch."""
        for tell in self._told["made"]:
            tell(batch, life)

    def asked(self, request: Any) -> None:
        """A request reaches the provider."""
        self.calls += 1
        if request.life.dead:
            self.say(f"{request.life.name} is dead and calls")
        for tell in self._told["asked"]:
            tell(request)

    def billed(self, request: Any) -> None:
        """The provider has answered completely, whether or not the caller still waits."""
        for tell in self._told["billed"]:
            tell(request)

    # -- events that are due
    # -------------------------------------------------------------------------------------------------

    def standing(self) -> None:
        """Periodic check for due events that have not happened."""
        now_s = self._loop.time()
        for record in self.jobs.values():
            life = self._world.lives.get(f"channel:{record.name}")
            broken = getattr(getattr(life and life.seat, "_actor", None), "broken", "")
            if broken.startswith(FAULT):
                self.say(f"{record.name}: {broken}")
            if life is None or life.halted or record.due_s is None or not awake(life):
                record.due_s = None if record.due_s is None else max(record.due_s, now_s)
            elif now_s > record.due_s + SLACK_S:
                self.say(f"{record.name}: something was due at {record.due_s:.3f} s and nothing happened")
        for tell in self._told["standing"]:
            tell()

    # -- the end -------------------------------------------------------------------------------------------------------

    def finished(self, name: str, sink: Any, rows: int, ordered: bool = False) -> None:
        """Check after the end of a job and of faults that every result is present once."""
        record = self.job(name)
        k = record.k
        if sink.outcome == "damaged":
            if not self._world.disk.flipped.get(name):
                self.say(f"{name} is told to be damaged, and no bit has flipped: {sink.why}")
            return
        if name in self._world.disk.unnamed_s:
            self.say(f"{name} has ended, and its journal has no name")
        if k is None or not k.outcome:
            self.say(f"{name} did not finish: {_why(k)}")
            return
        check(k)
        if k.shards:
            lies = self._world.disk.lies
            invariants_shards.together(self, name, sink, rows if k.outcome == "complete" else 0, ordered, lies)
            rows = 0
        elif sink.values != listed(record, sink.values):
            self.say(f"{name}: the sink holds other results than the journal")
        if k.outcome == "complete" and k.live:
            self.say(f"{name} is complete and {k.live} goals are not")
        if k.outcome == "complete" and rows and (known := len(record.keys | k.standing.keys())) != rows:
            self.say(f"{name} is complete with {known} of {rows} rows")
        late = k.terms.limits.goal_timeout_s is not None and "the goal's deadline passed" in k.why  # timed elsewhere
        if k.outcome not in ("complete", "partial") and "effect unknown" not in k.why and not late:
            self.say(f"{name} ended {k.outcome}: {k.why}")
        if k.outcome == "partial" and not k.why.startswith(FOR_GOOD):
            self.say(f"{name} ended partial: {k.why}")


def same(k: State, shadow: State) -> str:
    """Return a difference between two Ks, by a quick comparison; empty if there is none."""
    for what in ("at_s", "next_goal", "emitted", "live", "outcome", "epoch"):
        if getattr(k, what) != getattr(shadow, what):
            return f"{what}: {getattr(k, what)} and {getattr(shadow, what)}"
    if len(k.flights) != len(shadow.flights) or k.permits != shadow.permits:
        return f"{len(k.flights)} and {len(shadow.flights)} in flight, {k.permits} and {shadow.permits} permits"
    return "" if k.ledger == shadow.ledger else f"{k.ledger} and {shadow.ledger}"


def awake(life: Life) -> bool:
    """Return whether a channel has begun and takes turns."""
    actor = getattr(life.seat, "_actor", None)
    return bool(getattr(life.seat, "_ready", False)) and not getattr(actor, "broken", "")


def listed(record: JobWatch, found: list[Any]) -> list[Any]:
    """Return the results as the sink of a job at rest has them: reopened rows without a better outcome have their
    earlier results, at the end in any order, or in the input's order in their places."""
    k, values = record.k, record.emitted
    assert k is not None
    if MISSING in values:
        ahead = takewhile(k.held.__contains__, count(len(values))) if k.again else ()
        there = [k.held.get(at, record.before.get(at)) if v is MISSING else v for at, v in enumerate(values)]
        return [*there, *(k.held[at] for at in ahead)]
    earlier = [record.before.get(row) for row in (*k.withdrawn, *k.standing)] if not k.next_in_order else []
    rest = found[len(values) :]
    return [*values, *(rest if sorted(rest) == sorted(earlier) else earlier)]  # type: ignore[type-var]


def _why(k: State | None) -> str:
    if k is None:
        return "it never began"
    return (
        f"{k.live} goals live, {len(k.flights)} in flight, {k.permits} permits, paused {k.paused}, due {k.due_at_s()},"
        f" held until {k.hold_until_s}, source ended {k.source_ended}, position {k.position}"
    )
