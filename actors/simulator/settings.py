"""Settings of the simulated provider, in one frozen struct that is validated when created."""

import difflib
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from actors.simulator.faults import FAULTS

RELEASE = 2
"""Release of the reasoner; another release may answer the same text differently."""


LIMIT_REPORTS: Final = ("headers", "retry-after", "nothing")


class SettingsError(ValueError):
    """Invalid setting. The message is one line that names the setting."""


class SimulatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Behaviour of the simulated provider. Equal settings and requests give equal runs.

    Raises ``SettingsError`` when created. ``faults`` is copied and sorted by name, and not changed afterwards.
    """

    seed: int = 0
    error: float | None = None
    """Share of wrong answers; 0 is exact. None: the reasoner's stated function of the text."""

    thinking_tokens: int = 0
    """Tokens of the thinking before each answer, as of models that think by default. They count against
    ``max_tokens``: a reply with no more than these is cut and holds no text. A request may turn thinking off."""

    latency_ms: float = 0.0
    """Mean time to the answer in milliseconds, log-normal; drawn by seed, body and times seen."""
    latency_spread: float = 0.5
    """Sigma of the log-normal: 0 is constant; 0.5 puts p95 at twice the mean, plausible for a provider."""
    latency_ms_per_output_token: float = 0.0
    """Time added for every token of the answer, in milliseconds."""
    slots: int | None = None
    """Requests worked on at once, as at vLLM or llama.cpp: further ones wait, first come first served, and are never
    refused. None: all at once."""
    batch_ms: float = 50.0
    """Mean time to the end of a message batch, in milliseconds."""
    batch_expired: float = 0.0
    """Share of a batch's requests that expire unprocessed."""
    batch_queue: int | None = None
    """Most requests in batches that have not ended; a batch beyond it is refused. None: no limit."""

    faults: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Share of requests by name of fault (``faults.FAULTS``); together at most 1."""
    hang_s: float = 600.0
    """Seconds for which a hanging request holds its connection."""
    drip_s: float = 5.0
    """Seconds in which a slow drip delivers its whole answer."""
    throttled_retry_after_s: int = 1
    """Retry-After of the fault ``throttled``, in seconds. Refusals by limits state the true time instead."""

    rpm: int | None = None
    itpm: int | None = None
    otpm: int | None = None
    """``rpm``, ``itpm``, ``otpm``: limits of requests, input and output tokens a minute; None: no limit, and no
    rate-limit headers."""
    burst_s: float = 60.0
    """Capacity of a bucket, in seconds of its limit."""
    limits_told: str = "headers"
    """Information on limits in an answer: ``headers`` (and Retry-After), ``retry-after`` alone, or ``nothing``."""

    context_window: int = 200_000
    """Most tokens of a prompt and its ``max_tokens`` together."""
    models: tuple[str, ...] = ()
    """Names of existing models; empty: every name is accepted."""
    keys: tuple[str, ...] = ()
    """Accepted API keys; empty: every key. The keys never leave the process."""

    credit_calls: int | None = None
    """Answers left before the account has no credit; None: no limit."""
    credit_usd: float | None = None
    """Money left, at the two prices below; None: no limit."""
    usd_per_mtok_input: float = 3.0
    usd_per_mtok_output: float = 15.0

    remembered_max: int = 32_768
    """Most request identities kept for counting. Beyond it the oldest are dropped, and counted as such."""

    def __post_init__(self) -> None:
        for name in ("seed", "thinking_tokens", "throttled_retry_after_s", "context_window", "remembered_max"):
            _whole(name, getattr(self, name), least=0 if name in ("seed", "thinking_tokens") else 1)
        for name in ("rpm", "itpm", "otpm", "credit_calls", "batch_queue", "slots"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least=0 if name == "credit_calls" else 1)
        for name in _NUMBERS:
            _number(name, getattr(self, name))
        if self.burst_s <= 0:
            raise SettingsError(f"burst_s: expected a number above 0, got {self.burst_s!r}")
        if self.limits_told not in LIMIT_REPORTS:
            raise SettingsError(f"limits_told: expected {', '.join(LIMIT_REPORTS)}, got {self.limits_told!r}")
        if self.error is not None:
            _number("error", self.error, most=1.0)
        _number("batch_expired", self.batch_expired, most=1.0)
        if self.credit_usd is not None:
            _number("credit_usd", self.credit_usd)
        for name in ("models", "keys"):
            if not all(isinstance(each, str) and each for each in getattr(self, name)):
                raise SettingsError(f"{name}: names must be non-empty text")
        msgspec.structs.force_setattr(self, "faults", _checked_faults(self.faults))

    def answers_hash(self) -> str:
        """Return a hash of all that decides the *text* of an answer: seed, error rate, thinking and release of the
        reasoner.

        Faults, limits, latency and credit are left out: they decide whether an answer comes, not its text, so that a
        rehearsal that ran out of credit can reuse its paid replies after a top-up.
        """
        named = f"{RELEASE}/{self.seed}/{self.error}"
        if self.thinking_tokens:  # left out otherwise, as in journals of release 0.1.0
            named += f"/{self.thinking_tokens}"
        return hashlib.blake2b(named.encode(), digest_size=6).hexdigest()

    def public(self) -> dict[str, Any]:
        """Return the settings as plain values, without the keys."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        value["keys"] = len(self.keys)
        return value


