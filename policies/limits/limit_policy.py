"""The settings by which a pool's limit is found and kept (`policies.limits.limit`, `policies.limits.probing`)."""

from __future__ import annotations

import math

import msgspec


class LimitPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. Raises ValueError, one line, for a bound that makes no sense.

    Where no source is given, the value was tuned in the closed loop of the tests: four reporters, a simulated provider.
    """

    start: int = 20
    """Calls in flight that a pool begins with, all jobs together."""
    floor: int = 1
    """No cut goes below it."""
    ceiling: int = 100_000
    """No growth goes above it."""
    hold_s: float = 1.0
    """How long nothing begins after a refusal that names no time. The shortest that a Retry-After can name."""
    debt_s: float = 0.5
    """Added to a Retry-After of two seconds or more. Such a bucket is in debt and will be just above empty; after one
    second, which may be rounded up from nothing, there is most of a second in it."""
    trial_cut: float = 0.5
    found_cut: float = 0.9
    settled_cut: float = 0.96
    """What is left of the concurrency after a refusal: the first, or one that came at once; one that came when it had
    grown back; one that came as late as it should."""
    trial_return_s: float = 8.0
    found_return_s: float = 14.0
    settled_return_s: float = 27.0
    """How long it takes to grow back to what was refused."""
    beyond_s: float = 25.0
    """How long from there to twice of it."""
    gone: float = 1.03
    """So far beyond it, and two permits, slow start begins again."""
    trials_max: int = 2
    """Refusals at once before concurrency is given up as an explanation."""
    doublings_max: int = 4
    """How often the silence is doubled, at most, because it was too short."""
    unsettled_max: int = 3
    """Estimates of the rate in a row that disagree, before the rate is."""
    settled_s: float = 18.0
    unsettled_s: float = 5.0
    """How long a pace takes to use up a second's reserve: when the last two estimates agree, and when not."""
    settled_latencies: int = 20
    unsettled_latencies: int = 4
    """The same in answers' times: what is charged with the answer shows as late as that."""
    overrun: float = 2.0
    """A refill is taken for no more than this times what was accepted; its root is what it is raised by at once."""
    agree: float = 0.1
    """By how much two estimates may differ that agree, beyond one and a half calls of chance."""
    doubt_every: int = 8
    """Settled estimates until the rate is doubted again."""
    doubt_s: float = 20.0
    """A refusal within it settles the doubt in favour of the rate."""
    calls_a_refusal: int = 100
    probe_max_s: float = 600.0
    """No probe is put off for longer, whatever the last one cost."""
    headroom_s: float = 600.0
    """With headroom for others, a settled pool is not probed sooner: probing uses what is theirs."""
    falls_max: int = 3
    fall: float = 0.35
    """So many episodes of few refusals each, after which no more than this share is accepted of what once was, are
    taken for strays."""
    stray_share: float = 0.08
    """No more of all calls than this can be strays."""
    unwell_share: float = 0.3
    """Share of bad answers at which growth stops; it slows down before. A breaker opens at half."""
    spare: float = 1.25
    """Permits to a call under way, where a rate is what bounds: concurrency must not."""
    overhead_s: float = 0.1
    """How long a permit is held beyond the call itself: messages, queues and the commit."""
    tried: float = 0.8
    """Share of what is allowed that must be in use before more is."""

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.start <= self.ceiling:
            raise ValueError(f"1 <= floor <= start <= ceiling, not {self.floor}, {self.start}, {self.ceiling}")
        if not 0 < self.trial_cut < self.found_cut < self.settled_cut < 1:
            raise ValueError("0 < trial_cut < found_cut < settled_cut < 1")
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
