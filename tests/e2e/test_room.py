"""What a cluster's autoscaler hears: room for those that there would be work for, on nodes of their roles; and none after."""

from __future__ import annotations

import asyncio

from tests.cluster.cluster_processes import ray_head


def test_the_autoscaler_hears_of_it(monkeypatch):
    """Version 2, which KubeRay runs, by what Ray's own status says of it. That pods come of it is the autoscaler's part."""
    from ray.autoscaler.v2 import utils
    from ray.autoscaler.v2.sdk import get_cluster_status

    from actors.runtime.ray_runtime import start_runtime

    monkeypatch.setattr(utils, "is_autoscaler_v2", lambda *_, **__: True)  # there is none here to say so

    def asked(address: str) -> list[tuple[dict[str, float], int]]:
        demands = get_cluster_status(address).resource_demands.cluster_constraint_demand
        return [(each.bundle, each.count) for demand in demands for each in demand.bundles_by_count]

    async def play(address: str) -> None:
        runtime = await start_runtime(address, {}, begin=False)
        try:
            assert await runtime.names("") == (), "to look begins nothing"
            await runtime.make_room(3, 1)
            assert asked(address) == [({"CPU": 1.0}, 3), ({"CPU": 1.0}, 1)], "branches and workers, each by their labels"
            await runtime.make_room(0, 0)
            assert asked(address) == []
        finally:
            await runtime.close()

    with ray_head("--labels=cortex/role=branch") as head:
        asyncio.run(play(head.address))
