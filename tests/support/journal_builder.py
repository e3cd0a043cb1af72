"""Journals written by hand, turn by turn, with the K that follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from actors.journal.journal import StateFolder
from actors.programs import loader
from cortex.journal import codec
from cortex.loop.step import step
from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.program import Program, params_of
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply, Usage
from policies.estimates.price import Price
from policies.failures.failure import Failure, FailureKind

PRICE = Price(input_usd_per_mtok=3, output_usd_per_mtok=15)  # type: ignore[arg-type]
USAGE = Usage(10, 2)
LIMITS = Limits()
BEGUN_S = 1_790_000_000.0


def reply(text: str = "ok", usage: Usage = USAGE, model: str = "m") -> Reply:
    """Return a message of the provider."""
    body = msgspec.json.encode({"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"})
    return Reply(body, "end_turn", model, usage)


def row(key: str, text: str = "what?", **params: Any) -> events.Row:
    """Return a row of ``batch``."""
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": text}], **params}
    return events.Row(key, msgspec.json.encode(body), 8)


class Book:
    """Journal of one job that is being written."""

    def __init__(
        self,
        folder: Path,
        job: str = "job",
        program: Program | None = None,
        *,
        limits: Limits = LIMITS,
        fallbacks: tuple[Route, ...] = (),
        price: Price | None = PRICE,
        fingerprint: str = "",
        **more: Any,
    ) -> None:
        self.folder = StateFolder(folder).prepare()
        self.program = program or Batch()
        where, params = loader.place_of(type(self.program)), params_of(self.program)
        terms = JobTerms(
            job=job, program=where, params_json=params, limits=limits, fallbacks=fallbacks,
            fingerprint=fingerprint or loader.fingerprint(where, params), streams=True,
            route=Route(endpoint="https://provider.test", model="m", price=price), **more,
        )  # fmt: skip
        self.k = codec.open_job(terms)
        self.at_s = BEGUN_S
        self._journal = self.folder.journal(job, create=True)
        self._journal.take_epoch(b"{}")
        self._journal.set_meta("owner", b"")
        self.asked: dict[tuple[int, int], commands.Call] = {}
        self.turn(events.Opened(terms, 1), after_s=0.0)

    def turn(self, *happened: events.Event, after_s: float = 1.0) -> list[commands.Command]:
        """Append these events, ``after_s`` after the ones before."""
        self.at_s += after_s
        blob = codec.encode_batch(happened)
        before = codec.encode_account(self.k)
        turn = codec.decode_turn(codec.encode_turn(self.at_s, [blob]))
        out = step(self.k, self.program, turn)
        account = codec.encode_account(self.k)
        self._journal.append([codec.encode_turn(self.at_s, [blob], account if account != before else b"")])
        for command in out:
            if isinstance(command, commands.Call):
                self.asked[command.goal, command.attempt] = command
        return out

    def answered(self, goal: int, attempt: int = 1, elapsed_s: float = 0.5, by: str = "branch:0", **of: Any) -> Any:
        """Return the event of an answered attempt."""
        call = self.asked[goal, attempt]
        return events.Answered(goal, call.sample, attempt, call.hash, reply(**of), elapsed_s, 0.01, by)

    def broke(self, goal: int, attempt: int = 1, kind: str = "overloaded", said: str = "Overloaded", **of: Any) -> Any:
        """Return the event of a failed attempt."""
        elapsed_s, by = of.pop("elapsed_s", 0.2), of.pop("by", "branch:0")
        failure = Failure(FailureKind(kind), said, **{"status": 529, **of})
        return events.AttemptFailed(goal, self.asked[goal, attempt].sample, attempt, failure, elapsed_s, 0.0, by)

    def anew(self) -> None:
        """Begin the job anew, as after a change of its program; its costs are carried over."""
        carried = msgspec.structs.replace(self.k.ledger)
        before, self.k = self.k, codec.open_job(self.k.terms)
        self._journal.set_meta("opened_at", str(self._journal.seq).encode())
        self.turn(events.Opened(before.terms, 2, before.next_goal, carried))

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
