"""Checks of APIs that have a list of models, for ``cortex doctor``: key, account, clock, and the model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

import msgspec

from actors.common.findings import Finding, ok, warning, wrong
from actors.providers.credentials.account import credential_of, key_file, key_variable, may_lack_key
from actors.providers.credentials.credential import Credential, CredentialError, without_password
from actors.providers.health.checks import ProviderChecks, in_words
from actors.providers.pricing import known
from policies.failures.error_vocabulary import NO_SUCH_PATH
from policies.failures.failure import FailureKind

_SKEW_S, _SKEW_FAR_S = 30.0, 300.0
"""Differences of clocks in seconds, from which a warning and an error are due: a Retry-After in date form and a
deadline are off by as much; far off, certificates and tokens are refused."""

LookAnswer = tuple[int, Mapping[str, str], bytes]


class ApiChecks(ProviderChecks):
    """Checks that use the free calls of an API: the list of models, and a request without a message.

    The client has ``look``, ``failure_of`` and ``refusal_of``, as ``actors.providers.messages.client.AnthropicModel``.
    """

    api: ClassVar[str]
    """Name of the API for people."""
    models_path: ClassVar[str]
    """Path of the list of models."""
    call_path: ClassVar[str]
    """Path of calls."""
    wrong_address: ClassVar[str]
    """Remedy where the address does not serve the API (``actors.providers.remedies``)."""
    token_variable: ClassVar[str] = ""
    """Environment variable of a token that serves as a key."""

    def opened(self) -> tuple[Credential | None, list[Finding]]:
        """Return the credential, without a key where there is none, since the connection can be checked all the
        same."""
        try:
            credential = credential_of(self.location, self.environ, required=False)
        except CredentialError as error:
            return None, [wrong("key", str(error), "correct that variable")]
        return credential, [self.key(credential)]

    def key(self, credential: Credential) -> Finding:
        """Find where the key comes from, and whether others may read its file."""
        base_url, shown = credential.base_url, without_password(credential.base_url)
        variable, file_variable = key_variable(self.row, self.environ, base_url), self.row.key_file_variable
        if not (credential.api_key or credential.auth_token or credential.custom_headers):
            if may_lack_key(self.row, base_url):
                return ok("key", f"none is set: calls to {shown} hold none")
            if self.takes_tokens(credential):
                return ok("key", "none is set: tokens are fetched by the cloud's own library")
            do = f"set {variable}, or give --api-key-file; --model sim needs none"
            return wrong("key", "no key is set", do)
        where = self.token_variable if credential.auth_token else self.row.headers_variable
        if credential.api_key:
            where = f"the file of {file_variable}" if key_file(self.row, self.environ, base_url) else variable
            where = "--api-key-file" if self.location.key_file else where
        where += f", sent to {shown}" if may_lack_key(self.row, base_url) else ""
        path = self.location.key_file or key_file(self.row, self.environ, base_url)
        if path and os.name == "posix" and os.stat(path).st_mode & 0o044 and os.stat(path).st_uid == os.geteuid():
            return warning("key", f"from {where}; other users may read the file", f"chmod 600 {path}")
        return ok("key", f"from {where}; its fingerprint is {credential.fingerprint}")

    def takes_tokens(self, credential: Credential) -> bool:
        """Return True if calls without a key hold a token that is fetched when they are made."""
        return False

    async def answers(self, credential: Credential, found: list[Finding]) -> list[Finding]:
        """Return what the provider says to free calls with the key, and to one that is paid for where the user asked
        for it."""
        client = self.client(credential)
        shown = without_password(self.address(credential))
        try:
            begun_s = time.time()
            try:
                answer = await client.look(self.models_path, None, self.timeout_s)
            except Exception as error:
                return [unanswered(client, shown, error)]
            account = self._account(client, shown, answer, credential.has_key or self.takes_tokens(credential))
            if answer[0] in NO_SUCH_PATH:
                account = await self._misdirected(client, shown) or account
            entries = [*_clock(answer[1], begun_s, time.time()), account]
            if self.model and all(each.state != "wrong" for each in entries):
                entries.append(await self.model_finding(client, credential.base_url, answer))
            if self.paid and self.model and all(each.state != "wrong" for each in entries):
                entries.append(await self.one_call(client))
            return entries
        finally:
            await client.close()

    def _account(self, client: Any, shown: str, answer: LookAnswer, has_key: bool) -> Finding:
        status = answer[0]
        if status in NO_SUCH_PATH:
            text = f"{shown} answers, but has no list of models: only a paid call can show whether the key is accepted"
            return warning("account", text, "give --paid and --model NAME to make one call of one token")
        if not 200 <= status < 300:
            return self.refused(client, answer, "account", shown)
        if not _is_json(answer[2]):
            text = f"{shown}{self.models_path} answers {status} with what is no JSON, such as a page"
            return wrong("account", text, self.wrong_address)
        if not has_key:
            return ok("account", f"{shown} answers without a key")
        return ok("account", f"{shown} accepts the key; no free call shows the credit that is left")

    def refused(
        self, client: Any, answer: LookAnswer, check: str, shown: str, path: str = ""
    ) -> Finding:  # fmt: skip
        """Return the finding on a refused call."""
        failure = client.refusal_of(*answer, path)
        text, do = self.told(failure)
        made = warning if failure.kind in (FailureKind.THROTTLED, FailureKind.OVERLOADED) else wrong
        return made(check, f"{shown}: {text}", do or f"check what the address serves: cortex needs {self.api}")

    async def _misdirected(self, client: Any, shown: str) -> Finding | None:
        """Return the finding that the address does not serve the API; None where it does. A request without a message
        shows it: a server of the API refuses it, and bills nothing."""
        try:
            answer = await client.look(self.call_path, b"{}", self.timeout_s)
        except Exception:  # the call before was answered
            return None
        if answer[0] < 400 or self.wrong_address not in client.refusal_of(*answer, self.call_path).message:
            return None
        return self.refused(client, answer, "account", shown, self.call_path)

    async def model_finding(self, client: Any, address: str, models: LookAnswer) -> Finding:
        """Find whether the user's model is there. ``models``: the answer of the list of models."""
        raise NotImplementedError

    def priced(self, address: str) -> Finding:
        """Return the finding on a model that exists: its window and its price."""
        price, window = known(self.model, provider=self.row.name, address=address)
        if price is None:
            text = f"{self.model} exists; its price is not known here, so a cap in money needs one"
            return warning("model", text, "give --price input=...,output=... or --price-as MODEL with --max-cost")
        return ok("model", f"{self.model} exists, with a window of {window or 0:,} tokens and a known price")


