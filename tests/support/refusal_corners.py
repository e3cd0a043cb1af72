"""Corners of the search for a limit, each a simulated pool with one figure: storms, shares of refusals, token buckets.

`python -m tests.support.refusal_corners FAMILY [TEXT]` prints the cells of a family whose name holds TEXT, the worst
last. `tests/unit/policies/limits/test_refusal_corners.py` holds a few of each. All times are virtual.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Final

import msgspec

from tests.support.pool_simulation import Pool, Provider

BACK_S: Final = 30
"""Seconds after a storm until the earlier rate is back; it is measured for as long, or for ten calls' time."""
RETRY_AFTER_S: Final = 2.0
"""Seconds that a refusal of no limit asks for, where it has a Retry-After."""
ODD_S: Final = 0.01
"""Seconds of network that a call takes, beyond its latency."""


class Kind(msgspec.Struct, frozen=True):
    """Provider of a corner, and the rate that it or the demand allows, in calls per second."""

    provider: Mapping[str, float]
    rate: float
    wanted: float = 1e9
    """Calls in flight that the jobs could have."""


def unlimited(wanted: int, latency_s: float) -> Kind:
    """Provider without a limit: the demand is one."""
    return Kind({"latency_s": latency_s}, wanted / (latency_s + ODD_S), wanted)


def bucket(rate: float, capacity_s: float, latency_s: float) -> Kind:
    """Provider that allows requests at a rate."""
    return Kind({"latency_s": latency_s, "requests_per_s": rate, "capacity_s": capacity_s}, rate)


def places(concurrency: int, latency_s: float) -> Kind:
    """Provider that allows requests at once."""
    return Kind({"latency_s": latency_s, "concurrency": concurrency}, concurrency / (latency_s + ODD_S))


KINDS: Final = {
    "unlimited .6s": unlimited(20, 0.6),
    "unlimited 8s": unlimited(20, 8.0),
    "unlimited 8s, 200": unlimited(200, 8.0),
    "bucket .6s": bucket(50, 10, 0.6),
    "bucket 8s": bucket(5, 10, 8.0),
    "bucket of a minute": bucket(20, 60, 0.6),
    "places .1s": places(20, 0.1),
    "places .6s": places(20, 0.6),
    "places 8s": places(20, 8.0),
    "places 60 of 2s": places(60, 2.0),
}


class Storm(msgspec.Struct, frozen=True):
    """Refusals of a share of all calls for some time."""

    kind: str
    share: float
    storm_s: int
    start_s: int
    """Seconds before it."""
    headers: bool = False
    retry_after: bool = False

    def __str__(self) -> str:
        told = f"{' headers' * self.headers}{' retry-after' * self.retry_after}"
        return f"{self.kind} | {self.share:.0%} for {self.storm_s} s from {self.start_s} s on{told}"


def storms() -> Iterator[Storm]:
    """Every storm: ten kinds of provider, half or all calls, 10 to 300 s, from the start or later, told or not."""
    for kind, share, storm_s, start_s, told in itertools.product(
        KINDS, (0.5, 1.0), (10, 60, 300), (1, 70), ((False, False), (False, True), (True, False), (True, True))
    ):
        if told[0] and not kind.startswith("bucket"):
            continue  # there is nothing to tell
        yield Storm(kind, share, storm_s, start_s, *told)


SEEDS: Final = (1, 2, 3)
"""A figure is the mean of these runs: some episodes more or fewer fall into the time that is measured."""


def back(storm: Storm, seed: int = 1) -> float:
    """Return the accepted rate from 30 s after the storm on, as a share of what provider and demand allow."""
    kind = KINDS[storm.kind]
    provider = _refusing(kind, 0.0, storm.headers, storm.retry_after)
    pool = Pool(provider, seed=seed, demand=lambda at_s: kind.wanted).run(storm.start_s)
    pool.provider.stray_share = storm.share
    end_s = storm.start_s + storm.storm_s
    pool.run(end_s).provider.stray_share = 0.0
    return accepted(pool, end_s + BACK_S, end_s + BACK_S + measured_s(kind)) / kind.rate


def _refusing(kind: Kind, share: float, headers: bool, retry_after: bool) -> Provider:
    asked = {"retry_after": retry_after, "stray_retry_after_s": RETRY_AFTER_S}
    return Provider(stray_share=share, headers=headers, **asked, **kind.provider)


def measured_s(kind: Kind) -> int:
    return max(BACK_S, round(5 * kind.provider["latency_s"]))


def accepted(pool: Pool, from_s: int, until_s: int) -> float:
    """Return the calls a second that were accepted from `from_s` to `until_s`, which is run first."""
    pool.run(until_s)
    return sum(second.accepted for second in pool.seconds[from_s:until_s]) / (until_s - from_s)


class Share(msgspec.Struct, frozen=True):
    """Refusals of a share of all calls, all the time."""

    kind: str
    share: float
    headers: bool = False
    retry_after: bool = False

    def __str__(self) -> str:
        return f"{self.kind} | {self.share:.0%}{' headers' * self.headers}{' retry-after' * self.retry_after}"


