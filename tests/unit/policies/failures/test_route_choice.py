"""Names of routes and pools, and which of a job's routes is used now."""

import pytest

from policies.failures.breaker import BreakerState
from policies.failures.route_choice import RouteChoice, choose, model_class, pool_name, route_name

C, O, H = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN  # noqa: E741 (one letter a state: a table)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-opus-4-1-20250805", "opus"),
        ("claude-3-5-haiku-latest", "haiku"),
        ("us.anthropic.claude-sonnet-4-5-v1:0", "sonnet"),
        ("gemma-3@20250601", "gemma-3"),
        ("my-model-latest", "my-model"),
        ("my-model", "my-model"),
        ("sim", "sim"),
        ("sonnets-of-mine", "sonnets-of-mine"),  # the family is a word, not a part of one
    ],
)
def test_models_of_one_family_are_one_class(model: str, expected: str) -> None:
    assert model_class(model) == expected


def test_a_pool_is_wider_than_a_route() -> None:
    one, other = "claude-haiku-4-5", "claude-3-5-haiku-latest"
    assert route_name("https://a", "k1", one) != route_name("https://a", "k1", other)
    assert pool_name("https://a", "k1", one) == pool_name("https://a", "k1", other)
    assert len({pool_name(e, k, one) for e in ("https://a", "https://b") for k in ("k1", "k2")}) == 4


def test_bedrock_and_vertex_count_each_model_for_itself_and_each_region() -> None:
    one, dated, other = (f"eu.anthropic.claude-{name}" for name in ("haiku-4-5", "haiku-4-5-v1:0", "3-haiku"))
    assert pool_name("bedrock://eu-west-1", "k", one, each_model=True) == pool_name("bedrock://eu-west-1", "k", dated, each_model=True)
    assert pool_name("bedrock://eu-west-1", "k", one, each_model=True) != pool_name("bedrock://eu-west-1", "k", other, each_model=True)
    assert pool_name("bedrock://eu-west-1", "k", one, each_model=True) != pool_name("bedrock://us-east-1", "k", one, each_model=True)
    assert pool_name("foundry://r", "k", "claude-haiku-4-5") == pool_name("foundry://r", "k", "claude-3-haiku")


@pytest.mark.parametrize(
    ("states", "choice"),
    [
        ([C], RouteChoice(0)),
        ([C, C, C], RouteChoice(0)),
        ([O], RouteChoice(None)),
        ([O, C], RouteChoice(1)),
        ([O, O, C, H], RouteChoice(2)),
        ([H], RouteChoice(None, (0,))),
        ([H, C], RouteChoice(1, (0,))),  # work goes on beside the probe of what is preferred
        ([O, H, C], RouteChoice(2, (1,))),
        ([H, O, H], RouteChoice(None, (0, 2))),
        ([], RouteChoice(None)),
    ],
)
def test_which_route_is_used(states: list[BreakerState], choice: RouteChoice) -> None:
    assert choose(states) == choice
