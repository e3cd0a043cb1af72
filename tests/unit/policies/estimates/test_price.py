"""Money: exact integers, and a worst case that is one."""

from decimal import Decimal
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimates.price import Price, Tier, batch_price, cost_nusd, nusd, parse_price, usd, usd_text, worst_nusd


class Used(NamedTuple):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    cache_creation_1h_tokens: int = 0


D = Decimal
PLAIN = Price(D("3"), D("15"), D("0.3"), D("3.75"), D("6"), source="test")
# a cheap long-context model: five times dearer above 100,000 tokens, with fractions of a nano-USD per token
CLIFF = Price(
    D("0.1"),
    D("0.5"),
    D("0.01"),
    D("0.125"),
    D("0.2"),
    tiers=(Tier(D("0.5"), D("2.5"), D("0.05"), D("0.625"), D("1"), above_input_tokens=100_000),),
)
FINE = Price(D("0.0375"), D("0.15"))


@pytest.mark.parametrize(
    ("price", "usage", "batch", "expected_nusd"),
    [
        (PLAIN, Used(), False, 0),
        (PLAIN, Used(input_tokens=1_000_000), False, 3_000_000_000),
        (PLAIN, Used(output_tokens=1), False, 15_000),
        (PLAIN, Used(cache_read_tokens=10), False, 3_000),
        (PLAIN, Used(cache_creation_tokens=4), False, 15_000),
        (PLAIN, Used(100, 20, 1_000, 50), False, 300_000 + 300_000 + 300_000 + 187_500),
        (PLAIN, Used(100, 20, 1_000, 50), True, 543_750),  # half
        (FINE, Used(input_tokens=1), False, 38),  # 37.5, up
        (FINE, Used(input_tokens=2), False, 75),
        (FINE, Used(input_tokens=2), True, 38),
        (CLIFF, Used(input_tokens=100_000), False, 10_000_000),
        (CLIFF, Used(input_tokens=100_001), False, 50_000_500),
        (CLIFF, Used(input_tokens=1, cache_read_tokens=100_000), False, 5_000_500),
        (CLIFF, Used(1, 1, 50_000, 50_000), False, 500 + 2_500 + 2_500_000 + 31_250_000),
        (PLAIN, Used(-5, -5, -5, -5), False, 0),
    ],
)
def test_cost(price: Price, usage: Used, batch: bool, expected_nusd: int) -> None:
    assert cost_nusd(price, usage, batch) == expected_nusd


@given(
    st.builds(Used, *[st.integers(0, 300_000)] * 4),
    st.sampled_from([PLAIN, CLIFF, FINE, parse_price("input=0.8,output=4"), parse_price("input=3,output=15,cache_read=0.3")]),
    st.booleans(),
)
def test_the_price_of_the_batch_road_is_half_of_every_rate(used: Used, price: Price, caching: bool) -> None:
    """Twice as exact as any face shows: never below the half, and above it by the rounding of rates alone."""
    half = batch_price(price)
    exact = cost_nusd(price, used, batch=True)
    assert exact <= cost_nusd(half, used) <= exact + 1
    worst = worst_nusd(price, used.input_tokens, used.output_tokens, True, caching)
    assert worst <= worst_nusd(half, used.input_tokens, used.output_tokens, caching=caching) <= worst + 1
    assert (half.source, len(half.tiers)) == (f"{price.source}, 50 % for message batches".removeprefix(", "), len(price.tiers))


def test_an_hour_in_the_cache_costs_its_own_rate() -> None:
    def cost(hour: int) -> int:
        return cost_nusd(PLAIN, Used(cache_creation_tokens=10, cache_creation_1h_tokens=hour))

    assert cost(4) == 6 * 3_750 + 4 * 6_000
    assert cost(99) == 10 * 6_000
    assert cost(-1) == 10 * 3_750
    assert cost_nusd(PLAIN, Used(cache_creation_1h_tokens=4)) == 0


def test_unknown_cache_rates_never_look_cheaper_than_they_may_be() -> None:
    price = Price(D("4"), D("8"))
    assert cost_nusd(price, Used(cache_read_tokens=1)) == 4_000
    assert cost_nusd(price, Used(cache_creation_tokens=1)) == 5_000
    assert cost_nusd(price, Used(cache_creation_tokens=1, cache_creation_1h_tokens=1)) == 8_000


@pytest.mark.parametrize(
    ("price", "bound", "output_max", "batch", "caching", "expected_nusd"),
    [
        (PLAIN, 1_000, 100, False, True, 6_000_000 + 1_500_000),
        (PLAIN, 1_000, 100, False, False, 3_000_000 + 1_500_000),
        (PLAIN, 1_000, 100, True, False, 2_250_000),
        (Price(D(1), D(1), D(2)), 1_000, 0, False, False, 2_000_000),  # a cache read may be dearer than plain
        (CLIFF, 100_000, 0, False, False, 10_000_000),
        (CLIFF, 100_001, 0, False, False, 50_000_500),
    ],
)
def test_worst(price: Price, bound: int, output_max: int, batch: bool, caching: bool, expected_nusd: int) -> None:
    assert worst_nusd(price, bound, output_max, batch, caching) == expected_nusd


