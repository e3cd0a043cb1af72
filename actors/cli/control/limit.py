"""``limit``: manual limits on the use of a route by all jobs together, and a list of the limits in force: those set by
hand, and those that were learned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from actors.cli.jobs.settings import named_folder, shared_at, shared_cluster
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.text_table import bounded_line
from actors.common.units import clock
from actors.jobs.learned_limits import LearnedLimit
from actors.jobs.limit_options import NONE, bounded, option
from actors.jobs.spec import who
from actors.limits import forgotten, overrides
from actors.limits.learned import learned_limits
from actors.limits.shared_accounts import PLACE, accounts_at
from actors.ports.runtime import Peer, PeerGone, PeerUnavailable
from cortex.values.limits import Limits
from policies.limits.learned import LearnedBound
from policies.limits.limit import NO_CAPS, PoolCaps

_SHOWN_MAX: Final = 5
"""Most names of pools in one line."""
CAPS = {
    "concurrency": "concurrency", "rpm": "requests_per_min", "itpm": "input_tokens_per_min",
    "otpm": "output_tokens_per_min", "headroom": "headroom",
}  # fmt: skip
"""Option -> field of ``PoolCaps``."""


def limit(route: str, clear: bool, forget: bool, options: Options) -> int:
    """Run ``cortex limit`` and return the exit code."""
    asked = {name: value for name in CAPS if (value := getattr(options, name)) not in ("", None)}
    if clear and asked:
        raise CommandError(f"--clear removes all limits: leave {', '.join(map(option, asked))} out")
    if forget and (clear or asked):
        others = ["--clear"] if clear else map(option, asked)
        raise CommandError(f"--forget drops what was learned: give {', '.join(others)} in another command")
    if (clear or asked or forget) and not route:
        raise CommandError("no route given: name one, or an unambiguous part of its name: `cortex limit` lists them")
    _read(NO_CAPS, asked)  # raises for invalid values before any file or actor is asked
    cluster = shared_cluster(options)
    if cluster:
        return asyncio.run(_in_cluster(cluster, route, clear, forget, asked, options))
    folder, shared = named_folder(options), shared_at(options).get(PLACE, "")
    accounts = accounts_at(shared) if shared else None
    where = shared or folder.address
    known = overrides.known(folder)
    held = overrides.read(folder) if accounts is None else accounts.caps()
    known |= {pool: known.get(pool, set()) for pool in held}
    if forget:
        pool = _meant(route, known, where)
        was = learned_limits(folder).get(pool, ())
        forgotten.put(folder, pool, forgotten.Forgotten(who=who(), at_s=time.time()))
        return _forgot_text(pool, was, f"jobs of {folder.address}")
    if not clear and not asked:
        return _listed(route, known, held, learned_limits(folder), options, where)
    pool = _meant(route, known, where)
    before = held.get(pool, NO_CAPS)
    now = NO_CAPS if clear else _read(before, asked)
    now = msgspec.structs.replace(now, who=who(), at_s=time.time())
    if accounts is None:
        overrides.put(folder, pool, now)
    else:
        accounts.prepare()
        accounts.cap(pool, now)
    return _change_text(pool, before, now, f"jobs of {where}" if accounts is None else f"clusters that share {where}")


def _read(before: PoolCaps, asked: dict[str, Any]) -> PoolCaps:
    """Return the caps with the options in ``asked`` applied, parsed like the limits of a job."""
    over = {field: getattr(before, field) for field in CAPS.values()}
    try:
        if str(asked.get("concurrency", "")).strip().lower() == NONE:
            asked = {name: value for name, value in asked.items() if name != "concurrency"}
            over["concurrency"] = None
        kept = {field: value for field, value in over.items() if value is not None}
        limits = bounded(msgspec.structs.replace(Limits(), **_wide(kept)), asked, 0.0)
    except ValueError as error:
        raise CommandError(str(error)) from None
    found = {field: getattr(limits, field) for name, field in CAPS.items() if name in asked}
    return PoolCaps(**over | found)


def _wide(kept: dict[str, Any]) -> dict[str, Any]:
    return kept | {"window_rows": max(Limits().window_rows, kept.get("concurrency", 1))}


def _meant(text: str, known: dict[str, set[str]], where: str) -> str:
    """Return the one pool whose name matches ``text``. Raises ``CommandError`` that lists the known pools."""
    found = overrides.matching(text, known)
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandError(f"{text!r} may be {_some(found, ' or ')}: give more of the name")
    if not known:
        raise CommandError(f"no route is known in {where}: a job makes its routes known when it begins")
    raise CommandError(f"no route {text!r} is known in {where}; known: {_some(known)}")


def _some(names: Iterable[str], joint: str = ", ") -> str:
    """Return the first of these names as one text, and the number of the others."""
    listed = sorted(names)
    more = len(listed) - _SHOWN_MAX
    return joint.join(listed[:_SHOWN_MAX]) + (f" and {more:,} more (--json lists them all)" if more > 0 else "")


def _change_text(pool: str, before: PoolCaps, now: PoolCaps, whose: str) -> int:
    lines = [
        f"{option(name)} {_value(now, field)} (was {_value(before, field)})"
        for name, field in CAPS.items()
        if getattr(before, field) != getattr(now, field)
    ]
    print_error(f"{pool}: {', '.join(lines) or 'as before'}, set by {now.who}, for all {whose}, running and to come")
    return COMPLETE


def _forgot_text(pool: str, was: Sequence[LearnedLimit], whose: str) -> int:
    dropped = ", ".join(each.words(clock(each.at_s)) for each in was)
    what = f"dropped what was learned: {dropped}" if was else "nothing was learned"
    print_error(f"{pool}: {what}; for all {whose}, running and to be resumed")
    return COMPLETE


def _value(held: PoolCaps, field: str) -> str:
    value = getattr(held, field)
    return NONE if value is None else f"{value:g}"


def _listed(
    route: str, known: dict[str, set[str]], held: dict[str, PoolCaps], learned: dict[str, tuple[LearnedLimit, ...]],
    options: Options, where: str,
) -> int:  # fmt: skip
    """Print the limits in force: those set by hand with author and time, and those learned with source and time. Return
    the exit code."""
    shown = [_meant(route, known, where)] if route else sorted(pool for pool in held if overrides.binds(held[pool]))
    facts = [_facts(pool, held.get(pool, NO_CAPS)) for pool in shown]
    found = {pool: limits for pool, limits in learned.items() if not route or pool in shown}
    if options.as_json:
        listed = [
            {"pool": pool, "source": each.bound.source, "unit": each.bound.unit, "amount": each.bound.amount,
             "at_s": each.at_s}
            for pool, limits in found.items() for each in limits
        ]  # fmt: skip
        print(msgspec.json.encode({"limits": facts, "known": sorted(known), "learned": listed}).decode())
        return COMPLETE
    for each in facts:
        bounds = ", ".join(f"{option(name)} {each[name]:g}" for name in CAPS if each[name])
        by = f"by {each['who']}, since {clock(each['at_s'])}" if each["at_s"] else "no limit was set"
        print(bounded_line(f"{each['pool']}  {bounds or NONE}  {by}"))
    for pool, limits in found.items():
        for one in limits:
            print(bounded_line(f"{pool}  learned: {one.words(clock(one.at_s))}"))
    if not facts:
        print_error(f"no limit is set by hand in {where}" + (f"; known: {_some(known)}" if known else ""))
    return COMPLETE


def _facts(pool: str, held: PoolCaps) -> dict[str, Any]:
    facts = {name: getattr(held, field) for name, field in CAPS.items()}
    return {"pool": pool, **facts, "who": held.who, "at_s": held.at_s}


# -- the scheduler of a cluster ------------------------------------------------------------------------------------


async def asked_cortex(cluster: str, send: Callable[[Peer], Awaitable[int]]) -> int:
    """Call ``send`` with the scheduler of a cluster and return its result.

    Raises ``ClusterError``; ``CommandError`` if the scheduler does not answer or refuses the request.
    """
    from actors.runtime.ray_runtime import start_runtime

    runtime = await start_runtime(cluster, taken_environ())
    try:
        return await send(runtime.peer("cortex"))
    except (PeerUnavailable, PeerGone):
        raise CommandError(f"the scheduler of {cluster} does not answer: try again") from None
    except ValueError as error:  # the scheduler refused the request
        raise CommandError(str(error)) from None
    finally:
        await runtime.close()


async def _in_cluster(
    cluster: str, route: str, clear: bool, forget: bool, asked: dict[str, Any], options: Options
) -> int:  # fmt: skip
    """Run ``cortex limit`` against the scheduler of a cluster, which keeps the limits for all its jobs."""
    folder = named_folder(options)

    async def send(peer: Peer) -> int:
        reported = await peer.ask("status")
        held = {pool: PoolCaps(**each["caps"]) for pool, each in reported["pools"].items()}
        known = overrides.known(folder) | {
            pool: set(each.get("routes", ())) for pool, each in reported["pools"].items()
        }
        now_s = time.time()
        learned = {pool: _learned(each, now_s) for pool, each in reported["pools"].items() if each.get("learned")}
        if not clear and not asked and not forget:
            return _listed(route, known, held, learned, options, cluster)
        pool = _meant(route, known, cluster)
        if forget:
            if pool in reported["pools"]:
                await peer.ask("forget", who(), pool)
            return _forgot_text(pool, learned.get(pool, ()), f"jobs of {cluster}")
        before = held.get(pool, NO_CAPS)
        now = NO_CAPS if clear else _read(before, asked)
        now = msgspec.structs.replace(now, who=who(), at_s=time.time())
        await peer.ask("cap", now.who, pool, overrides.encode(now))
        return _change_text(pool, before, now, f"jobs of {cluster}")

    return await asked_cortex(cluster, send)


def _learned(facts: dict[str, Any], now_s: float) -> tuple[LearnedLimit, ...]:
    """Return what a scheduler's status says of a pool; nothing of an older release's."""
    bounds = msgspec.convert(facts.get("learned", ()), tuple[LearnedBound, ...])
    return tuple(LearnedLimit(bound, now_s - bound.age_s) for bound in bounds)
