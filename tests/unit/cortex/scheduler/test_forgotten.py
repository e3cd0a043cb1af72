"""What was learned about a pool: dropped by an operator, and never replaced by an older memo."""

from __future__ import annotations

import msgspec
import pytest

from cortex.scheduler.pools import PoolMemo, learned_in
from cortex.scheduler.protocol import PoolForgotten
from policies.limits.learned import learned
from tests.support.fake_job_channels import ROUTE, town


def test_what_was_learned_is_dropped_and_no_memo_brings_it_back():
    t = town()
    t.start(again=True)
    t.after(1.0)
    t.join("a")
    t.settle()
    t.report(begun=10, flights=10, failed={"throttled": 5})
    t.after(5.0)
    t.report(begun=10, flights=10, answered=10)
    t.settle()
    old = t.jobs["a"].memos[ROUTE]
    assert learned_in(old) and learned(t.state.pools[ROUTE].limit, t.at_s)
    t.tell(PoolForgotten(t.at_s, "ann", ROUTE))
    assert learned(t.state.pools[ROUTE].limit, t.at_s) == ()
    t.deliver_all()
    assert learned_in(t.jobs["a"].memos[ROUTE]) == (), "its holder has a memo without it"
    t.jobs["b"] = type(t.jobs["a"])("b")
    memo = msgspec.msgpack.decode(old, type=PoolMemo)
    t.jobs["b"].memos[ROUTE] = msgspec.msgpack.encode(msgspec.structs.replace(memo, cortex="an earlier one"))
    t.join("b")
    assert learned(t.state.pools[ROUTE].limit, t.at_s) == (), "nor does a job that comes back later"
    with pytest.raises(ValueError, match="there is no pool or route called opus"):
        t.tell(PoolForgotten(t.at_s, "ann", "opus"))


def test_a_late_memo_does_not_replace_what_is_known_here():
    t = town()
    t.join("a")
    t.settle()
    t.report(begun=10, flights=10, failed={"throttled": 5})
    t.after(5.0)
    t.report(begun=10, flights=10, answered=10)
    t.settle()
    memo = msgspec.msgpack.decode(t.jobs["a"].memos[ROUTE], type=PoolMemo)
    u = town()
    u.start(again=True)  # only a scheduler that comes after another adopts memos
    u.after(20.0)
    u.join("c")
    u.settle()
    u.report(begun=10, flights=10, answered=10)
    u.jobs["b"] = type(u.jobs["c"])("b")
    u.jobs["b"].memos[ROUTE] = msgspec.msgpack.encode(msgspec.structs.replace(memo, cortex="an earlier one"))
    u.join("b")
    assert learned(u.state.pools[ROUTE].limit, u.at_s) == ()
