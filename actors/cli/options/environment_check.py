"""Variables of the environment that look like options of ours and are none: a cap that is misspelt caps nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from actors.cli.options.option_specs import DECLARED

_OWN = frozenset({"CORTEX_STARTED_BY", "CORTEX_PRIVATE_RAY"})
"""Set by ourselves."""
_OF_A_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+\w*)$")
"""What Kubernetes sets for a service of this name (https://kubernetes.io/docs/concepts/services-networking/service/)."""
_ALIKE = 0.85
"""Of `difflib`'s ratio: one or two letters off in a name of this length."""


def misspelt(environ: Mapping[str, str]) -> str:
    """One line that names the first such variable and what it is near to; empty where there is none."""
    known = {option.envvar for _, option in DECLARED.values()}
    for name in sorted(environ):
        if not name.startswith("CORTEX_") or name in known or name in _OWN or _OF_A_SERVICE.search(name):
            continue
        if near := difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE):
            return f"{name} is set, and is no option: write {near[0]}, or unset it"
    return ""
