"""Depth of JSON text, judged without decoding it.

Decoders recurse, so the depth to which they go depends on the interpreter's stack and on who calls them: one journal
could be read in two ways. Text that is deeper than `JSON_DEPTH_MAX` is therefore refused where it enters, and before a
decoder sees it. Other readers stop at similar depths (https://learn.microsoft.com/dotnet/api/system.text.json
.jsonreaderoptions.maxdepth: 64; protobuf's JSON parsers: 100).
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

JSON_DEPTH_MAX: Final = 100
"""Most objects and arrays inside each other."""
BRACKETS_MAX: Final = JSON_DEPTH_MAX + 1
"""Brackets of a kind that are looked for. Shallow text is found by taking them out: in CPython 3.11 ``bytes.replace``
goes from one to the next by ``memchr``, and ``bytes.count`` from byte to byte (``Objects/stringlib``), which takes
1.4 to 40 times as long."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # possessive: no memory for each character
_STEP: Final = {ord("{"): 1, ord("["): 1, ord("}"): -1, ord("]"): -1}
_OTHERS: Final = bytes(each for each in range(256) if each not in _STEP)


def too_deep(text: str | bytes) -> bool:
    """Return True if JSON text is nested deeper than `JSON_DEPTH_MAX`. Text that is not JSON has some depth too."""
    if type(text) is str:
        if text.count("{") + text.count("[") <= JSON_DEPTH_MAX:
            return False
        text = text.encode(errors="surrogatepass")
    assert isinstance(text, bytes)
    if len(text) - len(text.replace(b"{", b"", BRACKETS_MAX).replace(b"[", b"", BRACKETS_MAX)) <= JSON_DEPTH_MAX:
        return False
    brackets = _STRING.sub(b"", text).translate(None, _OTHERS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > JSON_DEPTH_MAX


def deep_words() -> str:
    """Return what is wrong with text that is too deep, for an error."""
    return f"nested too deeply (more than {JSON_DEPTH_MAX} levels)"
