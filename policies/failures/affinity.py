"""Prefix affinity: which calls go to which of several servers of one model, so that a server gets calls whose beginning
it has computed before.

vLLM (automatic prefix caching, https://docs.vllm.ai/en/latest/design/prefix_caching.html) and SGLang (RadixAttention)
keep what they computed of a prompt's beginning. Routers before several such servers send a request to the one with the
longest match, as they guess from what they sent there before, and to the least busy one while the load is uneven:
sglang-router (`cache_aware`: uneven are by default more than 32 requests between the most and the least busy,
https://github.com/sgl-project/sglang/blob/main/docs/router/router.md), llm-d, beside scores of the load
(https://github.com/llm-d/llm-d/blob/main/docs/inference-scheduler/prefix-aware-routing.md), vLLM's production-stack
(https://github.com/vllm-project/production-stack, `src/vllm_router/README.md`, `prefixaware`).

They are asked one request at a time. A batch knows its next calls: while all servers are full, the server that becomes
free is not chosen, but the call for it is. Here each free permit takes a call that its server holds the beginning of,
before calls whose beginning no server holds, before calls that another, full server holds. Permits bound the load, and
follow what each server can do (`policies.limits.fair_share`), so no server is busier than it would be otherwise, and
none is left idle for the sake of a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policies.failures.peers import least_loaded


def dealt(
    calls: Iterable[tuple[int, int]], servers: Sequence[tuple[int, int, int]], most: int
) -> list[tuple[int, int]]:
    """Return which of the calls are sent now, and where: pairs of places in `calls` and `servers`, at most `most`.

    `calls`: for each in its order the servers that hold its beginning and take calls, and those that failed it, as bits
    by place; none is read once `most` are found. `servers`: for each the calls that may begin now, the calls in flight,
    and the permits. Calls are equal in rank within the first ones, the others and those whose server is full, in the
    order of `calls`.
    """
    now = list(servers)
    found: list[tuple[int, int]] = []
    unheld: list[tuple[int, int]] = []
    full: list[tuple[int, int]] = []
    if most <= 0:
        return found
    for at, (holders, tried) in enumerate(calls):
        if not holders:
            unheld.append((at, tried))
        elif (place := least_loaded(now, ~holders | tried)) >= 0:
            found.append((at, place))
            now[place] = _with_one_more(now[place])
            if len(found) >= most:
                return found
        else:
            full.append((at, tried))
    for at, tried in (*unheld, *full):
        if len(found) >= most:
            break
        if (place := least_loaded(now, tried)) >= 0:
            found.append((at, place))
            now[place] = _with_one_more(now[place])
    return found


def _with_one_more(server: tuple[int, int, int]) -> tuple[int, int, int]:
    free, in_flight, permits = server
    return free - 1, in_flight + 1, permits
