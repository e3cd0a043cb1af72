"""Simulated tokenizer: words between white space, in pieces of at most four UTF-8 bytes.

Each piece has at least one byte and white space is free, so a text never has more tokens than bytes. English has about
3.8 bytes a token, close to real tokenizers.
"""

PIECE_BYTES = 4

_PIECES = [(length + PIECE_BYTES - 1) // PIECE_BYTES for length in range(64)]


def count(text: str | bytes) -> int:
    """Return the tokens of a text; 0 for an empty one."""
    if not text:
        return 0
    words = (text.encode("utf-8", "replace") if isinstance(text, str) else text).split()
    try:
        return sum(map(_PIECES.__getitem__, map(len, words)))
    except IndexError:  # a word of 64 bytes or more
        return sum((len(word) + PIECE_BYTES - 1) // PIECE_BYTES for word in words)


def cut(text: str, tokens_max: int) -> str:
    """Return the longest prefix of a text with at most ``tokens_max`` tokens that breaks no character."""
    content = text.encode("utf-8", "replace")
    left, at = tokens_max, 0
    for word in content.split():
        start = content.index(word, at)
        needed = (len(word) + PIECE_BYTES - 1) // PIECE_BYTES
        if needed > left:
            head = content[: start + left * PIECE_BYTES] if left else content[:at]
            return head.decode("utf-8", "ignore")
        left -= needed
        at = start + len(word)
    return text


def chunks(text: str, tokens_each: int) -> list[str]:
    """Return a text in consecutive parts of about ``tokens_each`` tokens; joined, they give the text."""
    size = max(1, tokens_each) * PIECE_BYTES
    return [text[start : start + size] for start in range(0, len(text), size)]
