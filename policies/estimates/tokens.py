"""Token counts of a text: an upper bound, a calibrated estimate and a lower bound.

The bound is never below the true count and decides what is sent without asking the provider. The estimate, calibrated
by reported usage, decides how much to pack into a prompt. The lower bound decides which prompts are too large without
asking the provider.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, Literal

import msgspec

from policies.estimates.request_content import reaches_outside

FRAMING_TOKENS: Final = 32
"""Tokens that a provider adds around the text of a request with a system prompt and one message (measured: 7 to 12).
Each further message costs fewer tokens than the JSON around it has bytes."""
TOOLS_TOKENS: Final = 600
"""Tokens of the hidden system prompt for tools: 530 at most over all models. Structured output counts the same.
https://docs.claude.com/en/docs/agents-and-tools/tool-use/overview"""
TOOL_TOKENS: Final = 1_000
"""Tokens of one tool that the provider defines and the request only names: 735 at most; source as `TOOLS_TOKENS`."""
IMAGE_TOKENS: Final = 6_000
"""Tokens of one image at its largest: about 1,600, on models with finer vision 4,800.
https://docs.claude.com/en/docs/build-with-claude/vision"""
IMAGE_BYTES_LIKE: Final = 5_600
"""Bytes of text that count like one image in `body_size`: about 1,600 tokens, the maximum on most models."""
UNBOUNDED: Final = 1 << 40
"""Bound of a request whose bytes do not bound its tokens: documents, files and links, whose content is elsewhere or
packed, tools that the provider runs, which read on their own, and all content that is not known."""

# In a string of JSON every quote is escaped, so these patterns match keys and values of the request, never its text.
_IMAGE: Final = re.compile(rb'"type"\s*:\s*"image(?:_url)?"')
_TOOLS: Final = re.compile(rb'"(?:tools|output_config|output_format|response_format)"\s*:')
_TYPES: Final = re.compile(rb'"type"\s*:\s*"([^"]*)"')
_TOOL: Final = re.compile(rb"(?:bash|text_editor|computer|memory)_\d+")
_IMAGES: Final = frozenset({b"image", b"image_url"})  # the second one of chat completions
_UNBOUNDED: Final = re.compile(rb"document|file|url|container_upload|(?:web_search|web_fetch|code_execution)_\w+")
_SERVERS: Final = re.compile(rb'"mcp_servers"\s*:')
# Values of "type" that are common in schemas, texts and messages, and add no tokens.
_TEXTS: Final = frozenset(
    b"text object array string integer number boolean null json_schema json_object message function custom tool_use "
    b"tool_result thinking redacted_thinking base64 ephemeral enabled disabled adaptive auto any tool none".split()
)
# Requests read as JSON: a block may have no type, and a field of this name may stand anywhere.
_INSIDE: Final = (
    rb'content"\s*:\s*[\[{]', rb'container"\s*:', rb'context_management"', rb'conversation"', rb'system"\s*:\s*[\[{]',
    rb'audio"', rb'attachments"', rb'mcp_servers"', rb'web_search_options"', rb'data_sources"', rb'documents"',
    rb'previous_response_id"', rb'plugins"', rb'file_ids"',
)  # fmt: skip
_BLOCKS: Final = re.compile(rb'"(?:tools"|%b)' % b"|".join(_INSIDE))


def _one_of(keys: Sequence[bytes]) -> re.Pattern[bytes]:
    """Compile the search for a quote and any of these patterns, of which the first four bytes are literal.

    Most quotes of a request belong to other keys, and four sets of bytes reject nearly all of those; the content that
    is one string, in every request, is rejected at once. Measured for a request of 90 bytes: 0.14 µs, with the
    alternatives alone 0.3 to 0.5 µs.
    """
    sets = b"".join(b"[" + bytes(sorted({key[place] for key in keys})) + b"]" for place in range(4))
    return re.compile(b'"' + sets + b'(?!ent":")(?:' + b"|".join(key[4:] for key in keys) + b")")


# Prefix common to all patterns above: without a match, none of them needs to be searched for.
_MORE_THAN_TEXT: Final = _one_of((rb'type"', rb'tools"', rb"output_", *_INSIDE))
_find_escape: Final = re.compile(rb"\\u").search  # in a short text twice as fast as `in`
_BACKSLASH: Final = ord("\\")  # searched for first: one byte is found much faster than two


def tokens_bound(text: str | bytes, framing: int = FRAMING_TOKENS) -> int:
    """Return the most tokens that this text can be, with `framing` tokens around it.

    A token of a byte-level vocabulary covers at least one byte, so the UTF-8 bytes bound the tokens. Some tokenizers
    first normalize text to NFKC, which is longer for a few characters; the longer form counts.
    """
    if text.isascii():
        return len(text) + framing
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    length = len(text.encode(errors="surrogatepass"))
    if not unicodedata.is_normalized("NFKC", text):
        length = max(length, len(unicodedata.normalize("NFKC", text).encode(errors="surrogatepass")))
    return length + framing


