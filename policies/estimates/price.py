"""Cost of a call: from reported usage, and at most.

Money is counted in whole nano-USD (1e-9 USD), so that sums are exact in any order; USD appears only in input and
output. A cost is rounded up, once, at the end.
"""

from collections.abc import Mapping
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from functools import cached_property
from typing import Final, NamedTuple, Protocol

import msgspec

NUSD_PER_USD: Final = 1_000_000_000
USD_MAX: Final = 1_000_000_000
"""Largest amount of USD, and rate in USD per million tokens. The dearest model costs 600 USD per million
(https://openai.com/api/pricing, o1-pro)."""
COST_MAX_NUSD: Final = 1_000_000 * NUSD_PER_USD
"""Highest cost of one call: a million USD. Sums of a job stay in the 64 bits that a journal holds."""
_TOKENS_PER_MTOK: Final = 1_000_000
_PERCENT: Final = 100

PRICE_FORM: Final = "write input=3,output=15 in USD per million tokens (also cache_read=, cache_creation=)"
"""Form in which a user gives a price, for the error that says that a model has none."""

# Charge for a cache write without a price of its own, as a multiple of plain input: 1.25 for five minutes, 2 for an
# hour (https://docs.claude.com/en/docs/about-claude/pricing). A cache read without a price counts as plain input. So a
# missing price never makes a call look cheaper than it may be.
_CREATION_SHARE: Final = Decimal("1.25")
_CREATION_1H_SHARE: Final = Decimal(2)


class TokenUsage(Protocol):
    """Reported tokens. `input_tokens` excludes both kinds of cached input; `cache_creation_1h_tokens` is a part of
    `cache_creation_tokens`.
    """

    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cache_read_tokens(self) -> int: ...
    @property
    def cache_creation_tokens(self) -> int: ...
    @property
    def cache_creation_1h_tokens(self) -> int: ...


class _Ints(NamedTuple):
    """Rates in nano-USD per million tokens, as integers; a single token may cost a fraction of one nano-USD."""

    input: int
    output: int
    cache_read: int
    cache_creation: int
    cache_creation_1h: int


class Rates(msgspec.Struct, frozen=True, dict=True):
    """Rates in USD per million tokens. A string is read as a number and kept exactly.

    Raises ValueError, in one line, for a value that is no price: not a number, negative, not finite, over a billion.
    """

    input_usd_per_mtok: Decimal
    """USD per million input tokens that are not cached."""
    output_usd_per_mtok: Decimal
    """USD per million output tokens."""
    cache_read_usd_per_mtok: Decimal | None = None
    """USD per million tokens read from the prompt cache; None: as input."""
    cache_creation_usd_per_mtok: Decimal | None = None
    """USD per million tokens written to the prompt cache for five minutes; None: 1.25 times input."""
    cache_creation_1h_usd_per_mtok: Decimal | None = None
    """USD per million tokens written to the prompt cache for an hour; None: 2 times input."""

    def __post_init__(self) -> None:
        for name in _RATE_NAMES:
            value = getattr(self, name)
            if value is not None:
                msgspec.structs.force_setattr(self, name, _checked(name, value))

    @cached_property
    def _ints(self) -> _Ints:
        plain = self.input_usd_per_mtok
        read = self.cache_read_usd_per_mtok
        creation = self.cache_creation_usd_per_mtok
        creation_1h = self.cache_creation_1h_usd_per_mtok
        return _Ints(
            _nusd_up(plain),
            _nusd_up(self.output_usd_per_mtok),
            _nusd_up(plain if read is None else read),
            _nusd_up(plain * _CREATION_SHARE if creation is None else creation),
            _nusd_up(plain * _CREATION_1H_SHARE if creation_1h is None else creation_1h),
        )

    @cached_property
    def _dearest(self) -> tuple[int, int]:
        """The highest rates of an input token: without a cache write, and with a possible cache write."""
        rates = self._ints
        plain = max(rates.input, rates.cache_read)
        return plain, max(plain, rates.cache_creation, rates.cache_creation_1h)


