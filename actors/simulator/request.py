"""Parser of Messages requests, with the checks of the provider.

The parser is the simulator's only source about a request: text, tokens and bounds.
"""

from typing import Any, Final, Literal

import msgspec

from actors.simulator import random_draws, tokenizer
from actors.simulator.conversation import TurnContext, offers_of, scene_of, unpaired

TOKENS_PER_MESSAGE: Final = 3
"""Tokens for the framing of one message; fewer than the bytes of its JSON."""
IMAGE_TOKENS: Final = 1_600
"""Most tokens of an image or document block; near the provider's count for an image of 1,568 pixels a side."""
STOP_SEQUENCES_MAX: Final = 8_192
TOP_LOGPROBS_MAX: Final = 20
"""Most alternatives of a token (https://platform.openai.com/docs/api-reference/chat/create)."""

COUNTED_FIELDS: Final = frozenset(
    "messages model cache_control output_config output_format speed system thinking tool_choice tools".split()
)
"""Fields that the token counter accepts; it refuses all others, ``max_tokens`` too."""

EMBEDS: Final = (b'{"input":', b'{"dimensions":')
"""Beginnings of requests for vectors, in the form that front ends give the provider."""
TEXTS_MAX: Final = 2_048
TEXT_TOKENS_MAX: Final = 8_192
TEXTS_TOKENS_MAX: Final = 300_000
"""Texts of a request, tokens of one, and tokens of all, at most
(https://platform.openai.com/docs/api-reference/embeddings/create)."""
DIMENSIONS: Final = 64
DIMENSIONS_MAX: Final = 3_072

_UNSET = msgspec.UNSET


class BadRequest(ValueError):
    """Request that the provider would refuse with 400 invalid_request_error, with its message."""


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    source: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    id: str = ""
    name: str = ""
    tool_use_id: str = ""
    is_error: bool = False


