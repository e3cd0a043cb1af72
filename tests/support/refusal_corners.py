"""Corners of the search for a limit, each a simulated pool with one figure: storms, shares of refusals, token buckets.

`python -m tests.support.refusal_corners FAMILY [TEXT]` prints the cells of a family whose name holds TEXT, the worst
last. `tests/unit/policies/limits/test_refusal_corners.py` holds a few of each. All times are virtual.

The constants of the policy were tuned on these cells. `FAMILY drawn` prints corners drawn at random between them, with
seeds of their own, on which nothing is tuned: figures that are reported come from these.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
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


KINDS: Final[dict[str, Kind]] = {
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


DRAWN: Final = 80
"""Corners that are drawn of a family."""
DRAWN_SEED: Final = 20_261_129
"""Seed of the drawn corners. It is not that of any cell above."""
DRAWN_SEEDS: Final = (101,)
"""Seeds of the runs of a drawn corner."""


def _between(chance: random.Random, least: float, most: float) -> float:
    """Return a number that is as likely in each octave between the two."""
    return float(f"{math.exp(chance.uniform(math.log(least), math.log(most))):.2g}")


def drawn_kinds() -> Iterator[tuple[str, Kind]]:
    """Providers without end: unlimited, buckets and places, of 0.1 to 10 s a call, with room for 5 to 200 calls."""
    chance = random.Random(DRAWN_SEED)
    while True:
        latency_s, many = _between(chance, 0.1, 10), round(_between(chance, 5, 200))
        rate, capacity_s = _between(chance, 2, 60), _between(chance, 2, 60)
        yield f"unlimited {latency_s:g}s, {many}", unlimited(many, latency_s)
        yield f"bucket {rate:g}/s of {capacity_s:g}s, {latency_s:g}s", bucket(rate, capacity_s, latency_s)
        yield f"places {many} of {latency_s:g}s", places(many, latency_s)


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


def drawn_storms() -> Iterator[Storm]:
    """Storms without end: half or all calls, 10 to 300 s, from the start or after a minute and more."""
    chance = random.Random(DRAWN_SEED + 1)
    for name, kind in drawn_kinds():
        KINDS[name] = kind
        start_s = chance.choice((1, round(_between(chance, 70, 200))))
        storm_s, share = round(_between(chance, 10, 300)), chance.choice((0.5, 1.0))
        yield Storm(name, share, storm_s, start_s, name.startswith("bucket") and chance.random() < 0.5, chance.random() < 0.5)


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


def drawn_shares() -> Iterator[Share]:
    """Shares without end, from 5 to 50 %."""
    chance = random.Random(DRAWN_SEED + 2)
    for name, kind in drawn_kinds():
        KINDS[name] = kind
        told = name.startswith("bucket") and chance.random() < 0.5
        yield Share(name, _between(chance, 0.05, 0.5), told, chance.random() < 0.5)


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
    for corner in itertools.starmap(
        Bucket,
        itertools.product(LIMITS, (20, 60, 300, 2_000), (1, 10, 60), (0.02, 0.5, 5.0, 30.0), (0.4, 1.0), (1, 4)),
    ):
        if not _usable(corner):
            continue
        if corner.limit == "requests" and corner.sigma == 1.0:
            continue  # sizes do not matter
        if corner.calls_a_minute == 2_000 and (corner.nodes == 1 or corner.sigma == 1.0):
            continue  # as with fewer
        yield corner


def _usable(corner: Bucket) -> bool:
    """Return whether any client can use the bucket."""
    room = corner.capacity_s * corner.calls_a_minute / 60
    least = 1 if corner.limit == "requests" else 3 if corner.sigma < 1 else 20
    if room < (least if corner.nodes == 1 else max(least, 5)):
        return False  # a call that is larger than its bucket is refused for ever: one of 1,000, with fewer one of 200
    # Output is charged when it is made: as unevenly as answers end, whatever is begun.
    return corner.limit != "output" or corner.latency_s <= 3 * corner.capacity_s


def drawn_buckets() -> Iterator[Bucket]:
    """Usable buckets without end, in the bounds of `buckets`."""
    chance = random.Random(DRAWN_SEED + 3)
    while True:
        size = _between(chance, 20, 2_000), _between(chance, 1, 60), _between(chance, 0.02, 30)
        corner = Bucket(chance.choice(list(LIMITS)), *size, chance.choice((0.4, 0.7, 1.0)), chance.choice((1, 2, 4)))
        if _usable(corner):
            yield corner


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


def used_and_throttled(corner: Bucket, seeds: Sequence[int] = SEEDS) -> tuple[float, float]:
    """Return the means of what `sustained` returns."""
    used, throttled = zip(*(sustained(corner, seed) for seed in seeds), strict=True)
    return mean(used), mean(throttled)


class SlowBucket(msgspec.Struct, frozen=True):
    """Bucket of a minute's calls that only refusals tell of, without Retry-After."""

    calls_a_minute: float
    nodes: int = 1
    """Jobs that share the limit; each paces its own part."""
    latency_s: float = 2.0

    def __str__(self) -> str:
        return f"{self.calls_a_minute:g}/min of a minute, calls of {self.latency_s:g} s, nodes {self.nodes}"


SLOW_SEEDS: Final = tuple(range(11, 19))
"""Seeds of the runs of a slow bucket: in few of them the search goes wrong."""


def slow(corner: SlowBucket, seeds: Sequence[int] = SLOW_SEEDS) -> tuple[float, float]:
    """Return the share of the limit that was used in the last 40 of 60 minutes, and the share of calls refused."""
    allowed = corner.calls_a_minute / 60
    provider = Provider(requests_per_s=allowed, latency_s=corner.latency_s, retry_after=False)
    taken = refused = 0
    for seed in seeds:
        seconds = Pool(provider, seed=seed, nodes=corner.nodes).run(3_600).seconds[1_200:3_600]
        taken += sum(second.accepted for second in seconds)
        refused += sum(second.throttled for second in seconds)
    return taken / (len(seeds) * 2_400 * allowed), refused / max(taken + refused, 1)


def figure(corner: Storm | Share | Bucket, seeds: Sequence[int] = SEEDS) -> tuple[float, str]:
    """Return what the corner reaches, and its line. Throttled requests beyond 2 % count tenfold."""
    if isinstance(corner, Bucket):
        used, throttled = used_and_throttled(corner, seeds)
        return used - 10 * max(0.0, throttled - 0.02), f"{used:.2f} {throttled:6.2%}  {corner}"
    found = mean(back(corner, seed) if isinstance(corner, Storm) else answered(corner, seed) for seed in seeds)
    return found, f"{found:.2f}  {corner}"


FAMILIES: Final = {"storms": (storms, 0.9), "shares": (shares, 0.9), "buckets": (buckets, 0.95)}


DRAWN_FAMILIES: Final = {"storms": drawn_storms, "shares": drawn_shares, "buckets": drawn_buckets}


def main(family: str, text: str = "") -> None:
    """Print the corners of a family whose name holds `text`, or those that are drawn."""
    corners, least = FAMILIES[family]
    if text == "drawn":
        found = [figure(corner, DRAWN_SEEDS) for corner in itertools.islice(DRAWN_FAMILIES[family](), DRAWN)]
    else:
        found = [figure(corner) for corner in corners() if text in str(corner)]
    print(*(line for _, line in sorted(found, reverse=True)), sep="\n")
    print(f"{sum(reached >= least for reached, _ in found)} of {len(found)} reach {least}")


if __name__ == "__main__":
    main(*sys.argv[1:])
