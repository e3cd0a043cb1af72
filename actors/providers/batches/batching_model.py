"""Client of an API that is opened by a key, with batches of uploaded files beside it."""

from __future__ import annotations

from actors.providers.batches.exchange import BatchTransport
from actors.providers.batches.file_batches import FileBatches, LineForm
from actors.providers.client.key_dialect import KeyDialect
from actors.providers.client.keyed_model import KeyedModel
from actors.providers.client.wire_form import Variant, WireForm
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.credential import Credential
from actors.providers.registry import Provider
from actors.providers.transport.aiohttp_transport import RequestTemplate
from actors.providers.transport.failures import ModelClosed
from actors.providers.transport.proxy_tls import network_of


class BatchingModel(KeyedModel):
    """Model behind such an API. ``batches``: the client of its batches; only providers whose row says so have any."""

    def __init__(
        self, form: WireForm, dialect: KeyDialect, spec: ClientSpec, row: Provider, credential: Credential,
        variant: Variant, kind: type[FileBatches], lines: LineForm,
    ) -> None:  # fmt: skip
        super().__init__(form, dialect, spec, row, credential, variant)
        patience_s = self._timeouts.connect_s + self._timeouts.first_byte_s
        self.batches = kind(self._batch_transport, self._keys, self._failures, patience_s, lines)
        """Batches of the provider, under the same credential."""

    async def close(self) -> None:
        """Close every connection; calls under way end as TRANSIENT."""
        await super().close()
        await self.batches.close()

    async def _take_key(self, credential: Credential) -> None:
        await super()._take_key(credential)
        if self.batches.transport is not None:
            self.batches.transport.take(self._batch_template(credential))

    def _batch_template(self, credential: Credential) -> RequestTemplate:
        headers = self.batches.headers(self._headers(credential))
        return RequestTemplate(self.batches.address(self.url), headers)

    async def _batch_transport(self) -> BatchTransport:
        if self._closed:
            raise ModelClosed
        if self._tokens is not None:
            await self._tokens.first()
        credential = self._keys.credential
        context, proxy = await network_of(self.url, credential)
        connect_s, silence_s = self._timeouts.connect_s, self._timeouts.first_byte_s
        return BatchTransport(
            self._batch_template(credential), context=context, proxy=proxy, connect_s=connect_s, silence_s=silence_s
        )
