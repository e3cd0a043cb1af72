"""Checksums of the facts of a journal: a fact of its own, which names each of the others with its checksum.

So a fact that was changed, renamed or lost on the disk is noticed when it is read. The fact ``format`` is exempt: each
release finds it, whatever else it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from cortex.journal.seals import BadSeal, fact_digest, opened, sealed

DIGESTS = "digests"
"""Name of the fact that holds the checksums. A journal without it was written before there were any."""
EXEMPT = frozenset({DIGESTS, "format"})


def decoded(blob: object) -> dict[str, int] | None:
    """Return checksums by name; None for a journal that has none. Raises ``BadSeal``."""
    if blob is None:
        return None
    try:
        return msgspec.msgpack.decode(opened(0, blob)[0], type=dict[str, int])
    except msgspec.MsgspecError:
        raise BadSeal from None


def encoded(digests: Mapping[str, int]) -> bytes:
    """Encode checksums by name."""
    return sealed(0, msgspec.msgpack.encode(dict(digests)), 0)[0]


def of(facts: Iterable[tuple[str, bytes]]) -> dict[str, int]:
    """Return the checksums of these facts, of a journal that has none yet. Raises ``BadSeal`` for what is no fact."""
    facts = list(facts)
    if not all(type(key) is str and type(value) is bytes for key, value in facts):
        raise BadSeal
    return {key: fact_digest(key, value) for key, value in facts if key not in EXEMPT}


def checked(digests: Mapping[str, int] | None, key: str, value: object) -> bytes | None:
    """Return a fact as it was read; None if it is not set. Raises ``BadSeal``."""
    if value is not None and type(value) is not bytes:
        raise BadSeal
    if digests is None or key in EXEMPT:
        return value
    if digests.get(key) != (fact_digest(key, value) if value is not None else None):
        raise BadSeal
    return value
