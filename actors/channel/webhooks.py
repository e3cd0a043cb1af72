"""Webhook of a job (``--notify``): POST requests with JSON to a URL of the user's, from the channel's process.

A message is sent when 50, 80 and 100 % of a cap in money (the job's own or a budget's) are spent, when the job is
paused, when a breaker has not closed for five minutes, when the deadline is at risk, and when the job has ended. Each
is sent at least once and, but for a crash between sending and recording it, not twice, also over a resume. The job
waits for none: a thread posts one after the other, and gives up on a message after ``TRIES_S``. Messages hold no
prompt, no reply and no credential; the URL, which may be a secret by itself, stands in no journal, log or error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from actors.channel.leases.budget_client import BudgetClient
from actors.jobs.summary import calls_of, summary, unreadable_rows
from actors.journal.journal import Journal, StoreError
from actors.monitoring.deadline_monitor import DeadlineMonitor
from actors.monitoring.throughput import ThroughputEstimator, forecast, of_job
from actors.ports.runtime import Runtime
from cortex.state.state import State
from policies.estimates.price import usd, usd_text

LOOK_S = 1.0
SHARES = (50, 80, 100)
"""Percentages of a cap at which a message is sent."""
BREAKER_S = 300.0
"""Seconds after which a breaker that has not closed is reported."""
QUEUE = 64
"""Messages that wait at most; further ones are dropped."""
TRIES_S = (1.0, 4.0, 16.0)
"""Seconds before each further try."""
TIMEOUT_S = 10.0
CLOSE_S = 3.0
"""Seconds for which the end of a job waits for messages that are still to be posted."""
NOTED = "notices"
"""Key beside the turns of a journal: messages that were sent."""
_OWN_REASONS = ("over_budget", "deadline")
"""Reasons for an end that are this project's own words. Others may quote a provider or a program."""

_log = logging.getLogger("cortex.notify")


class InvalidWebhookUrl(ValueError):
    """URL that cannot be used. The message is one line, and does not hold the URL."""


def checked(url: str) -> str:
    """Return the URL if it can be posted to; empty for an empty one. Raises ``InvalidWebhookUrl``."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if url and (not good or not url.isprintable() or " " in url):
        raise InvalidWebhookUrl(
            "--notify: give a whole URL, like https://hooks.example.com/… (it is not shown: a secret)"
        )
    return url


class WebhookNotifier:
    """Webhook of one channel. An empty ``url`` sends nothing. ``outcome`` returns the job's outcome as far as it is on
    disk: no message says that a job has ended which goes on.
    """

    def __init__(
        self, url: str, journal: Journal, runtime: Runtime, state: Callable[[], State], allowance: BudgetClient,
        outcome: Callable[[], str],
    ) -> None:  # fmt: skip
        self._url = url
        self._journal = journal
        self._runtime = runtime
        self._state = state
        self._allowance = allowance
        self._outcome = outcome
        self._speed, self._deadline_monitor = ThroughputEstimator(), DeadlineMonitor()
        self._open_since: dict[int, float] = {}
        """Time at which a route's breaker was first seen open, by position of the route."""
        self._notified: set[str] = set()
        self._troubled = False
        self._done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._post = WebhookThread(url, self._done.put) if url else None

    async def run(self) -> None:
        """Watch the job until the channel closes, then wait for the messages that are left, ``CLOSE_S`` at most."""
        if self._post is None:
            return
        noted = self._journal.meta(NOTED)
        self._notified = set(msgspec.json.decode(noted, type=list[str])) if noted else set()
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._look()
            await asyncio.to_thread(self._post.close)
            self._note()

    def _look(self) -> None:
        """Send what is new. An error is told once and ends no later look: the job's end must still be told."""
        k = self._state()
        try:
            for key, facts in self._news(k):
                if key not in self._notified:
                    self._notified.add(key)
                    assert self._post is not None
                    self._post.put(key, _message(k, facts))
            self._note()
        except Exception:
            if not self._troubled:
                _log.exception("a look for news of %s met an error", k.terms.job)
            self._troubled = True

    def _note(self) -> None:
        """Record in the journal which messages were posted, so that no later channel posts them again."""
        posted = set()
        with contextlib.suppress(queue.Empty):
            while True:
                posted.add(self._done.get_nowait())
        if posted:
            with contextlib.suppress(StoreError):
                before = self._journal.meta(NOTED)
                noted = set(msgspec.json.decode(before, type=list[str])) if before else set()
                self._journal.set_meta(NOTED, msgspec.json.encode(sorted(noted | posted)))

    def _news(self, k: State) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return all messages that are due now, sent or not, each with a key of its own."""
        yield from self._caps(k)
        if k.paused is not None:
            yield f"paused/{k.paused_at_s:.0f}", {"event": "paused", "kind": str(k.paused.kind), "said": "is paused"}
        yield from self._breakers(k)
        yield from self._deadline(k)
        if self._outcome():
            text = f"ended {k.outcome}{_lost(k)}{_why(k)}"
            yield f"ended/{k.epoch}", {"event": "ended", "outcome": k.outcome, "said": text}

    def _caps(self, k: State) -> Iterator[tuple[str, dict[str, Any]]]:
        cap, spent = k.terms.limits.max_cost_nusd, k.ledger.known_nusd + k.ledger.assumed_nusd
        if cap is not None:
            out = k.why.startswith("over_budget: the next call")
            yield from _shares(f"cap/{cap}", "its own cap", cap, spent, out)
        for name, window, of_nusd, used_nusd in self._allowance.seen:
            used_up = k.purse is not None and name.rpartition(" a ")[0] in k.purse.reason
            yield from _shares(f"{name}/{window}/{of_nusd}", f"the budget {name}", of_nusd, used_nusd, used_up)

    def _breakers(self, k: State) -> Iterator[tuple[str, dict[str, Any]]]:
        now_s = self._runtime.monotonic_s()
        for place, share in enumerate(k.shares):
            if not share.why.startswith(("the breaker is", "half open")):
                self._open_since.pop(place, None)
            elif now_s - self._open_since.setdefault(place, now_s) >= BREAKER_S:
                model = k.terms.routes[place].model
                since_s = self._runtime.now_s() - (now_s - self._open_since[place])
                text = f"the breaker of {model} has not closed for {BREAKER_S / 60:.0f} minutes"
                yield f"breaker/{place}/{since_s:.0f}"[:-1], {"event": "breaker_open", "model": model, "said": text}

    def _deadline(self, k: State) -> Iterator[tuple[str, dict[str, Any]]]:
        if k.terms.limits.deadline_at_s is None or k.outcome:
            return
        facts, at_s = summary(k), self._runtime.monotonic_s()
        facts |= of_job(self._speed, facts, at_s) | forecast(self._speed, facts, at_s, self._runtime.now_s())
        if (text := self._deadline_monitor.news(facts)) and facts["deadline_at_risk"]:
            ends = {"deadline_at_s": facts["deadline_at_s"], "projected_end_s": facts["projected_end_s"]}
            yield f"deadline/{facts['deadline_at_s']:.0f}", {"event": "deadline_at_risk", "said": text, **ends}


def _shares(key: str, what: str, of_nusd: int, used_nusd: int, out: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return a message for each percentage that is reached; for all if the next call could pass the cap (``out``)."""
    for share in SHARES:
        spent = 100 * used_nusd >= share * of_nusd
        if spent or out:
            text = f"{share} % of {what} of {usd_text(of_nusd)} is spent" if spent else (
                f"{what} of {usd_text(of_nusd)} is used up, the next call could pass it"
            )  # fmt: skip
            yield f"{key}/{share}", {"event": "cost", "said": text, "percent": share, "max_cost_usd": usd(of_nusd)}


