"""What is installed on each node of a Ray: asked of the nodes themselves. Ray is an argument (``actors.runtime``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from actors.cluster.start import code_paths, first_line


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One node. Empty: it was not told; ``trouble`` says why."""

    node: str
    """Ray's own name for it."""
    address: str
    python: str = ""
    ray: str = ""
    cortex: str = ""
    trouble: str = ""


def of(
    ray: Any, affinity: Any, join: Callable[[], Any], leave: Callable[[Any], None], timeout_s: float
) -> list[Told]:  # fmt: skip
    """Join a Ray, ask its nodes, and leave it again. Raises what ``join`` raises."""
    connection = join()
    try:
        return taken(ray, affinity, code_paths(), timeout_s)
    finally:
        leave(connection)


def taken(ray: Any, affinity: Any, paths: Sequence[str], timeout_s: float) -> list[Told]:
    """Ask each node that lives, all at once; one that does not answer in time is in trouble."""
    living = [(row["NodeID"], row.get("NodeManagerAddress", "")) for row in ray.nodes() if row["Alive"]]
    ask = ray.remote(_asker())
    asked = []
    for node, address in living:
        there = ask.options(num_cpus=0, max_retries=0, scheduling_strategy=affinity(node, soft=False))
        asked.append((there.remote(tuple(paths)), node, address))
    ready, _ = ray.wait([each[0] for each in asked], num_returns=len(asked), timeout=timeout_s)
    found = []
    for reference, node, address in asked:
        if reference not in ready:
            found.append(Told(node=node, address=address, trouble=f"it ran nothing within {timeout_s:g} s"))
            continue
        try:
            found.append(Told(node=node, address=address, **ray.get(reference)))
        except Exception as error:  # whatever Ray says of it
            found.append(Told(node=node, address=address, trouble=first_line(error)))
    return found


def _asker() -> Callable[[tuple[str, ...]], dict[str, str]]:
    """What a node runs. Made inside a function, it travels by value: the node need not have this release to run it."""

    def told(paths: tuple[str, ...]) -> dict[str, str]:
        import os
        import platform
        import sys
        from importlib import metadata

        found = {"python": platform.python_version(), "ray": metadata.version("ray")}
        sys.path += [path for path in paths if path not in sys.path and os.path.isdir(path)]
        try:
            import cortex

            return {**found, "cortex": cortex.__version__}
        except Exception as error:
            return {**found, "trouble": f"cortex cannot be imported there: {type(error).__name__}"}

    return told
