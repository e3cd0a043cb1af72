"""A plan and the job that it was made for: whole jobs on virtual time, against the simulated provider."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.common.process_owner import this_owner
from actors.driver.driver import Driver
from actors.jobs.opening import Opening
from actors.journal.journal import StateFolder
from actors.planning.inputs import limits_of, strata_of
from actors.planning.row_sizes import RowSizes
from actors.planning.sample_job import ReportedLimits, seen_in
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import settings_from
from benchmarks import plan as bench
from cortex import planning
from cortex.planning import JobPlan, PlanSample, planned
from cortex.programs.batch import Batch
from cortex.state.events import Opened, PermitsGranted, Row, Turn
from cortex.values.limits import JobTerms as JobTerms
from cortex.values.limits import Limits, Route
from policies.estimates.duration import BucketRate
from policies.limits.limit import PoolCaps, PoolLimit
from policies.limits.probing import Probing
from policies.limits.refill import Refill
from tests.edge.support.in_process_job import PRICE, ListSink, ListSource, armed
from tests.edge.support.virtual_clock import VirtualRuntime, virtually
from tests.support.state_machine_harness import terms

ROWS, SAMPLED, OUTPUT_TOKENS_MAX = 1_500, 60, 600


def rows_of(lengths: bench.Lengths, seed: int = 3) -> list[Row]:
    """Requests as the benchmark's tables make them."""
    chance = random.Random(seed)
    found = []
    for number in range(ROWS):
        size, words = lengths(chance)
        asked = f"Summarise the text below in at most {words} words.\n\n{bench.text(chance, max(size, 20))}"
        body = {"max_tokens": OUTPUT_TOKENS_MAX, "messages": [{"role": "user", "content": asked}], "model": "m"}
        found.append(Row(f"r{number}", msgspec.json.encode(body), OUTPUT_TOKENS_MAX))
    return found


def run(folder: Path, job: str, rows: list[Row], limits: Limits, told: tuple[str, ...]) -> dict[str, Any]:
    """One job to its end, on virtual time; its facts."""

    async def whole() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        model = SimulatedModel(settings_from([*bench.LATENCY, *told]), clock=lambda: 1_000_000.0 + loop.time())
        runtime = VirtualRuntime()
        terms = JobTerms(
            job=job, program="batch", params_json=b"{}", fingerprint="f", limits=limits, streams=True,
            route=Route(endpoint=model.endpoint, model="m", price=PRICE),
        )  # fmt: skip
        opening = Opening(terms=terms, owner=this_owner("inline"), who="test")
        try:
            return await Driver(
                runtime, str(folder), opening, armed(terms, model), source=ListSource(rows), sink=ListSink()
            ).run()
        finally:
            await runtime.close()

    return virtually(whole())


def plan_of(
    folder: Path, rows: list[Row], limits: Limits, told: tuple[str, ...]
) -> tuple[JobPlan, ReportedLimits, dict[str, Any]]:
    """The plan of these rows by a sample of them, what was heard of limits, and what the sample's job came to."""
    sizes = RowSizes(Batch(), "m", OUTPUT_TOKENS_MAX)
    for row in rows:
        sizes.row(row)
    counted = sizes.rows()
    strata = strata_of(counted.sizes, SAMPLED, 7)  # type: ignore[arg-type]
    places = {rows[place].key: place for each in strata for place in each.drawn}
    few = msgspec.structs.replace(limits, concurrency=SAMPLED // 4)
    facts = run(folder, "sample", [rows[place] for place in sorted(places.values())], few, told)
    seen, _, received = seen_in(StateFolder(folder), "sample", places)
    route = Route(endpoint="x", model="m", price=PRICE)
    terms = planning.PlanTerms(
        price=PRICE,
        batch_price=None,
        prompt_tokens_max=100_000,
        limits=limits_of(StateFolder(folder), (route,), limits, received),
    )
    return planned(counted, terms, PlanSample(strata, seen)), received, facts


@pytest.mark.parametrize(
    ("lengths", "told", "caps"),
    [
        (bench.even, ("rpm=1200", "burst_s=20"), {}),
        (bench.long_tail, ("otpm=60000", "burst_s=10"), {}),
        (bench.two_kinds, (), {"input_tokens_per_min": 270_000.0}),
    ],
)  # fmt: skip
def test_the_bill_and_the_finish_are_as_planned(tmp_path: Path, lengths: Any, told: tuple[str, ...], caps: Any) -> None:
    """Cost within 10 %, time within 20 %, and a cap of rate that binds; what the sample was answered is not paid again."""
    rows, limits = rows_of(lengths), Limits(concurrency=100, **caps)
    folder = StateFolder(tmp_path).prepare().path
    plan, received, sampled = plan_of(folder, rows, limits, told)
    assert (received.requests is not None, received.output_tokens is not None) == (
        "rpm" in str(told),
        "otpm" in str(told),
    )
    assert plan.duration.binds != "concurrency"
    job = run(folder, "job", rows, limits, told)
    assert (job["rows_succeeded"], job["paid_calls"], job["reused_calls"]) == (ROWS, ROWS - SAMPLED, SAMPLED)
    assert (sampled["paid_calls"], plan.rows) == (SAMPLED, ROWS - SAMPLED)
    assert plan.cost is not None and plan.worst_nusd is not None
    bill = job["known_nusd"]
    assert plan.cost.expected == pytest.approx(bill, rel=0.1)
    assert plan.cost.low <= plan.cost.expected <= plan.cost.high <= plan.worst_nusd
    assert bill <= plan.worst_nusd
    assert plan.duration.seconds == pytest.approx(job["elapsed_s"], rel=0.2)
    for bound in plan.duration.bounds:
        assert plan.duration.seconds >= bound.seconds


def test_limits_of_a_sample_are_those_of_all_servers_that_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed one, such as the name under which the others are found, has none; one that told none counts as the mean."""

    class Journal:
        def turns(self) -> list[tuple[int, Turn]]:
            routes = tuple(Route(endpoint=name, model="m") for name in ("name", "one", "two", "three", "fallback"))
            opened = terms(route=routes[0], fallbacks=routes[1:], peers=3, closed=("name",))
            grants = [PermitsGranted(4, route=place, memo=memo) for place, memo in ((1, b"60"), (2, b"120"), (4, b"9"))]
            return [(1, Turn(1.0, ((Opened(opened, 1), *grants),)))]

        def close(self) -> None:
            pass

    class Folder:
        def journal(self, job: str) -> Journal:
            return Journal()

    def pool_in(memo: bytes) -> tuple[PoolLimit, PoolCaps]:
        per_s = float(memo) / 60
        return PoolLimit(Probing(concurrency=8), requests=Refill(per_s=per_s, capacity=60 * per_s)), PoolCaps(concurrency=8)

    monkeypatch.setattr("actors.planning.sample_job.pool_in", pool_in)
    _, _, found = seen_in(Folder(), "j", {})  # type: ignore[arg-type]
    assert found.requests == BucketRate(4.5, 270.0)
    assert found.caps.concurrency is None, "the third may have any number"
