"""What rows weigh in a plan is what their requests weigh in the job."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.planning.row_sizes import RowSizes
from cortex.calls.request import question_hash
from cortex.programs.batch import Batch
from cortex.programs.table import Table
from cortex.state.events import Row
from cortex.values.limits import Limits
from policies.estimates.tokens import body_size, body_tokens_bound
from tests.edge.support.in_process_job import body
from tests.unit.cortex.programs.test_embed import Played

SCHEMA = '{"type":"object","properties":{"label":{"enum":["bug","praise"]}},"required":["label"]}'
TEXTS = ("short", 'a "quoted" line\nand another', "Grüße, 漢字 and ﷺ", "tab\tand \x01", "x" * 5_000, 7, None)


@pytest.mark.parametrize(
    "more", [{}, {"system": "Be brief. ﷺ"}, {"schema": SCHEMA}, {"schema": SCHEMA, "schema_as": "tool"}, {"schema": SCHEMA, "schema_as": "prompt"}],
)  # fmt: skip
@pytest.mark.parametrize("endpoint", ["", "https://x"])
def test_rows_of_a_table(more: dict[str, Any], endpoint: str) -> None:
    """The quick way and the whole one; a bound may be a little above, where JSON writes a character out."""
    program = Table(prompt="Label: {{text}}!", **more)
    sizes = RowSizes(program, "m", 90, endpoint)
    given = [json.dumps({"text": text, "row": place}, ensure_ascii=False).encode() for place, text in enumerate(TEXTS)]
    for place, row in enumerate(given):
        sizes.row(Row(str(place), row))
    found, bodies = sizes.rows(), [program.request(row, "m", 90) for row in given]
    assert list(found.sizes) == [body_size(each) for each in bodies]
    for bound, each in zip(found.bounds, bodies, strict=True):
        assert body_tokens_bound(each) <= bound <= body_tokens_bound(each) + 6
    assert list(found.outputs) == [90] * len(TEXTS)
    assert found.text_bytes == sum(map(len, given))
    asked = [question_hash(endpoint, each, str(place)) for place, each in enumerate(bodies)]
    assert sizes.questions == (asked if endpoint else [])


def test_requests_weigh_what_they_are_and_pictures_what_they_cost() -> None:
    sizes = RowSizes(Batch(), "m", 90)
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 900_000}}
    asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": [picture]}]}).encode()
    sizes.row(Row("a", body("hello"), 8))
    sizes.row(Row("b", asked))
    found = sizes.rows()
    assert (found.sizes[0], found.outputs[0], found.outputs[1]) == (len(body("hello")), 8, 90)
    assert 5_600 < found.sizes[1] < 6_000
    sizes.begin()
    assert len(sizes.rows().sizes) == 0


@settings(max_examples=30)
@given(st.lists(st.integers(1, 60_000), max_size=30), st.sampled_from([1, 4, 8]))
def test_requests_of_a_plan_for_vectors_are_those_of_the_job(lengths: list[int], rows_max: int) -> None:
    job = Played(rows_max=rows_max, permits=100, limits=Limits(window_rows=1_000))
    sizes = RowSizes(job.program, "m", 1)
    texts = ["x" * length for length in lengths]
    for at, text in enumerate(texts):
        sizes.row(Row(f"r{at}", msgspec.json.encode({"id": f"r{at}", "text": text})))
    job.feed(*texts)
    planned = sizes.requests()
    assert list(planned.sizes) == [sum(map(len, request)) for request in job.asked()]
    assert (sum(planned.bounds), list(planned.outputs)) == (sum(lengths) + 2 * len(lengths), [0] * len(planned.sizes))
