"""Settings of the simulated provider, in one frozen struct that is validated when created."""

import difflib
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from actors.simulator.continuous_batch import STEP_TOKENS
from actors.simulator.faults import FAULTS

RELEASE = 2
"""Release of the reasoner; another release may answer the same text differently."""


LIMIT_REPORTS: Final = ("headers", "retry-after", "nothing")
BATCH: Final = ("kv_tokens", "prefill_tps", "batch_half")
"""Settings that make a server with slots one with a continuous batch."""
QUEUE: Final = ("slots", *BATCH, "step_tokens")
"""Settings of a server that queues."""


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

    billed_times: float = 1.0
    """Multiple of a call's true tokens that its usage names, as of a server that counts wrongly."""
    billed_more: int = 0
    """Input tokens that each usage names on top, as of a gateway that puts a prompt of its own in front
    (MAXeaglet/commandcode-proxy#17: 7,552)."""

    latency_ms: float = 0.0
    """Mean time to the answer in milliseconds, log-normal; drawn by seed, body and times seen."""
    latency_spread: float = 0.5
    """Sigma of the log-normal: 0 is constant; 0.5 puts p95 at twice the mean, plausible for a provider."""
    latency_ms_per_output_token: float = 0.0
    """Time added for every token of the answer, in milliseconds."""
    slots: int | None = None
    """Requests worked on at once, as at vLLM or llama.cpp: further ones wait, first come first served, and are never
    refused. None: all at once."""
    kv_tokens: int | None = None
    """Tokens that the KV cache of a server with ``slots`` holds, as ``num_gpu_blocks * block_size`` of vLLM. When it is
    full, requests wait though slots are free, and the last one is preempted and worked on again
    (``continuous_batch``). None: no bound."""
    prefill_tps: float | None = None
    """Tokens of prompts that such a server reads per second; all answers are written the slower meanwhile. None: at
    once."""
    step_tokens: int = STEP_TOKENS
    """Most tokens of one step of such a server, ``--max-num-batched-tokens`` of vLLM."""
    batch_half: float | None = None
    """Answers written at once at which each takes twice its time, as a batch's steps take longer the more it holds.
    None: they do not."""
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
    tpm: int | None = None
    """Limit of tokens a minute, as OpenAI has it: prompt and ``max_tokens`` are charged together when a request is
    accepted; None: no such limit."""
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
        for name, form in _FORMS.items():
            form.check(name, getattr(self, name))
        if self.limits_told not in LIMIT_REPORTS:
            raise SettingsError(f"limits_told: expected {', '.join(LIMIT_REPORTS)}, got {self.limits_told!r}")
        for name in BATCH:
            if getattr(self, name) is not None and self.slots is None:
                raise SettingsError(f"{name}: needs a server that queues: give slots too")
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


class _NumberForm(msgspec.Struct, frozen=True):
    """Form of a setting that is a number."""

    whole: bool = False
    least: int = 0
    most: float = math.inf
    above: bool = False
    """True if ``least`` itself is not allowed."""
    optional: bool = False

    def __str__(self) -> str:
        least = f"above {self.least}" if self.above else f"of at least {self.least}"
        bounds = least if self.most == math.inf else f"from {self.least} to {self.most:g}"
        return f"{'a whole number' if self.whole else 'a number'} {bounds}{', or none' if self.optional else ''}"

    def check(self, name: str, value: object) -> None:
        """Raise ``SettingsError`` for a value of another form."""
        if value is None and self.optional:
            return
        kinds = int if self.whole else (int, float)
        if isinstance(value, kinds) and not isinstance(value, bool):  # noqa: SIM102 - a NaN is within no bounds
            if self.least <= value <= self.most and value < math.inf and not (self.above and value == self.least):
                return
        raise SettingsError(f"{name}: expected {self}, got {value!r}")


_COUNT, _RATE = _NumberForm(whole=True, least=1), _NumberForm(whole=True, least=1, optional=True)
_TIME, _SHARE, _POSITIVE = _NumberForm(), _NumberForm(most=1), _NumberForm(above=True, optional=True)
_FORMS: Final = {
    "seed": _NumberForm(whole=True), "error": _NumberForm(most=1, optional=True),
    "thinking_tokens": _NumberForm(whole=True),
    "billed_times": _NumberForm(above=True, most=1_000), "billed_more": _NumberForm(whole=True, most=100_000_000),
    "latency_ms": _TIME, "latency_spread": _TIME, "latency_ms_per_output_token": _TIME, "batch_ms": _TIME,
    "slots": _RATE, "kv_tokens": _RATE, "prefill_tps": _POSITIVE, "step_tokens": _COUNT, "batch_half": _POSITIVE,
    "batch_expired": _SHARE, "batch_queue": _RATE, "hang_s": _TIME, "drip_s": _TIME,
    "throttled_retry_after_s": _COUNT,
    "rpm": _RATE, "itpm": _RATE, "otpm": _RATE, "tpm": _RATE, "burst_s": _NumberForm(above=True),
    "context_window": _COUNT,
    "credit_calls": _NumberForm(whole=True, optional=True), "credit_usd": _NumberForm(optional=True),
    "usd_per_mtok_input": _TIME, "usd_per_mtok_output": _TIME, "remembered_max": _COUNT,
}  # fmt: skip