_NUMBERS = (
    "latency_ms",
    "latency_spread",
    "latency_ms_per_output_token",
    "batch_ms",
    "burst_s",
    "hang_s",
    "drip_s",
    "usd_per_mtok_input",
    "usd_per_mtok_output",
)


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def _number(name: str, value: object, most: float = math.inf) -> None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or not 0 <= value <= most:  # type: ignore[arg-type, operator]
        between = "of at least 0" if most == math.inf else f"from 0 to {most:g}"
        raise SettingsError(f"{name}: expected a number {between}, got {value!r}")


def _checked_faults(faults: object) -> dict[str, float]:
    if not isinstance(faults, Mapping):
        raise SettingsError(f"faults: expected names with shares, got {faults!r}")
    for name, share in faults.items():
        if name not in FAULTS:
            raise SettingsError(f"faults: unknown fault {name!r}{_near(str(name), FAULTS)}")
        _number(f"faults: {name}", share, most=1.0)
    if sum(faults.values()) > 1 + 1e-9:
        raise SettingsError(f"faults: the shares add up to {sum(faults.values()):g}, more than 1")
    return {name: float(faults[name]) for name in sorted(faults)}


def _near(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def changed(settings: SimulatorSettings, changes: Mapping[str, Any]) -> SimulatorSettings:
    """Return ``settings`` with ``changes`` (plain values, as from JSON). Raises ``SettingsError``."""
    known = SimulatorSettings.__struct_fields__
    for name in changes:
        if name not in known:
            raise SettingsError(f"unknown setting {name!r}{_near(name, known)}")
    if "faults" in changes:
        _checked_faults(changes["faults"])
    value = {name: getattr(settings, name) for name in known} | dict(changes)
    try:
        return msgspec.convert(value, SimulatorSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(_one_line(str(error))) from None


def settings_from(pairs: Iterable[str], faults: Iterable[str] = ()) -> SimulatorSettings:
    """Return settings from ``key=value`` texts, and faults from ``name=share`` texts.

    A fault may also be among the pairs as ``fault.name=share``; several models or keys are separated by commas. Raises
    ``SettingsError`` with one line that names the pair.
    """
    values: dict[str, Any] = {}
    shares: dict[str, Any] = {}
    for pair in [*pairs, *(f"fault.{fault}" for fault in faults)]:
        name, equals, text = pair.partition("=")
        name, text = name.strip().replace("-", "_"), text.strip()
        if not equals or not name or not text:
            raise SettingsError(f"expected name=value, got {pair.removeprefix('fault.')!r}")
        if name.startswith("fault."):
            shares[name.removeprefix("fault.")] = _yaml_text(text)
        elif name in ("models", "keys"):
            values[name] = tuple(each.strip() for each in text.split(","))
        else:
            values[name] = _yaml_text(text)
    if shares:
        values["faults"] = shares
    return changed(SimulatorSettings(), values)


def _yaml_text(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    for read in (int, float):
        try:
            return read(text.replace("_", ""))
        except ValueError:
            continue
    return text


def _one_line(message: str) -> str:
    """Return an error of msgspec (``Expected `int`, got `str` - at `$.rpm` ``) with the name of the setting first."""
    text, _, where = message.partition(" - at `$.")
    place = where.rstrip("`").replace('["', ".").rstrip('"]')
    return f"{place}: {text[:1].lower()}{text[1:]}" if where else text
