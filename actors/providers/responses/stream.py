"""Assembler of a streamed response: events in, the bytes of the unstreamed response out.

The form: https://platform.openai.com/docs/api-reference/responses-streaming; `ResponseStreamEvent` of the package
`openai` 3.57. The last event holds the whole response. Where a server leaves its output out there, it is put together
from the events before.
"""

from __future__ import annotations

from typing import Any, Final

from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse, json_bytes
from actors.providers.transport.event_stream import DONE, EventStream, StreamError, damaged, decoded

_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.done"})
_PIECES: Final = {
    "response.output_text.delta": ("message", "output_text", "text"),
    "response.refusal.delta": ("message", "refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning", "reasoning_text", "text"),
    "response.function_call_arguments.delta": ("function_call", "", "arguments"),
}
"""Event of a piece -> type of its item, type of its part (empty: it belongs to the item), and its field."""


class ResponseAssembler(EventStream):
    """Stream of `response.*` events; `done` with the last one. A response that failed is an error event too."""

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._last: dict[str, Any] | None = None
        """Response in the last event."""
        self._items: dict[int, dict[str, Any]] = {}
        self._open: set[int] = set()
        """Items whose end has not come."""
        self._pieces: dict[tuple[int, int, str], list[str]] = {}  # text that grows, joined once at the end
        self._logprobs: dict[tuple[int, int], list[Any]] = {}
        """Log probabilities that came with the pieces, by place of item and part."""

    @property
    def whole(self) -> bool:
        """True once the last event came, or the mark of the end behind whole items."""
        return self.done

    def put_together(self) -> bytes:
        """Return the response as JSON. Raises UnreadableAnswer where the stream ended before its last event."""
        if not self.done:
            self.take_rest()
        if self._last is None:
            kind = UnreadableAnswer if self._begun_answer() else UnreadableResponse
            raise kind("the stream was cut before the response was whole")
        output = self._last.get("output") or self._items_in_order()
        if self._logprobs:
            self._tell(output)
        return json_bytes(self._last | {"output": output})

    def take(self, text: bytes, name: bytes) -> None:
        """Take the data of one event."""
        if self.done:
            return
        if not text.lstrip().startswith(b"{"):
            if text.strip() == DONE and self._items and not self._open:
                self._last, self.done = self._head | {"status": "completed"}, True
            elif text.strip()[:1] in (b"[", b'"') and text.strip() != DONE:
                raise damaged("no object")
            return
        self._take(decoded(text), name.decode())

    def _take(self, event: dict[str, Any], name: str) -> None:
        kind = event.get("type") or name
        if kind in _PIECES:
            self._grow(event, *_PIECES[kind])
        elif kind in _ENDS:
            response = event["response"]
            if kind == "response.failed" or response.get("error"):
                raise StreamError(response.get("error") or _FAILED, self._begun_answer())
            self._last, self.done = dict(response), True
        elif kind == "response.created":
            self._head = {name: value for name, value in event["response"].items() if value is not None}
        elif kind in ("response.output_item.added", "response.output_item.done"):
            index = event["output_index"]
            self._items[index] = dict(event["item"])
            if kind.endswith("added"):
                self._open.add(index)
            else:
                self._open.discard(index)
        elif kind == "error" or event.get("error"):
            fields = {name: event[name] for name in ("message", "code", "param") if event.get(name) is not None}
            raise StreamError(event.get("error") or fields or _FAILED, self._begun_answer())

    def _begun_answer(self) -> bool:
        return bool(self._pieces) or any(item.get("type") != "reasoning" for item in self._items.values())

    def _grow(self, event: dict[str, Any], item: str, part: str, field: str) -> None:
        index, delta = event.get("output_index", 0), event["delta"]
        if not isinstance(index, int) or not isinstance(delta, str):
            raise TypeError
        if index not in self._items:
            self._items[index] = {"type": item}
            self._open.add(index)
        at = event.get("content_index", 0) if part else 0
        self._pieces.setdefault((index, at, f"{part}:{field}"), []).append(delta)
        if told := event.get("logprobs"):
            self._logprobs.setdefault((index, at), []).extend(told)

    def _tell(self, output: Any) -> None:
        """Add the log probabilities that came with the pieces to parts that end without them, as vLLM's do
        (vllm-project/vllm#57326)."""
        for (index, at), told in self._logprobs.items():
            try:
                part = output[index]["content"][at]
                if not part.get("logprobs"):
                    part["logprobs"] = told
            except (LookupError, TypeError, AttributeError):  # the output has other items than the pieces
                continue

    def _items_in_order(self) -> list[dict[str, Any]]:
        """Return the items, those without an end of their own from their pieces."""
        for (index, _, kind), pieces in sorted(self._pieces.items()):
            if index not in self._open:
                continue
            item, (part, _, field) = self._items[index], kind.partition(":")
            if part:
                content = item.get("content")
                item["content"] = [*(content or ()), {"type": part, field: "".join(pieces)}]
            else:
                item[field] = "".join(pieces)
        return [self._items[index] for index in sorted(self._items)]


_FAILED: Final = {"message": "the response failed without an explanation", "type": "server_error"}
