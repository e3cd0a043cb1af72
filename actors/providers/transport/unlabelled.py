"""Bodies of responses that are not labelled as JSON: streams, and what gateways and proxies label otherwise."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Final

import aiohttp

from actors.providers.transport.aiohttp_transport import Response
from actors.providers.transport.body import PageResponse
from actors.providers.transport.event_stream import EventStream

AWS_EVENT_STREAM: Final = "application/vnd.amazon.eventstream"
"""Content type of AWS's streams: events in frames of their own, which the SDK turns into server-sent events."""


async def read_unlabelled(
    answer: Response, kind: str, progress: Callable[[int], None] | None, made: Callable[[], EventStream]
) -> tuple[bytes, bool]:
    """Return a body of another type than JSON, and whether it is the message of a stream, put together. ``made``: a new
    stream of the wire form.

    A page (HTML, XML) is recognised by its first character and not read further. Raises UnreadableResponse for one,
    StreamError, UnreadableAnswer for a stream that ended before its message was whole, and the error of a connection
    that was lost before. Of other JSON that was cut, what came is returned.
    """
    assembler = made() if kind in ("text/event-stream", AWS_EVENT_STREAM) else None
    begun, parts, total = b"", [], 0
    try:
        async for chunk in answer.chunks():
            total += len(chunk)
            if progress is not None:
                progress(total)
            if not begun:
                parts.append(chunk)
                begun = b"".join(parts).removeprefix(BOM_UTF8).lstrip()
                if not begun:
                    continue
                if begun.startswith(b"<"):
                    raise PageResponse(f"the answer is of type {kind[:80] or 'unknown'}, not JSON")
                if assembler is not None and begun[:1] in (b"{", b"["):
                    assembler = None
                elif begun.startswith((b"data:", b"event:", b":")):
                    assembler = assembler or made()
                chunk = b"".join(parts)
                parts.clear()
            if assembler is None:
                parts.append(chunk)
                continue
            assembler.feed(chunk)
            if assembler.done:
                break
    except (aiohttp.ClientError, TimeoutError) as error:
        answer_begun = begun.startswith(b"{") and not isinstance(error, TimeoutError)
        if not (answer_begun if assembler is None else assembler.whole):
            raise
    if assembler is not None:
        return assembler.message(), True
    return b"".join(parts), False