def body_tokens_bound(body: bytes) -> int:
    """Return the most input tokens that a whole Messages request (JSON) can be; UNBOUNDED if its bytes do not bound
    them.
    """
    if not _MORE_THAN_TEXT.search(body):  # text only, as most requests are
        if body.isascii() and _BACKSLASH not in body:
            return len(body) + FRAMING_TOKENS
        return text_body_tokens_bound(body)
    if _SERVERS.search(body):
        return UNBOUNDED
    images = tools = 0
    strange = _BLOCKS.search(body) is not None
    for kind in _TYPES.findall(body):
        if kind in _TEXTS:
            continue
        if _UNBOUNDED.fullmatch(kind):
            return UNBOUNDED
        if kind in _IMAGES:
            images += 1
        elif _TOOL.fullmatch(kind):
            tools += 1
        else:
            strange = True
    if strange and reaches_outside(body):
        return UNBOUNDED
    bound = tokens_bound(_unescaped(_without_pictures(body) if images else body)) + images * IMAGE_TOKENS
    return bound + TOOLS_TOKENS + tools * TOOL_TOKENS if _TOOLS.search(body) else bound


def text_within_tokens_bound(body: bytes, text: bytes, besides: int | None) -> int:
    """Return `body_tokens_bound(body)`, faster, for a request that has ``text`` in one of its strings.

    ``besides`` is ``tokens_besides`` of the rest of the request: for many requests with a common rest, what the rest
    asks for (tools, images) is looked up once.
    """
    if besides is None or _find_escape(text):
        return body_tokens_bound(body)
    if not text.isascii():  # the quotes around it are never normalized with it
        return tokens_bound(text, len(body) - len(text) + FRAMING_TOKENS + besides)
    return len(body) + FRAMING_TOKENS + besides


@lru_cache(maxsize=64)
def tokens_besides(around: bytes) -> int | None:
    """Return the tokens by which the bound of a request exceeds the bound of its bytes; None if bytes do not bound
    it.
    """
    if not around.isascii() or b"\\u" in around:
        return None
    more = body_tokens_bound(around) - len(around) - FRAMING_TOKENS
    return more if 0 <= more < IMAGE_TOKENS else None


def bodies_tokens_bound(bodies: Sequence[bytes]) -> int:
    """Return the largest bound of several requests; 0 for none."""
    bound = bodies_ascii_bound(bodies)
    return bound if bound < UNBOUNDED else max(map(body_tokens_bound, bodies))


def bodies_ascii_bound(bodies: Collection[bytes]) -> int:
    """Return the largest bound if all requests are plain ASCII text, in one search over all; otherwise UNBOUNDED."""
    together = b"\n".join(bodies)
    if not together.isascii() or (_BACKSLASH in together and b"\\u" in together) or _MORE_THAN_TEXT.search(together):
        return UNBOUNDED
    return max(map(len, bodies)) + FRAMING_TOKENS if bodies else 0


def text_body_tokens_bound(body: bytes) -> int:
    """Return `body_tokens_bound` of a request that is known to hold text only."""
    if body.isascii() and (_BACKSLASH not in body or b"\\u" not in body):
        return len(body) + FRAMING_TOKENS
    return tokens_bound(_unescaped(body))


def body_size(body: bytes) -> int:
    """Return a size in bytes that is proportional to a request's tokens: its JSON, with each image as
    `IMAGE_BYTES_LIKE`.
    """
    if not _MORE_THAN_TEXT.search(body) or not (images := len(_IMAGE.findall(body))):
        return len(body)
    return len(_without_pictures(body)) + images * IMAGE_BYTES_LIKE


def _without_pictures(body: bytes) -> bytes:
    """Remove the data of images from the JSON: an image costs tokens by its size in pixels, not by its bytes."""
    try:
        value: Any = msgspec.json.decode(body)
        emptied = _empty_pictures(value.get("messages") if isinstance(value, dict) else None)
        return msgspec.json.encode(value) if emptied else body
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body


def _empty_pictures(content: Any) -> int:
    """Empty the data of image blocks, only where blocks may stand (elsewhere they are text). Return their number."""
    emptied = 0
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        source, image = block.get("source"), block.get("image_url")
        if block.get("type") == "image" and isinstance(source, dict) and source.get("type") == "base64":
            source["data"] = ""
            emptied += 1
        elif block.get("type") == "image_url" and isinstance(image, dict) and str(image.get("url"))[:5] == "data:":
            image["url"] = ""
            emptied += 1
        else:
            emptied += _empty_pictures(block.get("content"))  # content of a message or of a tool result
    return emptied


