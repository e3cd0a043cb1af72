"""Parsing of user input: labels, roles, fallbacks, providers, addresses, simulator settings. Shared by command line and
Python.

All functions raise ``ValueError`` with one line that shows the expected form.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from actors.jobs.limit_options import NONE
from actors.providers.credentials.base_url import is_by_name, read_metrics_url, read_server_url
from actors.providers.credentials.credential import CredentialError, checked_url, without_password
from actors.providers.registry import PROVIDERS, SIMULATED, apart, named, place_words, row_of
from actors.routing.routes import ModelSpec
from actors.simulator.settings import SettingsError, SimulatorSettings, settings_from
from policies.estimates.price import PRICE_FORM, parse_price

_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")
_PRICES = ("input", "output", "cache_read", "cache_creation", "cache_creation_1h")
ROLE_FORM = "write NAME=MODEL, like judge=claude-opus-4-5; the name begins with a letter and holds no blank"
LABEL_FORM = "write NAME=VALUE, like team=search; the name begins with a letter and holds no blank"
LABEL_VALUE_MAX = 200
LABELS_MAX = 16
FALLBACK_FORM = (
    "write MODEL, MODEL@https://HOST, PROVIDER:MODEL,region=REGION, or MODEL,input=3,output=15 (USD per million tokens)"
)


def provider_form() -> str:
    """Return the form of a provider for error messages."""
    *others, last = (row_of(name).option_form for name in named())
    return f"write {', '.join(others)} or {last}"


def addresses(texts: Iterable[str]) -> list[str]:
    """Return the addresses of servers: each text is one, or ``@`` and the path of a file with one a line. Empty texts,
    empty lines and lines that begin with ``#`` are left out. The address of a name (``BY_NAME``) stands alone."""
    found: list[str] = []
    for text in map(str.strip, texts):
        if not text.startswith("@"):
            found.append(text)
            continue
        try:
            lines = Path(text[1:]).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ValueError(f"{text[1:]} cannot be read: {reason}") from None
        listed = [line.strip() for line in lines if not line.strip().startswith("#")]
        if not any(listed):
            raise ValueError(f"{text[1:]} names no address: write one a line")
        found += listed
    found = [read_server_url("address", text) if is_by_name(text) else text for text in found if text]
    if len(set(found)) > 1 and (named := next(filter(is_by_name, found), "")):
        raise ValueError(f"{without_password(named)} names all its servers: leave out the other addresses")
    return found


def simulated(pairs: list[str]) -> SimulatorSettings | None:
    """Return settings and faults of the simulated provider from ``name=value`` pairs; None for no pairs."""
    if not pairs:
        return None
    if any(pair.partition("=")[0].strip() == "keys" for pair in pairs):
        raise ValueError("keys: not used within one process: give it to `cortex simulate`")
    try:
        return settings_from(pairs)
    except SettingsError as error:
        raise ValueError(str(error)) from None


def role(text: str) -> tuple[str, ModelSpec]:
    """Return role and model spec from ``NAME=MODEL``, with the further parts that ``fallback`` takes."""
    name, equals, model = (piece.strip() for piece in text.partition("="))
    if not equals or not model:
        raise ValueError(f"{text!r}: {ROLE_FORM}")
    return role_name(name), fallback(model)


def label(name: str, value: str) -> tuple[str, str]:
    """Return name and value of a valid label."""
    name, value = str(name).strip(), str(value).strip()
    if not _LABEL.fullmatch(name) or not value:
        raise ValueError(f"{f'{name}={value}' if value else name!r:.80}: {LABEL_FORM}")
    if len(value) > LABEL_VALUE_MAX or not value.isprintable():
        raise ValueError(f"{name}: a label's value is one line of at most {LABEL_VALUE_MAX} characters")
    return name, value


