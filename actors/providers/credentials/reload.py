"""The credential that a model uses, and the one place where its key is read again.

A key that is rotated lies anew in its file while the old one is refused. Whoever is refused asks here before that
counts as a failure: where the file holds another key by now the request is sent once more with it, and nothing pauses.
A request that was refused for its key was not worked off, so it is not paid twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from actors.providers.credentials.credential import Credential
from policies.failures.failure import Failure, FailureKind


class CredentialReload:
    """``take`` puts a renewed credential to use on the roads that are open."""

    def __init__(self, credential: Credential, take: Callable[[Credential], Awaitable[None]]) -> None:
        self.credential = credential
        self._take = take
        self._redactors = [credential.redactor()]
        self._reading = asyncio.Lock()

    def redact(self, text: str) -> str:
        """A text without the secrets of any credential that was ever in use here."""
        for redact in self._redactors:
            text = redact(text)
        return text

    async def after(self, outcome: object, used: Credential) -> bool:
        """Whether to send once more what was sent under ``used``: its key was refused, and there is another by now."""
        refused = isinstance(outcome, Failure) and outcome.kind is FailureKind.UNAUTHORISED and outcome.sent
        if not refused or not used.key_file:
            return False
        async with self._reading:  # all that were in flight are refused: one of them reads
            if self.credential is used:
                found = await asyncio.to_thread(used.renewed)
                if found is None:
                    return False
                self._redactors.append(found.redactor())
                with contextlib.suppress(Exception):  # then it stays as it was told
                    await self._take(found)
                    self.credential = found
                return self.credential is found
        return True
