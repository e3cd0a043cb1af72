"""Plan of a seed: size of the world, its jobs, its provider, and its faults with their times."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from actors.journal.reply_index import FLUSH_AT

EPOCH_S = 1_700_000_000.0
"""Time of the wall clocks at the start of a world."""
LARGE_EVERY = 50
"""One seed in this number has a thousand branches."""
ODD_USAGE = frozenset((3, 24, 37, 74, 87))
"""Remainders by 100 of seeds in which usage is sent in odd forms. No seed that was kept until then has one of them: each
kept its world. The next ones were chosen alike.
"""
OPENED_LATE, OVERTAKEN, TIMED_OUT = 27, 53, 77
"""Seeds in which a channel that was thought dead opens its job late; in which claims reach the successor of the cortex
that they were sent to; in which rows of message batches time out and are tried again.
"""
ASKED_AGAIN = 22
"""Seeds in which a job asks the questions of another, whose journal has lost its end while the index of replies kept
what it said of it.
"""
RENUMBERED = 63
"""Seeds in which branches hold calls of turns that are lost, of jobs that ask in another order afterwards."""
POWER_EVERY, POWER_AT = 37, 34
"""One seed in ``POWER_EVERY``, those with the remainder ``POWER_AT``, has a disk that lies about flushes and a machine
that loses its power. No seed that was pinned in a test before has this remainder: their worlds stay as they were."""


@dataclass
class JobPlan:
    """Plan of one job."""

    name: str
    program: str = "batch"
    rows: int = 30
    concurrency: int = 8
    window_rows: int = 64
    snapshot_events: int = 1_000
    cap_share: float = 0.0
    """Cap on money, as a share of the highest possible cost of all rows; 0: none."""
    priority: float = 1.0
    begins_s: float = 0.0
    ordered: bool = False
    fallback: bool = False
    requests_per_min: float | None = None
    """Rate set by its user."""
    refused: float = 0.0
    """Share of its rows that the provider rejects."""
    max_failed: float | None = None
    hedge_after_s: float | None = None
    goal_timeout_s: float | None = None
    deadline_s: float | None = None
    """Deadline in seconds from its begin."""
    batches: bool = False
    """True if it uses the provider's message batches."""
    retries: int = 0
    """Number of times that its user reopens failed rows after its end."""
    judge: bool = False
    """True if one of its roles has its own model."""
    shards: int = 1
    asks_as: str = ""
    """Job whose rows it asks; "": it has its own."""


@dataclass
class BatchingPlan:
    """Plan of the provider's message batches."""

    takes_s: float = 5.0
    requests_max: int = 1_000
    """Rows in one batch of a job at most."""
    queue: int = 0
    """Rows that the account may have in batches at once; 0: any number."""
    trouble: float = 0.0
    """Share of all requests about batches, submissions included, that fail."""
    failing: float = 0.0
    """Share of rows that fail or expire."""
    unreadable: float = 0.0
    """Share of batches with unreadable results."""


@dataclass
class Trouble:
    """Fault: ``kind`` names a method of ``faults.Faults``."""

    at_s: float
    kind: str
    target: str = ""
    for_s: float = 1.0
    amount: float = 0.0


@dataclass
class ProviderPlan:
    """Plan of the provider."""

    latency_s: float = 0.5
    jitter: float = 0.5
    requests_per_s: float = 0.0
    """Rate of its token bucket; 0: no limit."""
    burst_s: float = 1.0
    concurrency: int = 0
    """Requests answered at once; 0: any number."""
    headers: bool = False
    retry_after: bool = False
    failing: float = 0.0
    """Share of requests that fail while faults are active."""
    hanging: float = 0.0
    bills: float = 1.0
    """Tokens that it bills, as a multiple of those of an answer; 0: usage that nobody can read."""
    billing: float = 0.0
    """Share of answers that are billed so."""
    shapes: float = 0.0
    """Share of questions in rows whose answers are large or deeply nested."""
    odd_usage: float = 0.0
    """Share of questions whose answers have usage in a form that no API describes (``odd_usage.FORMS``)."""


