"""Remedies of blocked routes: what a person can do, as clauses at the end of a failure's message."""

from __future__ import annotations

import re
from typing import Final

MODEL: Final = "give a --model that is served there"
"""Remedy where a server does not have the model."""
ADDRESS: Final = "see that --base-url names a server of the Messages API, or give --api chat for chat completions"
"""Remedy where a server answers that does not serve the API."""
CHAT_ADDRESS: Final = "see that --base-url names a server of OpenAI's chat completions, or leave out --api chat"
"""Remedy where a server answers that does not serve that API."""
PAGE: Final = "see that --base-url and the key are right, and that no proxy is in the way (HTTPS_PROXY, NO_PROXY)"
"""Remedy where a call is refused by a page, which is of a proxy or a gateway rather than of the API."""
LIMIT: Final = "the provider says that trying again does not help (x-should-retry), so put the account's limit right"
"""Remedy where a limit is reached that waiting does not lift."""
BATCHES: Final = "leave out --via batches, or see that --base-url names a server that has message batches"
"""Remedy where a server has no message batches."""

RESPONSES_ADDRESS: Final = (
    "see that --base-url names a server of OpenAI's Responses API, or give --api chat for chat completions"
)
"""Remedy where a server answers that does not serve that API."""

_NAMED: Final = re.compile(r"--(?:base-url|model|via)\b|\bSSL_CERT_FILE\b")


def has_remedy(message: str) -> bool:
    """Return whether the message of a blocked route says already what to do, so that no general advice is due."""
    return _NAMED.search(message) is not None
