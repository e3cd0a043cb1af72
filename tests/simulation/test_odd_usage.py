"""Usage in odd forms: what clients make of it, and that the simulated provider sends it where its plan says so."""

from __future__ import annotations

import pytest

from tests.simulation.odd_usage import FORMS, UNREADABLE, USAGE, read_form
from tests.simulation.runner import live
from tests.simulation.scenario import plan

SEED = 24


@pytest.mark.parametrize("form", range(len(FORMS)), ids=lambda form: FORMS[form][0][:30] or "absent")
def test_an_answer_with_odd_usage_is_kept_and_its_counts_are_bounded(form: int) -> None:
    for messages, batched in ((True, False), (False, False), (True, True)):
        odd = read_form(form, "a", messages, batched)
        assert (odd.text, odd.usage) == ("a", FORMS[form][1])


def test_a_world_of_odd_usage_has_forms_that_can_be_read_and_forms_that_cannot() -> None:
    made = plan(SEED)
    assert made.provider.odd_usage and not made.provider.billing
    assert {usage for _, usage in FORMS} > {USAGE, UNREADABLE}
    assert not live(SEED).broken
