"""Start of a run: its owner, and the first events of the channel's new incarnation."""

from __future__ import annotations

import copy

import msgspec

from actors.common.errors import UserError
from actors.common.process_owner import Owner
from actors.common.units import clock
from actors.programs import loader
from actors.programs.released import fingerprint_then
from cortex.calls import lost_turns
from cortex.goals.result_list import may_reopen
from cortex.journal.codec import decode_account, encode_account
from cortex.state import events
from cortex.state.program import params_of
from cortex.state.state import State
from cortex.values.batch_record import SubmissionStatus
from cortex.values.ledger import EARLIER, Ledger
from cortex.values.limits import JobTerms
from policies.estimates.batching import absent
from policies.failures.failure import Failure, FailureKind

CHILD = "child"
"""Cluster name of a job that runs as the child of another."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Message of a driver to a channel at the start of a run."""

    terms: JobTerms
    owner: Owner
    who: str = ""
    decided: tuple[tuple[int, str], ...] = ()
    """Decisions of a person on message batches in doubt: (number, the provider's id of the batch; empty if never
    submitted)."""
    reopened: events.RowsReopened | None = None
    """Failed rows to ask again."""
    notify: str = ""
    """URL of the webhook for notifications. May be a secret: it is never stored."""


def changed(old: JobTerms, new: JobTerms) -> bool:
    """Return whether the new run asks something else: another program, parameters, release, endpoint or model, also of
    a role."""
    return not same_program(old, new) or asked(old) != asked(new)


def same_program(old: JobTerms, new: JobTerms) -> bool:
    """Return whether the new run has the program, the parameters and the release of the old one."""
    return new.fingerprint in (old.fingerprint, _fingerprint_now(old))


def begins_anew(then: JobTerms, opening: Opening) -> bool:
    """Return whether a run of a job with the terms ``then`` asks all its rows anew, and emits all results again."""
    if opening.reopened is not None:  # rows that are asked again may be asked of another model, or elsewhere
        return _afresh(opening) or not same_program(then, opening.terms)
    return _afresh(opening) or changed(then, opening.terms)


def same_request(old: JobTerms, program: str, params_json: bytes) -> bool:
    """Return whether a user asks a built-in program with the same parameters again, although the release changed it.

    Such a job begins anew, but all its results come again from the replies that it has paid for.
    """
    if not (loader.is_ready(program, params_json) and old.program == program):
        return False
    try:
        return params_of(loader.load(old.program, old.params_json)) == params_json
    except ValueError:  # a parameter that this release refuses
        return False


def _fingerprint_now(old: JobTerms) -> str:
    """Return the fingerprint that a job of an earlier release would have, where its program still does the same."""
    if old.fingerprint != fingerprint_then(old.program, old.params_json):
        return old.fingerprint
    now = params_of(loader.load(old.program, old.params_json))  # with the fields that the program has gained since
    return loader.fingerprint(old.program, now)


def asked(terms: JobTerms) -> dict[str, tuple[str, str]]:
    """Return endpoint and model of the job's own route, under an empty name, and of each role with its own model."""
    lanes = {role: terms.role_routes[lane - 1] for role, lane in terms.roles.items() if lane}
    return {name: (route.endpoint, route.model) for name, route in {"": terms.route, **lanes}.items()}


def resuming_batch(
    k: State | None, opening: Opening | None, epoch: int, held: tuple[tuple[int, int], ...],
    account: bytes = b"", unmet: bool = False, now_s: float = 0.0,
) -> tuple[list[events.Event], bool]:  # fmt: skip
    """Return the first events of a new incarnation, and whether K begins anew. Raises ``UserError`` if the run must
    wait.

    ``account``: totals of the job in its journal. K, replayed with a changed program, knows only those of the calls
    that the changed program would make too. ``unmet``: a branch did not say what it holds. ``now_s``: the job's time,
    if it is later than K's.
    """
    blob = account or (encode_account(k) if k is not None else b"")
    known = decode_account(blob) if blob else None
    if k is not None and known is not None and opening is not None:
        _refuse_to_lose(k, known.in_batches, opening.terms)
    again = _reopening(k, opening)
    if opening is not None and (k is None or begins_anew(k.terms, opening)):
        carried = _carried(known.ledger) if known is not None else None
        terms = msgspec.structs.replace(opening.terms, tells_begun=True, notes_written=True)
        if carried is not None and (text := carried.as_earlier()):
            terms = msgspec.structs.replace(terms, places=terms.places | {EARLIER: text})
        first = max([known.next_goal if known is not None else 1, *(goal + 1 for goal, _ in held)])
        return [events.Opened(terms, epoch, first, carried, unmet)], True
    unasked = lost_turns.unasked(k, held) if k is not None else ()
    batch: list[events.Event] = [events.Rejoined(epoch, held, unasked, unmet)]
    if k is not None and opening is not None:
        now = opening.terms
        if again is not None and k.edition < again.edition:  # otherwise the message was repeated
            if not may_reopen(k, again):
                raise UserError(f"job {k.terms.job} has changed meanwhile: look at its status and retry again")
            batch.append(again)
        then = k.terms
        if (then.limits, then.routes, then.peers, then.closed) != (now.limits, now.routes, now.peers, now.closed):
            if held and (k.terms.fallbacks, k.terms.peers) != (now.fallbacks, now.peers):
                raise UserError("calls of its last run are still in flight: change fallbacks when they have ended")
            batch.append(_set(now, opening.who))
        _refuse_to_guess(k, opening, max(now_s, k.at_s))
        batch += [_decided(number, name, opening.who) for number, name in opening.decided]
        if again is not None or k.outcome == "partial" or k.stopping or k.paused is not None:
            batch.append(events.Resumed(opening.who))
    return batch, False


