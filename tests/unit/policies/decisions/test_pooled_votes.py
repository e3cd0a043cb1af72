"""Votes on typed answers: the winner by count and by probability, when it is decided, and why the mean."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.decisions.pooled_votes import COUNT, PROBABILITY, FieldVote, mean_chances, scores, winner


def votes(*values: int) -> list[list[FieldVote]]:
    """Votes on one field of three values, without probabilities."""
    return [[FieldVote(value)] for value in values]


def told(*each: tuple[int, tuple[float, ...]]) -> list[list[FieldVote]]:
    return [[FieldVote(value, chances)] for value, chances in each]


SURE, UNSURE = (0.05, 0.95, 0.0), (0.55, 0.45, 0.0)


@pytest.mark.parametrize(
    ("cast", "by", "remaining", "expected"),
    [
        ([], COUNT, 3, None),
        (votes(0), COUNT, 0, 0),
        (votes(0), COUNT, 1, None),  # the last one may draw level: then the first wins, whichever it is
        (votes(1, 0), COUNT, 0, 0),  # of equals the first
        (votes(0, 1, 1), COUNT, 0, 1),
        (votes(0, 1, 1), COUNT, 1, None),
        (votes(1, 1, 1), COUNT, 2, 0),  # three of five
        (votes(1, 1), COUNT, 2, None),
        (votes(0, 0, 1), COUNT, 0, 0),
        (votes(-1, -1, 2), COUNT, 0, 0),  # values that the type's own code made
        # two that are hardly surer than not lose to one that is sure
        (told((0, UNSURE), (0, UNSURE), (1, SURE)), COUNT, 0, 0),
        (told((0, UNSURE), (0, UNSURE), (1, SURE)), PROBABILITY, 0, 2),
        (told((0, UNSURE), (1, SURE)), PROBABILITY, 1, None),
        (told((1, SURE), (1, SURE), (1, SURE)), PROBABILITY, 2, 0),
        (told((1, SURE), (1, SURE)), PROBABILITY, 2, None),
        # a vote without probabilities counts whole
        ([*told((0, UNSURE)), *votes(1)], PROBABILITY, 0, 1),
        # an answer that no vote gave never wins, and yet it may be ahead with the next vote
        (told((0, (0.3, 0.3, 0.4)), (1, (0.3, 0.3, 0.4))), PROBABILITY, 0, 0),
        (told((0, (0.6, 0.0, 0.4)), (0, (0.6, 0.0, 0.4))), PROBABILITY, 1, None),
    ],
)  # fmt: skip
def test_the_winner(cast: list[list[FieldVote]], by: str, remaining: int, expected: int | None) -> None:
    assert winner(cast, by, remaining) == expected


def test_several_fields_are_one_answer() -> None:
    """Field by field the votes would be for (0, 0), which most votes did not give."""
    cast = [[FieldVote(0), FieldVote(1)], [FieldVote(1), FieldVote(0)], [FieldVote(0), FieldVote(0)], [FieldVote(0), FieldVote(1)]]
    assert winner(cast) == 0
    sure = [[FieldVote(0, (0.9, 0.1)), FieldVote(1, (0.2, 0.8))], [FieldVote(1, (0.4, 0.6)), FieldVote(1, (0.1, 0.9))]]
    assert scores(sure, PROBABILITY) == pytest.approx([0.9 * 0.8 + 0.4 * 0.9, 0.1 * 0.8 + 0.6 * 0.9])
    assert mean_chances(sure, sure[0]) == pytest.approx([0.65, 0.85])
    assert mean_chances([*sure, [FieldVote(0), FieldVote(1)]], sure[0]) == pytest.approx([0.65, 0.85])
    assert mean_chances(votes(0, 1), votes(0)[0]) == [None]


_CHANCES = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(lambda each: tuple(one / sum(each) for one in each))
_VOTE = st.tuples(st.integers(0, 2), _CHANCES)


@given(st.lists(_VOTE, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_the_votes_decides_nothing_but_between_equals(cast: list[tuple[int, tuple[float, ...]]], random: object) -> None:
    for by in (COUNT, PROBABILITY):
        given_ = told(*cast)
        found = scores(given_, by)
        assume(len({round(each, 6) for each in found}) == len({vote[0] for vote in cast}))  # no equals
        turned = told(*reversed(cast))
        first, other = winner(given_, by), winner(turned, by)
        assert first is not None and other is not None and given_[first][0].value == turned[other][0].value


@given(st.lists(st.integers(0, 2), min_size=1, max_size=7))
def test_certain_probabilities_decide_as_the_count_does(values: list[int]) -> None:
    certain = told(*((value, tuple(float(value == at) for at in range(3))) for value in values))
    assert winner(certain, PROBABILITY) == winner(votes(*values), COUNT)


@given(st.lists(_VOTE, min_size=1, max_size=4), st.integers(0, 3), st.sampled_from([COUNT, PROBABILITY]), st.data())
def test_what_is_decided_no_further_votes_change(
    cast: list[tuple[int, tuple[float, ...]]], remaining: int, by: str, data: st.DataObject
) -> None:
    early = winner(told(*cast), by, remaining)
    if early is not None:
        more = data.draw(st.lists(_VOTE, max_size=remaining))
        late = winner(told(*cast, *more), by)
        assert late is not None and told(*cast, *more)[late] == told(*cast)[early]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_mean_estimates_what_the_count_does_and_never_varies_more(count: int) -> None:
    """Over all draws: first a reason with its distribution, then a value by it. Exact sums, no sampling."""
    reasons = ((0.5, (0.9, 0.1, 0.0)), (0.3, (0.2, 0.7, 0.1)), (0.2, (0.1, 0.3, 0.6)))
    truth = [sum(share * chances[value] for share, chances in reasons) for value in range(3)]
    draws = [(share * chances[value], value, chances) for share, chances in reasons for value in range(3)]
    for value in range(3):
        moments = {COUNT: [0.0, 0.0], PROBABILITY: [0.0, 0.0]}
        for drawn in itertools.product(draws, repeat=count):
            weight = math.prod(each[0] for each in drawn)
            cast = told(*((each[1], each[2]) for each in drawn))
            answer = [FieldVote(value, SURE)]
            for by, sums in moments.items():
                score = scores([*cast, answer], by)[-1] - (SURE[value] if by == PROBABILITY else 1.0)
                sums[0] += weight * score / count
                sums[1] += weight * (score / count) ** 2
        (mean, square), (pooled, pooled_square) = moments[COUNT], moments[PROBABILITY]
        assert (mean, pooled) == pytest.approx((truth[value], truth[value]))
        assert pooled_square - pooled**2 <= square - mean**2 + 1e-12
