"""Learned limits that commands list, beside the orders of operators to drop them."""

from __future__ import annotations

import pytest

from actors.jobs.learned_limits import LearnedLimit
from actors.journal.journal import StateFolder
from actors.limits import forgotten, learned
from actors.limits.overrides import pools_of
from cortex.state.state import State
from cortex.values.limits import JobTerms, Route
from policies.limits.learned import LearnedBound, LearnedFrom, LearnedUnit

TERMS = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=Route(endpoint="http://x", model="m"))


@pytest.mark.parametrize(("learned_s", "listed"), [(50.0, False), (100.0, False), (100.5, True)])
def test_a_limit_from_before_the_order_is_not_listed_though_a_later_grant_still_had_it(
    learned_s, listed, tmp_path, monkeypatch
):
    """A scheduler hears of the order within a second; until then its grants carry what it had learned."""
    folder = StateFolder(str(tmp_path)).prepare()
    folder.journal("j", create=True).close()
    state = State(terms=TERMS)
    state.shares[0].granted_at_s = 101.0
    limit = LearnedLimit(LearnedBound(LearnedFrom.REFUSALS, LearnedUnit.AT_ONCE, 17.0, 101.0 - learned_s), learned_s)
    monkeypatch.setattr(learned, "_state", lambda source: state)
    monkeypatch.setattr(learned, "learned_at", lambda share: (limit,))
    ((pool, _),) = pools_of(TERMS)
    assert learned.learned_limits(folder) == {pool: (limit,)}
    forgotten.put(folder, pool, forgotten.Forgotten(who="ann", at_s=100.0))
    assert learned.learned_limits(folder) == ({pool: (limit,)} if listed else {})
