"""Most tokens of a reply, by model: ``max_tokens`` above it is rejected.

The package of prices knows context windows and no such limits, and the Models API, which knows them
(``GET /v1/models/NAME``, field ``max_tokens``), is not served by every platform and needs a key. Only models below
``policies.estimates.reply_bounds.LONGER_TOKENS_MAX`` are listed: no larger bound is chosen for a call without its user.

Sources: the models overview (https://platform.claude.com/docs/en/models; 64K or 128K for every later model), and the
text of the API's own error, ``max_tokens: 21333 > 4096, which is the maximum allowed number of output tokens for
claude-3-opus-20240229``, as reported at https://github.com/anthropics/claude-code/issues/11302.
"""

from __future__ import annotations

import re
from typing import Final

_LIMITS: Final = (
    (re.compile(r"claude-3[-.]5-(haiku|sonnet)"), 8_192),
    (re.compile(r"claude-3-(haiku|sonnet|opus)"), 4_096),
    (re.compile(r"claude-(opus-4([-.][01])?|4([-.]1)?-opus)(?![-.]?\d(?!\d{3}))"), 32_000),
)
"""Pattern of names, in any platform's form (``us.anthropic.claude-3-haiku-20240307-v1:0``, ``claude-3-haiku@20240307``)
-> tokens. The first that fits holds. A dated name of Opus 4 has its date behind the version."""


def output_tokens_max(model: str) -> int | None:
    """Return the largest ``max_tokens`` of a model, if it is known to be small; None: not known, or large."""
    name = model.lower()
    return next((tokens for pattern, tokens in _LIMITS if pattern.search(name)), None)
