"""Jobs that join the cortex for other reasons than a share of a pool."""

from __future__ import annotations

from cortex.scheduler.protocol import ChannelJoined, JobLeft, RetireMember
from cortex.scheduler.reports import Claims, Grant
from tests.support.fake_members import House, of


def test_a_job_that_draws_on_no_pool_has_a_branch_and_workers_all_the_same():
    """Its calls go by message batches: somebody must submit them, and look after them, and run its tools."""
    h = House()
    claims = Claims("a", 1, "", 0, 100, (), demand=3)
    assert not [c for c in h.tell(ChannelJoined(h.at_s, claims)) if isinstance(c, Grant)]
    assert (h.state.branches, h.state.workers) == (("branch:0",), ("worker:0",))
    for _ in range(20):
        h.tell(ChannelJoined(h.at_s, claims))
        h.after(5.0)
    assert h.state.branches == ("branch:0",)
    h.tell(JobLeft(h.at_s, "a", 1))
    assert of(RetireMember, h.after(40.0)) == [RetireMember("branch:0"), RetireMember("worker:0")]


def test_word_that_a_job_has_ended_comes_late_and_the_one_that_was_resumed_meanwhile_goes_on():
    """It would be taken for one that is over, and get no call any more."""
    h = House()
    for epoch in (1, 2):
        h.tell(ChannelJoined(h.at_s, Claims("a", epoch, "", 0, 100, (), demand=3)))
    h.tell(JobLeft(h.at_s, "a", 1))
    assert "a" in h.state.jobs and "a" not in h.state.left
    h.tell(JobLeft(h.at_s, "a", 2))
    assert "a" not in h.state.jobs and h.state.left == {"a": 2}
