"""How many tokens is this text: at most, probably, and does it fit?

Three readings of one size. The bound is never below the truth and decides what is sent without asking. The
estimate, calibrated by reported usage, decides what to pack. The least decides what need not be asked about.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, Literal

import msgspec

FRAMING_TOKENS: Final = 32
"""What a provider puts around the text of a request with a system prompt and one message (measured: 7 to
12). Each further message costs fewer tokens than the JSON around it has bytes."""
TOOLS_TOKENS: Final = 600
"""The hidden system prompt for tools, 530 at most over all models (also taken for that of structured output);
https://docs.claude.com/en/docs/agents-and-tools/tool-use/overview."""
TOOL_TOKENS: Final = 1_000
"""One tool that the provider defines and the request only names, 735 at most; the same page."""
IMAGE_TOKENS: Final = 6_000
"""One image at its largest: about 1,600, on the models that see more finely 4,800;
https://docs.claude.com/en/docs/build-with-claude/vision."""
IMAGE_BYTES_LIKE: Final = 5_600
"""An image of about 1,600 tokens, which is what it comes to at most on most models, as so many bytes of text."""
UNBOUNDED: Final = 1 << 40
"""The bound of what no count of bytes bounds: documents, files and links, whose content is elsewhere or
packed, and tools that the provider runs, which read on their own."""

# In a string of JSON every quote is escaped, so these match keys and values of the request, never its text.
_IMAGE: Final = re.compile(rb'"type"\s*:\s*"image"')
_TOOLS: Final = re.compile(rb'"(?:tools|output_config|output_format)"\s*:')
_TYPES: Final = re.compile(rb'"type"\s*:\s*"(\w+)"')
_TOOL: Final = re.compile(rb"(?:bash|text_editor|computer|memory)_\d+")
_UNBOUNDED: Final = re.compile(rb"document|file|url|container_upload|(?:web_search|web_fetch|code_execution)_\w+")
_SERVERS: Final = re.compile(rb'"mcp_servers"\s*:')
# Types that schemas, texts and messages are full of.
_TEXTS: Final = frozenset(b"text object array string integer number boolean null json_schema message".split())

# Each of the patterns above begins like this: where none is found, they need not be searched for.
_MORE_THAN_TEXT: Final = re.compile(rb'"(?:t(?:ype|ools)"|mcp_servers"|output_)')
_BACKSLASH: Final = ord("\\")  # is there any at all? One byte is found much faster than two


def tokens_bound(text: str | bytes, framing: int = FRAMING_TOKENS) -> int:
    """The most tokens that this text can be, with the framing around it.

    A token of a byte-level vocabulary covers a byte or more, so the UTF-8 bytes bound the tokens. Some
    tokenizers first bring text into the form NFKC, which is longer for a few characters; the longer of the
    two counts.
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
    """The most input tokens that a whole Messages request, as JSON, can be; UNBOUNDED where its bytes do
    not say."""
    if not _MORE_THAN_TEXT.search(body):  # nothing but text, as most requests are
        if body.isascii() and _BACKSLASH not in body:
            return len(body) + FRAMING_TOKENS
        return text_body_tokens_bound(body)
    if _SERVERS.search(body):
        return UNBOUNDED
    images = tools = 0
    for kind in _TYPES.findall(body):
        if kind in _TEXTS:
            continue
        if _UNBOUNDED.fullmatch(kind):
            return UNBOUNDED
        images += kind == b"image"
        tools += _TOOL.fullmatch(kind) is not None
    bound = tokens_bound(_plain(_without_pictures(body) if images else body)) + images * IMAGE_TOKENS
    return bound + TOOLS_TOKENS + tools * TOOL_TOKENS if _TOOLS.search(body) else bound


def text_within_tokens_bound(body: bytes, text: bytes, besides: int | None) -> int:
    """The same of a request that has ``text`` in one of its strings; ``besides`` is ``tokens_besides`` of what stands
    around it: of many requests that have that in common, what they ask for besides is looked up once."""
    if besides is None or not text.isascii() or b"\\u" in text:
        return body_tokens_bound(body)
    return len(body) + FRAMING_TOKENS + besides


@lru_cache(maxsize=64)
def tokens_besides(around: bytes) -> int | None:
    """What the bound of a request is above that of its bytes; None where bytes say nothing, or are not what counts."""
    if not around.isascii() or b"\\u" in around:
        return None
    more = body_tokens_bound(around) - len(around) - FRAMING_TOKENS
    return more if 0 <= more < IMAGE_TOKENS else None


def bodies_tokens_bound(bodies: Sequence[bytes]) -> int:
    """The largest of the bounds of several requests; 0 where there is none."""
    bound = bodies_plain_bound(bodies)
    return bound if bound < UNBOUNDED else max(map(body_tokens_bound, bodies))


def bodies_plain_bound(bodies: Collection[bytes]) -> int:
    """The same where all of them are plain, by one look at all together; else UNBOUNDED, and nothing is said of any."""
    together = b"\n".join(bodies)
    if not together.isascii() or (_BACKSLASH in together and b"\\u" in together) or _MORE_THAN_TEXT.search(together):
        return UNBOUNDED
    return max(map(len, bodies)) + FRAMING_TOKENS if bodies else 0


def text_body_tokens_bound(body: bytes) -> int:
    """The same of a request that is known to be nothing but text."""
    if body.isascii() and (_BACKSLASH not in body or b"\\u" not in body):
        return len(body) + FRAMING_TOKENS
    return tokens_bound(_plain(body))


def body_size(body: bytes) -> int:
    """A measure of a request that its tokens follow: its bytes as JSON, an image counted as text of its tokens."""
    if not _MORE_THAN_TEXT.search(body) or not (images := len(_IMAGE.findall(body))):
        return len(body)
    return len(_without_pictures(body)) + images * IMAGE_BYTES_LIKE


def _without_pictures(body: bytes) -> bytes:
    """The same JSON without what its images hold: that is no text, and costs by an image's size, not by its bytes."""
    try:
        value: Any = msgspec.json.decode(body)
        emptied = _empty_pictures(value.get("messages") if isinstance(value, dict) else None)
        return msgspec.json.encode(value) if emptied else body
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return body