def _afresh(opening: Opening) -> bool:
    """Return whether everything is asked anew. Not for a child job: its parent's present run made its journal, and a
    parent that begins anew gives its child jobs other names."""
    return opening.terms.fresh and opening.owner.cluster != CHILD


def _reopening(k: State | None, opening: Opening | None) -> events.RowsReopened | None:
    """Return the failed rows to ask again, with the route if another model or endpoint is asked, or
    another transport after message batches were cancelled."""
    again = opening.reopened if opening is not None else None
    if again is None or opening is None or k is None:
        return again
    now, then = opening.terms.route, k.terms.route
    elsewhere = bool(k.cancelled) and now.via != then.via  # results of a batch are priced as such
    if not (again.model or elsewhere) and (now.endpoint, now.model) == (then.endpoint, then.model):
        return again
    return msgspec.structs.replace(again, route=now)


def rekeyed_batch(terms: JobTerms, who: str, credentials: tuple[str, ...]) -> list[events.Event]:
    """Return events that give the routes new credentials (by fingerprint), and permission to try them."""
    pairs = zip(terms.routes, credentials, strict=True)
    routes = tuple(msgspec.structs.replace(route, credential=credential) for route, credential in pairs)
    return [_set(terms.with_routes(routes), who), events.Resumed(who)]


def _set(now: JobTerms, who: str) -> events.LimitsSet:
    return events.LimitsSet(who, now.limits, now.route, now.fallbacks, now.role_routes, now.peers, now.closed)


def _refuse_to_lose(k: State, requests: int, now: JobTerms) -> None:
    """Raise ``UserError`` if batches at the provider would be lost: they were paid for at their transport's price, and
    belong to the program that asked them."""
    if not requests or now.fresh:
        return
    job = k.terms.job
    there = f"{requests:,} requests of {job} are in message batches with the provider"
    if changed(k.terms, now):
        ways = "restore them and resume, or cancel the job, or ask all anew with --fresh"
        raise UserError(f"{there}, and its program, parameters, release or model have changed: {ways}")
    if [route.via for route in k.terms.routes] != [route.via for route in now.routes]:
        raise UserError(f"{there}: keep --via unchanged until their results have been collected")


def _refuse_to_guess(k: State, opening: Opening, now_s: float) -> None:
    """Raise ``UserError`` if a person says that there is no batch while the request for it may still be on its way: its
    rows would be sent, and paid, again."""
    for number, name in opening.decided:
        made = k.submissions.get(number)
        if made is None or name or made.name or made.stand == SubmissionStatus.RESTING:
            continue
        if not absent(made.settled_at_s, now_s):
            until = clock(made.settled_at_s + k.ahead_s)
            raise UserError(
                f"submission {number} of {k.terms.job} may still arrive at the provider until {until}: say then that "
                "it was not submitted, or resume without that, and the job looks for it"
            )


def _decided(number: int, name: str, who: str) -> events.Event:
    if name:
        return events.SubmissionAccepted(number, name, who)
    failure = Failure(FailureKind.LOST, f"{who} says that it was never submitted", sent=False)
    return events.SubmissionRejected(number, failure, who or "a person")


def _carried(ledger: Ledger) -> Ledger:
    """Return the ledger of earlier runs. Reserved amounts stay charged, since no report will come any more."""
    kept = copy.copy(ledger)
    kept.assumed_nusd += kept.reserved_nusd
    kept.assumed_tokens += kept.reserved_tokens
    kept.reserved_nusd = kept.reserved_tokens = 0
    return kept
