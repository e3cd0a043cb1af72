"""P(choice) from the tokens of an answer: the place where choices differ, shared tokens, lists that end early."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.choice_probability import TokenChances, choice_distribution, choice_probability

TOPICS = ('"code"', '"web"', '"data"')


def log(chance: float | None) -> float | None:
    return None if chance is None else math.log(chance) if chance else -math.inf


def token(text: str, chance: float | None = 1.0, **others: float) -> TokenChances:
    """A token; ``others`` are given by ``listed`` where their texts are no names."""
    return listed(text, chance, others or {text: 1.0})


def listed(text: str, chance: float | None, others: dict[str, float]) -> TokenChances:
    logs = tuple((each.encode(), log(its) or 0.0) for each, its in others.items())
    return TokenChances(text.encode(), log(chance), logs)


def found(tokens: list[TokenChances], answer: str, choices: tuple[str, ...]) -> float | None:
    text = b"".join(each.text for each in tokens)
    begin = text.index(answer.encode())
    at = choices.index(answer) if answer in choices else 0
    return choice_probability(tokens, begin, begin + len(answer.encode()), [each.encode() for each in choices], at)


def distribution(tokens: list[TokenChances], answer: str, choices: tuple[str, ...]) -> list[float] | None:
    text = b"".join(each.text for each in tokens)
    begin = text.index(answer.encode())
    at = choices.index(answer) if answer in choices else 0
    return choice_distribution(tokens, begin, begin + len(answer.encode()), [each.encode() for each in choices], at)


HEAD, QUOTE, TAIL = token('{"topic":'), token(' "'), token('"}')


@pytest.mark.parametrize(
    ("tokens", "answer", "choices", "chance"),
    [
        pytest.param(
            [HEAD, QUOTE, token("code", 0.7, code=0.7, web=0.2, data=0.05, other=0.05), TAIL], '"code"', TOPICS,
            0.7 / 0.95, id="a token for each label, and one that is no label",
        ),
        pytest.param(
            [HEAD, QUOTE, token("co", 0.6, co=0.6, we=0.3, da=0.1), token("de", 0.5, de=0.5, py=0.5), TAIL], '"code"',
            TOPICS, 0.6, id="labels of several tokens are decided where they differ",
        ),
        pytest.param(
            [HEAD, QUOTE, token("data", 0.8, data=0.8, web=0.2), listed('"', 0.75, {'"': 0.75, "base": 0.25})],
            '"data"', ('"data"', '"database"', '"web"'), 0.8 * 0.75, id="labels that share a prefix: the chain rule",
        ),
        pytest.param(
            [HEAD, QUOTE, token("data", 0.8, data=0.8, web=0.2), listed("base", 0.25, {'"': 0.75, "base": 0.25}), TAIL],
            '"database"', ('"data"', '"database"', '"web"'), 0.8 * 0.25, id="and the longer one of them",
        ),
        pytest.param(
            [token('{"topic"'), listed(':"co', 0.5, {':"co': 0.5, ':"we': 0.3, ':"x': 0.2}), token('de"}')], '"code"',
            TOPICS, 0.5 / 0.8, id="syntax and quotes glued to the label",
        ),
        pytest.param(
            [HEAD, listed(' "', 0.7, {' "': 0.7, '"': 0.2, ' "web': 0.1}), token("code", 0.9, code=0.9, web=0.1),
             TAIL], '"code"', ('"code"', '"web"'), 0.9 * 0.9, id="tokens that fit the same choices go on alike",
        ),
        pytest.param(
            [HEAD, listed('"code', 0.5, {'"code': 0.5, '"co': 0.1, ' "web': 0.4}), TAIL], '"code"', ('"code"', '"web"'),
            0.6, id="two paths of tokens to one label",
        ),
        pytest.param(
            [HEAD, listed('"code', 0.5, {'"code': 0.5, '"': 0.25, '"web': 0.25}), TAIL], '"code"', ('"code"', '"web"'),
            0.5, id="an unsampled token of all labels counts against the answer",
        ),
        pytest.param(
            [HEAD, listed('"co', 0.5, {}), listed('de"', 0.8, {}), token("}", 0.1)], '"code"', TOPICS, 0.5 * 0.8,
            id="without lists: the product of the answer's own tokens",
        ),
        pytest.param([listed("co", 0.5, {}), listed("de", 0.8, {})], "code", (), 0.4, id="without choices too"),
        pytest.param(
            [HEAD, QUOTE, token("code", 0.9, code=0.9), TAIL], '"code"', TOPICS, 0.9, id="a list of one token"
        ),
        pytest.param(
            [HEAD, QUOTE, token("code", 0.9, code=0.9, the=0.01), TAIL], '"code"', TOPICS, 0.9 / 0.92,
            id="labels that are not listed have at most the least of the list each",
        ),
        pytest.param(
            [HEAD, QUOTE, token("code", 0.9, code=0.9, the=0.08), TAIL], '"code"', TOPICS, 0.9 / 0.92,
            id="and no more than the list leaves",
        ),
        pytest.param(
            [HEAD, QUOTE, token("code", 0.9, code=0.9, web=0.0), TAIL], '"code"', TOPICS, 1.0,
            id="below a token of probability 0 there is nothing",
        ),
        pytest.param([HEAD, QUOTE, token("code", 0.0, web=0.9), TAIL], '"code"', TOPICS, 0.0, id="sampled at -inf"),
        pytest.param([HEAD, QUOTE, token("code", 0.0, x=1.0), TAIL], '"code"', TOPICS, None, id="nothing to compare"),
        pytest.param([HEAD, QUOTE, token("code", None, code=0.9), TAIL], '"code"', TOPICS, None, id="not known"),
        pytest.param([token("co", 0.5), token("de", None)], "code", (), None, id="not known, of a product"),
        pytest.param(
            [token('{"n":'), listed("1", 0.6, {"1": 0.6, "2": 0.4}), listed("}", 0.9, {"}": 0.9, "0": 0.1})], "1",
            ("1", "10", "2"), 0.54, id="a number is decided by what follows it",
        ),
        pytest.param(
            [token('{"n":'), listed("1", 0.6, {"1": 0.6, "2": 0.4}), listed("0", 0.1, {"}": 0.9, "0": 0.1}),
             token("}")], "10", ("1", "10", "2"), 0.06, id="and its further digits",
        ),
        pytest.param([token('{"n":'), listed("1", 0.6, {"1": 0.6})], "1", ("1", "10"), None, id="no token follows"),
        pytest.param([token('{"b":'), token("true", 0.9, true=0.9, false=0.1)], "true", ("true", "false"), 0.9, id="bool"),
        pytest.param([HEAD, QUOTE, token("sport", 0.9, sport=0.9), TAIL], '"sport"', TOPICS, None, id="no label"),
        pytest.param(
            [HEAD, listed(' "', 1.0, {}), token("code", 0.7, code=0.7, web=0.3), TAIL], '"code"', ('"code"', '"web"'),
            0.7, id="one list is missing",
        ),
    ],
)  # fmt: skip
def test_the_probability_of_a_choice(
    tokens: list[TokenChances], answer: str, choices: tuple[str, ...], chance: float | None
) -> None:
    assert found(tokens, answer, choices) == (None if chance is None else pytest.approx(chance))
    shares = distribution(tokens, answer, choices)
    assert (shares is None) == (chance is None or len(choices) < 2)
    if shares is not None and chance is not None:
        assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0.0
        assert shares[choices.index(answer)] >= chance - 1e-9


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=6), st.integers(2, 5))
def test_a_list_that_ends_early_never_makes_an_answer_certain(weights: list[int], choices: int) -> None:
    whole = sum(weights) * 1.01  # the list leaves something
    others = {f"w{at}": each / whole for at, each in enumerate(weights)}
    tokens = [HEAD, listed('"w0', others["w0"], {f'"{each}': chance for each, chance in others.items()}), TAIL]
    chance = found(tokens, '"w0"', tuple(f'"w{at}"' for at in range(choices)))
    assert chance is not None
    if choices > len(weights):
        assert chance < 1.0
    else:
        assert chance == pytest.approx(weights[0] / sum(weights[:choices]))


@pytest.mark.parametrize(
    ("tokens", "answer", "choices", "shares"),
    [
        ([HEAD, QUOTE, token("code", 0.7, code=0.7, web=0.2, data=0.05, other=0.05), TAIL], '"code"', TOPICS,
         [0.7 / 0.95, 0.2 / 0.95, 0.05 / 0.95]),
        # a token that two share, sampled: the next one divides its share; not sampled: evenly
        ([HEAD, QUOTE, token("co", 0.8, co=0.8, web=0.2), token("de", 0.75, de=0.75, st=0.25), TAIL], '"code"',
         ('"code"', '"cost"', '"web"'), [0.6, 0.2, 0.2]),
        ([HEAD, QUOTE, token("web", 0.2, co=0.8, web=0.2), TAIL], '"web"', ('"code"', '"cost"', '"web"'), [0.4, 0.4, 0.2]),
        # without a list, or one that ends early: evenly among the others
        ([HEAD, QUOTE, listed("code", 0.7, {}), TAIL], '"code"', TOPICS, [0.7, 0.15, 0.15]),
        ([HEAD, QUOTE, token("code", 0.8, code=0.8), TAIL], '"code"', TOPICS, [0.8, 0.1, 0.1]),
    ],
)  # fmt: skip
def test_the_distribution_over_the_choices(
    tokens: list[TokenChances], answer: str, choices: tuple[str, ...], shares: list[float]
) -> None:
    assert distribution(tokens, answer, choices) == pytest.approx(shares)
