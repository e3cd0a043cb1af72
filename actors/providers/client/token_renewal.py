"""Renewal of the access token that a client sends: before it ends, and beside the calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from actors.providers.credentials.access_token import AGAIN_S, AccessToken, TokenSource, due_s
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.reload import CredentialReload
from actors.providers.transport.failures import RequestUnprepared

_REMEMBERED_S: Final = 5.0
"""Seconds for which the error of a first token is that of all calls: each of them would else wait for its own."""


class TokenRenewal:
    """Token of a client's credential (``Credential.auth_token``).

    ``source`` fetches tokens in a thread; ``keys`` holds the credential. Nothing is fetched while no call is made.
    ``clock``: Unix time.
    """

    def __init__(self, source: TokenSource, keys: CredentialReload, clock: Callable[[], float] = time.time) -> None:
        self._source, self._keys, self._clock = source, keys, clock
        self._token: AccessToken | None = None
        self._due_s = float("inf")
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Lock()
        self._failed: tuple[float, Exception] | None = None
        keys.fetch = self.fetched

    @property
    def due(self) -> bool:
        """True if a call is to say so (``in_time``). Cheap: asked by every call."""
        return self._clock() >= self._due_s

    async def in_time(self) -> None:
        """Begin to fetch the next token, if none is on its way. Wait for it only if the present one has ended."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._renew())
        if self._token is not None and self._clock() >= self._token.ends_at_s:
            await asyncio.wait([self._task])

    async def first(self) -> None:
        """Fetch a token, if there is none yet. Raises RequestUnprepared, whose cause says why there is none."""
        async with self._first:
            if self._token is not None:
                return
            if self._failed is not None and self._clock() < self._failed[0] + _REMEMBERED_S:
                raise RequestUnprepared from self._failed[1]
            try:
                token = await asyncio.to_thread(self._source)
            except Exception as error:
                self._failed = self._clock(), error
                raise RequestUnprepared from error
            await self._keys.replace(self._taken(token, self._keys.credential))

    async def fetched(self, used: Credential) -> Credential | None:
        """Return the credential with a new token, after one was refused; None where the next one is the same, or cannot
        be fetched."""
        try:
            token = await asyncio.to_thread(self._source)
        except Exception:
            return None
        found = self._taken(token, used)
        return None if found.auth_token == used.auth_token else found

    async def close(self) -> None:
        """Stop fetching."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _renew(self) -> None:
        try:
            token = await asyncio.to_thread(self._source)
            await self._keys.replace(self._taken(token, self._keys.credential))
        except Exception:  # the present token may hold for some minutes; a call that is refused says why
            self._due_s = self._clock() + AGAIN_S

    def _taken(self, token: AccessToken, credential: Credential) -> Credential:
        self._token, self._due_s = token, due_s(token, self._clock())
        return msgspec.structs.replace(credential, auth_token=token.text)