def shares() -> Iterator[Share]:
    """Every share: ten kinds of provider, 5 to 50 %, told or not."""
    for kind, share, told in itertools.product(
        KINDS, (0.05, 0.1, 0.2, 0.35, 0.5), ((False, False), (False, True), (True, False), (True, True))
    ):
        if told[0] and not kind.startswith("bucket"):
            continue
        yield Share(kind, share, *told)


def answered(corner: Share, seed: int = 1) -> float:
    """Return the accepted rate from the second minute on, over five, as a share of what the answered share allows."""
    kind = KINDS[corner.kind]
    provider = _refusing(kind, corner.share, corner.headers, corner.retry_after)
    pool = Pool(provider, seed=seed, demand=lambda at_s: kind.wanted)
    return accepted(pool, 60, 360) / (kind.rate * (1 - corner.share))


class Bucket(msgspec.Struct, frozen=True):
    """Token bucket that headers tell of."""

    limit: str
    """Resource that is limited: requests, input tokens, output tokens, or tokens of both directions."""
    calls_a_minute: float
    """Limit in calls of the mean size."""
    capacity_s: float
    latency_s: float
    sigma: float = 0.4
    """Spread of the sizes."""
    nodes: int = 1
    """Jobs that share the limit; each paces its own part."""
    resets: bool = True
    """True if headers have the time until the bucket is full."""

    def __str__(self) -> str:
        return (
            f"{self.limit} {self.calls_a_minute:g}/min of {self.capacity_s:g} s, "
            f"calls of {self.latency_s:g} s, sigma {self.sigma:g}, nodes {self.nodes}{', no reset' * (not self.resets)}"
        )


LIMITS: Final = {
    "requests": ("requests_per_s", 1.0),
    "input": ("input_tokens_per_s", 1_000.0),
    "output": ("output_tokens_per_s", 200.0),
    "both": ("tokens_per_s", 1_400.0),
}


def buckets() -> Iterator[Bucket]:
    """Every bucket: four resources, 20 to 5,000 calls a minute, of 1 to 60 s, calls of 20 ms to 60 s."""
    for limit, calls, capacity_s, latency_s, sigma, nodes in itertools.product(
        LIMITS, (20, 60, 300, 2_000), (1, 10, 60), (0.02, 0.5, 5.0, 30.0), (0.4, 1.0), (1, 4)
    ):
        room = capacity_s * calls / 60
        least = 1 if limit == "requests" else 3 if sigma < 1 else 20
        if room < (least if nodes == 1 else max(least, 5)):
            continue  # a call that is larger than its bucket is refused for ever: one of 1,000, with fewer one of 200
        if limit == "output" and latency_s > 3 * capacity_s:
            continue  # charged when they are made: as unevenly as answers end, whatever is begun
        if limit == "requests" and sigma == 1.0:
            continue  # sizes do not matter
        if calls == 2_000 and (nodes == 1 or sigma == 1.0):
            continue  # as with fewer
        yield Bucket(limit, calls, capacity_s, latency_s, sigma, nodes)


def sustained(corner: Bucket, seed: int = 1) -> tuple[float, float]:
    """Return the share of the limit that was used, and the share of requests that were throttled."""
    name, size = LIMITS[corner.limit]
    provider = Provider(
        **{name: size * corner.calls_a_minute / 60},
        capacity_s=corner.capacity_s,
        latency_s=corner.latency_s,
        headers=True,
        openai=corner.limit == "both",
        resets=corner.resets,
        input_tokens=(1_000.0, corner.sigma),
        output_tokens=(200.0, corner.sigma),
    )
    from_s = 60 + round(2 * corner.latency_s)
    until_s = from_s + max(60, round(250 * 60 / corner.calls_a_minute))
    pool = Pool(provider, seed=seed, nodes=corner.nodes).run(until_s)
    return pool.used(from_s, until_s), pool.throttled(from_s, until_s)


def used_and_throttled(corner: Bucket) -> tuple[float, float]:
    """Return the means of what `sustained` returns."""
    used, throttled = zip(*(sustained(corner, seed) for seed in SEEDS), strict=True)
    return mean(used), mean(throttled)


def figure(corner: Storm | Share | Bucket) -> tuple[float, str]:
    """Return what the corner reaches, and its line. Throttled requests beyond 2 % count tenfold."""
    if isinstance(corner, Bucket):
        used, throttled = used_and_throttled(corner)
        return used - 10 * max(0.0, throttled - 0.02), f"{used:.2f} {throttled:6.2%}  {corner}"
    found = mean(back(corner, seed) if isinstance(corner, Storm) else answered(corner, seed) for seed in SEEDS)
    return found, f"{found:.2f}  {corner}"


FAMILIES: Final = {"storms": (storms, 0.9), "shares": (shares, 0.9), "buckets": (buckets, 0.95)}


def main(family: str, text: str = "") -> None:
    """Print the corners of a family whose name holds `text`."""
    corners, least = FAMILIES[family]
    found = sorted((figure(corner) for corner in corners() if text in str(corner)), reverse=True)
    print(*(line for _, line in found), sep="\n")
    print(f"{sum(reached >= least for reached, _ in found)} of {len(found)} reach {least}")


if __name__ == "__main__":
    main(*sys.argv[1:])
