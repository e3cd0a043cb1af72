"""Documents of a ``notes`` synthesis: their sizes, and their division and grouping, all by code without a model.

Sizes are counted on one of three scales, the next stricter one after a prompt was found too large: by the calibrated
estimate, by bytes (never below the truth), and by bytes within half of M (for a provider whose window is smaller than
assumed).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from cortex.programs.parts import notes_prompts
from cortex.state.state import State
from cortex.values.prompt import Part, Prompt, Role, request_body
from policies.decisions.selection import Piece, Shorten, cluster, pack, split
from policies.estimates.tokens import body_tokens_bound

ESTIMATED: Final = 0
"""Level 0: sizes by the calibrated estimate."""
BY_BYTES: Final = 1
"""Level 1: sizes by bytes."""
BY_BYTES_IN_HALF: Final = 2
"""Level 2: sizes by bytes, within half of M."""
LEVEL_MAX: Final = BY_BYTES_IN_HALF

SEPARATOR: Final = "\n\n"
SLACK: Final = 8
"""Denominator of the share of the room that stays free when packing by the estimate: the estimate changes while calls
are in flight, in steps of an eighth of an octave."""
SHARED_WORDS_MAX: Final = 5
"""Shared words that are named."""

ANNOTATED: Final = 0
"""Form of a document: text with an annotation."""
BARE: Final = 1
"""Form of a document: text only."""
CLAIMS_ONLY: Final = 2
"""Form of a document: its claims only (lossy)."""


class Document(msgspec.Struct, frozen=True):
    """Content of a prompt: a note, a piece of a note, or a summary."""

    id: int
    """Item it stands for: a note, a finding or a summary."""
    name: str
    text: str
    why: str = ""
    claims: tuple[str, ...] = ()
    says: str = "neither"
    summary: bool = False

    def parts(self, form: int = ANNOTATED) -> list[Part]:
        """Return the document in this form."""
        if self.summary:
            return [notes_prompts.summary(self.name, self.text)]
        if form == CLAIMS_ONLY:
            return [notes_prompts.extract(self.name, self.claims)]
        shown = [notes_prompts.document(self.name, self.text)]
        if form == ANNOTATED and (self.why or self.claims):
            shown.insert(0, notes_prompts.annotation(self.name, self.why, self.claims))
        return shown

    def forms(self, wanted: int, most: int) -> list[tuple[int, int]]:
        """Return its possible forms, fullest first, each with its maximum size."""
        own = [] if self.summary else [(ANNOTATED, wanted)]
        return [*own, (BARE, most), *([(CLAIMS_ONLY, most)] if self.claims else [])]

    def words(self) -> frozenset[str]:
        """Return the characteristic words of its content."""
        return content_words(" ".join((self.name, *self.claims)) if self.claims else self.text)


class PromptScale(msgspec.Struct, frozen=True):
    """Method of counting sizes, and of computing the room of a prompt within M."""

    size: Callable[[str], int]
    room: Callable[[Prompt, int], int]
    """Room of a prompt without its documents, given the ``max_tokens`` of its reply."""

    def of(self, parts: Iterable[Part]) -> int:
        """Return the size of parts, with a separator after each."""
        return sum(self.size(part.render()) + self.size(SEPARATOR) for part in parts)


def scale(k: State, level: int) -> PromptScale:
    """Return the scale of one level of strictness."""
    if level == ESTIMATED:
        nothing = k.tokens("")
        return PromptScale(
            lambda text: k.tokens(text) - nothing,
            lambda frame, out: (k.prompt_tokens_max(out) - k.tokens(frame.text())) * (SLACK - 1) // SLACK,
        )
    part = 2 if level >= BY_BYTES_IN_HALF else 1
    return PromptScale(
        notes_prompts.size_bytes,
        lambda frame, out: (
            k.prompt_tokens_max(out) // part - body_tokens_bound(request_body(frame, k.terms.route.model, out))
        ),
    )


def scales(k: State, level: int) -> list[PromptScale]:
    """Return the scales on any of which a prompt may fit: a prompt that fits by its bytes needs no estimate."""
    return [scale(k, BY_BYTES), scale(k, ESTIMATED)] if level == ESTIMATED else [scale(k, level)]


# -- packing -----------------------------------------------------------------------------------------------------


def packed(scale: PromptScale, room: int, parts_max: int, parts: Sequence[Part]) -> list[Part] | None:
    """Return these parts within both bounds: all documents; annotations and connections by priority as far as there is
    room.

    Returns None if the documents alone are too large.
    """
    rules: list[Shorten] = ["keep" if part.role == Role.DOCUMENT else "drop" for part in parts]
    pieces = [Piece(scale.of([part]), part.priority, shorten=rule) for part, rule in zip(parts, rules, strict=True)]
    taken = pack(pieces, room, parts_max)
    if taken is None:
        return None
    return [part for part, size in zip(parts, taken, strict=True) if size]


def divided(text: str, room: int, size: Callable[[str], int]) -> list[str]:
    """Divide the text into as few pieces as fit, nothing lost; a single piece if none can be small enough."""
    whole = len(text.encode(errors="surrogatepass"))
    limit = min(whole, whole * room // max(1, size(text)))
    while limit >= 4:
        pieces = split(text, limit)
        if all(size(piece) <= room for piece in pieces):
            return pieces
        limit = limit * 7 // 8
    return [text]


class DocumentGroup(msgspec.Struct, frozen=True):
    """Documents that are summarised together, the form of each, and the words that they share."""

    documents: list[Document]
    forms: list[int]
    shared: list[str]
    summary_bytes: int
    """Maximum size of the summary in bytes."""

    def larger_than(self, size: int) -> bool:
        """Return True if a summary of this size makes the group smaller."""
        return len(self.documents) > 1 or notes_prompts.size_bytes(self.documents[0].text) > size


def clusters(
    documents: Sequence[Document], scale: PromptScale, room: int, items_max: int, question: str, summary_bytes: int
) -> tuple[list[DocumentGroup], list[Document]]:  # fmt: skip
    """Group similar documents, each group within ``room`` and ``items_max``; also return those that fit in no form.

    A document that is no larger than a summary may be takes at most half of the room, as a summary does.
    """
    forms: dict[int, int] = {}
    sizes: dict[int, int] = {}
    left_out = []
    for each in documents:
        small = notes_prompts.size_bytes(each.text) <= summary_bytes
        for form, bound in each.forms(room // 2 if small else room, room):
            size = scale.of(each.parts(form))
            if size <= bound:
                forms[each.id], sizes[each.id] = form, size
                break
        else:
            left_out.append(each)
    kept = [each for each in documents if each.id in forms]
    words = [each.words() - content_words(question) for each in kept]
    order = alike(words)
    groups = []
    for indices in cluster([sizes[kept[i].id] for i in order], room, items_max):
        members = [kept[order[i]] for i in indices]
        shared = shared_words([words[order[i]] for i in indices])
        groups.append(DocumentGroup(members, [forms[each.id] for each in members], shared, summary_bytes))
    return groups, left_out


# -- word overlap ------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[^\W\d_]{4,}")
_STOP_WORDS: Final = frozenset(
    """
    about above after again against also although always among another because been before being below between both
    cannot could does doing done down during each either else even ever every from further have having here however
    into itself just least less like made make makes many might more most much must need needs never next nothing
    often once only other otherwise over rather same says shall should since some something such than that their them
    then there therefore these they thing things this those through thus together toward under until upon used uses
    using very want were what when where whether which while whose will with within without would your
    """.split()
)


def content_words(text: str) -> frozenset[str]:
    """Return the characteristic words of a text: four letters or more, in lower case, without a plural ``s``."""
    found = set(_WORD.findall(text.casefold())) - _STOP_WORDS
    return frozenset(word if word.endswith(("ss", "us", "is")) else word.removesuffix("s") for word in found)


def ranks(words: Sequence[frozenset[str]]) -> dict[str, int]:
    """Return the words that distinguish documents, the most common first.

    Words in more than half of the documents distinguish as little as words in only one.
    """
    counted = Counter(word for each in words for word in each)
    common = [word for word, n in counted.items() if 2 <= n <= max(2, len(words) // 2)]
    return {word: place for place, word in enumerate(sorted(common, key=lambda word: (-counted[word], word)))}


def alike(words: Sequence[frozenset[str]]) -> list[int]:
    """Return an order of indices in which texts with shared words are neighbours; deterministic, in about n log n
    steps.

    Each text is placed by the ranks of its words, most common first, like the branches of a frequent-pattern tree.
    """
    rank = ranks(words)
    keys = [sorted(rank[word] for word in each if word in rank) for each in words]
    return sorted(range(len(words)), key=lambda i: (not keys[i], keys[i], i))


def shared_words(words: Sequence[frozenset[str]]) -> list[str]:
    """Return the words that more than half of these texts share, at least two of them; most common first."""
    counted = Counter(word for each in words for word in each)
    found = [word for word, n in counted.items() if n >= 2 and 2 * n > len(words)]
    return sorted(found, key=lambda word: (-counted[word], word))[:SHARED_WORDS_MAX]


def companies(documents: Sequence[Document], question: str) -> list[tuple[list[Document], list[str]]]:
    """Return groups of documents, with the words that every member has and that are not in the question.

    A document that shares nothing with its neighbours is a group of one, without words.
    """
    words = [each.words() - content_words(question) for each in documents]
    rank = ranks(words)
    found: list[tuple[list[Document], frozenset[str]]] = []
    for i in alike(words):
        own = words[i] & rank.keys()
        if found and found[-1][1] & own:
            found[-1] = ([*found[-1][0], documents[i]], found[-1][1] & own)
        else:
            found.append(([documents[i]], own))
    return [
        (members, sorted(shared, key=rank.__getitem__)[:SHARED_WORDS_MAX] if len(members) > 1 else [])
        for members, shared in found
    ]
