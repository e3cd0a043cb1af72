"""Joins: every count of up to five children, against the four rules in words."""

from itertools import product

import msgspec
import pytest

from policies.decisions.join import Join, JoinVerdict, decide, needed

V = JoinVerdict
JOINS = [Join("all"), Join("any"), Join("majority"), *(Join("quorum", n) for n in range(1, 7))]


def enough(join: Join, total: int, resolved: int) -> bool:
    """The rules, written another way."""
    match join.kind:
        case "all":
            return resolved == total
        case "any":
            return resolved != 0
        case "majority":
            return resolved > total - resolved
        case "quorum":
            return resolved >= join.n


COUNTS = [
    (total, resolved, failed, late)
    for total, late in product(range(6), (False, True))
    for resolved in range(total + 1)
    for failed in range(total - resolved + 1)
]


@pytest.mark.parametrize("join", JOINS, ids=lambda join: f"{join.kind}{join.n or ''}")
def test_every_count(join: Join) -> None:
    for total, resolved, failed, late in COUNTS:
        running = total - resolved - failed
        if enough(join, total, resolved):
            expected = V.MET
        elif running and not late:
            expected = V.WAIT
        else:
            expected = V.PARTIAL if resolved else V.IMPOSSIBLE
        assert decide(join, total, resolved, failed, late) == expected, (total, resolved, failed, late)


@pytest.mark.parametrize(
    ("join", "total", "resolved", "failed", "late", "verdict"),
    [
        (Join(), 0, 0, 0, False, V.MET),
        (Join(), 3, 2, 0, False, V.WAIT),
        (Join(), 3, 3, 0, False, V.MET),
        (Join(), 3, 0, 1, False, V.WAIT),  # cannot be met, and the other two are worth having
        (Join(), 3, 2, 1, False, V.PARTIAL),
        (Join(), 3, 0, 3, False, V.IMPOSSIBLE),
        (Join(), 3, 1, 0, True, V.PARTIAL),
        (Join(), 3, 0, 0, True, V.IMPOSSIBLE),
        (Join(), 3, 3, 0, True, V.MET),
        (Join("any"), 0, 0, 0, False, V.IMPOSSIBLE),
        (Join("any"), 3, 1, 0, False, V.MET),
        (Join("any"), 3, 0, 2, False, V.WAIT),
        (Join("any"), 3, 0, 3, False, V.IMPOSSIBLE),
        (Join("majority"), 4, 2, 0, False, V.WAIT),  # half is no majority
        (Join("majority"), 4, 2, 2, False, V.PARTIAL),
        (Join("majority"), 4, 3, 0, False, V.MET),
        (Join("majority"), 5, 3, 2, False, V.MET),
        (Join("quorum", 2), 5, 2, 0, False, V.MET),
        (Join("quorum", 2), 5, 1, 3, False, V.WAIT),
        (Join("quorum", 2), 5, 1, 4, False, V.PARTIAL),
        (Join("quorum", 9), 5, 5, 0, False, V.PARTIAL),
    ],
)
def test_named_cases(join: Join, total: int, resolved: int, failed: int, late: bool, verdict: JoinVerdict) -> None:
    assert decide(join, total, resolved, failed, late) == verdict


@pytest.mark.parametrize("join", JOINS, ids=lambda join: f"{join.kind}{join.n or ''}")
def test_what_is_decided_stays_decided_or_gets_better(join: Join) -> None:
    """A wait that was met is never unmet by one more child that ends."""
    for total, resolved, failed, late in COUNTS:
        if decide(join, total, resolved, failed, late) == V.MET and resolved + failed < total:
            assert decide(join, total, resolved + 1, failed, late) == V.MET
            assert decide(join, total, resolved, failed + 1, late) == V.MET


def test_needed() -> None:
    assert [needed(Join("majority"), n) for n in range(6)] == [1, 1, 2, 2, 3, 3]
    assert needed(Join("quorum", 4), 9) == 4


@pytest.mark.parametrize("counts", [(3, 2, 2), (-1, 0, 0), (3, -1, 0), (3, 0, -1)])
def test_counts_that_contradict_each_other_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="children"):
        decide(Join(), *counts)


@pytest.mark.parametrize(
    ("kind", "n", "deadline_s"),
    [
        ("most", 0, None),
        ("quorum", 0, None),
        ("quorum", -2, None),
        ("all", 2, None),
        ("any", 0, -1.0),
        ("any", 0, float("nan")),
    ],
)
def test_what_is_no_join_is_refused(kind: str, n: int, deadline_s: float | None) -> None:
    with pytest.raises(ValueError, match=r"join|quorum"):
        Join(kind, n, deadline_s)  # type: ignore[arg-type]


@pytest.mark.parametrize("join", JOINS)
def test_a_join_survives_the_journal(join: Join) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(join), type=Join) == join
