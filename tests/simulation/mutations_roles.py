"""Faults planted in roles: their calls, queues and claims."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.channel.leases import lease
from actors.scheduler.actor import Cortex
from cortex.admission import permits
from cortex.calls import request, route_lanes
from cortex.loop import step
from cortex.scheduler.reports import Claims
from tests.simulation.mutations import Patch, planted
from tests.simulation.runner import PRICE
from tests.simulation.scenario import Plan


def _judged(plan: Plan) -> bool:
    return any(job.judge for job in plan.jobs)


@planted("a role is asked of its own model", 1, likely=_judged)
def role_forgotten(patch: Patch) -> None:
    ask = request.ask
    patch.setattr(step, "ask", lambda k, goal, wish, *more: ask(k, goal, msgspec.structs.replace(wish, role=""), *more))


@planted("a role is reserved at its own price", 30, likely=_judged)
def role_priced_as_the_own_model(patch: Patch) -> None:
    worst = request.worst_charge
    patch.setattr(request, "worst_charge", lambda price, *more: worst(PRICE, *more))


@planted("what is parked is called up again", 5, likely=_judged)
def parked_for_ever(patch: Patch) -> None:
    patch.setattr(route_lanes, "_call_up", lambda k, free: None)


@planted("each lane keeps to its own permits", 1, likely=_judged)
def lanes_share_permits(patch: Patch) -> None:
    way = permits.way

    def any_way(k: Any, lane: int = 0, tried: int = 0) -> int:
        found = way(k, lane, tried)
        here = k.terms.lane_places(lane)[0]
        return found if found >= 0 or not any(share.free(k.at_s) for share in k.shares) else here

    patch.setattr(request, "way", any_way)
    patch.setattr(route_lanes, "rooms", lambda k, shares: permits.rooms(k, k.shares))


@planted("a lane takes in no other lane's grant", 104, likely=_judged)
def any_lanes_grant(patch: Patch) -> None:
    def place(self: Any, grant: Any) -> Any:
        return next((each for each in self._places if each.route == grant.route), None)

    patch.setattr(lease.Lease, "_place", place)


@planted("a cortex hears of all lanes of a job before it takes it for known", 1, likely=_judged)
def only_the_own_lane_is_heard(patch: Patch) -> None:
    join = Cortex.join

    async def deaf(self: Any, blob: bytes) -> bytes:
        claims = msgspec.msgpack.decode(blob, type=Claims)
        return await join(self, msgspec.msgpack.encode(msgspec.structs.replace(claims, others=())))

    patch.setattr(Cortex, "join", deaf)
