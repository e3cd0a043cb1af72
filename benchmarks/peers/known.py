"""Peers: environment, script, number of calls, and state kept of a run."""

from __future__ import annotations

import msgspec

from benchmarks.harness.server import CALLS_MAX


class Peer(msgspec.Struct, frozen=True):
    """Row of the table."""

    name: str
    works: dict[str, int]
    """Calls of a run by work, fewer for a slow peer. A missing work is not supported."""
    environment: str = ""
    """Name of the environment; empty: runs in ours."""
    road: str = ""
    variant: str = ""
    durable: str = "nothing"
    """State that the peer claims to keep: nothing, steps (of a program written as such), all. ``--kill`` measures."""
    keeps: bool = False
    kill_calls: int = 0
    at_once_max: int = CALLS_MAX
    """Bound on calls at once for a peer so slow that more would be its whole run."""

    @property
    def processes_seen(self) -> bool:
        """Return whether the CPU of all processes at work can be measured."""
        return self.environment not in ("ray", "dask", "prefect") and self.name not in ("local", "dbos_postgres")


_PEERS = (
    Peer("inline", {"http": 8_000, "null": 20_000}, durable="all", keeps=True, kill_calls=4_000),
    Peer("local", {"http": 8_000}, durable="all"),
    Peer("bare", {"http": 8_000}),
    Peer("asyncio", {"http": 4_000, "null": 100_000}, "asyncio", "asyncio_sdk"),
    Peer("asyncio_uvloop", {"http": 4_000, "null": 100_000}, "asyncio", "asyncio_sdk", "uvloop"),
    Peer("ray_actor", {"http": 4_000, "null": 4_000}, "ray", "ray_actor", "list"),
    Peer("ray_task", {"http": 1_000, "null": 3_000}, "ray", "ray_task"),
    Peer("ray_data", {"http": 4_000, "null": 10_000}, "ray", "ray_batches"),
    Peer("langgraph", {"http": 2_000, "null": 4_000}, "langgraph", "langgraph_send"),
    Peer(
        "langgraph_sqlite",
        {"http": 1_000, "null": 1_000},
        "langgraph",
        "langgraph_send",
        "sqlite",
        "steps",
        True,
        1_000,
    ),
    Peer("dbos", {"http": 4_000, "null": 2_000}, "dbos", "dbos_steps", "", "steps", True, 400),
    Peer("dbos_postgres", {"http": 2_000, "null": 2_000}, "dbos", "dbos_steps", "postgres", "steps", True, 600),
    Peer("dask", {"http": 1_500, "null": 1_500}, "dask", "dask_tasks"),
    Peer("inspect_ai", {"http": 400, "null": 400}, "inspect_ai", "inspect_eval", "", "steps", True, 400),
    Peer("curator", {"http": 1_000}, "curator", "curator_llm", "", "all", True, 1_000),
    Peer("litellm", {"http": 1_500, "null": 1_500}, "litellm", "litellm_router"),
    Peer("pydantic_ai", {"http": 1_000, "null": 1_500}, "pydantic_ai", "pydantic_ai_agent"),
    Peer("prefect", {"http": 100, "null": 100}, "prefect", "prefect_tasks", "", "steps", True, 250, 20),
    Peer("huey", {"http": 800, "null": 1_500}, "huey", "huey_queue"),
)
PEERS = {peer.name: peer for peer in _PEERS}