def labels(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the labels of a job, at most ``LABELS_MAX``, since each is on every span."""
    found: dict[str, str] = {}
    for name, value in (label(*pair) for pair in pairs):
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = value
    if len(found) > LABELS_MAX:
        raise ValueError(f"{len(found)} labels: give at most {LABELS_MAX}")
    return found


def role_name(name: str) -> str:
    """Return a valid role name."""
    if not _ROLE.fullmatch(name):
        raise ValueError(f"{name!r}: {ROLE_FORM}")
    return name


def fallback(text: str) -> ModelSpec:
    """Return a fallback route from ``[PROVIDER:]MODEL[@URL][,region=…][,price-as=…][,input=…,output=…]``; ``sim`` also
    takes settings of the simulator."""
    head, *pairs = (piece.strip() for piece in text.split(","))
    model, at, url = head.partition("@http")
    url = f"http{url}" if at else ""
    prefix, colon, rest = model.partition(":")
    name = prefix if colon and prefix in named() else ""
    model = rest.strip() if name else model
    where, pairs = _take_pairs(pairs, (*place_words(), "price_as"))
    price_as = where.pop("price_as", "")
    if not model:
        raise ValueError(f"{text!r} names no model: {FALLBACK_FORM}")
    prices = ",".join(pair for pair in pairs if pair.partition("=")[0].strip() in _PRICES)
    others = [pair for pair in pairs if pair.partition("=")[0].strip() not in _PRICES]
    if others and model != SIMULATED:
        raise ValueError(f"{text!r}: cannot read {others[0]!r}: {FALLBACK_FORM}")
    if "://" in model:
        raise ValueError(f"{model.partition('@')[0]!r}: an address begins with http:// or https://: {FALLBACK_FORM}")
    if url and model in apart():
        raise ValueError(f"{text!r}: {model} has no address: leave @URL out")
    if model in apart() and (name or where):
        raise ValueError(f"{text!r}: {model} has no provider: leave provider and place out")
    try:
        url = checked_url("the address", url)
        if name:
            _refuse_place(name, where)
        if prices and price_as:
            raise ValueError("price-as= and a price: give one of them")
        if prices:
            parse_price(prices)
        found = simulated(others)
    except (CredentialError, ValueError) as error:
        message = str(error) if PRICE_FORM in str(error) or others else f"{error}: {FALLBACK_FORM}"
        raise ValueError(f"{without_password(model)}: {message}") from None
    if without_password(url) != url:
        raise ValueError(f"{model}: its address holds a password, which would be stored with the job: leave it out")
    spec = ModelSpec(model=model, base_url=url, price=prices, price_as=price_as, simulated=found, provider=name)
    return spec.placed(where)


def metrics_urls(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the URLs of a server's metrics, each once; empty for ``none`` alone."""
    if [text.strip().lower() for text in texts] == [NONE]:
        return ()
    return tuple(dict.fromkeys(read_metrics_url("the address", text) for text in texts))


def at_provider(spec: ModelSpec, text: str) -> ModelSpec:
    """Return the specification at the provider that is written as ``NAME[,region=…][,project=…][,resource=…]``;
    unchanged for an empty text."""
    facts = provider(text)
    return msgspec.structs.replace(spec, provider=facts.pop("provider", spec.provider)).placed(facts)


def provider(text: str) -> dict[str, str]:
    """Return provider and place as fields of a ``ModelSpec``, from ``NAME[,region=…][,project=…][,resource=…]``; empty
    from an empty text."""
    name, *pairs = (piece.strip() for piece in text.split(","))
    if not name and not any(pairs):
        return {}
    if name.lower() not in named():
        near = difflib.get_close_matches(name.lower(), named(), n=1)
        raise ValueError(f"{name!r} is no provider: {f'did you mean {near[0]}?' if near else provider_form()}")
    facts, others = _take_pairs(pairs, place_words())
    if others:
        raise ValueError(f"cannot read {others[0]!r}: {provider_form()}")
    _refuse_place(name.lower(), facts)
    return {"provider": name.lower(), **facts}


def _take_pairs(pairs: list[str], names: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Return the values of pairs with one of these names, and the other pairs."""
    facts: dict[str, str] = {}
    others = []
    for pair in pairs:
        name, equals, value = (piece.strip() for piece in pair.partition("="))
        if (name := name.replace("-", "_")) not in names or not equals:
            others.append(pair)
        elif not value or name in facts:
            raise ValueError(f"{pair!r} {'is given twice: give it once' if value else 'has no value: give one'}")
        else:
            facts[name] = value
    return facts, others


def _refuse_place(name: str, facts: dict[str, str]) -> None:
    """Raise ``ValueError`` for a place that the provider does not have (region, project or resource)."""
    for word in facts:
        if word not in PROVIDERS[name].place:
            raise ValueError(f"{name} has no {word}: {provider_form()}")
