"""Values of the keyword ``format`` that are checked, each by the RFC that JSON Schema names for it.

These are the formats of the provider's structured outputs
(https://platform.claude.com/docs/en/build-with-claude/structured-outputs); definitions:
https://json-schema.org/draft/2020-12/json-schema-validation#section-7.3.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

HOSTNAME_CHARACTERS_MAX: Final = 253
"""Longest host name in characters (RFC 1123, section 2.1; RFC 1035, section 2.3.4, without the length octets)."""
LOCAL_PART_CHARACTERS_MAX: Final = 64
"""Longest part of a mailbox before the @, in octets (RFC 5321, section 4.5.3.1.1)."""

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(
    r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)(?:\.[0-9]+)?(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
_CLOCK = r"(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = re.compile(rf"P(?:[0-9]+W|{_DAYS}(?:T{_CLOCK})?|T{_CLOCK})")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL_PART = re.compile(rf'{_ATOM}(?:\.{_ATOM})*|"(?:[ !#-\[\]-~]|\\[ -~])*"')
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_PLAIN = r"A-Za-z0-9\-._~!$&'()*+,;="
"""Characters ``unreserved`` and ``sub-delims`` of RFC 3986."""
_PCHAR = rf"(?:[{_PLAIN}:@]|%[0-9A-Fa-f]{{2}})"
_URI = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*:"
    rf"(?://(?:(?:[{_PLAIN}:]|%[0-9A-Fa-f]{{2}})*@)?"
    rf"(?:\[(?P<literal>[^\[\]]*)\]|(?:[{_PLAIN}]|%[0-9A-Fa-f]{{2}})*)(?::[0-9]*)?(?:/{_PCHAR}*)*"
    rf"|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_PCHAR}+(?:/{_PCHAR}*)*|)"
    rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:\#(?:{_PCHAR}|[/?])*)?"
)
_FUTURE_ADDRESS = re.compile(rf"v[0-9A-Fa-f]+\.[{_PLAIN}:]+", re.IGNORECASE)


def is_date(text: str) -> bool:
    """Return True for a ``full-date`` of RFC 3339, section 5.6: ``2026-01-31``."""
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    try:
        datetime.date(*map(int, found.groups()))
    except ValueError:
        return False
    return True


def is_time(text: str) -> bool:
    """Return True for a ``full-time`` of RFC 3339, section 5.6: ``09:30:00Z``; second 60 at 23:59 UTC only."""
    found = _TIME.fullmatch(text)
    if found is None:
        return False
    hour, minute, second, sign, hours, minutes = found.groups()
    if second != "60":
        return True
    ahead = (int(hours) * 60 + int(minutes)) * (-1 if sign == "-" else 1) if sign else 0
    return (int(hour) * 60 + int(minute) - ahead) % 1_440 == 1_439


def is_date_time(text: str) -> bool:
    """Return True for a ``date-time`` of RFC 3339, section 5.6: ``2026-01-31T09:30:00Z``."""
    return text[10:11] in ("T", "t") and is_date(text[:10]) and is_time(text[11:])


def is_duration(text: str) -> bool:
    """Return True for a ``duration`` of RFC 3339, appendix A: ``P1DT12H``."""
    return _DURATION.fullmatch(text) is not None


def is_hostname(text: str) -> bool:
    """Return True for a host name of RFC 1123, section 2.1."""
    return len(text) <= HOSTNAME_CHARACTERS_MAX and all(_LABEL.fullmatch(label) for label in text.split("."))


def is_email(text: str) -> bool:
    """Return True for a ``Mailbox`` of RFC 5321, section 4.1.2: ``ann@example.org``."""
    local, at, domain = text.rpartition("@")
    if not at or len(local) > LOCAL_PART_CHARACTERS_MAX or _LOCAL_PART.fullmatch(local) is None:
        return False
    if domain.startswith("[") and domain.endswith("]"):
        literal = domain[1:-1]
        return is_ipv6(literal[5:]) if literal[:5].lower() == "ipv6:" else is_ipv4(literal)
    return is_hostname(domain)


def is_ipv4(text: str) -> bool:
    """Return True for a ``dotted-quad`` of RFC 2673, section 3.2: ``192.0.2.1``."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def is_ipv6(text: str) -> bool:
    """Return True for an address of RFC 4291, section 2.2, without a zone: ``2001:db8::1``."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def is_uri(text: str) -> bool:
    """Return True for a ``URI`` of RFC 3986, appendix A, which begins with a scheme."""
    found = _URI.fullmatch(text)
    if found is None:
        return False
    literal = found["literal"]
    return literal is None or is_ipv6(literal) or _FUTURE_ADDRESS.fullmatch(literal) is not None


def is_uuid(text: str) -> bool:
    """Return True for a UUID of RFC 9562, section 4, in either case."""
    return _UUID.fullmatch(text) is not None


FORMATS: Final[Mapping[str, Callable[[str], bool]]] = MappingProxyType({
    "date-time": is_date_time, "time": is_time, "date": is_date, "duration": is_duration, "email": is_email,
    "hostname": is_hostname, "uri": is_uri, "ipv4": is_ipv4, "ipv6": is_ipv6, "uuid": is_uuid,
})  # fmt: skip
"""Formats that are checked, by name. Any other is refused when a job begins."""
EXAMPLES: Final[Mapping[str, str]] = MappingProxyType({
    "date-time": "2026-01-31T09:30:00Z", "time": "09:30:00Z", "date": "2026-01-31", "duration": "P1DT12H",
    "email": "ann@example.org", "hostname": "example.org", "uri": "https://example.org/a", "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1", "uuid": "123e4567-e89b-12d3-a456-426614174000",
})  # fmt: skip
"""Example of each format, for the reason that a model is given and for the simulated provider."""
