"""Check of ``cortex doctor``: what the local model needs installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from actors.common.findings import Finding, ok, wrong
from actors.providers.local import model as local
from actors.providers.registry import LOCAL

CHECK = "local model"


def installation(model: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Find whether the local model is installed."""
    if not local.installed():
        do = f"{local.INSTALL} (130 MB)"
        if model == LOCAL:
            yield wrong(CHECK, "--model local is not installed", do)
        else:
            yield ok(CHECK, "not installed; only --model local needs it")
        return
    yield ok(CHECK, f"installed; its weights are {local.weights_path()}")
