"""Reload of a client's credential when its key is refused.

A rotated key is in its file before the old one is refused. A client therefore reads the file again before a refusal
counts as a failure: if the file holds another key, the request is sent once more with it, and nothing pauses. A request
that was refused for its key was not processed, so it is not paid twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from actors.providers.credentials.credential import Credential
from policies.failures.failure import Failure, FailureKind


class CredentialReload:
    """Credential of a client. ``take`` changes the client's open transports to a renewed one."""

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
        if not refused or not used.key_file:
            return False
        async with self._reading:  # all calls in flight are refused: one of them reads
            if self.credential is used:
                found = await asyncio.to_thread(used.renewed)
                if found is None:
                    return False
                self._redactors.append(found.redactor())
                with contextlib.suppress(Exception):  # then the refusal stands
                    await self._take(found)
                    self.credential = found
                return self.credential is found
        return True
