"""Items and goals of ``notes`` in K: findings, clusters, summaries, and their sources.

    note       a source text, items 1 to n in the given order
    finding    judgement of a note, or of one piece of it, by a filter call: refers to the note; lossy
    cluster    documents that are summarised together, their form, and the words they share; made without a call
    summary    summary of a cluster by a call: refers to the cluster's documents; lossy
    left out   documents that fit a prompt in no form, and the reason

Items are made when all calls of a kind have ended, in the order of the notes, so that K does not depend on the order in
which replies arrive; until then a result is its goal's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from cortex.programs.parts import notes_prompts
from cortex.programs.parts.notes_documents import Document, DocumentGroup
from cortex.state.state import Goal, Item, State, Status


class NoteText(msgspec.Struct, frozen=True):
    """Note: its name and its text."""

    name: str
    text: str


# -- findings ----------------------------------------------------------------------------------------------------


def filters(k: State, top: Goal) -> list[Goal]:
    """Return the filter goals of whole notes, in the order of the notes."""
    return sorted((goal for goal in k.children(top) if goal.kind == "filter"), key=lambda goal: goal.value["place"])


def leaves(k: State, goal: Goal) -> Iterator[Goal]:
    """Yield the filter goals that made a call: the goal itself, or those of its pieces, in the order of the text."""
    if not goal.children:
        yield goal
    for child in k.children(goal):
        yield from leaves(k, child)


def judged(k: State, top: Goal) -> Iterator[tuple[Goal, dict[str, Any]]]:
    """Yield the resolved filter goals with their findings, even before all have ended."""
    for goal in (leaf for each in filters(k, top) for leaf in leaves(k, each)):
        if goal.status == Status.RESOLVED:
            yield goal, {**goal.answer, **{name: goal.value[name] for name in ("place", "start", "end")}}


def fresh_findings(k: State, top: Goal) -> Iterator[Item]:
    """Yield an item for every judgement, once all of them are in."""
    if any(k.items_of("finding")):
        return
    for goal, value in judged(k, top):
        call = k.call_id(goal.id, goal.sample)
        yield Item("finding", value, sources=(value["place"] + 1,), lossy=True, call=call)


def relevant_so_far(k: State, top: Goal) -> list[dict[str, Any]]:
    """Return the relevant findings among the notes judged so far."""
    return [value for _, value in judged(k, top) if value["relevant"]]


def relevant(k: State) -> Iterator[Item]:
    """Return the findings that bear on the question."""
    return (item for item in k.items_of("finding") if item.value["relevant"])


def merged(k: State, goal: Goal) -> dict[str, Any] | None:
    """Return the judgement of a note over M from those of its pieces; None if no piece could be judged."""
    pieces = [child.answer for child in k.children(goal) if child.status == Status.RESOLVED]
    if not pieces:
        return None
    found = [each for each in pieces if each["relevant"]]
    sides = {each["says"] for each in found}
    return {
        "relevant": bool(found),
        "why": (found or pieces)[0]["why"],
        "claims": list(dict.fromkeys(claim for each in found for claim in each["claims"])),
        "says": sides.pop() if len(sides) == 1 else "neither",
    }


def first_failure(k: State, top: Goal) -> str:
    """Return the failure of the first note that could not be judged."""
    failures = (leaf.failure for each in filters(k, top) for leaf in leaves(k, each) if leaf.failure is not None)
    return next((f"{failure.kind}: {failure.message}" for failure in failures), "not one was tried")


# -- clusters and summaries ----------------------------------------------------------------------------------------


def fresh_summaries(k: State) -> Iterator[Item]:
    """Yield an item for every summary that has none yet."""
    made = sum(1 for _ in k.items_of("summary"))
    done = [goal for goal in k.goals_of("summarise") if goal.status == Status.RESOLVED]
    for goal in done[made:]:
        call = k.call_id(goal.id, goal.sample)
        yield Item("summary", goal.answer, sources=k.items[goal.value].sources, lossy=True, call=call)


def clustered(k: State, groups: Iterable[DocumentGroup], left_out: Iterable[Document]) -> Iterator[Item]:
    """Yield the items of another round of clustering."""
    round_ = rounds(k) + 1
    for each in left_out:
        yield Item("left out", f"{each.name} fits no prompt, nor do its claims", sources=(each.id,))
    for group in groups:
        value = {"round": round_, "forms": group.forms, "shared": group.shared, "summary_bytes": group.summary_bytes}
        yield Item("cluster", value, sources=tuple(each.id for each in group.documents))


def unasked(k: State) -> list[Item]:
    """Return the clusters without a goal."""
    asked = {goal.value for goal in k.goals_of("summarise")}
    return [item for item in k.items_of("cluster") if item.id not in asked]


def rounds(k: State) -> int:
    """Return the number of rounds of clustering."""
    return max((item.value["round"] for item in k.items_of("cluster")), default=0)


def level(k: State, top: Goal) -> int:
    """Return how strictly sizes are counted: one level more for each synthesis, and each round, that was too large."""
    abandoned = (goal for goal in k.goals_of("summarise") if goal.status == Status.ABANDONED)
    return top.too_large + len({k.items[goal.value].value["round"] for goal in abandoned})


def frontier(k: State) -> Iterator[Item]:
    """Return the relevant findings and summaries that no summary stands for: the documents of a synthesis now.

    Documents whose summary failed for good are gone; those whose prompt was found too large are back.
    """
    gone: set[int] = set()
    for goal in k.goals_of("summarise"):
        if goal.status in (Status.RESOLVED, Status.FAILED):
            gone.update(k.items[goal.value].sources)
    for item in k.items_of("left out"):
        gone.update(item.sources)
    return (item for items in (relevant(k), k.items_of("summary")) for item in items if item.id not in gone)


def beneath(k: State, ids: Iterable[int]) -> list[int]:
    """Return the original sources of these items: findings, or notes if nothing was asked; in order."""
    found: set[int] = set()
    ahead = list(ids)
    while ahead:
        item = k.items[ahead.pop()]
        if item.kind == "summary":
            ahead.extend(item.sources)
        else:
            found.add(item.id)
    return sorted(found)


# -- documents -----------------------------------------------------------------------------------------------------


def document(k: State, item: Item, notes: Sequence[NoteText]) -> Document:
    """Return an item as a document: a whole note, the text that a finding is about, or a summary's text."""
    if item.kind == "note":
        return Document(item.id, notes[item.id - 1].name, item.value)
    if item.kind == "summary":
        return Document(item.id, f"summary {item.id}", item.value, summary=True)
    value, text = item.value, k.items[item.value["place"] + 1].value
    name = notes_prompts.title(notes[value["place"]].name, value["start"], value["end"], len(text))
    span = text[value["start"] : value["end"]]
    return Document(item.id, name, span, value["why"], tuple(value["claims"]), value["says"])


