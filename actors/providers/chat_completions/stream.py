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
_UNENDED: Final = frozenset({"", "null"})
"""Finish reasons of chunks that end nothing, beside null: empty from LocalAI 2 (mudler/LocalAI#1886, with a usage in
each chunk), Ollama 0.1 (ollama/ollama#4357) and SGLang 0.4.3 (sgl-project/sglang#3912); the word from KoboldCpp
(PowerShell/AIShell#350)."""


class ChunkAssembler(EventStream):
    """Stream of `chat.completion.chunk`; `done` with `[DONE]`, or with the usage behind the finish reason."""

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}  # text that grows, joined once at the end
        self._parts: list[Any] = []  # of a content that is a list
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []  # of each call
        self._places: dict[int, int] = {}
        """Index in the stream -> place of the call that it stands for at present."""
        self._repeating: set[int] = set()
        """Places of calls of which each piece has the name and another id."""
        self._logprobs: list[Any] = []
        self._ending: dict[str, Any] = {}
        """Finish reason, and what stands beside it."""
        self._usage: dict[str, Any] | None = None

    @property
    def whole(self) -> bool:
        """True once the finish reason came, or the mark of the end."""
        return self.done or bool(self._ending)

    def put_together(self) -> bytes:
        """Return the completion as JSON. Raises UnreadableAnswer where the stream ended before its finish reason."""
        if not self.done:
            self.take_rest()
        if not self.whole:
            kind = UnreadableAnswer if self._begun_answer() else UnreadableResponse
            raise kind("the stream was cut before the message was whole")
        message: dict[str, Any] = {"role": "assistant", **{name: "".join(each) for name, each in self._texts.items()}}
        if self._parts:
            message["content"] = self._parts
        for call, pieces in zip(self._calls, self._arguments, strict=True):
            if pieces:
                call["function"]["arguments"] = "".join(pieces)
        if self._calls:
            message["tool_calls"] = self._calls
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
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason not in _UNENDED:
            self._ending = {name: value for name, value in choice.items() if name not in _NOT_ENDING}

    def _grow_call(self, call: dict[str, Any], at: int) -> None:
        """Take a piece of a tool call: the first has id and name, the others more of the arguments."""
        function = call.get("function") or {}
        name, arguments = function.get("name"), function.get("arguments")
        place = self._place(call, at, name, arguments)
        if place == len(self._calls):
            self._calls.append({"id": None, "type": "function", "function": {"name": ""}})
            self._arguments.append([])
        known = self._calls[place]
        known["id"] = call.get("id") or known["id"]
        if isinstance(extra := call.get("extra_content"), dict):
            known["extra_content"] = extra
        known["function"]["name"] = name or known["function"]["name"]
        if isinstance(arguments, str):
            self._arguments[place].append(arguments)
        elif arguments is not None:
            self._arguments[place] = [json_bytes(arguments).decode()]

    def _place(self, call: dict[str, Any], at: int, function: Any, arguments: Any) -> int:
        """Return the place of the call that a piece belongs to; that behind the last one: it begins another call.

        The index tells it. Servers that do not count put one call after the other at index 0, or give none: Gemini's
        come whole, with ids of their own (NousResearch/hermes-agent#62937, su-kaka/gcli2api#406) or empty ones
        (Arize-ai/phoenix#11376), those of vLLM and SGLang came in pieces (InternLM/lmdeploy#3412). Another id alone
        begins no call: early vLLM made one for each piece (default of ``DeltaToolCall.id`` in its
        ``entrypoints/openai/protocol.py``). Nor does another id with the name, until the arguments are whole: of a tool
        that the request names, vLLM sent the name with each piece too (``chat_completion_stream_generator`` in its
        ``entrypoints/openai/serving_chat.py``), to the empty one at the end.
        """
        index, name, behind = call.get("index"), call.get("id"), len(self._calls)
        counted = isinstance(index, int)
        index = index if isinstance(index, int) else at
        place = self._places.get(index, behind)
        same = [] if counted or not name else [each for each, known in enumerate(self._calls) if known["id"] == name]
        if same:
            place = same[0]
        elif function and place < behind and self._is_next(place, name, function, arguments):
            place = behind
        self._places[index] = place
        return place

    def _is_next(self, place: int, name: Any, function: Any, arguments: Any) -> bool:
        """Return whether a piece with the name of a function begins the call after the one at that place, whose index
        it has."""
        known = self._calls[place]
        if not name:
            return _is_object(arguments) and _is_object("".join(self._arguments[place]))
        if not known["id"] or name == known["id"]:
            return False
        if function != known["function"]["name"]:
            return True
        if place not in self._repeating and _is_object("".join(self._arguments[place])):
            return True
        self._repeating.add(place)
        return False


def _is_object(arguments: Any) -> bool:
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (ValueError, RecursionError):
        return False
