"""One template from several variants of a text: lines that differ stand between conditions.

A chart has no patches. So an object is rendered with each component, as text, and the lines in which a variant differs
from the overlay's are put between ``if`` and ``end``. Each variant by itself is thereby exact, and so are variants that
change different places; the tests render every component, and all that go together, and compare with kustomize.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher


def merged(base: str, variants: Mapping[str, str]) -> str:
    """Return the template that gives ``base``, or the variant whose condition holds; keys are conditions in Go's form.

    Raises ``ValueError`` for variants that change one place in different ways.
    """
    lines = base.splitlines()
    added: dict[int, list[str]] = {}
    changed: dict[int, tuple[int, list[str]]] = {}
    for condition, text in variants.items():
        own = text.splitlines()
        for tag, start, end, first, last in SequenceMatcher(None, lines, own, autojunk=False).get_opcodes():
            if tag == "insert":
                added.setdefault(start, []).extend(_if(condition, own[first:last]))
            elif tag != "equal":
                if any(start < other_end and other < end for other, (other_end, _) in changed.items()):
                    raise ValueError(f"{condition} and another variant change line {start + 1}: {lines[start]}")
                changed[start] = end, _if(condition, own[first:last], lines[start:end])
    return "".join(f"{line}\n" for line in _laid(lines, added, changed))


def _laid(
    lines: list[str], added: Mapping[int, list[str]], changed: Mapping[int, tuple[int, list[str]]]
) -> Iterator[str]:
    number = 0
    while number <= len(lines):
        yield from added.get(number, ())
        end, text = changed.get(number, (number + 1, lines[number : number + 1]))
        yield from text
        number = end


def negated(condition: str) -> str:
    """Return the condition that holds where this one does not."""
    return condition.removeprefix("not ") if condition.startswith("not ") else f"not ({condition})"


def _if(condition: str, then: list[str], otherwise: list[str] | None = None) -> list[str]:
    if not then:  # the variant has nothing here
        return [f"{{{{- if {negated(condition)} }}}}", *(otherwise or ()), "{{- end }}"]
    return [f"{{{{- if {condition} }}}}", *then, *(["{{- else }}", *otherwise] if otherwise else ()), "{{- end }}"]