class _Turn(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of the Messages API; those without meaning for the simulator are accepted and ignored."""

    model: str
    messages: list[_Turn]
    max_tokens: int | msgspec.UnsetType = _UNSET
    system: str | list[_Block] | None = None
    metadata: _Metadata | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: Any = None
    service_tier: Any = None
    container: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    cache_control: Any = None
    inference_geo: Any = None
    speed: Any = None
    diagnostics: Any = None
    user_profile_id: Any = None
    betas: Any = None
    logprobs: bool | None = None
    """Field of chat completions, as is the next one; the Messages API over HTTP refuses both."""
    top_logprobs: int | None = None


_decoder = msgspec.json.Decoder(_Body)
_json_decoder = msgspec.json.Decoder()


class ParsedRequest(msgspec.Struct, frozen=True, gc=False):
    """Content of a request, and its identities."""

    body_id: int
    """Identity of the whole request without ``stream``, by which answers are counted."""
    text_id: int
    """Identity of the text alone, by which errors are drawn."""
    model: str
    text: str
    system: str
    input_tokens: int
    max_tokens: int
    stop_sequences: tuple[str, ...]
    stream: bool
    user_id: str | None
    schema: dict[str, Any] | None
    tool: str
    """Tool that the request forces, whose input is the answer; else empty."""
    prefill: str
    scene: TurnContext | None = None
    """Conversation, if the next turn may use a tool."""
    thinks: bool = True
    """False if the request turns thinking off."""
    top_logprobs: int | None = None
    """Alternatives of each token whose log probabilities are wanted; None: no log probabilities."""
    texts: tuple[str, ...] = ()
    """Texts whose vectors are wanted; empty: the request wants an answer."""
    dimensions: int = 0
    """Numbers of each vector; 0: the request wants none."""
    as_base64: bool = False
    """True if vectors are wanted as base64 over HTTP."""


def checked_for_counting(body: bytes) -> bytes:
    """Return the body if the provider's token counter accepts it. Raises ``BadRequest``."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The request body is not valid JSON: {error}") from None
    for name in fields:
        if name not in COUNTED_FIELDS:
            raise BadRequest(f"{name}: Extra inputs are not permitted")
    return body


def asks_logprobs(body: bytes) -> bool:
    """Return True for a request with a field that the Messages API does not have, though chat completions do."""
    if b'logprobs"' not in body:
        return False
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return "logprobs" in fields or "top_logprobs" in fields


def read(body: bytes, counting: bool = False) -> ParsedRequest:
    """Parse a request. ``counting``: ``max_tokens`` may be missing. Raises ``BadRequest``."""
    if body.startswith(EMBEDS):
        return _read_embedding(body)
    try:
        got = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(_wording(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The request body is not valid JSON: {error}") from None
    max_tokens = _checked(got, counting)
    texts = [message_text(turn.content) for turn in got.messages]
    prefill = texts.pop() if got.messages[-1].role == "assistant" else ""
    text = texts[-1] if len(texts) == 1 else "\n\n".join(texts)
    system = message_text(got.system) if got.system else ""
    tokens = tokenizer.count(text) + tokenizer.count(system) + tokenizer.count(prefill)
    tokens += TOKENS_PER_MESSAGE * len(got.messages)
    if got.tools or any(type(turn.content) is list for turn in got.messages):
        tokens += _other_tokens(got)
    named = random_draws.identity(body if got.stream is None else _without_stream(body))
    whole = f"{system}\0{text}" if system else text
    shaped = got.tool_choice or got.output_config or got.output_format
    tool, schema = _answer_form(got) if shaped else ("", None)
    scene = None
    if got.tools and not tool and (got.tool_choice or {}).get("type") != "none":
        try:
            offers = offers_of(bytes(got.tools))
        except ValueError as error:
            raise BadRequest(str(error)) from None
        scene = scene_of(got.messages, system, offers, _result_text)
        whole = f"{whole}\0{bytes(got.tools).decode('utf-8', 'replace')}"
    return ParsedRequest(
        body_id=named,
        text_id=random_draws.identity(whole.encode("utf-8", "replace")),
        model=got.model,
        text=text,
        system=system,
        input_tokens=tokens,
        max_tokens=max_tokens,
        stop_sequences=tuple(got.stop_sequences or ()),
        stream=bool(got.stream),
        user_id=got.metadata.user_id if got.metadata else None,
        schema=schema,
        tool=tool,
        prefill=prefill,
        scene=scene if scene is not None and scene.offers else None,
        thinks=not isinstance(got.thinking, dict) or got.thinking.get("type") != "disabled",
        top_logprobs=(got.top_logprobs or 0) if got.logprobs else None,
    )


class _Embedding(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of OpenAI's embeddings."""

    input: list[str] | str
    model: str
    dimensions: int = DIMENSIONS
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


_embedding_decoder = msgspec.json.Decoder(_Embedding)


def _read_embedding(body: bytes) -> ParsedRequest:
    """Parse a request for vectors, with the checks of OpenAI. Raises ``BadRequest``."""
    try:
        got = _embedding_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(str(error)) from None
    texts = (got.input,) if isinstance(got.input, str) else tuple(got.input)
    counts = [tokenizer.count(text) for text in texts]
    if not all(texts) or not texts:
        raise BadRequest("'$.input' is invalid: input cannot be an empty string.")
    if len(texts) > TEXTS_MAX:
        raise BadRequest(f"'input' must have less than or equal to {TEXTS_MAX} items.")
    if max(counts) > TEXT_TOKENS_MAX:
        raise BadRequest(
            f"This model's maximum input length is {TEXT_TOKENS_MAX} tokens, however you requested {max(counts)} "
            "tokens. Please reduce your prompt."
        )
    if sum(counts) > TEXTS_TOKENS_MAX:
        raise BadRequest(f"Invalid 'input': maximum request size is {TEXTS_TOKENS_MAX} tokens per request.")
    if not 1 <= got.dimensions <= DIMENSIONS_MAX:
        raise BadRequest(f"Invalid value for 'dimensions' = {got.dimensions}. Must be 1 to {DIMENSIONS_MAX}.")
    named = random_draws.identity(body)
    return ParsedRequest(
        body_id=named, text_id=named, model=got.model, text="", system="", input_tokens=sum(counts), max_tokens=0,
        stop_sequences=(), stream=False, user_id=None, schema=None, tool="", prefill="", texts=texts,
        dimensions=got.dimensions, as_base64=got.encoding_format == "base64",
    )  # fmt: skip


def _checked(got: _Body, counting: bool) -> int:
    """Check the request and return its ``max_tokens``."""
    if isinstance(got.max_tokens, msgspec.UnsetType):
        if not counting:
            raise BadRequest("max_tokens: Field required")
        got.max_tokens = 0
    if got.max_tokens < 0:
        raise BadRequest("max_tokens: Input should be greater than or equal to 0")
    if not got.model:
        raise BadRequest("model: String should have at least 1 character")
    if not got.messages:
        raise BadRequest("messages: at least one message is required")
    if got.messages[0].role != "user":
        raise BadRequest('messages: first message must use the "user" role')
    for at, turn in enumerate(got.messages):
        if turn.role not in ("user", "assistant"):
            raise BadRequest(f'messages.{at}.role: Input should be "user" or "assistant"')
        last_prefill = at == len(got.messages) - 1 and turn.role == "assistant"
        if not turn.content and not last_prefill:
            raise BadRequest(f"messages.{at}: all messages must have non-empty content")
        if isinstance(turn.content, list) and any(b.type == "text" and not b.text for b in turn.content):
            raise BadRequest("messages: text content blocks must be non-empty")
    if any(type(turn.content) is list for turn in got.messages) and (wrong := unpaired(got.messages)):
        raise BadRequest(wrong)
    if got.stop_sequences and len(got.stop_sequences) > STOP_SEQUENCES_MAX:
        raise BadRequest(f"stop_sequences: List should have at most {STOP_SEQUENCES_MAX} items")
    if got.stop_sequences and not all(each.strip() for each in got.stop_sequences):
        raise BadRequest("stop_sequences: each stop sequence must contain non-whitespace")
    if got.top_logprobs is not None and not (got.logprobs and 0 <= got.top_logprobs <= TOP_LOGPROBS_MAX):
        raise BadRequest(f"Invalid 'top_logprobs': with 'logprobs', 0 to {TOP_LOGPROBS_MAX}")
    if got.temperature is not None and not 0 <= got.temperature <= 1:
        raise BadRequest("temperature: range: 0..1")
    return got.max_tokens


def message_text(content: str | list[_Block]) -> str:
    """Return the text of a message: its text blocks, uses of tools and their results."""
    if isinstance(content, str):
        return content
    if len(content) == 1 and content[0].type == "text":
        return content[0].text
    texts = (each.text if each.type == "text" else _result_text(each) for each in content)
    return "\n\n".join(each for each in texts if each)


def _result_text(block: _Block) -> str:
    """Return the text of a tool use or tool result; empty for other blocks."""
    if block.type == "tool_use":
        return f"{block.name} {bytes(block.input).decode('utf-8', 'replace')}"
    if block.type != "tool_result":
        return ""
    content = bytes(block.content)
    if content.startswith(b'"'):
        return str(_json_decoder.decode(content))
    try:
        return message_text(msgspec.json.decode(content, type=list[_Block])) if content.startswith(b"[") else ""
    except msgspec.ValidationError:
        return ""


def _other_tokens(got: _Body) -> int:
    """Return the tokens of tools, images and documents."""
    tokens = tokenizer.count(bytes(got.tools)) if got.tools else 0
    for turn in got.messages:
        if isinstance(turn.content, str):
            continue
        for block in turn.content:
            tokens += min(IMAGE_TOKENS, tokenizer.count(bytes(block.source)))
    return tokens


def _without_stream(body: bytes) -> bytes:
    value = _json_decoder.decode(body)
    value.pop("stream", None)
    return msgspec.json.encode(value)


def _answer_form(got: _Body) -> tuple[str, dict[str, Any] | None]:
    """Return the forced tool's name (or empty), and the schema of the answer (or None)."""
    choice = got.tool_choice
    if choice and choice.get("type") in ("tool", "any") and got.tools:
        tools = _json_decoder.decode(bytes(got.tools))
        wanted = [t for t in tools if isinstance(t, dict) and choice.get("name") in (None, t.get("name"))]
        if not wanted:
            raise BadRequest(f"tool_choice.tool: Tool '{choice.get('name')}' not found in provided tools")
        schema = wanted[0].get("input_schema")
        return str(wanted[0].get("name", "")), schema if isinstance(schema, dict) else {"type": "object"}
    shape = (got.output_config or {}).get("format") or got.output_format or {}
    schema = shape.get("schema") if isinstance(shape, dict) else None
    return "", schema if isinstance(schema, dict) else None


_KINDS = {
    "int": "Input should be a valid integer",
    "str": "Input should be a valid string",
    "float": "Input should be a valid number",
    "bool": "Input should be a valid boolean",
    "array": "Input should be a valid list",
    "object": "Input should be an object",
}


def _wording(message: str) -> str:
    """Return the provider's wording for a validation error of msgspec."""
    found, _, where = message.partition(" - at `$")
    place = where.rstrip("`").replace("[...]", "").replace("[", ".").replace("]", "").lstrip(".")
    name = found.split("`")[1] if "`" in found else ""
    if found.startswith("Object missing required field"):
        return f"{place}.{name}: Field required".lstrip(".")
    if found.startswith("Object contains unknown field"):
        return f"{place}.{name}: Extra inputs are not permitted".lstrip(".")
    wanted = name.split(" | ")[0]
    return f"{place or 'body'}: {_KINDS.get(wanted, found)}"
