"""Size of a value that the interpreter hands out, counted before anything copies or encodes the value.

Code can build a value that is small in its interpreter and huge once written: ``[text] * 100_000`` holds one text. Such
a value must not reach an encoder: where memory ends, ``encode`` of msgspec 0.22 and 0.23 ends the process by a
segmentation fault instead of a ``MemoryError``. ``_PyBytes_Resize`` sets the buffer to NULL when it fails
(https://docs.python.org/3/c-api/bytes.html#c._PyBytes_Resize), and ``encoder_encode_common`` then calls ``Py_DECREF``
on it (https://github.com/msgspec/msgspec/blob/593ec54/src/msgspec/_core.c#L9955).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

REFERENCE_BYTES = 8
"""Bytes of a reference to a value in a list; MessagePack has at most one byte more for a number."""
CONTAINER_BYTES = 64
"""Bytes of an empty dict of CPython 3.11 (``sys.getsizeof``), which a copy of the value makes anew; a list has 56."""


def size_up_to(value: Any, bytes_max: int, each: int = REFERENCE_BYTES, container: int = CONTAINER_BYTES) -> int:
    """Return the bytes of a value as a copy without shared parts: those of all texts, ``each`` bytes for every value,
    and ``container`` bytes more for every list, tuple, set and dict.

    The count ends once it is above ``bytes_max``, so its time does not depend on the size of the value.
    """
    size = 0
    walks: list[Iterator[Any]] = [iter((value,))]
    while walks and size <= bytes_max:
        for one in walks[-1]:
            size += each
            if isinstance(one, str):
                size += len(one) if one.isascii() else len(one.encode(errors="surrogatepass"))
            elif isinstance(one, bytes):
                size += len(one)
            elif isinstance(one, (list, tuple, set, frozenset, dict)):
                size += container
                walks.append(chain(one, one.values()) if isinstance(one, dict) else iter(one))
                break
            if size > bytes_max:
                break
        else:
            walks.pop()
    return size
