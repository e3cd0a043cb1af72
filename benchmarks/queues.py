"""Calls held in flight at servers that queue: ``python -m benchmarks.queues --json``.

All of it is **simulated**, in virtual time, with the real policies (`tests.support.queue_simulation`): a job without
end at servers of 1 to 1,024 slots and 0.2 to 85 seconds a call, whose lengths differ. Families beside them: batches
that work the slower on each call the more they hold (`half`: calls at which each takes twice its time), prompts that
take another share of the time (`prompt`), durations that vary by a tenth for other reasons (`noise`), slots between
the powers of two. `told`: seconds after which the server's metrics count anew; 0: it has none.

Measured from a minute or eight calls' time on, whichever is longer (in a full batch, where calls slow each other): the
share used of what the server can do; the mean that waited, as a share of the slots, then and in as long a time
afterwards (`waiting_later`: without the last step of growth, which may be the first of what is measured); the most that
waited; attempts that timed out; openings of the breaker.

Batches: servers that work like vLLM (`actors.simulator.continuous_batch`), with 20,000 tokens of prompts read per
second and a KV cache for all, half or a quarter of the slots, for prompts of 1,000 and of 100 tokens, and where one in
ten has 8,000. Used is the share of the tokens of answers per second that the server writes with the best constant
number in flight; waiting is a share of the calls that fit in the cache.

Changes: a server that doubles its slots, halves them, stalls for 30 seconds, or is dead for ten minutes; measured from
a minute or eight calls' time after the end of it.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.harness import figures
from tests.support.queue_simulation import Queues, Server
from tests.support.server_capacity import fits, measured

SLOTS = (1, 8, 64, 256, 1_024)
SECONDS = (0.2, 2.0, 10.0, 30.0, 85.0)
BETWEEN = (3, 12, 33, 100, 400, 700)
CALLS_MAX = 150_000
"""Calls of one simulation at most: servers of more are left out."""
CHANGES = {"doubles": (0.0, 2.0), "halves": (0.0, 0.5), "stalls": (30.0, 1.0), "dies": (600.0, 1.0)}
"""Seconds without a slot, and the slots afterwards as a share of those before."""
PROMPTS = {"1,000": (0.0, 0.0), "100": (1.0, 100.0), "1 in 10 of 8,000": (0.1, 8_000.0)}
"""Share of the calls with a prompt of another mean length than 1,000 tokens, and that length."""
CACHES = (0.0, 0.5, 0.25)
"""Share of the slots for whose prompts and half answers the KV cache has room; 0: it has no bound."""
CHANGED = [(8, 2.0), (8, 10.0), (64, 2.0), (64, 10.0), (256, 4.0), (256, 30.0), (1_024, 30.0)]


def measure(server: Server, told_s: float, seed: int) -> dict[str, Any]:
    """Measure one server."""
    slots = server.slots
    call_s = server.mean_s * (1 + slots / server.half if server.half else 1)
    from_s = max(60.0, 8 * call_s)
    until_s = from_s + max(60.0, 10 * call_s)
    later_s = 2 * until_s - from_s
    found = Queues(server, seed=seed, told=told_s).run(later_s)
    return {
        "slots": slots,
        "seconds": server.mean_s,
        "half": server.half,
        "prompt": server.prompt_part,
        "noise": server.noise,
        "told": told_s,
        "used": round(found.used(from_s, until_s), 3),
        "waiting": round(found.waiting(from_s, until_s) / slots, 2),
        "waiting_later": round(found.waiting(until_s, later_s) / slots, 2),
        "waiting_most": round(found.waiting_max(from_s, until_s) / slots, 2),
        "waiting_most_before": round(found.waiting_max(0, from_s) / slots, 2),
        "timed_out": found.timed_out,
        "breaker_opened": found.opened,
    }


def measure_change(change: str, slots: int, mean_s: float, told_s: float, seed: int) -> dict[str, Any]:
    """Measure one server that changes."""
    without_s, factor = CHANGES[change]
    at_s, later = 1.5 * max(60.0, 8 * mean_s) + 20, int(slots * factor)
    again_s = at_s + without_s
    from_s = again_s + max(60.0, 8 * mean_s)
    until_s = from_s + max(60.0, 10 * mean_s)
    changes = ((at_s, 0), (again_s, later)) if without_s else ((at_s, later),)
    found = Queues(Server(slots=slots, mean_s=mean_s, changes=changes), seed=seed, told=told_s).run(until_s)
    return {
        "change": change,
        "slots": slots,
        "seconds": mean_s,
        "told": told_s,
        "used": round(found.used(from_s, until_s), 3),
        "waiting": round(found.waiting(from_s, until_s) / later, 2),
        "waiting_most": round(found.waiting_max(again_s, until_s) / later, 2),
        "timed_out": found.timed_out,
        "breaker_opened": found.opened,
        "failed": found.failed,
    }


def batch(slots: int, cache: float, prompts: tuple[float, float]) -> Server:
    """Return a server that works like vLLM, which knows the most that it can write."""
    share, long = prompts
    mean = (1 - share) * 1_000 + share * long + 100
    return measured(
        slots=slots, mean_s=4.0, half=float(slots), kv_tokens=round(cache * slots * mean), prefill_tps=20_000.0,
        long_prompts=prompts,
    )  # fmt: skip


def measure_batch(slots: int, cache: float, prompts: str, told_s: float, seed: int) -> dict[str, Any]:
    """Measure one server that works like vLLM."""
    server = batch(slots, cache, PROMPTS[prompts])
    at_once = fits(server)
    call_s = at_once * 200 / server.can_tps
    from_s = max(60.0, 8 * call_s)
    until_s = from_s + max(60.0, 10 * call_s)
    later_s = 2 * until_s - from_s
    found = Queues(server, seed=seed, told=told_s).run(later_s)
    return {
        "slots": slots,
        "fit": at_once,
        "prompts": prompts,
        "told": told_s,
        "used": round(found.used(from_s, until_s), 3),
        "used_later": round(found.used(until_s, later_s), 3),
        "waiting": round(found.waiting(from_s, until_s) / at_once, 2),
        "waiting_later": round(found.waiting(until_s, later_s) / at_once, 2),
        "preempted": round(found.preempted(from_s, later_s) / max(found.done, 1), 3),
        "timed_out": found.timed_out,
        "breaker_opened": found.opened,
    }


def servers() -> list[Server]:
    """Return the servers that do not change."""
    even = [Server(slots=slots, mean_s=mean_s) for slots in SLOTS for mean_s in SECONDS]
    between = [Server(slots=slots, mean_s=30.0) for slots in BETWEEN]
    batches = [Server(slots=slots, mean_s=2.0, half=half) for slots in (8, 64, 256) for half in (4.0, 16.0, 64.0)]
    prompts = [Server(slots=slots, mean_s=30.0, prompt_part=part) for slots in (8, 64, 400) for part in (0.05, 0.6)]
    noisy = [Server(slots=slots, mean_s=mean_s, noise=0.1) for slots in SLOTS[1:] for mean_s in (2.0, 30.0)]
    some = even + between + batches + prompts + noisy
    return [each for each in some if each.slots * 2 * max(60.0, 9 * each.mean_s) / each.mean_s <= CALLS_MAX]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = [measure(server, told_s, given.seed) for told_s in (0.0, 1.0) for server in servers()]
    changes = [
        measure_change(change, *server, told_s, given.seed)
        for told_s in (0.0, 1.0) for change in CHANGES for server in CHANGED
    ]  # fmt: skip
    batches = [
        measure_batch(slots, cache, prompts, told_s, given.seed)
        for told_s in (0.0, 1.0) for prompts in PROMPTS for slots in (64, 256) for cache in CACHES
    ]  # fmt: skip
    if given.json:
        simulated = {"servers": found, "changes": changes, "batches": batches}
        figures.tell({"machine": figures.machine(), "provider": "simulated", **simulated})
        return
    for table in (found, changes, batches):
        print("simulated:", ", ".join(table[0]))
        for each in table:
            print("  ".join(f"{value:>7}" for value in each.values()))


if __name__ == "__main__":
    main()
