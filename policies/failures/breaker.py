"""Circuit breaker: whether the route, tool or node behind it is healthy enough to be used.

One breaker as a value (Michael Nygard, "Release It!", 2nd edition, 2018): closed, open, half open. It trips on a share
of failures in a window, not on a run of failures: at 90 % failures with every tenth call good no run is ever long. The
holder of the value passes in counts and the time, and randomness as a draw in [0, 1).

A *generation* is one stay in one state. Attempts carry the generation in which they were begun, and a result of another
generation decides nothing: an attempt begun before the breaker opened says nothing about the time after it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from policies.failures.failure import RULES, FailureKind


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a breaker. Raises ValueError, in one line, for a value that makes no sense."""

    window_count: int = 100
    """Newest results in the window; the default window of Resilience4j."""
    window_s: float = 30.0
    """Age limit of a result in the window, in seconds."""
    volume_min: int = 20
    """Results below which no share is judged: of 20 calls that fail with one chance in five, half fail once in 400
    times."""
    failures_alone: int = 5
    """Failures that open the breaker while the window holds nothing else, so that few rows reach a fallback too. A run
    of five is the default of Envoy (consecutive_5xx) and of pybreaker (fail_max)."""
    failure_share: float = 0.5
    """Share of failed results that opens the breaker."""
    slow_share: float = 0.9
    """Share of slow results that opens the breaker: results, good or bad, that took more than half of their allowed
    time."""
    open_s: float = 1.0
    """First stay open, in seconds. It grows by `open_growth` with each opening, until the breaker was closed for a
    window."""
    open_growth: float = 2.0
    """Factor by which each stay open is longer than the one before."""
    open_max_s: float = 8.0
    """Longest stay open in seconds, unless the provider asks for more. It bounds how long a recovery goes unnoticed:
    with the time of the probes, full rate is back within 15 s."""
    jitter: float = 0.25
    """Share by which a stay may be shortened, so that many breakers do not probe together."""
    retry_after_max_s: float = 900.0
    """Longest Retry-After that is respected, in seconds, equal to `retry.RetryPolicy.patience_s`."""
    probes: int = 3
    """Unresolved attempts allowed while half open, and the number of answers that decide."""
    probe_failures_max: int = 0
    """Failures among these answers with which the breaker still closes."""
    blocked_open_s: float = 60.0
    """Seconds between two probes of a blocked account, unless the first was refused for its own request."""

    def __post_init__(self) -> None:
        for name in ("window_count", "volume_min", "failures_alone", "probes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in ("window_s", "open_s", "open_max_s", "blocked_open_s", "retry_after_max_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("failure_share", "slow_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must be in [0, 1), not {self.jitter}")
        if self.open_growth < 1:
            raise ValueError(f"open_growth must be 1 or more, not {self.open_growth}")
        if self.open_s > self.open_max_s:
            raise ValueError(f"open_s ({self.open_s}) is above open_max_s ({self.open_max_s})")
        if self.volume_min > self.window_count:
            raise ValueError(f"volume_min ({self.volume_min}) is above window_count ({self.window_count})")
        if not 0 <= self.probe_failures_max < self.probes:
            raise ValueError(f"probe_failures_max must be 0 or more and below probes, not {self.probe_failures_max}")


ROUTE: Final = BreakerPolicy()
"""Settings of a route's breaker."""
TOOL: Final = BreakerPolicy(volume_min=10, failures_alone=10, open_s=2.0, probes=1)
"""Settings of a tool's breaker. A run of failures may be the fault of what the tool was given."""
NODE: Final = BreakerPolicy(window_count=10, window_s=120.0, volume_min=4, open_s=30.0, open_max_s=300.0, probes=1)
"""Settings of a node's breaker. While it is closed only deaths are reported, so four deaths in two minutes open it.
Half open, one branch or worker is placed on the node: its first settled work is the good answer, its death the bad
one."""


class BreakerState(enum.StrEnum):
    """State of a breaker, in the words of pybreaker."""

    CLOSED = "closed"
    """Attempts may begin freely."""
    OPEN = "open"
    """No attempt may begin."""
    HALF_OPEN = "half-open"
    """Only probes may begin."""


class BreakerMove(msgspec.Struct, frozen=True):
    """Change of state. `why` is for people."""

    old: BreakerState
    new: BreakerState
    why: str


class ResultTally(msgspec.Struct, array_like=True):
    """Results that arrived at about the same time."""

    at_s: float
    total: int
    bad: float
    slow: float


class ProbeWave(msgspec.Struct, array_like=True):
    """Unresolved probes of one half-open stay."""

    generation: int
    deadlines: list[float]
    """Deadlines of the probes that still count as unresolved, earliest first."""
    lost: int = 0
    """Number of probes past their deadline. An answer is attributed to one of these first, because its probe is not
    known: a late answer must not make room for one probe too many."""
    early: int = 0
    """Number of those in `answered`, in states of before: their deadlines are not known."""
    answered: list[float] = []
    """Deadlines that answers took off `deadlines`, earliest first, until their holder returns them. It returns answered
    probes like unused ones: they must not make room twice. Past its deadline a probe is returned no more."""


class Breaker(msgspec.Struct, kw_only=True):
    """State of one breaker. Changed only by the functions below; encodes with msgspec."""

    state: BreakerState = BreakerState.CLOSED
    generation: int = 0
    """Number of state changes so far."""
    since_s: float = 0.0
    """Time at which the current stay began, in seconds."""
    until_s: float = 0.0
    """While open: time at which the breaker becomes half open."""
    why: str = ""
    """Reason of the latest change, for people."""
    blocked: bool = False
    """True if the account, not the route's health, is the cause: one probe at a time, and one good answer closes."""
    probe_due_s: float = 0.0
    """While blocked: earliest time of the next probe."""
    stay_s: float = 0.0
    """Length of the latest stay open, in seconds, without Retry-After; 0 after a whole window closed."""
    window: list[ResultTally] = msgspec.field(default_factory=list)
    """Results while closed, in at most about forty tallies."""
    not_before_s: float = 0.0
    """Latest time that the provider asked for with failures: once opened, the breaker stays open until then."""
    waves: list[ProbeWave] = msgspec.field(default_factory=list)
    """Unresolved probes by stay; at most one wave more than there may be probes."""
    good: int = 0
    """While half open: good answers of this stay's probes."""
    bad: int = 0
    """While half open: bad answers of this stay's probes."""
    slow: int = 0
    """While half open: slow answers of this stay's probes."""
    opened: int = 0
    """Number of openings so far."""
    probed: int = 0
    """Number of probes allowed so far."""


Whose = Literal["route", "tool", "node"]
"""Owner of a breaker; decides which failure kinds are bad."""
_BAD: Final[Mapping[Whose, frozenset[FailureKind]]] = {
    "route": frozenset(kind for kind, rule in RULES.items() if rule.breaker_of == "route"),
    "tool": frozenset({FailureKind.FAULTY, FailureKind.TIMED_OUT, FailureKind.TRANSIENT}),
    "node": frozenset(kind for kind, rule in RULES.items() if rule.breaker_of == "actor"),
}
_GOOD: Final = frozenset(
    {
        FailureKind.MALFORMED, FailureKind.REFUSED, FailureKind.CUT, FailureKind.PAUSED, FailureKind.EMPTY,
        FailureKind.TOOL_USE, FailureKind.UNREADABLE,
    }
)  # fmt: skip
"""Kinds of failure in which a complete answer came, and was billed."""


def sorted_out(whose: Whose, answered: int, failed: Mapping[str, int]) -> tuple[int, int, int]:
    """Return (good, bad, void) counts of ended attempts: `answered`, and counts by `FailureKind` of those that
    `failed`.

    Void results say nothing about health: throttled, cancelled, rejected because of the request. A void probe makes
    room for another.
    """
    bad = sum(n for kind, n in failed.items() if kind in _BAD[whose])
    good = answered + sum(n for kind, n in failed.items() if kind in _GOOD)
    return good, bad, answered + sum(failed.values()) - good - bad


def observe(
    policy: BreakerPolicy, breaker: Breaker, at_s: float, generation: int,
    good: int, bad: int, slow: int, retry_after_s: float, draw: float, void: int = 0,
) -> BreakerMove | None:  # fmt: skip
    """Take in results of attempts that were begun in `generation`; `slow` of the good and bad ones were slow.

    `retry_after_s` is the longest wait that the provider asked for with them. Results of another generation decide
    nothing; if they were probes, these are no longer unresolved. Cancelled attempts are left out or passed as void.
    Returns the change of state, if any.
    """
    if breaker.waves:
        _lose(breaker, at_s)
        _resolve(breaker, generation, good + bad + void)
    if generation != breaker.generation or good + bad == 0:
        return None
    if bad and retry_after_s > 0:
        breaker.not_before_s = max(breaker.not_before_s, at_s + min(retry_after_s, policy.retry_after_max_s))
    if breaker.state is BreakerState.CLOSED:
        return _counted(policy, breaker, ResultTally(at_s, good + bad, bad, slow), draw)
    if breaker.state is BreakerState.HALF_OPEN:
        return _probed(policy, breaker, at_s, good, bad, slow, draw)
    return None


def block(
    policy: BreakerPolicy, breaker: Breaker, at_s: float, generation: int,
    why: str, draw: float, retry_after_s: float = 0.0,
) -> BreakerMove | None:  # fmt: skip
    """Open the breaker because an attempt of `generation` was BLOCKED or UNAUTHORISED: the account will refuse all
    others too.

    Open for `blocked_open_s`, or for `retry_after_s` if longer; then one probe at a time, at most one in that time (but
    see `probe_rejected`). An attempt of another generation decides nothing. Pass the attempt itself to `observe`
    before, as void.
    """
    if generation != breaker.generation or breaker.state is BreakerState.OPEN:
        return None
    breaker.blocked = True
    asked_s = min(retry_after_s, policy.retry_after_max_s)
    breaker.probe_due_s = at_s + max(policy.blocked_open_s, asked_s) * (1 + policy.jitter * draw)
    return _open(breaker, at_s, breaker.probe_due_s, why)


def passed(policy: BreakerPolicy, breaker: Breaker, at_s: float, draw: float = 0.0) -> BreakerMove | None:
    """Apply the passage of time: an open breaker may become half open, and probes past their deadline are lost."""
    _lose(breaker, at_s)
    if breaker.state is not BreakerState.OPEN or at_s < breaker.until_s:
        return None
    return _move(breaker, at_s, BreakerState.HALF_OPEN, breaker.why)


def probes_wanted(policy: BreakerPolicy, breaker: Breaker, at_s: float) -> int:
    """Return how many probes may be sent now; 0 unless half open.

    Probes of earlier stays count too: at most `probes` are unresolved at any time, 1 while blocked.
    """
    if breaker.state is not BreakerState.HALF_OPEN:
        return 0
    out = sum(deadline_s > at_s for wave in breaker.waves for deadline_s in wave.deadlines)
    if breaker.blocked:
        return 1 if out == 0 and at_s >= breaker.probe_due_s else 0
    own = sum(d > at_s for wave in breaker.waves if wave.generation == breaker.generation for d in wave.deadlines)
    return max(0, min(policy.probes - out, policy.probes - own - breaker.good - breaker.bad))


def probe_out(policy: BreakerPolicy, breaker: Breaker, at_s: float, deadline_s: float, n: int = 1) -> None:
    """Record that `n` probes were allowed; without an answer by `deadline_s` they are lost and may be replaced.

    Raises ValueError for more probes than are wanted.
    """
    wanted = probes_wanted(policy, breaker, at_s)
    if n > wanted:
        raise ValueError(f"{n} probes where {wanted} are wanted")
    _lose(breaker, at_s)
    breaker.probed += n
    if n > 0:
        if not breaker.waves or breaker.waves[-1].generation != breaker.generation:
            breaker.waves.append(ProbeWave(breaker.generation, []))
        wave = breaker.waves[-1]
        wave.deadlines = sorted([*wave.deadlines, *[deadline_s] * n])
        breaker.probe_due_s = at_s + policy.blocked_open_s


def probe_rejected(policy: BreakerPolicy, breaker: Breaker, at_s: float, generation: int) -> bool:
    """Let the next probe of a blocked account go `open_s` after this one, which was refused for its own request, or
    came back unsent.

    Such an answer says nothing about the account, and costs nothing. With a minute each, rows that are all refused
    would take a minute each. Pass the attempt itself to `observe` before, as void. Return whether the time has changed.
    """
    due_s = at_s + policy.open_s
    if breaker.state is not BreakerState.HALF_OPEN or not breaker.blocked or generation != breaker.generation:
        return False
    if due_s >= breaker.probe_due_s:
        return False
    breaker.probe_due_s = due_s
    return True


def probe_back(breaker: Breaker, at_s: float, deadlines: Sequence[float]) -> None:
    """Record that the probes of one holder in this stay, with these deadlines, are not in flight any more: they were
    answered, or will not be sent, or their holder has died.

    Which of them were answered is not known: as many as answers came before count as answered, the others as lost,
    since an answer may still arrive. A probe past its deadline is lost already, and returns nothing: its place may be
    another holder's. While blocked the next probe keeps its time.
    """
    _lose(breaker, at_s)
    for wave in breaker.waves:
        if wave.generation == breaker.generation:
            kept, n = sorted([*wave.answered, *wave.deadlines]), 0
            for deadline_s in deadlines:
                if deadline_s in kept:
                    kept.remove(deadline_s)
                    n += 1
            answered = max(0, len(wave.answered) - n)
            wave.lost += max(0, n - len(wave.answered))
            wave.answered, wave.deadlines = kept[:answered], kept[answered:]


def due_at_s(breaker: Breaker, at_s: float) -> float:
    """Return when, after `at_s`, `passed` or `probes_wanted` will change by time alone; infinity: never."""
    if breaker.state is BreakerState.OPEN:
        return breaker.until_s
    if breaker.state is BreakerState.CLOSED:
        return float("inf")
    lost_s = min((wave.deadlines[0] for wave in breaker.waves if wave.deadlines), default=float("inf"))
    if breaker.blocked and at_s < breaker.probe_due_s:
        return min(lost_s, breaker.probe_due_s)
    return lost_s


def shifted(breaker: Breaker, by_s: float) -> Breaker:
    """Return the same breaker on a clock that shows `by_s` more, for a restarted scheduler that adopts it.

    Holders return to it no probes that its predecessor allowed, so that no answer of these is expected to return.
    """
    return msgspec.structs.replace(
        breaker, since_s=breaker.since_s + by_s, until_s=breaker.until_s + by_s,
        probe_due_s=breaker.probe_due_s + by_s, not_before_s=breaker.not_before_s + by_s,
        window=[ResultTally(t.at_s + by_s, t.total, t.bad, t.slow) for t in breaker.window],
        waves=[ProbeWave(w.generation, [d + by_s for d in w.deadlines], w.lost) for w in breaker.waves],
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ the moves


def _counted(policy: BreakerPolicy, breaker: Breaker, new: ResultTally, draw: float) -> BreakerMove | None:
    """Closed: add to the window, and open if its share of failures or slow results is too high."""
    window = breaker.window
    if (
        window
        and new.at_s - window[-1].at_s < policy.window_s / 15
        and window[-1].total + new.total <= max(1, policy.window_count // 10)
    ):
        last = window[-1]
        last.total, last.bad, last.slow = last.total + new.total, last.bad + new.bad, last.slow + new.slow
    else:
        window.append(new)
    total = _trimmed(policy, window, new.at_s)
    if total < min(policy.volume_min, policy.failures_alone):
        return None
    bad = slow = 0.0
    for tally in window:
        bad += tally.bad
        slow += tally.slow
    if total < policy.volume_min and (bad < total or total < policy.failures_alone):
        return None
    failing = bad >= policy.failure_share * total
    if not failing and slow < policy.slow_share * total:
        return None
    within = f"of {total} in {new.at_s - window[0].at_s:.0f} s"
    why = f"{bad:.0f} {within} failed" if failing else f"{slow:.0f} {within} were slow"
    return _trip(policy, breaker, new.at_s, why, draw)


def _trimmed(policy: BreakerPolicy, window: list[ResultTally], at_s: float) -> int:
    """Drop expired results, then the oldest beyond the count (a share of their tally); return the number of results
    left.

    The newest tally stays whole, because the order of results within one report is not known.
    """
    while window[0].at_s <= at_s - policy.window_s:
        del window[0]
    total = 0
    for tally in window:
        total += tally.total
    while total > policy.window_count and len(window) > 1:
        oldest = window[0]
        left = oldest.total - (total - policy.window_count)
        if left <= 0:
            total -= oldest.total
            del window[0]
        else:
            share, total = left / oldest.total, policy.window_count
            oldest.total, oldest.bad, oldest.slow = left, oldest.bad * share, oldest.slow * share
    return total


def _probed(
    policy: BreakerPolicy, breaker: Breaker, at_s: float, good: int, bad: int, slow: int, draw: float
) -> BreakerMove | None:
    """Half open: `probes` answers decide, or fewer once the others cannot change the outcome."""
    breaker.good += good
    breaker.bad += bad
    breaker.slow += slow
    if breaker.blocked:
        if breaker.good:
            return _close(breaker, at_s, "the account answers again")
        return _open(breaker, at_s, max(breaker.probe_due_s, breaker.not_before_s), breaker.why)
    answers = breaker.good + breaker.bad
    if breaker.bad > policy.probe_failures_max:
        return _trip(policy, breaker, at_s, f"{breaker.bad} of {answers} probes failed", draw)
    if answers < policy.probes:
        return None
    if breaker.slow >= policy.slow_share * answers:
        return _trip(policy, breaker, at_s, f"{breaker.slow} of {answers} probes were slow", draw)
    return _close(breaker, at_s, f"{breaker.good} of {answers} probes were good")


def _trip(policy: BreakerPolicy, breaker: Breaker, at_s: float, why: str, draw: float) -> BreakerMove:
    if breaker.state is BreakerState.CLOSED and at_s - breaker.since_s >= policy.window_s:
        breaker.stay_s = 0.0
    breaker.stay_s = min(max(policy.open_s, breaker.stay_s * policy.open_growth), policy.open_max_s)
    until_s = at_s + breaker.stay_s * (1 - policy.jitter * draw)
    return _open(breaker, at_s, max(until_s, breaker.not_before_s), why)


def _open(breaker: Breaker, at_s: float, until_s: float, why: str) -> BreakerMove:
    breaker.until_s = until_s
    breaker.opened += 1
    return _move(breaker, at_s, BreakerState.OPEN, why)


def _close(breaker: Breaker, at_s: float, why: str) -> BreakerMove:
    breaker.blocked = False
    return _move(breaker, at_s, BreakerState.CLOSED, why)


def _move(breaker: Breaker, at_s: float, new: BreakerState, why: str) -> BreakerMove:
    moved = BreakerMove(breaker.state, new, why)
    breaker.state, breaker.since_s, breaker.why = new, at_s, why
    breaker.generation += 1
    breaker.window = []
    breaker.good = breaker.bad = breaker.slow = 0
    return moved


# ------------------------------------------------------------------------------------------ the probes


def _lose(breaker: Breaker, at_s: float) -> None:
    for wave in breaker.waves:
        while wave.deadlines and wave.deadlines[0] <= at_s:
            del wave.deadlines[0]
            wave.lost += 1
        while wave.answered and wave.answered[0] <= at_s:
            del wave.answered[0]
    if breaker.waves:
        breaker.waves = [w for w in breaker.waves if w.deadlines or w.generation == breaker.generation]


def _resolve(breaker: Breaker, generation: int, n: int) -> None:
    """Count `n` probes of that generation as answered: lost ones first, then the earliest."""
    for wave in breaker.waves:
        if wave.generation == generation:
            late = min(n, wave.lost)
            wave.lost -= late
            early = min(n - late, len(wave.deadlines))
            wave.answered = sorted([*wave.answered, *wave.deadlines[:early]])
            del wave.deadlines[:early]