@dataclass
class Plan:
    """Plan of a world."""

    seed: int
    branches: int = 2
    workers: int = 1
    nodes: int = 2
    jobs: list[JobPlan] = field(default_factory=list)
    provider: ProviderPlan = field(default_factory=ProviderPlan)
    batching: BatchingPlan = field(default_factory=BatchingPlan)
    troubles_at: list[Trouble] = field(default_factory=list)
    limit_start: int = 20
    """Initial concurrency of each pool."""
    apart: bool = False
    """True if channels wait for their commits in threads."""
    pool_cap: int = 0
    """Concurrency cap set by an operator for the first endpoint's pool; 0: none."""
    breaker_volume: int = 20
    """Results below which no breaker opens."""
    quiet_s: float = 30.0
    """Time at which the faults stop."""
    ends_s: float = 1_800.0
    """Time by which all jobs must have finished."""
    idle_s: float = 0.0
    """Seconds to observe the idle world afterwards."""
    hop_s: float = 0.001
    trouble: float = 0.02
    """Share of messages that are lost, late, unanswered or duplicated."""
    troubles: tuple[str, ...] = ("lost", "late", "unanswered", "twice")
    late_s: float = 2.0
    silence_s: float = 2.0
    """Seconds at most until the loss of a message is noticed."""
    endless: float = 0.0
    """Share of the questions under way to an actor that is killed that neither are answered nor fail, as on a real
    Ray."""
    restart_s: tuple[float, ...] = (0.05, 0.3, 1.0, 4.0)
    thread_s: tuple[float, ...] = (0.001, 0.01, 0.2)
    index_flush_at: int = FLUSH_AT
    """Replies after which a job writes the index of replies."""

    def chance(self, name: str) -> random.Random:
        """Return a separate random stream, so that more draws in one place change no others."""
        return random.Random(f"{self.seed}/{name}")


def plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(f"{seed}/plan")
    made = _large(seed, chance) if seed % LARGE_EVERY == LARGE_EVERY - 1 else _small(seed, chance)
    made.provider = _provider(chance, made)
    _refusals(random.Random(f"{seed}/refusals"), made)
    _terms(random.Random(f"{seed}/terms"), made)
    _votes(random.Random(f"{seed}/votes"), made)
    _batches(random.Random(f"{seed}/batches"), made)
    _roles(random.Random(f"{seed}/roles"), made)
    _retries(random.Random(f"{seed}/retries"), made)
    _quick(random.Random(f"{seed}/quick"), made)
    _hostile(random.Random(f"{seed}/hostile"), made)
    _endless(random.Random(f"{seed}/endless"), made)
    _odd_usage(random.Random(f"{seed}/usage"), made)
    _timed_out(random.Random(f"{seed}/timed out"), made)
    made.apart = seed % 4 == 1
    more = random.Random(f"{seed}/more")
    again = _asked_again(random.Random(f"{seed}/again"), made)
    again = again or _renumbered(random.Random(f"{seed}/renumbered"), made)
    disks = again or _power(random.Random(f"{seed}/power"), made) or _disks(random.Random(f"{seed}/disks"), made)
    late = random.Random(f"{seed}/late")
    slow = (*_opened_late(late, made), *_overtaken(late, made))
    troubles = (*_troubles(chance, made), *_aimed(more, made), *disks, *slow)
    made.troubles_at = sorted(troubles, key=lambda trouble: trouble.at_s)
    if chance.random() < 0.1:
        made.idle_s = 600.0
    return made


def _small(seed: int, chance: random.Random) -> Plan:
    made = Plan(
        seed, branches=chance.choice((1, 1, 2, 2, 3, 4)), workers=chance.choice((1, 2)), nodes=chance.choice((1, 2, 3)),
        quiet_s=chance.uniform(5, 30), trouble=chance.choice((0.0, 0.01, 0.03, 0.1)),
        hop_s=chance.choice((0.0005, 0.002, 0.02)), late_s=chance.choice((0.5, 3.0)),
        limit_start=chance.choice((4, 20)), pool_cap=chance.choice((0, 0, 0, 2, 6)), breaker_volume=chance.choice((5, 20)),
    )  # fmt: skip
    for index in range(chance.choice((1, 1, 1, 2, 2, 3))):
        program = chance.choice(("batch", "batch", "batch", "planner", "voter", "watcher"))
        concurrency = chance.choice((1, 3, 8, 20))
        made.jobs.append(
            JobPlan(
                f"j{index}", rows=chance.randrange(5, 70), concurrency=concurrency, program=program,
                window_rows=concurrency + chance.choice((0, 4, 40)), snapshot_events=chance.choice((15, 100, 1_000)),
                cap_share=chance.choice((0.0, 0.0, 0.5, 1.2)), priority=chance.choice((1.0, 1.0, 3.0)),
                begins_s=chance.choice((0.0, 0.0, 2.0, 9.0)), ordered=chance.random() < 0.3,
                fallback=chance.random() < 0.3, requests_per_min=chance.choice((None, None, None, 120.0)),
            )
        )
    return made


