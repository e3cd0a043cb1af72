"""Forms in which a secret comes back in a text of a provider: encoded, escaped, reversed, split over lines, or cut.

Servers and gateways quote the request that they refuse, as it is, or in the form in which they held it: base64 of a
whole header (RFC 7617), percent-encoding, JSON or HTML escapes, hex of a dump, in capitals, wrapped at some column.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

LENGTH_MIN: Final = 12
"""Characters of a secret from which its other forms are looked for: shorter ones stand in ordinary text by accident."""
LENGTH_MAX: Final = 600
"""Characters up to which they are. A longer secret is a document, such as an account's key file."""
_NEEDLE: Final = 8
"""Characters of a form that must stand in a text before the costly search begins, and least length of a cut secret."""
_BREAK: Final = r"(?:\s|\\{1,8}[nrt]|[\u00ad\u200b])"
_GAP: Final = _BREAK + "{0,99}+"
"""Text between two characters of a secret that was split: white space, its escapes, invisible characters.
Bounded and without a way back, so that a text of a provider takes time by its length, not by its square."""
_NO_TEXT: Final = re.compile(_BREAK + "++")


def wide_redactor(secrets: Iterable[str], replacement: str) -> Callable[[str], str]:
    """Return a function that puts ``replacement`` in place of each form of these secrets in a text."""
    whole = [secret for secret in secrets if LENGTH_MIN <= len(secret) <= LENGTH_MAX]
    forms = dict.fromkeys(form for secret in whole for form in _forms(secret) if len(form) >= LENGTH_MIN)
    if not forms:
        return lambda text: text
    parts = [*(_NO_TEXT.sub("", form)[-_NEEDLE:] for form in forms), *(secret[:_NEEDLE] for secret in whole)]
    needles = {part.casefold() for part in parts}
    pattern = re.compile(
        "|".join(_GAP.join(map(re.escape, form)) for form in sorted(forms, key=len, reverse=True)), re.IGNORECASE
    )

    def redact(text: str) -> str:
        squeezed = _NO_TEXT.sub("", text).casefold()
        if not any(needle in squeezed for needle in needles):
            return text
        return _without_cut(pattern.sub(replacement, text), whole, replacement)

    return redact


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret; upper and lower case count as one."""
    data = secret.encode()
    yield secret
    yield secret[::-1]
    yield quote(secret, safe="")
    yield quote(quote(secret, safe=""), safe="")
    yield quote_plus(secret)
    yield html.escape(secret)
    escaped = json.dumps(secret)[1:-1]
    yield escaped
    yield escaped.replace("/", "\\/")
    yield "".join(f"\\u{ord(each):04x}" for each in secret)
    yield "".join(f"%{each:02x}" for each in data)
    yield data.hex()
    yield data.hex(" ")
    yield data.hex(":")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):  # within a longer text that was encoded, as "Bearer KEY" is
            # characters that depend on what stands before or behind are left out
            text = encode(bytes(before) + data).decode().rstrip("=")
            yield text[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]


def _without_cut(text: str, secrets: Iterable[str], replacement: str) -> str:
    """Return a text without the beginning of a secret at its end, where it was cut."""
    for secret in secrets:
        for length in range(len(secret) - 1, _NEEDLE - 1, -1):
            if text.endswith(secret[:length]):
                return text[:-length] + replacement
    return text