# -- provenance ------------------------------------------------------------------------------------------------------


def sources(k: State, ids: Iterable[int]) -> tuple[Item, ...]:
    """Return the notes that these items, of any kind, were made from."""
    findings = beneath(k, ids)
    notes = {k.items[i].value["place"] + 1 if k.items[i].kind == "finding" else i for i in findings}
    return tuple(k.items[i] for i in sorted(notes))


class NoteSources(msgspec.Struct, frozen=True):
    """Positions of the notes that an answer was made from, and of those that are missing."""

    used: list[int]
    relevant: list[int]
    unread: list[int]
    """Notes that could not be judged, in whole or in part."""
    left_out: list[int]
    """Relevant notes that are not sources of the answer, in whole or in part."""


def seen(k: State, top: Goal, ids: Iterable[int]) -> NoteSources:
    """Return the sources of an answer made of these items."""
    ids = list(ids)
    below = set(beneath(k, ids))
    found = {item.id: item.value["place"] for item in relevant(k)}
    return NoteSources(
        used=[item.id - 1 for item in sources(k, ids)],
        relevant=sorted(set(found.values())),
        unread=sorted(_unread(k, top)),
        left_out=sorted({place for item_id, place in found.items() if item_id not in below}),
    )


def _unread(k: State, top: Goal) -> set[int]:
    """Positions of the notes that could not be judged, in whole or in part."""
    failed = {Status.FAILED, Status.ABANDONED}
    return {
        leaf.value["place"] for each in filters(k, top) for leaf in leaves(k, each) if leaf.status in failed
    } | {each.value["place"] for each in filters(k, top) if each.status in failed}  # fmt: skip