def _is_json(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict | list)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def unanswered(client: Any, shown: str, error: Exception) -> Finding:
    """Return the finding on a call that no server answered."""
    failure = client.failure_of(error)
    do = "check the proxy, the certificates and the address"
    if failure.status == 407:
        do = "give the proxy's user and password in HTTPS_PROXY: http://USER:PASSWORD@HOST:PORT"
    return wrong("account", f"{shown} did not answer: {in_words(failure)}", do)


def _clock(headers: Mapping[str, str], begun_s: float, ended_s: float) -> Iterator[Finding]:
    """Compare our clock with the Date of an answer, which was made between the two times and is cut to the second."""
    try:
        theirs_s = parsedate_to_datetime(headers.get("Date", "")).timestamp()
    except (TypeError, ValueError):
        yield ok("clock", "the endpoint sends no time to compare with")
        return
    skew_s = 0.0
    if theirs_s > ended_s:
        skew_s = theirs_s - ended_s
    elif theirs_s + 1.0 < begun_s:
        skew_s = theirs_s + 1.0 - begun_s
    text = f"this machine's clock is {abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} the endpoint's"
    if abs(skew_s) > _SKEW_FAR_S:
        yield wrong("clock", text, "set the clock (NTP): certificates and deadlines depend on it")
    elif abs(skew_s) > _SKEW_S:
        yield warning("clock", text, "set the clock (NTP): deadlines depend on it")
    else:
        yield ok("clock", "this machine's clock agrees with the endpoint's")
