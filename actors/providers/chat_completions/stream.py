"""Assembler of a streamed completion: chunks in, the bytes of the unstreamed completion out.

The form: https://platform.openai.com/docs/api-reference/chat/streaming; `ChatCompletionChunk` of the package `openai`
3.57. The usage comes in the last chunk, which has no choices; some servers send it with the finish reason.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse, json_bytes
from actors.providers.transport.event_stream import DONE, ERROR, EventStream, StreamError, damaged, decoded

_NOT_ENDING: Final = frozenset({"index", "delta", "message", "logprobs"})
_HEAD: Final = (
    ("id", str), ("model", str), ("created", int), ("service_tier", str), ("system_fingerprint", str)
)  # fmt: skip
"""Fields that stand beside the choices, and their types."""
_TEXTS: Final = ("content", "refusal", "reasoning_content", "reasoning")


class ChunkAssembler(EventStream):
    """Stream of `chat.completion.chunk`; `done` with `[DONE]`, or with the usage behind the finish reason.

    `feed` raises StreamError for an error event and UnreadableResponse for a damaged one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}  # text that grows, joined once at the end
        self._parts: list[Any] = []  # of a content that is a list
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._logprobs: list[Any] = []
        self._ending: dict[str, Any] = {}
        """Finish reason, and what stands beside it."""
        self._usage: dict[str, Any] | None = None

    @property
    def whole(self) -> bool:
        """True once the finish reason came, or the mark of the end."""
        return self.done or bool(self._ending)

    def message(self) -> bytes:
        """Return the completion as JSON. Raises UnreadableAnswer where the stream ended before its finish reason."""
        if not self.done:
            self.take_rest()
        if not self.whole:
            kind = UnreadableAnswer if self._begun_answer() else UnreadableResponse
            raise kind("the stream was cut before the message was whole")
        message: dict[str, Any] = {"role": "assistant", **{name: "".join(each) for name, each in self._texts.items()}}
        if self._parts:
            message["content"] = self._parts
        for index, pieces in self._arguments.items():
            self._calls[index]["function"]["arguments"] = "".join(pieces)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        choice = {"index": 0, "message": message, **self._ending}
        choice |= {"logprobs": {"content": self._logprobs}} if self._logprobs else {}
        completion = {**self._head, "object": "chat.completion", "choices": [choice]}
        return json_bytes(completion | ({} if self._usage is None else {"usage": self._usage}))

    def take(self, text: bytes, name: bytes) -> None:
        """Take the data of one event."""
        if self.done:
            return
        if not text.lstrip().startswith(b"{"):
            if name == ERROR and not self.whole:
                raise StreamError({"message": text.decode("utf-8", "replace")}, self._begun_answer())
            if text.strip() == DONE:
                self.done = self.whole or self._begun_answer()
            elif text.strip()[:1] in (b"[", b'"'):
                raise damaged("no object")
            return
        try:
            chunk = decoded(text)
            error = chunk.get("error") or (chunk if chunk.get("object") == "error" else None)  # the latter: older vLLM
            if error and not self.whole:
                raise StreamError(error, self._begun_answer())
            for field, kind in _HEAD:
                if field not in self._head and isinstance(chunk.get(field), kind):
                    self._head[field] = chunk[field]
            for choice in chunk.get("choices") or ():
                if choice.get("index") in (0, None):
                    self._grow(choice)
            if isinstance(usage := chunk.get("usage"), dict):
                self._usage = usage
                self.done = self.whole
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise damaged(type(error).__name__) from None

    def _begun_answer(self) -> bool:
        return bool(self._texts or self._parts or self._calls)

    def _grow(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        for name in _TEXTS:
            value = delta.get(name)
            if isinstance(value, str):
                if value:
                    self._texts.setdefault(name, []).append(value)
            elif name == "content" and isinstance(value, list):
                self._parts += value
        for at, call in enumerate(delta.get("tool_calls") or ()):
            self._grow_call(call, at)
        if isinstance(logprobs := choice.get("logprobs"), dict) and isinstance(logprobs.get("content"), list):
            self._logprobs += logprobs["content"]
        if isinstance(choice.get("finish_reason"), str):
            self._ending = {name: value for name, value in choice.items() if name not in _NOT_ENDING}

    def _grow_call(self, call: dict[str, Any], at: int) -> None:
        """Take a piece of a tool call: the first has id and name, the others more of the arguments."""
        index = call.get("index")
        index = index if isinstance(index, int) else at if call.get("id") is None else len(self._calls)
        known = self._calls.setdefault(index, {"id": None, "type": "function", "function": {"name": ""}})
        function = call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        if isinstance(extra := call.get("extra_content"), dict):
            known["extra_content"] = extra
        known["function"]["name"] = function.get("name") or known["function"]["name"]
        if isinstance(arguments := function.get("arguments"), str):
            self._arguments.setdefault(index, []).append(arguments)
        elif arguments is not None:
            self._arguments[index] = [msgspec.json.encode(arguments).decode()]
