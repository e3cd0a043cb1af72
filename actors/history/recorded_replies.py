"""Records in the journals of a job and of its child jobs: replies, failures, tool results, rows, answers.

The journals are read without changing them. Replies stay on disk until they are read: for a job of a million rows only
their positions are in memory.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator

import msgspec

from actors.journal.errors import never_began
from actors.journal.journal import Journal, StateFolder, StoreError
from actors.programs import loader
from cortex.journal import codec
from cortex.journal.dry_run import EventStamp, tool_key
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program, params_of
from cortex.state.state import State
from cortex.values.limits import JobTerms
from cortex.values.reply import Reply
from policies.failures.failure import RULES, Failure

_TURNS_KEPT = 64
"""Most turns kept in memory."""


class RecordedReplies:
    """Index of one job's records. Call ``close`` after use. Raises ``NoSuchJob``."""

    def __init__(self, folder: StateFolder, job: str) -> None:
        names = [job, *sorted(name for name in folder.jobs() if name.startswith(f"{job}~"))]
        self._journals = [folder.journal(name) for name in names]
        self._replies: dict[bytes, EventStamp] = {}
        self._failures: dict[bytes, tuple[EventStamp, Failure]] = {}
        self._runs: dict[str, deque[tuple[EventStamp, events.Observed]]] = defaultdict(deque)
        self._read: OrderedDict[tuple[int, int], list[events.Event]] = OrderedDict()
        self.terms: JobTerms
        """Terms under which the job was last opened."""
        self.output_tokens = (0, 0)
        """Tokens of all replies together, and the number of replies."""
        self.began_at_s = 0.0
        """Time of the last opening, Unix time."""
        self.changed = False
        """Whether the program has changed since the job was last opened."""
        self.given: list[tuple[EventStamp, events.Event]] = []
        self._row_windows: list[tuple[EventStamp, events.RowsRead]] = []
        self.seq = self._journals[0].seq
        for number, source in enumerate(self._journals):
            self._take(number, source)
        if not hasattr(self, "terms"):
            raise StoreError(never_began(job))

    @property
    def external_events(self) -> list[tuple[EventStamp, events.Event]]:
        """External events of the job: the rows read so far, and the answers given."""
        return [*self._row_windows, *self.given]

    @property
    def rows_ended(self) -> bool:
        """Whether all rows of the source are recorded."""
        return not self.terms.streams or bool(self._row_windows and self._row_windows[-1][1].ended)

    def reply_to(self, question: bytes) -> EventStamp | None:
        """Return the position of the reply to this question; None if there is none."""
        return self._replies.get(question)

    def reply(self, stamp: EventStamp) -> Reply:
        """Return the reply at this position."""
        key = (stamp.journal, stamp.seq)
        found = self._read.get(key)
        if found is None:
            turn = next(turn for seq, turn in self._journals[key[0]].turns(key[1] - 1))
            found = self._read[key] = [event for batch in turn.batches for event in batch]
            if len(self._read) > _TURNS_KEPT:
                self._read.popitem(last=False)
        event = found[stamp.position]
        assert isinstance(event, (events.Answered, events.ReplyRecalled)) and event.reply is not None
        return event.reply

    def failure_of(self, question: bytes) -> tuple[EventStamp, Failure] | None:
        """Return the permanent failure of this question and its position; None if it did not fail."""
        return self._failures.get(question)

    def tool_run(self, key: str) -> tuple[EventStamp, events.Observed] | None:
        """Return the next result, not yet returned, of a tool run with this key; None if there is none."""
        runs = self._runs.get(key)
        return runs.popleft() if runs else None

    def close(self) -> None:
        """Close the journals."""
        for source in self._journals:
            source.close()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _take(self, number: int, source: Journal) -> None:
        """Index one journal from its first turn. Paid replies count even if the job was opened again after them."""
        story: _EventHistory | None = None
        anew = 0
        fed: list[tuple[EventStamp, events.RowsRead]] = []
        for seq, turn in source.turns():
            terms = codec.opening(turn)
            if terms is not None:
                story = _EventHistory(terms)
                anew, fed = seq, []
                if number == 0:
                    self.terms, self.began_at_s, self.changed = terms, turn.at_s, story.changed
                    self.given = []
            for stamp, event in _stamped(number, seq, turn):
                self._note(stamp, event, story, anew)
                if (
                    isinstance(event, events.RowsRead)
                    and number == 0
                    and event.start == (fed[-1][1].position if fed else 0)
                ):
                    fed.append((stamp, event))
                    if len(fed) >= len(self._row_windows):
                        self._row_windows = fed
                elif isinstance(event, events.AnswerGiven) and number == 0:
                    self.given.append((stamp, event))
                elif isinstance(event, events.LimitsSet) and number == 0 and event.route is not None:
                    roles = event.role_routes or self.terms.role_routes
                    self.terms = msgspec.structs.replace(self.terms, route=event.route, role_routes=roles)
            if story is not None:
                story.turn(turn)

    def _note(self, stamp: EventStamp, event: events.Event, story: _EventHistory | None, anew: int) -> None:
        if isinstance(event, (events.Answered, events.ReplyRecalled)):
            known = self._replies.get(event.hash)
            if known is None and event.reply is not None and not event.reply.usage.unknown:
                tokens, count = self.output_tokens
                self.output_tokens = tokens + event.reply.usage.output_tokens, count + 1
            if known is None or (known.journal == stamp.journal and known.seq < anew):
                self._replies[event.hash] = stamp
        elif story is None:
            return
        elif isinstance(event, events.GoalMade) and event.kind == "tool" and isinstance(event.value, list):
            story.runs[event.goal] = event.value[2]
        elif isinstance(event, events.Observed) and (key := story.runs.get(event.goal)):
            self._runs[key].append((stamp, event))
        elif isinstance(event, events.AttemptFailed) and RULES[event.failure.kind].again in ("no", "select"):
            question = story.asked.get((event.goal, event.attempt))
            if question is not None:
                self._failures[question] = stamp, event.failure