def allowed() -> str:
    """Return the names of settings and of faults, for errors."""
    settings = [name for name in SimulatorSettings.__struct_fields__ if name != "faults"]
    return f"settings: {', '.join(settings)}; faults, with their shares: {', '.join(FAULTS)}"


def _checked_faults(faults: object) -> dict[str, float]:
    if not isinstance(faults, Mapping):
        raise SettingsError(f"faults: expected names with shares, got {faults!r}")
    for name, share in faults.items():
        if name not in FAULTS:
            raise SettingsError(f"faults: unknown fault {name!r}{_near(str(name), FAULTS)}")
        _SHARE.check(f"faults: {name}", share)
    if sum(faults.values()) > 1 + 1e-9:
        raise SettingsError(f"faults: the shares add up to {sum(faults.values()):g}, more than 1")
    return {name: float(faults[name]) for name in sorted(faults)}


def _near(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; {allowed()}"


def changed(settings: SimulatorSettings, changes: Mapping[str, Any]) -> SimulatorSettings:
    """Return ``settings`` with ``changes`` (plain values, as from JSON). Raises ``SettingsError``."""
    known = SimulatorSettings.__struct_fields__
    for name, value in changes.items():
        if name not in known:
            raise SettingsError(f"unknown setting {name!r}{_near(name, [*known, *FAULTS])}")
        if name in _FORMS:
            _FORMS[name].check(name, value)
    if "faults" in changes:
        _checked_faults(changes["faults"])
    whole = {name: getattr(settings, name) for name in known} | dict(changes)
    try:
        return msgspec.convert(whole, SimulatorSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(_one_line(str(error))) from None


def settings_from(pairs: Iterable[str], faults: Iterable[str] = ()) -> SimulatorSettings:
    """Return settings from ``key=value`` texts, and faults from ``name=share`` texts.

    A fault may also be among the pairs, as ``name=share`` or ``fault.name=share``; several models or keys are separated
    by commas. Of several values of one name the last counts. Raises ``SettingsError`` with one line that names the
    pair.
    """
    values: dict[str, Any] = {}
    shares: dict[str, Any] = {}
    for pair, of_faults in [*((pair, False) for pair in pairs), *((fault, True) for fault in faults)]:
        given, equals, text = (each.strip() for each in pair.partition("="))
        name = given.replace("-", "_").removeprefix("fault.")
        is_fault = of_faults or given.startswith("fault.") or name in FAULTS
        if not equals or not name or not text or name == "faults":
            raise SettingsError(f"expected {_pair_form(name, is_fault)}, got {pair!r}")
        into = shares if is_fault else values
        into[name] = tuple(each.strip() for each in text.split(",")) if name in ("models", "keys") else _yaml_text(text)
    if shares:
        values["faults"] = shares
    return changed(SimulatorSettings(), values)


def queue_from(text: str) -> list[str]:
    """Return the pairs ``key=value`` of a queue in one text, ``slots=256,kv_tokens=400000``.

    Raises ``SettingsError`` for a setting that is none of a queue.
    """
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    for pair in pairs:
        if pair.partition("=")[0].strip().replace("-", "_") not in QUEUE:
            raise SettingsError(f"expected {', '.join(QUEUE)} as NAME=VALUE, with commas between, got {pair!r}")
    return pairs


def _pair_form(name: str, is_fault: bool) -> str:
    """Return the form of a setting or fault of this name; with all names, if it is neither."""
    if is_fault and name in FAULTS:
        return f"{name}=SHARE, {_SHARE}"
    if name in SimulatorSettings.__struct_fields__ and name != "faults" and not is_fault:
        return f"{name}=VALUE, {_FORMS[name]}" if name in _FORMS else f"{name}=VALUE"
    return f"{'a fault as NAME=SHARE' if is_fault else 'NAME=VALUE'} ({allowed()})"


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
