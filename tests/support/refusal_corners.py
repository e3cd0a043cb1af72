"""Corners of the search for a limit, each a simulated pool with one figure: storms, shares of refusals, token buckets.

`python -m tests.support.refusal_corners FAMILY [TEXT]` prints the cells of a family whose name holds TEXT, the worst
last. `tests/unit/policies/limits/test_refusal_corners.py` holds a few of each. All times are virtual.

The constants of the policy were tuned on these cells. `FAMILY drawn [SEED]` prints corners drawn at random between
them, with seeds of their own, on which nothing is tuned: figures that are reported come from these. Of two families
there are drawn corners alone: `again`, a second storm, and `lowered`, a limit that a provider begins to enforce.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def drawn_kinds(seed: int) -> Iterator[tuple[str, Kind]]:
    """Providers without end: unlimited, buckets and places, of 0.1 to 10 s a call, with room for 5 to 200 calls."""
    chance = random.Random(seed)
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


def drawn_storms(seed: int = DRAWN_SEED) -> Iterator[Storm]:
    """Storms without end: half or all calls, 10 to 300 s, from the start or after a minute and more."""
    chance = random.Random(seed + 1)
    for name, kind in drawn_kinds(seed):
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


class Again(msgspec.Struct, frozen=True):
    """Two storms, of which the first one may come before anything is known."""

    first: Storm
    rest_s: int
    """Seconds between the two."""
    share: float
    storm_s: int

    @property
    def kind(self) -> str:
        return self.first.kind

    def __str__(self) -> str:
        return f"{self.first}, {self.share:.0%} for {self.storm_s} s after {self.rest_s} s"


def drawn_again(seed: int = DRAWN_SEED) -> Iterator[Again]:
    """Second storms without end, half a minute to three minutes after one of 4 to 60 s in the first seconds or later."""
    chance = random.Random(seed + 4)
    for name, kind in drawn_kinds(seed):
        KINDS[name] = kind
        start_s, storm_s = round(_between(chance, 1, 60)), round(_between(chance, 4, 60))
        told = name.startswith("bucket") and chance.random() < 0.5, chance.random() < 0.5
        first = Storm(name, chance.choice((0.5, 0.7, 1.0)), storm_s, start_s, *told)
        yield Again(first, round(_between(chance, 30, 180)), chance.choice((0.5, 0.7, 1.0)), round(_between(chance, 4, 60)))


def back_again(corner: Again, seed: int = 1) -> float:
    """Return the accepted rate from 30 s after the second storm on, as `back` does."""
    first, kind = corner.first, KINDS[corner.kind]
    pool = Pool(_refusing(kind, 0.0, first.headers, first.retry_after), seed=seed, demand=lambda at_s: kind.wanted)
    for began_s, share, took_s in (
        (first.start_s, first.share, first.storm_s),
        (first.start_s + first.storm_s + corner.rest_s, corner.share, corner.storm_s),
    ):
        pool.run(began_s).provider.stray_share = share
        pool.run(began_s + took_s).provider.stray_share = 0.0
    end_s = began_s + took_s + BACK_S
    return accepted(pool, end_s, end_s + measured_s(kind)) / kind.rate


class Lowered(msgspec.Struct, frozen=True):
    """Limit, of requests in a time, that a provider begins to enforce while calls are under way."""

    calls_a_minute: float
    capacity_s: float
    start_s: int
    """Seconds without it."""
    wanted: int
    """Calls in flight that the jobs could have."""
    latency_s: float
    retry_after: bool = False

    def __str__(self) -> str:
        told = " retry-after" * self.retry_after
        return (
            f"{self.calls_a_minute:g}/min of {self.capacity_s:g} s from {self.start_s} s on, "
            f"{self.wanted} calls of {self.latency_s:g} s{told}"
        )


def drawn_lowered(seed: int = DRAWN_SEED) -> Iterator[Lowered]:
    """Lowered limits without end: 10 to 300 calls a minute, for jobs that could have twice as many and more."""
    chance = random.Random(seed + 5)
    while True:
        corner = Lowered(
            _between(chance, 10, 300), _between(chance, 2, 60), round(_between(chance, 5, 120)),
            round(_between(chance, 5, 60)), _between(chance, 0.1, 5), chance.random() < 0.3,
        )  # fmt: skip
        allowed = corner.calls_a_minute / 60
        if allowed * corner.capacity_s >= 1 and corner.wanted / corner.latency_s >= 2 * allowed:
            yield corner


def kept(corner: Lowered, seed: int = 1) -> tuple[float, float]:
    """Return what was used of a limit from a minute after its beginning on, over nine, and the share of calls refused
    in all ten."""
    pool = Pool(
        Provider(latency_s=corner.latency_s, retry_after=corner.retry_after), seed=seed, demand=lambda at_s: corner.wanted
    )
    pool.run(corner.start_s)
    pool.provider.requests_per_s, pool.provider.capacity_s = corner.calls_a_minute / 60, corner.capacity_s
    pool.run(corner.start_s + 600)
    return pool.used(corner.start_s + 60, corner.start_s + 600), pool.throttled(corner.start_s, corner.start_s + 600)


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


def drawn_shares(seed: int = DRAWN_SEED) -> Iterator[Share]:
    """Shares without end, from 5 to 50 %."""
    chance = random.Random(seed + 2)
    for name, kind in drawn_kinds(seed):
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


def drawn_buckets(seed: int = DRAWN_SEED) -> Iterator[Bucket]:
    """Usable buckets without end, in the bounds of `buckets`."""
    chance = random.Random(seed + 3)
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


Corner = Storm | Again | Share | Bucket | Lowered


def figure(corner: Corner, seeds: Sequence[int] = SEEDS) -> tuple[float, str]:
    """Return what the corner reaches, and its line.

    Throttled requests of a bucket beyond 2 % count tenfold, those of a limit that was lowered beyond 5 % once.
    """
    if isinstance(corner, Bucket):
        used, throttled = used_and_throttled(corner, seeds)
        return used - 10 * max(0.0, throttled - 0.02), f"{used:.2f} {throttled:6.2%}  {corner}"
    if isinstance(corner, Lowered):
        used, throttled = (mean(each) for each in zip(*(kept(corner, seed) for seed in seeds), strict=True))
        return min(used, 1.0) - max(0.0, throttled - 0.05), f"{used:.2f} {throttled:6.2%}  {corner}"
    found = mean(_reached(corner, seed) for seed in seeds)
    return found, f"{found:.2f}  {corner}"


def _reached(corner: Storm | Again | Share, seed: int) -> float:
    if isinstance(corner, Storm):
        return back(corner, seed)
    return back_again(corner, seed) if isinstance(corner, Again) else answered(corner, seed)


FAMILIES: Final[dict[str, tuple[Callable[[], Iterator[Corner]], float]]] = {
    "storms": (storms, 0.9), "shares": (shares, 0.9), "buckets": (buckets, 0.95),
}  # fmt: skip
DRAWN_FAMILIES: Final[dict[str, tuple[Callable[[int], Iterator[Corner]], float]]] = {
    "storms": (drawn_storms, 0.9), "again": (drawn_again, 0.9), "shares": (drawn_shares, 0.9),
    "buckets": (drawn_buckets, 0.95), "lowered": (drawn_lowered, 0.8),
}  # fmt: skip


def main(family: str, text: str = "", seed: str = str(DRAWN_SEED)) -> None:
    """Print the corners of a family whose name holds `text`, or those that are drawn with `seed`."""
    if text == "drawn":
        drawn, least = DRAWN_FAMILIES[family]
        found = [figure(corner, DRAWN_SEEDS) for corner in itertools.islice(drawn(int(seed)), DRAWN)]
    else:
        corners, least = FAMILIES[family]
        found = [figure(corner) for corner in corners() if text in str(corner)]
    print(*(line for _, line in sorted(found, reverse=True)), sep="\n")
    reached = [reached for reached, _ in found]
    print(
        f"{sum(each >= least for each in reached)} of {len(found)} reach {least}, {sum(each < 0.5 for each in reached)} "
        f"are below .5, mean {mean(min(each, 1.0) for each in reached):.3f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