def _empty_pictures(content: Any) -> int:
    """Take out the bytes of image blocks: where blocks stand, and nowhere else, for elsewhere they would be text. How
    many there were."""
    emptied = 0
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        source = block.get("source")
        if block.get("type") == "image" and isinstance(source, dict) and source.get("type") == "base64":
            source["data"] = ""
            emptied += 1
        else:
            emptied += _empty_pictures(block.get("content"))  # of a message, or of a tool's result
    return emptied


def _plain(body: bytes) -> bytes:
    """The same JSON without `\\u` escapes: six bytes that stand for a character of two or three, or of
    many in NFKC."""
    if b"\\u" not in body:
        return body
    try:
        value: Any = msgspec.json.decode(body)
        return msgspec.json.encode(value)
    except (msgspec.DecodeError, UnicodeError):
        return body


_MILLI: Final = 1_000
_STEPS: Final = 40
# Bytes per token in thousandths, an eighth of an octave apart: 1 to 32.
_EDGES: Final = tuple(round(_MILLI * 2 ** (step / 8)) for step in range(_STEPS))
_PRIOR_MILLI: Final = 2 * _MILLI  # cautious: prose has 3 to 5 bytes a token, dense scripts and digits about 2
_LEAST_PRIOR_MILLI: Final = 8 * _MILLI  # more bytes a token than any prose has
TEACHES_BYTES_MIN: Final = 512
"""A smaller prompt teaches nothing: the framing outweighs the text."""
_SAMPLES_MIN: Final = 20
_OUTLIERS: Final = 100  # one in so many may lie outside
_EIGHTS: Final = 8
_EIGHTS_MAX: Final = 4 * _EIGHTS  # beyond five times the estimate the bound is nearer


class Estimate(msgspec.Struct, frozen=True):
    """Bytes per token, learnt from reported usage; a value that is replaced, never changed.

    A histogram, so that the order in which usage was reported does not matter and its size is fixed. The
    rule: at least 99 of 100 calls seen had no more tokens than `tokens` says of their bytes, and until 20
    were seen the cautious prior holds as well. One lying report in a hundred moves nothing.
    """

    counts: tuple[int, ...] = (0,) * _STEPS
    tightenings: int = 0

    def update(self, prompt_bytes: int, tokens: int) -> "Estimate":
        """With one more call: the UTF-8 bytes of its text and the input tokens reported, cached ones
        included.

        Small prompts and counts that cannot be are passed over.
        """
        if prompt_bytes < TEACHES_BYTES_MIN or tokens < 1:
            return self
        step = max(bisect_right(_EDGES, prompt_bytes * _MILLI // tokens) - 1, 0)
        counts = self.counts
        return Estimate((*counts[:step], counts[step] + 1, *counts[step + 1 :]), self.tightenings)

    def tightened(self) -> "Estimate":
        """After the provider called a prompt too large that was thought to fit: an eighth more tokens from
        now on."""
        return Estimate(self.counts, min(self.tightenings + 1, _EIGHTS_MAX))

    def tokens(self, prompt_bytes: int, framing: int = FRAMING_TOKENS) -> int:
        """Probably not more than so many tokens: for packing. Never above the bound of plain text."""
        counted = -(-prompt_bytes * _MILLI // self._low_milli())
        counted = -(-counted * (_EIGHTS + self.tightenings) // _EIGHTS)
        return min(counted, prompt_bytes) + framing

    def tokens_least(self, prompt_bytes: int) -> int:
        """Hardly fewer than so many tokens: what is over M by this reading need not be asked about."""
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
    """Whether a prompt of at most `bound` and at least `least` tokens may be sent under `tokens_max`.

    Sent only where the bound proves that it fits. Between the two the provider's own counter decides, and
    where it cannot be asked the prompt does not fit.
    """
    if bound <= tokens_max:
        return "send"
    return "too_large" if least > tokens_max else "ask_counter"