def _unescaped(body: bytes) -> bytes:
    r"""Decode `\u` escapes in the JSON: six bytes for a character of two or three bytes, or of many in NFKC."""
    if b"\\u" not in body:
        return body
    try:
        value: Any = msgspec.json.decode(body)
        return msgspec.json.encode(value)
    except (msgspec.DecodeError, UnicodeError):
        return body


_MILLI: Final = 1_000
_STEPS: Final = 40
# Bytes per token in thousandths, from 1 to 32, an eighth of an octave apart.
_EDGES: Final = tuple(round(_MILLI * 2 ** (step / 8)) for step in range(_STEPS))
_PRIOR_MILLI: Final = 2 * _MILLI  # cautious: prose has 3 to 5 bytes a token, dense scripts and digits about 2
_LEAST_PRIOR_MILLI: Final = 8 * _MILLI  # more bytes per token than any prose has
TEACHES_BYTES_MIN: Final = 512
"""Bytes below which a prompt is not used for calibration: the framing outweighs the text."""
_SAMPLES_MIN: Final = 20
_OUTLIERS: Final = 100  # one call in a hundred may have more tokens than estimated
_EIGHTS: Final = 8
_EIGHTS_MAX: Final = 4 * _EIGHTS  # beyond five times the estimate the bound is tighter


class TokenEstimate(msgspec.Struct, frozen=True):
    """Bytes per token, learnt from reported usage. An immutable value: `update` and `tightened` return a new one.

    A histogram of fixed size, so that the order of the reports does not matter. Rule: at least 99 of 100 calls seen had
    no more tokens than `tokens` returns for their bytes; until 20 calls were seen the cautious prior holds as well. One
    wrong report in a hundred changes nothing.
    """

    counts: tuple[int, ...] = (0,) * _STEPS
    """Calls per step of bytes per token."""
    tightenings: int = 0
    """Number of eighths by which the estimate is raised."""

    def update(self, prompt_bytes: int, tokens: int) -> "TokenEstimate":
        """Return the estimate with one more call: UTF-8 bytes of its text, and reported input tokens, cached ones
        included.

        Prompts below `TEACHES_BYTES_MIN` and impossible counts are ignored.
        """
        if prompt_bytes < TEACHES_BYTES_MIN or tokens < 1:
            return self
        step = max(bisect_right(_EDGES, prompt_bytes * _MILLI // tokens) - 1, 0)
        counts = self.counts
        return TokenEstimate((*counts[:step], counts[step] + 1, *counts[step + 1 :]), self.tightenings)

    def tightened(self) -> "TokenEstimate":
        """Return the estimate raised by an eighth, after the provider refused a prompt as too large that was thought to
        fit.
        """
        return TokenEstimate(self.counts, min(self.tightenings + 1, _EIGHTS_MAX))

    def tokens(self, prompt_bytes: int, framing: int = FRAMING_TOKENS) -> int:
        """Return the estimated tokens for packing: probably not more than the true count, never above the bound of
        plain text.
        """
        counted = -(-prompt_bytes * _MILLI // self._low_milli())
        counted = -(-counted * (_EIGHTS + self.tightenings) // _EIGHTS)
        return min(counted, prompt_bytes) + framing

    def tokens_least(self, prompt_bytes: int) -> int:
        """Return tokens that the prompt almost certainly has: a prompt over the limit by this count is refused without
        asking.
        """
        seen = next((step for step in reversed(range(_STEPS)) if self.counts[step]), 0)
        high = _EDGES[seen + 1] if seen + 1 < _STEPS else 2 * _EDGES[seen]
        return prompt_bytes * _MILLI // max(high, _LEAST_PRIOR_MILLI)

    def _low_milli(self) -> int:
        """The lower edge of the step below which at most one call in a hundred lies."""
        total = sum(self.counts)
        if not total:
            return _PRIOR_MILLI
        outliers = total // _OUTLIERS
        low = next(step for step, below in enumerate(accumulate(self.counts)) if below > outliers)
        return _EDGES[low] if total >= _SAMPLES_MIN else min(_EDGES[low], _PRIOR_MILLI)


Verdict = Literal["send", "ask_counter", "too_large"]


def verdict(bound: int, least: int, tokens_max: int) -> Verdict:
    """Decide whether a prompt of at most `bound` and at least `least` tokens may be sent under `tokens_max`.

    Returns "send" only if the bound proves that the prompt fits, and "too_large" if the lower bound proves that it does
    not. In between, "ask_counter": the provider's token counter decides; if it cannot be asked the prompt does not fit.
    """
    if bound <= tokens_max:
        return "send"
    return "too_large" if least > tokens_max else "ask_counter"