def _lost(k: State) -> str:
    count = unreadable_rows(k)
    return f", {count:,} {'record' if count == 1 else 'records'} of the input unreadable" if count else ""


def _why(k: State) -> str:
    if not k.why or k.outcome == "complete":
        return ""
    word = k.why.partition(":")[0]
    return f": {k.why}" if word in _OWN_REASONS else f": {word}"


def _message(k: State, facts: dict[str, Any]) -> bytes:
    """Return the message. ``text`` is for chats that show one text, the other fields are for programs."""
    job = k.terms.job
    labels = " ".join(f"{name}={value}" for name, value in k.terms.labels.items())
    spent = usd_text(k.ledger.known_nusd)
    text = f"cortex job {job}{f' ({labels})' if labels else ''}: {facts.pop('said')}; so far {spent}"
    tally = k.tally
    return msgspec.json.encode(
        {
            "text": text, "job": job, "labels": k.terms.labels, "at_s": k.at_s, **facts,
            "cost_usd": usd(k.ledger.known_nusd), "cost_assumed_usd": usd(k.ledger.assumed_nusd),
            "rows_succeeded": tally.succeeded, "rows_failed": tally.failed,
            "rows_unreadable": unreadable_rows(k), "calls": calls_of(k),
        }
    )  # fmt: skip


# -- posting ---------------------------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect: the user gave no other address."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


class WebhookThread:
    """Thread that posts one message after the other. ``done`` is called with the key of each that was accepted."""

    def __init__(self, url: str, done: Callable[[str], object], tries_s: tuple[float, ...] = TRIES_S) -> None:
        self._url = url
        self._done = done
        self._tries_s = tries_s
        self._waiting: queue.Queue[tuple[str, bytes] | None] = queue.Queue(QUEUE)
        self._closing = threading.Event()
        self._warned = False
        self._thread: threading.Thread | None = None

    def put(self, key: str, message: bytes) -> None:
        """Queue a message. Never waits; a message beyond ``QUEUE`` is dropped."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cortex-notify", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((key, message))

    def close(self) -> None:
        """Wait ``CLOSE_S`` at most for messages that are still to be posted; no try is repeated any more."""
        self._closing.set()
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        opener = urllib.request.build_opener(_NoRedirect)
        while (each := self._waiting.get()) is not None:
            key, message = each
            for pause_s in (*self._tries_s, None):
                why = self._posted(opener, message)
                if not why:
                    self._done(key)
                    break
                if pause_s is None or self._closing.wait(pause_s):
                    self._warn(why)
                    break

    def _posted(self, opener: urllib.request.OpenerDirector, message: bytes) -> str:
        """Post a message. Return why that failed, without the URL; empty on success."""
        head = {"Content-Type": "application/json", "User-Agent": "cortex"}
        request = urllib.request.Request(self._url, message, head, method="POST")
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return "" if 200 <= answer.status < 300 else f"status {answer.status}"
        except urllib.error.HTTPError as error:
            error.close()
            return f"status {error.code}"
        except Exception as error:  # any message of an error may quote the URL
            return type(getattr(error, "reason", error)).__name__

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            host = urlsplit(self._url).hostname
            _log.warning("--notify: %s accepts no message (%s): the job continues without", host, why)


__all__ = ["InvalidWebhookUrl", "WebhookNotifier", "WebhookThread", "checked"]
