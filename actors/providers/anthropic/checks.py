"""Checks of Anthropic, and of any server that speaks the Messages API, for ``cortex doctor``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from actors.common.findings import Finding, ok, warning, wrong
from actors.providers.anthropic.account import TOKEN
from actors.providers.credentials.account import credential_of, key_file, key_variable, may_lack_key
from actors.providers.credentials.credential import Credential, CredentialError, without_password
from actors.providers.health.checks import ProviderChecks, hello, in_words
from actors.providers.messages.client import COUNT_TOKENS, MESSAGES, AnthropicModel
from actors.providers.pricing import known
from actors.providers.remedies import ADDRESS
from policies.failures.error_vocabulary import NO_SUCH_PATH
from policies.failures.failure import FailureKind

MODELS: Final = "/v1/models"
_SKEW_S, _SKEW_FAR_S = 30.0, 300.0
"""Differences of clocks in seconds, from which a warning and an error are due: a Retry-After in date form and a
deadline are off by as much; far off, certificates and tokens are refused."""

_Answer = tuple[int, Mapping[str, str], bytes]


class AnthropicChecks(ProviderChecks):
    """Checks that use the free calls of the Messages API: the list of models, and the count of tokens."""

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
            do = f"set {variable}, or give --api-key-file; --model sim needs none"
            return wrong("key", "no key is set", do)
        where = TOKEN if credential.auth_token else self.row.headers_variable
        if credential.api_key:
            where = f"the file of {file_variable}" if key_file(self.row, self.environ, base_url) else variable
            where = "--api-key-file" if self.location.key_file else where
        where += f", sent to {shown}" if may_lack_key(self.row, base_url) else ""
        path = self.location.key_file or key_file(self.row, self.environ, base_url)
        if path and os.name == "posix" and os.stat(path).st_mode & 0o044 and os.stat(path).st_uid == os.geteuid():
            return warning("key", f"from {where}; other users may read the file", f"chmod 600 {path}")
        return ok("key", f"from {where}; its fingerprint is {credential.fingerprint}")

    async def answers(self, credential: Credential, found: list[Finding]) -> list[Finding]:
        """Return what the provider says to free calls with the key, and to one that is paid for where the user asked
        for it."""
        client: AnthropicModel = self.client(credential)
        shown = without_password(self.address(credential))
        try:
            begun_s = time.time()
            try:
                answer = await client.look(MODELS, None, self.timeout_s)
            except Exception as error:
                return [_unanswered(client, shown, error)]
            account = self._account(client, shown, answer, credential.has_key)
            if answer[0] in NO_SUCH_PATH:
                account = await self._misdirected(client, shown) or account
            entries = [*_clock(answer[1], begun_s, time.time()), account]
            if self.model and all(each.state != "wrong" for each in entries):
                entries.append(await self._model(client, credential.base_url))
            if self.paid and self.model and all(each.state != "wrong" for each in entries):
                entries.append(await self.one_call(client))
            return entries
        finally:
            await client.close()

    def _account(self, client: AnthropicModel, shown: str, answer: _Answer, has_key: bool) -> Finding:
        status = answer[0]
        if status in NO_SUCH_PATH:
            text = f"{shown} answers, but has no list of models: only a paid call can show whether the key is accepted"
            return warning("account", text, "give --paid and --model NAME to make one call of one token")
        if not 200 <= status < 300:
            return self._refused(client, answer, "account", shown)
        if not _is_object(answer[2]):
            text = f"{shown}{MODELS} answers {status} with what is no JSON, such as a page"
            return wrong("account", text, ADDRESS)
        if not has_key:
            return ok("account", f"{shown} answers without a key")
        return ok("account", f"{shown} accepts the key; no free call shows the credit that is left")

    def _refused(
        self, client: AnthropicModel, answer: _Answer, check: str, shown: str, path: str = ""
    ) -> Finding:  # fmt: skip
        failure = client.refusal_of(*answer, path)
        text, do = self.told(failure)
        made = warning if failure.kind in (FailureKind.THROTTLED, FailureKind.OVERLOADED) else wrong
        return made(check, f"{shown}: {text}", do or "check what the address serves: cortex needs the Messages API")

    async def _misdirected(self, client: AnthropicModel, shown: str) -> Finding | None:
        """Return the finding that the address does not serve the API; None where it does. A request without a message
        shows it: a server of the API refuses it, and bills nothing."""
        try:
            answer = await client.look(MESSAGES, b"{}", self.timeout_s)
        except Exception:  # the call before was answered
            return None
        if answer[0] < 400 or ADDRESS not in client.refusal_of(*answer, MESSAGES).message:
            return None
        return self._refused(client, answer, "account", shown, MESSAGES)

    async def _model(self, client: Any, address: str = "") -> Finding:
        name = self.model
        try:
            answer = await client.look(COUNT_TOKENS, hello(name), self.timeout_s)
        except Exception as error:
            return _unanswered(client, f"--model {name}", error)
        if answer[0] in NO_SUCH_PATH and client.refusal_of(*answer).kind is not FailureKind.BLOCKED:
            text = f"only a paid call can show whether {name} exists: the endpoint does not count tokens"
            return warning("model", text, "give --paid to make one call of one token")
        if not 200 <= answer[0] < 300:
            return self._refused(client, answer, "model", name)
        price, window = known(name, provider=self.row.name, address=address)
        if price is None:
            text = f"{name} exists; its price is not known here, so a cap in money needs one"
            return warning("model", text, "give --price input=...,output=... or --price-as MODEL with --max-cost")
        return ok("model", f"{name} exists, with a window of {window or 0:,} tokens and a known price")


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _unanswered(client: AnthropicModel, shown: str, error: Exception) -> Finding:
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
