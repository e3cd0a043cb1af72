"""Client of an API over HTTP: a bounded canonical request in, a canonical reply or a typed failure out.

One client serves all wire forms (`WireForm`). Retries and budgets are the core's: the client makes one attempt, and
repeats it only where a request was refused for its key, for its stream or for a field that the server does not know,
which cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import aiohttp
import msgspec

from actors.providers.client.canonical_request import model_in
from actors.providers.client.token_renewal import TokenRenewal
from actors.providers.client.wire_form import NO_FORM, Untranslatable, Variant, WireForm
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.reload import CredentialReload
from actors.providers.registry import Provider, is_own_server
from actors.providers.transport.aiohttp_transport import RequestTemplate, Response, Transport
from actors.providers.transport.body import (
    BODY_BYTES_MAX,
    LOGPROBS_TOKEN_BYTES,
    REPLY_BYTES_LEAST,
    STREAMED_TOKEN_BYTES,
    PageResponse,
    UnreadableAnswer,
    UnreadableResponse,
    unread,
)
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.failures import ModelClosed
from actors.providers.transport.free_call import free_call
from actors.providers.transport.json_text import charset_in, plain_json
from actors.providers.transport.server_load import Load, ServerLoad
from actors.providers.transport.unlabelled import read_unlabelled
from cortex.values.chat_form.messages import NoCounterpart, messages_request
from cortex.values.chat_form.request import WRITTEN
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from policies.failures.timeout import TimeoutPolicy, attempt_timeout_s, silence_max_s
from policies.failures.told_retry import refuses_request
from policies.limits.limit import RateLimits

STREAM_ABOVE_TOKENS: Final = 8_000
"""Bound of a reply in tokens from which it is streamed. At 50 tokens a second that is 160 s without progress to be
seen, and networks drop a connection that is silent for some minutes."""

_NO_STREAM: Final = re.compile(
    r"\bverified to stream\b|'stream' does not support true"
    r"|\bstreaming is not supported\b|\bdoes not support streaming\b",
    re.IGNORECASE,
)
"""Words of a refusal to stream: "Your organization must be verified to stream this model." (OpenAI, until a person has
shown an identity card: continuedev/continue#8209, through OpenRouter BeehiveInnovations/pal-mcp-server#134) and
"Unsupported value: 'stream' does not support true with this model." (o1: Aider-AI/aider#2841, at Azure
BerriAI/litellm#7693). The last two are general, and are also said of a feature ("… with tools")."""
_NEVER_STREAMS: Final = re.compile(r"\bverified to stream\b|'stream' does not support true", re.IGNORECASE)
_OF_WHOM: Final = re.compile(r"\b(?:model|organi[sz]ation)\b", re.IGNORECASE)
_OF_FEATURE: Final = re.compile(
    r"\b(?:with|when|while|if|together)\b(?! (?:this|the|your) (?:model|organi[sz]ation)\b)", re.IGNORECASE
)
"""Words behind which a refusal to stream names a feature of its request."""

PAGES_OF_WRONG_ADDRESS: Final = 3
"""Pages with a good status, before any reply, from which on the address is blamed: it is that of a sign-in page, or of
another server's user interface. One page alone may be a gateway's "one moment"."""

FreeWay = tuple[RequestTemplate, ssl.SSLContext | None, str | None]
"""Request, trusted certificates (None for plain HTTP) and proxy (None for a direct connection) of a free call."""


class HttpModel:
    """Model (`actors.ports.model.Model`) behind an API over HTTP, in the wire form `form`.

    `url` is the address that is asked; empty: only the subclass knows it. `variant`: spelling of requests to begin with
    (`WireForm.other`). `metrics_from`: URLs of the metrics of a server of the user's own, one for each replica; empty:
    `/metrics` of its address. A subclass makes the transport, with the requests' addresses and headers. The first call
    opens connections and binds the model to its event loop.
    """

    def __init__(
        self, form: WireForm, row: Provider, credential: Credential, *, endpoint: str, url: str, concurrency: int,
        timeouts: TimeoutPolicy, variant: Variant = None, stream_above_tokens: int = STREAM_ABOVE_TOKENS,
        metrics_from: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.endpoint = endpoint
        self.concurrency = concurrency
        self._form, self._row, self._variant = form, row, variant
        self._timeouts = timeouts
        self._stream_above_tokens = stream_above_tokens
        self._keys = CredentialReload(credential, self._take_key)
        self._failures = form.failures(row, self._keys.redact, url)
        own = is_own_server(endpoint)
        self._load = ServerLoad(url, lambda: self._keys.credential, metrics_from) if own else None
        self._tokens: TokenRenewal | None = None
        """Renewal of the credential's token; None: it is opened by a key."""
        self._opening = asyncio.Lock()
        self._transport: Transport | None = None
        self._closed = False
        self._limit_headers: Mapping[str, str] | None = None
        self._replied = False
        self._pages = 0
        """Pages that came in place of replies."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint}, {self._keys.credential!r})"

    @property
    def counts_tokens(self) -> bool:
        """False if ``count_tokens`` returns None in any case."""
        return False

    @property
    def rate(self) -> RateLimits | None:
        """Rate limits in the last response that had any; None before."""
        return None if self._limit_headers is None else self._form.rate_limits(self._limit_headers)

    def at_server(self) -> Load:
        """Return the load that the server told since the last call of this, as `Model` says."""
        return None if self._load is None else self._load.take()

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Make one attempt, as `Model.call` says. A reply that may be long is streamed (`STREAM_ABOVE_TOKENS`)."""
        form, variant, silence_s = self._form, self._variant, None
        written = body.startswith(WRITTEN)
        if written and form.given is not None and body.startswith(form.given.mark):
            form, written = form.given, False
        streamed = output_tokens_max > self._stream_above_tokens
        if streamed and form.may_stream is not None:
            streamed = form.may_stream(body)
        try:
            if written:
                body = messages_request(body)
            sent = form.body(body, streamed, variant)
        except NO_FORM as error:
            return self._formless(error)
        if streamed:
            usual_s = attempt_timeout_s(self._timeouts, output_tokens_max, len(body))
            silence_s = max(silence_max_s(self._timeouts, len(sent), begun) for begun in (False, True))
            silence_s *= max(timeout_s / usual_s, 1.0)  # a server that queues sends nothing until its turn
        if self._transport is None:
            await self.prepare()  # may take seconds, which do not count against the attempt's time
        elif self._tokens is not None and self._tokens.due:
            await self._tokens.in_time()
        bytes_max, token_bytes = BODY_BYTES_MAX, form.bytes_a_token
        if token_bytes is not None and b'"modalities"' not in sent:  # pictures and sound are no tokens of text
            if streamed:
                token_bytes = STREAMED_TOKEN_BYTES
            if b"logprobs" in sent:
                # vLLM's prompt_logprobs are of the prompt's tokens, which bound no reply
                token_bytes = BODY_BYTES_MAX if b'"prompt_logprobs"' in sent else LOGPROBS_TOKEN_BYTES
            bytes_max = REPLY_BYTES_LEAST + len(sent) + token_bytes * output_tokens_max
            if bytes_max > BODY_BYTES_MAX:
                bytes_max = BODY_BYTES_MAX
        begun_s, used = time.monotonic(), self._keys.credential
        outcome = await self._sent(form, sent, timeout_s, silence_s, progress, bytes_max)
        if type(outcome) is not Failure:
            return outcome
        until_s = begun_s + timeout_s
        return await self._repeated(
            outcome, used, form, body, sent, streamed, variant, until_s, silence_s, progress, bytes_max
        )  # fmt: skip

    def refusal(self, body: bytes) -> Failure | None:
        """Return the failure of a request that the API has no form for; None if `call` would send it."""
        try:
            self.line_body(body)
        except NO_FORM as error:
            return self._formless(error)
        return None

    def line_body(self, body: bytes) -> bytes:
        """Return the body of a request in a line of a batch: as `call` sends it, in the spelling of
        `WireForm.in_lines`. Raises the errors of `NO_FORM`."""
        form = self._form
        if body.startswith(WRITTEN):
            if form.given is not None and body.startswith(form.given.mark):
                form = form.given
            else:
                body = messages_request(body)
        return form.body(body, False, form.in_lines(self._variant))

    def _formless(self, error: Exception) -> Failure:
        text = str(error)
        if not isinstance(error, Untranslatable | NoCounterpart):
            text = f"the request is none of the Messages API: {type(error).__name__}: {error}"
        return Failure(FailureKind.REJECTED, self._failures.line(text), sent=False)

    async def _repeated(
        self, failure: Failure, used: Credential, form: WireForm, body: bytes, sent: bytes, streamed: bool,
        variant: Variant, until_s: float, silence_s: float | None, progress: Callable[[int], None] | None,
        bytes_max: int,
    ) -> Reply | Failure:  # fmt: skip
        """Return the outcome of a request that failed: repeated where it was refused for its key `used`, and that was
        renewed, for its stream, or for a field that the server does not know. Apart from `call`: closures would slow
        its variables."""

        async def again(repeated: bytes) -> Reply | Failure:
            left_s = until_s - time.monotonic()
            return await self._sent(form, repeated, max(left_s, 0.001), silence_s, progress, bytes_max)

        async def other(variant: Variant) -> Reply | Failure:
            return await whole(await again(form.body(body, streamed, variant)), variant)

        async def whole(outcome: Reply | Failure, variant: Variant) -> Reply | Failure:
            """Return the outcome without a stream, where that is what was refused."""
            nonlocal streamed, silence_s
            if not streamed or not isinstance(outcome, Failure) or not refuses_stream(outcome):
                return outcome
            if never_streams(outcome, model_in(body)):
                self._stream_above_tokens = sys.maxsize
            streamed, silence_s = False, None  # nothing comes before the whole answer
            return await again(form.body(body, False, variant))

        outcome = await again(sent) if await self._keys.after(failure, used) else failure
        outcome = await self._spelled_otherwise(form, await whole(outcome, variant), variant, other)
        if not isinstance(outcome, Failure):
            return outcome
        return form.settled(self._failures.naming_model(outcome, body), body)

    async def _spelled_otherwise(
        self, form: WireForm, outcome: Reply | Failure, variant: Variant,
        again: Callable[[Variant], Awaitable[Reply | Failure]],
    ) -> Reply | Failure:  # fmt: skip
        """Return the outcome of a request without the fields that the server refuses, each spelling tried once. The one
        that is not refused is used from then on; none is if the last is refused too: the words may be of this request
        alone. `variant`: the spelling that had this outcome."""
        tried = [variant]
        while isinstance(outcome, Failure) and (other := form.other(tried[-1], outcome)) is not None:
            if other in tried:
                return outcome
            tried.append(other)
            outcome = await again(other)
        if len(tried) > 1 and not (isinstance(outcome, Failure) and refuses_request(outcome)):
            self._variant = tried[-1]
        return outcome

    async def count_tokens(self, body: bytes) -> int | None:
        """Return the input tokens of a request by the provider's count; None where it has none, for any reason."""
        return None

    async def _sent(
        self, form: WireForm, body: bytes, timeout_s: float, silence_s: float | None,
        progress: Callable[[int], None] | None, bytes_max: int,
    ) -> Reply | Failure:  # fmt: skip
        try:
            transport = self._transport or await self._open()
            exchange = transport.send(
                form.path, body, timeout_s=timeout_s, silence_s=silence_s, bytes_max=bytes_max
            )
            async with exchange as answer:
                return await self._take(form, answer, progress)
        except Exception as error:  # every error of an attempt is a Failure
            failure = self.failure_of(error)
            return failure if self._replied else self._failures.before_replies(failure, error)

    async def _take(
        self, form: WireForm, answer: Response, progress: Callable[[int], None] | None
    ) -> Reply | Failure:  # fmt: skip
        """Return the reply in a response, or its failure."""
        status, headers = answer.status, answer.headers
        if form.reports_limits(headers):
            self._limit_headers = headers
        if not 200 <= status < 300:
            try:
                data = await answer.read()
            except (aiohttp.ClientError, TimeoutError, UnreadableResponse):
                data = b""  # without a whole explanation the status says enough
            return self._failures.of_response(status, headers, data, form.path)
        kind, _, parameters = headers.get("content-type", "").partition(";")
        kind, streamed = kind.strip().lower(), False
        lost: Exception | None = None
        try:
            if kind == "application/json":
                try:
                    whole = await answer.read()
                except UnreadableResponse:
                    raise
                except Exception as error:  # of the connection, of which the SDK has types of its own
                    whole, lost = answer.received(), error
                if progress is not None:
                    progress(len(whole))
            else:  # the body says what it is: gateways and proxies label JSON as text, and plain answers as streams
                whole, streamed = await read_unlabelled(answer, kind, progress, form.stream)
            try:
                reply = form.read(whole, charset_in(parameters) if parameters and not streamed else "")
                self._replied = True
                return reply
            except UnreadableResponse as error:
                begun = isinstance(error, UnreadableAnswer)  # its whole was made, and may have been paid
                if lost is not None and (isinstance(lost, TimeoutError) or not begun):
                    raise lost from None
                plain = b"" if streamed else plain_json(whole)
                if plain.startswith(b"{") and self._failures.names_error(plain):  # a gateway's "200, but"
                    return self._failures.of_response(status, headers, plain, form.path)
                raise
            except StreamError:
                raise
            except Exception as error:  # whatever the body holds and its reader raises: it came
                raise unread(error) from None
        except StreamError as error:
            return self._failures.of_stream_error(error, status, headers, form.path)
        except PageResponse as error:
            text, remedy = f"{self._failures.where(form.path)}: {error}", self._failures.remedy_of(form.path)
            failure = self._failures.unreadable(text, status, remedy=remedy)
            self._pages += 1
            wrong = self._pages >= PAGES_OF_WRONG_ADDRESS and not self._replied
            return msgspec.structs.replace(failure, kind=FailureKind.BLOCKED) if wrong else failure
        except UnreadableResponse as error:
            return self._failures.unreadable(str(error), status, isinstance(error, UnreadableAnswer))

    # -- free calls ------------------------------------------------------------------------------------------------

    async def look(self, path: str, body: bytes | None, timeout_s: float) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request that costs nothing, by the way and with the headers of any other call: a GET without a body.

        Return status, headers, and at most four megabytes of the response. Raises aiohttp's errors, TimeoutError
        or ConfigurationFault; `failure_of` turns each into a Failure.
        """
        template, context, proxy = await self._free_way(path)
        return await free_call(template, context, proxy, body, timeout_s)

    def failure_of(self, error: BaseException) -> Failure:
        """Return the Failure of an error of `look`, or of a call."""
        return self._failures.of_exception(error)

    def refusal_of(self, status: int, headers: Mapping[str, str], data: bytes, path: str = "") -> Failure:
        """Return the Failure of a response of `look` whose status is no success. `path`: the path, where each server of
        the API has it."""
        return self._failures.of_response(status, headers, data, path)

    # -- connections -----------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Get ready for the first call, which reports any error."""
        with contextlib.suppress(Exception):
            await self._open()

    async def close(self) -> None:
        """Close every connection; calls under way end as TRANSIENT."""
        self._closed = True
        transport, self._transport = self._transport, None
        if self._load is not None:
            await self._load.close()
        if self._tokens is not None:
            await self._tokens.close()
        if transport is not None:
            await transport.close()

    async def _open(self) -> Transport:
        async with self._opening:
            if self._closed:
                raise ModelClosed
            if self._transport is None:
                self._transport = await self._make_transport()
            return self._transport

    async def _make_transport(self) -> Transport:
        """Return a transport that knows the request of the form's path."""
        raise NotImplementedError

    async def _take_key(self, credential: Credential) -> None:
        """Use a renewed key for requests from now on."""
        raise NotImplementedError

    async def _free_way(self, path: str) -> FreeWay:
        """Return how a free call to a path is sent."""
        raise NotImplementedError


def refuses_stream(failure: Failure) -> bool:
    """Return whether a request was refused because its answer was to be streamed. It is asked for a whole answer: the
    timeout of the attempt, which counts the tokens that the answer may have, is then the only bound."""
    return refuses_request(failure) and _NO_STREAM.search(failure.message) is not None


def never_streams(refusal: Failure, model: str) -> bool:
    """Return whether such a refusal is of each request of its model, which is asked for whole answers from then on: one
    of OpenAI's, or one that names the model or an organisation and no feature of the request."""
    said = refusal.message
    if _NEVER_STREAMS.search(said):
        return True
    named = _OF_WHOM.search(said) or (model and re.search(rf"(?<![\w-]){re.escape(model)}(?![\w-])", said))
    return bool(named) and _OF_FEATURE.search(said) is None