class _EventHistory:
    """Questions and tool runs that a journal's events refer to, since not every event names its own. Found by replay
    if the program is unchanged, else from the goals that a flow recorded."""

    def __init__(self, terms: JobTerms) -> None:
        self.asked: dict[tuple[int, int], bytes] = {}
        """Question of each attempt, by goal and attempt."""
        self.runs: dict[int, str] = {}
        """Key of the tool run that a goal waits for, by goal."""
        self._k: State = codec.open_job(terms)
        self._program: Program | None = None
        try:
            same = loader.is_unchanged(terms.program, terms.params_json, terms.fingerprint)
            self._program = loader.load(terms.program, terms.params_json) if same else None
        except ValueError:
            same = False
        self.changed = not same

    def turn(self, turn: events.Turn) -> None:
        """Replay a turn, and note its questions and tool runs."""
        if self._program is None:
            return
        for command in step(self._k, self._program, turn):
            if isinstance(command, commands.Call):
                self.asked[command.goal, command.attempt] = command.hash
            elif isinstance(command, commands.StartToolRun):
                self.runs[command.goal] = tool_key(command.tool, command.arguments)
        for batch in turn.batches:
            for event in batch:
                if isinstance(event, (events.Answered, events.AttemptFailed, events.GivenBack)):
                    self.asked.pop((event.goal, event.attempt), None)


def _stamped(number: int, seq: int, turn: events.Turn) -> Iterator[tuple[EventStamp, events.Event]]:
    flat = (event for batch in turn.batches for event in batch)
    for position, event in enumerate(flat):
        yield EventStamp(turn.at_s, number, seq, position), event


def terms_for(terms: JobTerms, program: Program) -> JobTerms:
    """Return the terms for another program, or for other parameters."""
    where, params = loader.place_of(type(program)), params_of(program)
    return msgspec.structs.replace(
        terms, program=where, params_json=params, fingerprint=loader.fingerprint(where, params)
    )