rates = st.decimals(0, 1_000, allow_nan=False, allow_infinity=False, places=4)
maybe = st.none() | rates


@st.composite
def prices(draw: st.DrawFn) -> Price:
    starts = sorted(draw(st.sets(st.integers(1, 5_000), max_size=3)))
    five = st.tuples(rates, rates, maybe, maybe, maybe)
    tiers = tuple(Tier(*draw(five), above_input_tokens=start) for start in starts)  # dearer or cheaper
    return Price(*draw(five), tiers=tiers, batch_percent=draw(st.integers(0, 100)))


tokens = st.integers(0, 4_000)


@given(prices(), st.tuples(tokens, tokens, tokens, tokens), tokens, tokens, tokens, st.booleans())
def test_no_usage_within_the_bounds_costs_more_than_the_worst_case(
    price: Price, used: tuple[int, int, int, int], slack: int, out_slack: int, hour: int, batch: bool
) -> None:
    usage = Used(*used, hour)
    bound = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens + slack
    output_max = usage.output_tokens + out_slack
    cost = cost_nusd(price, usage, batch)
    assert 0 <= cost <= worst_nusd(price, bound, output_max, batch)
    if usage.cache_creation_tokens == 0:
        assert cost <= worst_nusd(price, bound, output_max, batch, caching=False)


@given(prices(), tokens, tokens, tokens, tokens)
def test_the_worst_case_never_falls_when_a_bound_rises(
    price: Price, bound: int, output_max: int, more: int, more_output: int
) -> None:
    assert worst_nusd(price, bound, output_max) <= worst_nusd(price, bound + more, output_max + more_output)


def test_a_string_is_taken_for_a_number_and_kept_exactly() -> None:
    price = Price("3", "15")  # type: ignore[arg-type]
    assert price == Price(D(3), D(15))
    assert cost_nusd(price, Used(1)) == 3_000


@given(prices())
def test_a_price_survives_the_journal(price: Price) -> None:
    assert msgspec.json.decode(msgspec.json.encode(price), type=Price) == price
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(price), type=Price) == price


@pytest.mark.parametrize(
    "make",
    [
        lambda: Price(D(-1), D(1)),
        lambda: Price(D(1), D("NaN")),
        lambda: Price(D(1), D("Infinity")),
        lambda: Price("free", D(1)),  # type: ignore[arg-type]
        lambda: Price(D(1), D(1), D(-1)),
        lambda: Price(D(1), D(1), batch_percent=101),
        lambda: Tier(D(1), D(1), above_input_tokens=0),
        lambda: Price(
            D(1),
            D(1),
            tiers=(Tier(D(1), D(1), above_input_tokens=5), Tier(D(1), D(1), above_input_tokens=5)),
        ),
    ],
)
def test_what_is_no_price_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"must") as raised:
        make()  # type: ignore[operator]
    assert "\n" not in str(raised.value)


def test_a_price_by_hand() -> None:
    assert parse_price("input=3, output=15") == Price(D(3), D(15), source="given by hand")
    assert parse_price("output=15,input=3,cache_read=0.3,cache_creation=3.75,cache_creation_1h=6", "x") == Price(
        D(3), D(15), D("0.3"), D("3.75"), D(6), source="x"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "input=3",
        "output=3",
        "input=3,output=x",
        "input=3,output=-1",
        "input=3,input=3,output=1",
        "in=3",
    ],
)
def test_a_price_that_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"price|input|output") as raised:
        parse_price(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("amount_usd", "expected"),
    [("1", 10**9), (0.1, 10**8), (2, 2 * 10**9), ("0.0000000019", 1), (D("12.345"), 12_345_000_000)],
)
def test_usd_read(amount_usd: Decimal | str | float, expected: int) -> None:
    assert nusd(amount_usd) == expected


@pytest.mark.parametrize("amount_usd", ["", "five", "-1", float("nan"), "inf"])
def test_what_is_no_amount_is_refused(amount_usd: str | float) -> None:
    with pytest.raises(ValueError, match="an amount of USD must be"):
        nusd(amount_usd)


@pytest.mark.parametrize(
    ("amount_nusd", "text"),
    [
        (0, "$0"),
        (1, "$0.000000001"),
        (12_345_678, "$0.01235"),
        (500_000_000, "$0.50"),
        (999_999_999, "$1.00"),
        (1_234_567_890_000, "$1,234.57"),
        (-12_300_000, "-$0.0123"),
    ],
)
def test_usd_written(amount_nusd: int, text: str) -> None:
    assert usd_text(amount_nusd) == text
    assert usd(amount_nusd) == pytest.approx(amount_nusd / 1e9)
