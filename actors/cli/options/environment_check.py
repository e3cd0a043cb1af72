"""Check for misspelt ``CORTEX_`` variables: a cap with a misspelt name would have no effect."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from actors.cli.options.option_specs import DECLARED
from actors.providers.registry import PROVIDERS

_OWN = frozenset({"CORTEX_STARTED_BY", "CORTEX_PRIVATE_RAY"})
"""Variables that Cortex sets itself."""
_OF_A_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+\w*)$")
"""Variables that Kubernetes sets for a service named ``cortex``
(https://kubernetes.io/docs/concepts/services-networking/service/)."""
_ALIKE = 0.85
"""Least ratio of ``difflib`` for a likely misspelling: one or two letters off in names of this length."""


def misspelt(environ: Mapping[str, str]) -> str:
    """Return an error line for the first misspelt variable, with the likely option; empty if there is none."""
    known = {option.envvar for _, option in DECLARED.values()}
    known |= {row.server_key_variable for row in PROVIDERS.values()} - {""}
    for name in sorted(environ):
        if not name.startswith("CORTEX_") or name in known or name in _OWN or _OF_A_SERVICE.search(name):
            continue
        if near := difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE):
            return f"{name} is set, and is no option: write {near[0]}, or unset it"
    return ""
