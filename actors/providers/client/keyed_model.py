"""Client of an API that is opened by a key or a token in one header, at any provider whose row names it, and at any
server of `--base-url`. No SDK is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from actors.providers.client.http_model import FreeWay, HttpModel
from actors.providers.client.key_dialect import KeyDialect
from actors.providers.client.token_renewal import TokenRenewal
from actors.providers.client.wire_form import Variant, WireForm
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.base_url import read_base_url
from actors.providers.credentials.credential import Credential
from actors.providers.registry import Provider, load
from actors.providers.transport.aiohttp_transport import AiohttpTransport, RequestTemplate
from actors.providers.transport.proxy_tls import network_of
from cortex.values.bounds.counts import CountFromOne


class _Count(msgspec.Struct):
    input_tokens: CountFromOne


_COUNT: Final = msgspec.json.Decoder(_Count)


class KeyedModel(HttpModel):
    """Model behind such an API. Raises CredentialError for an address that is no URL."""

    def __init__(
        self, form: WireForm, dialect: KeyDialect, spec: ClientSpec, row: Provider, credential: Credential,
        variant: Variant = None,
    ) -> None:  # fmt: skip
        if credential.base_url:
            address = read_base_url("the base URL", credential.base_url, row.appended, row.root)
            credential = msgspec.structs.replace(credential, base_url=address)
        self._dialect = dialect
        self.url = address_of(row, dialect, credential)
        """Address to which the paths of the API are appended."""
        super().__init__(
            form, row, credential, endpoint=spec.endpoint, url=self.url, concurrency=spec.concurrency,
            timeouts=spec.timeouts, variant=variant, metrics_from=spec.metrics_from,
        )  # fmt: skip
        if dialect.tokens and not credential.api_key:
            self._tokens = TokenRenewal(load(dialect.tokens)(credential), self._keys)

    async def _counted(
        self, path: str, body: bytes, refused: Callable[[int, Mapping[str, str], bytes], None] | None = None
    ) -> int | None:  # fmt: skip
        """Return the input tokens that a counter of the server's finds in a request; None for any failure, of which
        ``refused`` hears where it is a response."""
        try:
            timeout_s = self._timeouts.connect_s + self._timeouts.first_byte_s
            status, headers, data = await self.look(path, body, timeout_s)
            if status == 200:
                return _COUNT.decode(data).input_tokens
            if refused is not None:
                refused(status, headers, data)
        except Exception:  # a missing count is no failure
            return None
        return None

    async def _free_way(self, path: str) -> FreeWay:
        if self._tokens is not None:
            await self._tokens.first()
        context, proxy = await network_of(self.url, self._keys.credential)
        credential = self._keys.credential
        return RequestTemplate(self.url + path, self._headers(credential), credential.host), context, proxy

    async def _make_transport(self) -> AiohttpTransport:
        if self._tokens is not None:
            await self._tokens.first()
        context, proxy = await network_of(self.url, self._keys.credential)
        transport = AiohttpTransport(
            connections_max=self.concurrency, context=context, proxy=proxy, connect_s=self._timeouts.connect_s
        )
        await transport.take(self._templates(self._keys.credential))
        return transport

    async def _take_key(self, credential: Credential) -> None:
        if (transport := self._transport) is not None:  # one that is still to be made will have it
            assert isinstance(transport, AiohttpTransport)
            await transport.take(self._templates(credential))

    def _templates(self, credential: Credential) -> dict[str, RequestTemplate]:
        path = self._form.path
        return {path: RequestTemplate(self.url + path, self._headers(credential), credential.host)}

    def _headers(self, credential: Credential) -> list[tuple[str, str]]:
        headers = [("Content-Type", "application/json"), ("Accept", "application/json"), ("User-Agent", "cortex")]
        if credential.auth_token:
            headers.append(("Authorization", f"Bearer {credential.auth_token}"))
        elif credential.api_key:
            headers.append((self._dialect.key_header, self._dialect.key_value(credential.api_key)))
        return headers + list(credential.custom_headers)


def address_of(row: Provider, dialect: KeyDialect, credential: Credential) -> str:
    """Return the address to which the client appends its paths: a host without a path has them below the row's root."""
    address = credential.base_url
    if not address and dialect.address is not None and credential.platform is not None:
        address = dialect.address(credential.platform)
    address = (address or row.base_url).rstrip("/")
    return address if urlsplit(address).path else address + row.root