class Tier(Rates, frozen=True, kw_only=True):
    """Rates of a whole request whose input, cached input included, is above `above_input_tokens` tokens."""

    above_input_tokens: int
    """Input tokens above which the tier applies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.above_input_tokens < 1:
            raise ValueError(f"a price tier must begin above 1 token or more, not {self.above_input_tokens}")


class Price(Rates, frozen=True, kw_only=True):
    """Prices of a route. Raises ValueError, in one line, for tiers that do not rise or a `batch_percent` outside 0 to
    100.
    """

    tiers: tuple[Tier, ...] = ()
    """Rates of larger requests, in rising order of `above_input_tokens`."""
    batch_percent: int = 50
    """Price of the provider's message batches, in percent of a plain call."""
    source: str = ""
    """Origin of the figures, for a user who checks a bill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        starts = [tier.above_input_tokens for tier in self.tiers]
        if starts != sorted(set(starts)):
            raise ValueError(f"price tiers must be in rising order of input tokens, not {starts}")
        if not 0 <= self.batch_percent <= _PERCENT:
            raise ValueError(f"batch_percent must be 0 to 100, not {self.batch_percent}")


def cost_nusd(price: Price, usage: TokenUsage, batch: bool = False) -> int:
    """Return the cost of the reported usage in nano-USD.

    The tier is chosen by the whole input and holds for every token (a cliff, as providers charge it). A negative count,
    which no correct report has, counts as 0, so that it cannot pay for other calls.
    """
    plain, output = usage.input_tokens, usage.output_tokens
    read, creation = usage.cache_read_tokens, usage.cache_creation_tokens
    if plain < 0 or output < 0 or read < 0 or creation < 0:
        plain, output, read, creation = max(plain, 0), max(output, 0), max(read, 0), max(creation, 0)
    hour = min(max(usage.cache_creation_1h_tokens, 0), creation) if creation else 0
    total = plain + read + creation
    rates = price._ints
    for tier in price.tiers:
        if total > tier.above_input_tokens:
            rates = tier._ints
    micro = (
        plain * rates.input
        + output * rates.output
        + read * rates.cache_read
        + (creation - hour) * rates.cache_creation
        + hour * rates.cache_creation_1h
    )
    return _rounded_up(micro, price.batch_percent if batch else _PERCENT)


def worst_nusd(
    price: Price, input_tokens_bound: int, output_tokens_max: int, batch: bool = False, caching: bool = True
) -> int:
    """Return the highest possible cost of a call within these bounds in nano-USD: the amount reserved before it is
    sent.

    Each input token counts at the highest rate it may be charged at; a cache write costs more than plain input.
    `caching=False` is for a request without cache control, which writes nothing to a cache. Every tier within reach is
    considered, so the result never falls when a bound rises.
    """
    worst = input_tokens_bound * price._dearest[caching] + output_tokens_max * price._ints.output
    for tier in price.tiers:
        if input_tokens_bound > tier.above_input_tokens:
            whole = input_tokens_bound * tier._dearest[caching] + output_tokens_max * tier._ints.output
            worst = max(worst, whole)
    return _rounded_up(worst, price.batch_percent if batch else _PERCENT)


def batch_price(price: Price) -> Price:
    """Return the prices of the provider's message batches: every rate times `price.batch_percent` %, kept exactly."""

    def cut(rates: Rates) -> dict[str, Decimal | None]:
        named = ((name, getattr(rates, name)) for name in _RATE_NAMES)
        return {name: None if rate is None else rate * price.batch_percent / _PERCENT for name, rate in named}

    tiers = tuple(Tier(above_input_tokens=tier.above_input_tokens, **cut(tier)) for tier in price.tiers)  # type: ignore[arg-type]
    source = f"{price.source}, {price.batch_percent} % for message batches".removeprefix(", ")
    return Price(**cut(price), tiers=tiers, source=source)  # type: ignore[arg-type]


def parse_price(text: str, source: str = "given by hand") -> Price:
    """Parse a price such as `input=3,output=15,cache_read=0.3,cache_creation=3.75`, in USD per million tokens.

    Input and output are required. Raises ValueError, in one line that shows the form.
    """
    rates: dict[str, Decimal] = {}
    for piece in text.split(","):
        name, equals, number = piece.partition("=")
        field = f"{name.strip()}_usd_per_mtok"
        if not equals or field not in _RATE_NAMES or field in rates:
            raise ValueError(f"price: cannot read {piece.strip()!r}; {PRICE_FORM}")
        rates[field] = _checked(name.strip(), number.strip())
    if "input_usd_per_mtok" not in rates or "output_usd_per_mtok" not in rates:
        raise ValueError(f"price: input and output must both be given; {PRICE_FORM}")
    return _price_of(rates, source)


def nusd(usd: Decimal | str | int | float) -> int:
    """Convert USD to whole nano-USD, rounded down, so that a cap never grows by being read.

    Raises ValueError, in one line, for a value that is no amount.
    """
    amount = _checked("an amount of USD", usd)
    return int((amount * NUSD_PER_USD).to_integral_value(ROUND_FLOOR))


def usd(amount_nusd: int) -> float:
    """Convert nano-USD to USD, for a JSON number."""
    return amount_nusd / NUSD_PER_USD


def usd_text(amount_nusd: int) -> str:
    """Format nano-USD for people: cents from a dollar up, four significant figures below, `$0` for 0."""
    if amount_nusd == 0:
        return "$0"
    amount = Decimal(abs(amount_nusd)) / NUSD_PER_USD
    sign = "-" if amount_nusd < 0 else ""
    if amount >= 1:
        return f"{sign}${amount:,.2f}"
    figures = f"{amount:.{3 - amount.adjusted()}f}".rstrip("0")
    whole, _, cents = figures.partition(".")
    return f"{sign}${whole}.{cents:0<2}"


_RATE_NAMES: Final = tuple(Rates.__struct_fields__)


def _price_of(rates: Mapping[str, Decimal], source: str) -> Price:
    return Price(
        rates["input_usd_per_mtok"],
        rates["output_usd_per_mtok"],
        rates.get("cache_read_usd_per_mtok"),
        rates.get("cache_creation_usd_per_mtok"),
        rates.get("cache_creation_1h_usd_per_mtok"),
        source=source,
    )


def _checked(name: str, value: Decimal | str | int | float) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    if not number.is_finite() or not 0 <= number <= USD_MAX:
        raise ValueError(f"{name} must be 0 or more, and at most {USD_MAX:,}, not {value}")
    return number


def _nusd_up(amount: Decimal) -> int:
    return -int((-amount * NUSD_PER_USD).to_integral_value(ROUND_FLOOR))


def _rounded_up(micro: int, percent: int) -> int:
    """Divide (nano-USD per million tokens) times tokens down to nano-USD, at this percentage of the price, rounded
    up.
    """
    nusd = -(-micro * percent // (_TOKENS_PER_MTOK * _PERCENT))
    return nusd if nusd < COST_MAX_NUSD else COST_MAX_NUSD
