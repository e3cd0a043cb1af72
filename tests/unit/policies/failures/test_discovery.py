"""Which servers of a name join and leave."""

from __future__ import annotations

import random

import pytest

from policies.failures.discovery import FoundServers, after_answer, change_text

CASES = {
    "the same answer in another order": ("ab", "", "ba", "ab", ""),
    "one joins at once": ("ab", "", "abc", "abc", ""),
    "one that an answer lacks stays": ("ab", "", "a", "ab", "b"),
    "one leaves with the second such answer": ("ab", "b", "a", "a", ""),
    "one returns before it leaves": ("ab", "b", "ab", "ab", ""),
    "others in place of all": ("ab", "", "cd", "abcd", "ab"),
    "an answer without any": ("ab", "b", "", "ab", "b"),
    "twice in an answer": ("a", "", "bb", "ab", "a"),
    "the first answer": ("", "", "ab", "ab", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_changes_the_servers(name: str) -> None:
    addresses, absent, answer, then, lacks = CASES[name]
    found = after_answer(FoundServers(tuple(addresses), frozenset(absent)), answer)
    assert (found.addresses, found.absent) == (tuple(then), frozenset(lacks))


@pytest.mark.parametrize("seed", range(30))
def test_servers_of_two_equal_answers_in_a_row_are_those_of_the_answer(seed: int) -> None:
    """There is never no server, none is twice, and one that stays keeps its place before later ones."""
    chance = random.Random(seed)
    found = after_answer(FoundServers(), "a")
    for _ in range(40):
        answer = chance.sample("abcdef", chance.randint(0, 6))
        before, found = found, after_answer(found, answer)
        assert set(found.addresses) >= set(answer)
        assert len(set(found.addresses)) == len(found.addresses) > 0
        stayed = [each for each in before.addresses if each in found.addresses]
        assert list(found.addresses[: len(stayed)]) == stayed
        if answer and set(after_answer(found, answer).addresses) != set(answer):
            raise AssertionError(found)


def test_a_change_is_told_in_a_few_words() -> None:
    one, other = FoundServers(("a", "b")), FoundServers(("b", "c", "d", "e", "f", "g", "h"))
    assert change_text(one, other) == "c d e f g and 1 more join, a leaves"
    assert change_text(one, one) == ""
