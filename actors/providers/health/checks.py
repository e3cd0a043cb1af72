"""Checks of one provider for ``cortex doctor``: what opens it, and what it says to calls that cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from actors.common.findings import Finding, ok, warning, wrong
from actors.providers.credentials.account import (
    ClientSpec,
    ProviderLocation,
    base_url_of,
    credential_of,
    endpoint_named,
    may_lack_key,
)
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.pricing import known
from actors.providers.registry import Provider, how_to_open, load, missing_extra
from actors.providers.remedies import has_remedy
from policies.failures.failure import Failure, FailureKind

_MEANINGS: Final = {
    401: "the key is missing, or the provider does not know it",
    403: "the key may not do this: its workspace, its region, or its permissions",
    402: "the account has no credit",
    407: "the proxy requires a user and a password",
}
_ADVICE: Final = {
    FailureKind.BLOCKED: "correct the account or the model: credit, spend limit, the model's name",
    FailureKind.THROTTLED: "wait, or ask the provider for higher limits: a job waits by itself",
    FailureKind.OVERLOADED: "wait: a job tries again by itself",
}


class ProviderChecks:
    """Checks of a provider; the default of ``Provider.checks``, and the base of others.

    It needs of the provider's client no more than a ``Model`` (``actors.ports.model``): the count of a prompt's tokens
    shows for nothing whether the model is there.

    ``model``: name of the user's model; empty: none. ``paid``: True allows one call that costs something.
    ``timeout_s``: for a single call, in seconds.
    """

    paid_tokens: ClassVar[int] = 1
    """Bound of the reply to the one call that is paid for."""

    def __init__(
        self, row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, paid: bool, timeout_s: float
    ) -> None:
        self.row = row
        self.location = location
        self.environ = environ
        self.model = location.model
        self.paid = paid
        self.timeout_s = timeout_s

    def opened(self) -> tuple[Credential | None, list[Finding]]:
        """Return the credential, or None where there is none to go on with, and what was found on the way: no call is
        made that costs something."""
        if line := missing_extra(self.row):
            text, _, do = line.partition(": pip ")
            return None, [wrong("provider", text, f"pip {do}")]
        try:
            credential = credential_of(self.location, self.environ)
        except CredentialError as error:
            text, gives, how = str(error).partition(": give ")
            return None, [wrong("provider", text, f"give {how}" if gives else "correct that setting")]
        found = ok("provider", f"{self.row.title}: {endpoint_named(credential)}")
        return credential, [found, self.key(credential)]

    def key(self, credential: Credential) -> Finding:
        """Find which key there is, or whether a search for credentials finds some where none is given."""
        if credential.api_key:
            where = "--api-key-file" if self.location.key_file else "the environment"
            return ok("key", f"a key from {where}; its fingerprint is {credential.fingerprint}")
        try:
            how = self.search(credential)
        except Exception as error:  # the providers' libraries have errors of many kinds
            text = f"no credentials: {type(error).__name__}: {str(error)[:300]}"
            return wrong("key", text, self.row.how_to_open)
        if not how:
            return wrong("key", "no credentials were found", self.row.how_to_open)
        return ok("key", f"{how}: each process that makes calls looks for its own, on a cluster those on the nodes")

    def search(self, credential: Credential) -> str:
        """Search for credentials as the client does where it has no key; return where they are, empty for nowhere. Any
        error means that there are none."""
        return ""

    def client(self, credential: Credential) -> Any:
        """Return the provider's client."""
        return load(self.row.client)(
            ClientSpec(endpoint=endpoint_named(credential), provider=self.row.name, credential=credential)
        )

    def address(self, credential: Credential) -> str:
        """Return the URL at which the provider is asked."""
        return credential.base_url or self.row.base_url or asyncio.run(self.client(credential).address())

    async def answers(self, credential: Credential, found: list[Finding]) -> list[Finding]:
        """Return what the provider says, given that a connection can be made. ``found``: the findings of ``opened``."""
        if not self.model or any(each.state == "wrong" for each in found):
            return []
        client = self.client(credential)
        try:
            entries = [await self._model(client), self._price(credential)]
            return [*entries, await self.one_call(client)] if self.paid else entries
        finally:
            await client.close()

    async def _model(self, client: Any) -> Finding:
        counted = None
        if getattr(client, "counts_tokens", True):
            if hasattr(client, "prepare"):
                await client.prepare()
            try:
                async with asyncio.timeout(self.timeout_s):
                    counted = await client.count_tokens(hello(self.model))
            except TimeoutError:
                counted = None
        if counted is None:
            text = f"only a paid call can show whether {self.model} exists and may be asked"
            return warning("model", text, "give --paid to make one call of one token")
        _, window = self._known()
        return ok("model", f"{self.model} exists" + (f", with a window of {window:,} tokens" if window else ""))

    def _price(self, credential: Credential) -> Finding:
        price, _ = self._known(credential)
        if price is None:
            text = f"the price of {self.model} is not known here, so a cap in money needs one"
            do = "give --price-as MODEL, or --price input=...,output=..., with --max-cost"
            return warning("price", text, do)
        text = f"{price.input_usd_per_mtok:g} in, {price.output_usd_per_mtok:g} out, USD per million tokens"
        return ok("price", f"{text} ({price.source})")

    def _known(self, credential: Credential | None = None) -> tuple[Any, int | None]:
        platform = credential.platform if credential is not None else None
        return known(self.model, provider=self.row.name, region=platform.region if platform else "")

    async def one_call(self, client: Any) -> Finding:
        """Make one call of the shortest reply, which is paid for."""
        content = [{"role": "user", "content": "Say yes."}]
        body = msgspec.json.encode({"model": self.model, "max_tokens": self.paid_tokens, "messages": content})
        came = await client.call(body, output_tokens_max=self.paid_tokens, timeout_s=self.timeout_s)
        tokens = "one token" if self.paid_tokens == 1 else f"{self.paid_tokens} tokens"
        if isinstance(came, Failure):
            text, do = self.told(came)
            return wrong("credit", f"a call of {tokens} failed: {text}", do or "see the message of the provider")
        used = f"{came.usage.input_tokens_billed} tokens in, {came.usage.output_tokens} out"
        if came.usage.unknown:
            used = "no token count: each call is charged at its worst case"
        return ok("credit", f"a paid call of {tokens} was answered ({used})")

    def told(self, failure: Failure) -> tuple[str, str]:
        """Return a failure in words, and what to do about it: the remedy at the end of its message, or what holds for
        its kind; empty where nothing general holds."""
        text = in_words(failure)
        own = (FailureKind.BLOCKED, FailureKind.TRANSIENT, FailureKind.UNAUTHORISED)
        if failure.kind in own and has_remedy(failure.message):
            text, _, remedy = text.rpartition(": ")
            return text, remedy
        return text.rstrip("."), self.advice(failure.kind)

    def advice(self, kind: FailureKind) -> str:
        """Return what to do about a failure of this kind; empty where nothing general holds."""
        if kind is not FailureKind.UNAUTHORISED:
            return _ADVICE.get(kind, "")
        if may_lack_key(self.row, endpoint := base_url_of(self.row, self.location, self.environ)):
            return how_to_open(endpoint)
        if self.row.key_file_variable:
            return f"set a good key in {self.row.key_variable}, or in the file of {self.row.key_file_variable}"
        return self.row.how_to_open


def hello(model: str) -> bytes:
    """Return the canonical request of a short prompt whose tokens are counted."""
    return msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": "hello"}]})


def in_words(failure: Failure) -> str:
    """Return a failure for people: its kind, its status and what that means, its message."""
    meant = "" if has_remedy(failure.message) else _MEANINGS.get(failure.status, "")
    status = f" (HTTP {failure.status}{f': {meant}' if meant else ''})" if failure.status else ""
    return f"{failure.kind}{status}: {failure.message}"
