"""Sources of built-in programs in earlier releases, for the journals of those releases.

Release 0.1.0 wrote into a journal a hash of the source text of the program. Since then the hash of a built-in program
leaves out comments, docstrings and imports (``actors.programs.fingerprint``). A built-in program whose behaviour has
not changed since has its old source here, so that jobs of that release can be resumed. Remove a source when the
behaviour of its program changes: its jobs then begin anew and reuse the replies that they have paid for.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from cortex.programs import READY

RELEASE = "0.1.0"
_MODULES = {
    "cortex.programs.batch:Batch": ("batch",),
    "cortex.programs.table:Table": ("table",),
    "cortex.programs.shards:Shards": ("shards", "batch", "table"),
}
"""Place of a program -> modules that it consisted of in that release, in the order in which they were hashed."""


def fingerprint_then(where: str, params_json: bytes) -> str:
    """Return the fingerprint of a built-in program in release 0.1.0; empty for other programs."""
    modules = _MODULES.get(READY.get(where, where))
    if modules is None or _HAS_SCHEMA in params_json:
        return ""
    digest = sha256(RELEASE.encode() + b"\0" + params_json)
    for module in modules:
        digest.update(_source(module))
    return digest.hexdigest()[:24]


_HAS_SCHEMA = b'"schema":"{'
"""Bytes of the parameters of a table, or of its shards, with a schema: release 0.1.0 checked answers by fewer rules."""


@lru_cache
def _source(module: str) -> bytes:
    return (Path(__file__).parent / RELEASE / f"{module}.txt").read_bytes()