def _large(seed: int, chance: random.Random) -> Plan:
    made = Plan(seed, branches=1_000, nodes=10, quiet_s=10.0, trouble=0.002, hop_s=0.002)
    for index in range(2):
        made.jobs.append(JobPlan(f"j{index}", rows=chance.randrange(300, 900), concurrency=300, window_rows=600))
    return made


def _provider(chance: random.Random, made: Plan) -> ProviderPlan:
    limited = chance.random() < 0.4
    wanted = sum(job.concurrency for job in made.jobs)
    return ProviderPlan(
        latency_s=chance.choice((0.05, 0.3, 1.0)), jitter=chance.choice((0.1, 0.9)),
        requests_per_s=chance.choice((2.0, 5.0, 20.0)) * max(1, wanted // 20) if limited else 0.0,
        burst_s=chance.choice((1.0, 5.0)), headers=chance.random() < 0.5, retry_after=chance.random() < 0.5,
        concurrency=max(2, wanted // 2) if chance.random() < 0.2 else 0,
        failing=chance.choice((0.0, 0.0, 0.05, 0.2)), hanging=chance.choice((0.0, 0.0, 0.01)),
    )  # fmt: skip


def _retries(chance: random.Random, made: Plan) -> None:
    """Let users reopen failed rows."""
    for job in made.jobs:
        if job.program == "batch" and chance.random() < 0.25:
            job.refused, job.max_failed = job.refused or chance.choice((0.05, 0.2)), None
            job.retries = chance.choice((1, 1, 2))


def _quick(chance: random.Random, made: Plan) -> None:
    """Let some providers answer at once: replies are then sent with the answer of a branch."""
    if chance.random() < 0.2:
        made.provider.latency_s = chance.choice((0.0, 0.001, 0.004))


def _refusals(chance: random.Random, made: Plan) -> None:
    for job in made.jobs:
        if job.program == "batch" and chance.random() < 0.15:
            job.refused = chance.choice((0.05, 0.3))
            job.max_failed = chance.choice((None, 1, 3, 0.25))


def _terms(chance: random.Random, made: Plan) -> None:
    """Add options of some users."""
    for job in made.jobs:
        draw = chance.random()
        tight, hedge_s = chance.choice((0.06, 0.14, 0.22)), chance.choice((0.1, 0.5, 2.0))
        goal_s, all_s = chance.choice((4.0, 12.0, 30.0)), chance.choice((3.0, 8.0, 20.0))
        if job.program != "batch":
            job.program = "nester" if draw < 0.3 else job.program
        elif draw < 0.15:
            job.cap_share = tight
        elif draw < 0.35:
            job.hedge_after_s = hedge_s
        if chance.random() < 0.12:
            job.goal_timeout_s = goal_s
        if chance.random() < 0.08:
            job.deadline_s = all_s


def _hostile(chance: random.Random, made: Plan) -> None:
    """Let some providers bill wrongly, and answer in any depth and size."""
    provider = made.provider
    if chance.random() < 0.08:
        provider.bills, provider.billing = chance.choice((0.0, 0.5, 2.0, 30.0, 1_000.0)), chance.choice((0.1, 1.0))
    if chance.random() < 0.06 and made.branches < LARGE_EVERY:
        provider.shapes = chance.choice((0.05, 0.3))


def _odd_usage(chance: random.Random, made: Plan) -> None:
    """Let some providers send usage in odd forms, and answer in the usual one."""
    if made.seed % 100 in ODD_USAGE and not made.provider.billing:
        made.provider.odd_usage, made.provider.shapes = chance.choice((0.1, 0.5, 1.0)), 0.0


def _endless(chance: random.Random, made: Plan) -> None:
    """Let some questions to killed actors never end, in every fourth world."""
    if chance.random() < 0.25:
        made.endless = chance.choice((0.05, 0.3))


def _votes(chance: random.Random, made: Plan) -> None:
    """Replace some voters, where the first replies decide, by first-to-ahead-by-k."""
    for job in made.jobs:
        if job.program == "voter" and chance.random() < 0.5:
            job.program = "elector"


def _batches(chance: random.Random, made: Plan) -> None:
    """Add jobs with message batches, and the plan of these."""
    made.batching = BatchingPlan(
        takes_s=chance.choice((1.0, 5.0, 40.0)), requests_max=chance.choice((4, 20, 1_000)),
        queue=chance.choice((0, 0, 25)), trouble=chance.choice((0.0, 0.1, 0.3)), failing=chance.choice((0.0, 0.1)),
        unreadable=chance.choice((0.0, 0.0, 0.0, 0.2)),
    )  # fmt: skip
    for job in made.jobs:
        if chance.random() < 0.15 and job.program == "batch" and job.rows < 100:
            job.batches, job.fallback, job.hedge_after_s, job.requests_per_min = True, False, None, None
            job.concurrency, job.window_rows = max(8, job.concurrency), max(8, job.window_rows)


def _roles(chance: random.Random, made: Plan) -> None:
    """Add jobs with a separate model for their judge."""
    for job in made.jobs:
        if chance.random() < 0.25 and job.program in ("planner", "voter"):
            job.program, job.judge = "caster", True


_CRASHES = ("crash", "crash", "crash", "crash_in_commit", "stand_still", "thought_dead", "gone", "cut_off")
_OTHERS = ("node_dies", "node_slow", "clock_jumps", "overloaded", "hangs", "blocked", "throttles")


def _troubles(chance: random.Random, made: Plan) -> list[Trouble]:
    found = []
    for _ in range(chance.choice((0, 1, 2, 4, 7))):
        at_s = chance.uniform(0.0, made.quiet_s)
        for_s = chance.choice((0.2, 2.0, 8.0, 20.0))
        if chance.random() < 0.6:
            who = chance.choice(("cortex", "channel", "channel", "branch", "branch", "worker", "driver"))
            found.append(Trouble(at_s, chance.choice(_CRASHES), who, for_s, chance.random()))
        else:
            found.append(Trouble(at_s, chance.choice(_OTHERS), "", for_s, chance.random()))
    return found


def _aimed(chance: random.Random, made: Plan) -> list[Trouble]:
    """Return faults that rarely happen by chance alone, in every third world."""
    at_s, kind = chance.uniform(0.0, 0.7 * made.quiet_s), chance.choice(("crash_while_open", "hung", "keeps_dying"))
    who = chance.choice(("branch", "worker", "channel"))
    amount = chance.random()
    if chance.random() > 1 / 3:
        return []
    if kind == "crash_while_open":
        first = Trouble(at_s, "overloaded", "", 12.0, 0.9) if amount < 0.6 else Trouble(at_s, "blocked", "", 4.0)
        return [first, Trouble(at_s, kind, "cortex", 12.0, amount)]
    who = "branch" if kind == "hung" else who
    return [Trouble(at_s, kind, who, 6.0, amount)]


def _disks(chance: random.Random, made: Plan) -> list[Trouble]:
    """Return faults of the disk, in every tenth world: a bit that flips, with a crash that lets it be read; a journal
    that is removed."""
    at_s, amount, kind = chance.uniform(0.0, made.quiet_s), chance.random(), chance.choice(("bit_flips", "unlinked"))
    if chance.random() > 0.1 or made.branches > LARGE_EVERY:
        return []
    more = [Trouble(at_s + chance.uniform(0.1, 3.0), "crash", "channel", 2.0, chance.random())]
    return [Trouble(at_s, kind, "", 1.0, amount), *(more if kind == "bit_flips" else [])]


def _power(chance: random.Random, made: Plan) -> list[Trouble]:
    """Return one or two losses of power of the machine with the state folder, in some worlds; ``amount`` says how much
    of the disk's cache is lost. It is back after a while in which no message is under way any more.
    """
    if made.seed % POWER_EVERY != POWER_AT or made.branches > LARGE_EVERY:
        return []
    times_s = [chance.uniform(0.0, made.quiet_s) for _ in range(chance.choice((1, 1, 2)))]
    return [Trouble(at_s, "power_lost", "", chance.choice((6.0, 12.0, 25.0)), chance.random()) for at_s in times_s]


def _asked_again(chance: random.Random, made: Plan) -> list[Trouble]:
    """Return a loss of power while a job runs. Others begin when it is back, and ask the same rows: of the first job's
    replies they find in the index some that its journal has lost, and other events have their places.
    """
    if made.seed % 100 != ASKED_AGAIN:
        return []
    first = made.jobs[0]
    first.program, first.batches, first.judge, first.begins_s, first.deadline_s = "batch", False, False, 0.0, None
    first.rows, first.concurrency = 60, chance.choice((3, 8))
    first.window_rows = max(first.window_rows, first.concurrency)
    made.provider.latency_s, made.provider.requests_per_s = max(made.provider.latency_s, 0.3), 0.0
    made.index_flush_at = chance.choice((4, 8, 16))
    at_s, for_s = chance.uniform(3.0, 8.0), chance.choice((6.0, 12.0))
    for place in range(3):
        begins_s, concurrency = at_s + for_s + chance.uniform(0.0, 6.0), chance.choice((3, 8, 20))
        made.jobs.append(
            JobPlan(
                f"again{place}", rows=first.rows, asks_as=first.name, begins_s=begins_s, concurrency=concurrency,
                refused=first.refused,
            )
        )  # fmt: skip
    return [Trouble(at_s, "power_lost", "replies", for_s, chance.uniform(0.7, 1.0))]


def _renumbered(chance: random.Random, made: Plan) -> list[Trouble]:
    """Return a loss of power while programs run of which each question follows from the replies before. Branches of
    other machines hold replies of the lost turns, whose numbers other questions would get.
    """
    if made.seed % 100 != RENUMBERED:
        return []
    made.branches, made.nodes, made.trouble = 3, 3, 0.0
    made.provider.latency_s, made.provider.jitter, made.provider.requests_per_s = 1.0, 0.9, 0.0
    made.jobs = [
        JobPlan(f"j{place}", program=program, concurrency=8, window_rows=12)
        for place, program in enumerate(("elector", "elector", "elector", chance.choice(("voter", "planner"))))
    ]
    return [Trouble(chance.uniform(1.0, 6.0), "power_lost", "", 6.0, chance.uniform(0.7, 1.0))]


def _opened_late(chance: random.Random, made: Plan) -> list[Trouble]:
    """Return a channel that takes an epoch after its successor has, and dies, while its job waits for message batches."""
    if made.seed % 100 != OPENED_LATE:
        return []
    _all_batches(made.jobs[0])
    made.batching.takes_s = 40.0
    at_s, for_s = chance.uniform(0.0, made.quiet_s), chance.choice((0.3, 1.0, 4.0))
    return [Trouble(made.jobs[0].begins_s + at_s, "opened_late", "channel", for_s)]


def _overtaken(chance: random.Random, made: Plan) -> list[Trouble]:
    """Return the death of a cortex as soon as it has opened a breaker, while messages take long."""
    if made.seed % 100 != OVERTAKEN:
        return []
    made.nodes = 1
    at_s, amount = chance.uniform(0.5, 0.7 * made.quiet_s), chance.uniform(0.1, 0.9)
    first = Trouble(at_s, "overloaded", "", 12.0, 0.9) if amount < 0.5 else Trouble(at_s, "blocked", "", 4.0)
    slow = Trouble(at_s - 0.5, "node_slow", "", 20.0, amount)
    return [slow, first, Trouble(at_s, "crash_while_open", "cortex", 12.0)]


def _timed_out(chance: random.Random, made: Plan) -> None:
    """Let rows time out while message batches have them, and their users try them again."""
    if made.seed % 100 != TIMED_OUT:
        return
    job = made.jobs[0]
    _all_batches(job)
    job.goal_timeout_s, job.retries, job.max_failed = 4.0, chance.choice((1, 2)), None
    made.batching.takes_s = 5.0


def _all_batches(job: JobPlan) -> None:
    """Let a job ask everything in message batches."""
    job.program, job.batches, job.fallback, job.judge = "batch", True, False, False
    job.hedge_after_s, job.requests_per_min, job.deadline_s = None, None, None
    job.concurrency, job.window_rows = max(8, job.concurrency), max(8, job.window_rows)


def without_faults(made: Plan) -> Plan:
    """Return the same plan without faults, for measurements."""
    provider = replace(made.provider, failing=0.0, hanging=0.0)
    return replace(made, troubles_at=[], trouble=0.0, quiet_s=0.0, provider=provider)
