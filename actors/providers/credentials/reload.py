"""Reload of a client's credential when its key is refused.

A rotated key is in its file before the old one is refused. A client therefore reads the file again before a refusal
counts as a failure: if the file holds another key, the request is sent once more with it, and nothing pauses. A token
that ends is fetched anew in the same way. A request that was refused for its key was not processed, so it is not paid
twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from actors.providers.credentials.credential import Credential
from policies.failures.failure import Failure, FailureKind

_REDACTORS_MAX: Final = 8
"""Latest credentials whose secrets are taken out of texts: tokens of an hour would else pile up."""


class CredentialReload:
    """Credential of a client. ``take`` changes the client's open transports to a renewed one.

    ``fetch``: source of a renewed credential where there is no file; it returns None where there is none.
    """

    fetch: Callable[[Credential], Awaitable[Credential | None]] | None = None

    def __init__(self, credential: Credential, take: Callable[[Credential], Awaitable[None]]) -> None:
        self.credential = credential
        self._take = take
        self._redactors = [credential.redactor()]
        self._reading = asyncio.Lock()

    def redact(self, text: str) -> str:
        """Return a text without the secrets of any credential that the client has used."""
        for redact in self._redactors:
            text = redact(text)
        return text

    async def after(self, outcome: object, used: Credential) -> bool:
        """Return whether to send once more a request that was sent under ``used``: its key was refused, and there is
        another one now."""
        refused = isinstance(outcome, Failure) and outcome.kind is FailureKind.UNAUTHORISED and outcome.sent
        if not refused or not (used.key_file or self.fetch):
            return False
        async with self._reading:  # all calls in flight are refused: one of them reads
            if self.credential is used:
                found = await (asyncio.to_thread(used.renewed) if self.fetch is None else self.fetch(used))
                if found is None:
                    return False
                with contextlib.suppress(Exception):  # then the refusal stands
                    await self.replace(found)
                return self.credential is found
        return True

    async def replace(self, found: Credential) -> None:
        """Use this credential from now on. Raises what ``take`` raises; the credential then stays."""
        self._redactors = [*self._redactors[1 - _REDACTORS_MAX :], found.redactor()]
        await self._take(found)
        self.credential = found
