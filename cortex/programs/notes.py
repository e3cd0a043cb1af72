"""``notes``: answer a question from many notes that do not fit one call. The canonical example of the model.

    everything fits M ....................... one synthesis call, done
    else    plan        a planning call: the sub-questions of the question
            filter      one call per note: relevant or not, why, which claims; a note over M is divided, nothing lost,
                        its pieces are filtered, and their claims merged
            the relevant notes fit M ........ one synthesis call over them, done
            else        cluster (by word overlap, no call), summarise each cluster, and repeat: the summaries fit
                        M, or are clustered in their turn

Every call is an ordinary turn of the same flat loop; the hierarchy exists only in K, as goals that serve ``analyse``
and as items that refer to their sources. Findings and summaries are lossy: a synthesis reads the notes themselves while
they fit, and in addition to summaries the claims of the notes beneath them.

**Termination.** A round of clustering asks for at least one summary, or leaves at least one document out. A summary has
at most ``summary_bytes`` bytes, checked in the reply, so that with its frame it takes at most half of the room that a
prompt has for documents; and a document that is alone in its cluster is summarised only if it is larger than that. So
after the first round every document takes at most half of the room, every cluster but one holds two or more, and each
further round leaves at most half as many documents, rounded up; two of them fit. A summary that fails for good removes
its documents. A prompt that was found too large after all returns its documents, and from then on sizes are counted
more strictly: there are three such levels. Beyond the last, or if M leaves no room for two documents, the synthesis is
asked for anyway, is refused as TOO_LARGE, and the job ends with the claims found, labelled partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

import msgspec

from cortex.programs.parts import notes_artefacts, notes_prompts
from cortex.programs.parts.notes_artefacts import NoteText
from cortex.programs.parts.notes_brief import NotesBrief
from cortex.programs.parts.notes_documents import BY_BYTES, Document
from cortex.state.changes import Abandon, Ask, Change, Fail, Resolve, Wait
from cortex.state.program import Program
from cortex.state.state import Goal, Item, State, Status
from cortex.values.prompt import Prompt
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

_NO_LAST_WORD: Final = frozenset({FailureKind.CANCELLED, FailureKind.FAULTY})
"""Failures of the synthesis after which the claims found are no answer: it was cancelled, or this program is faulty."""


__all__ = ["NoteText", "Notes", "notes_from"]


def notes_from(pairs: Iterable[tuple[str, str]]) -> tuple[NoteText, ...]:
    """Make notes from (name, text) pairs, as read from a folder or from JSON Lines."""
    return tuple(NoteText(name, text) for name, text in pairs)


class Notes(Program, frozen=True):
    """Answer ``question`` from ``notes``. Raises ``ValueError`` for invalid parameters.

    The answer: ``text``; the names of the ``notes`` that it was made from; whether it is ``partial``, and ``why``; the
    names of the ``unread`` and the ``left_out`` notes; ``framing``, the constructor of the last call; and ``counts``.
    """

    name: ClassVar[str] = "notes"
    files: ClassVar[str] = "notes"

    question: str
    notes: tuple[NoteText, ...]
    sub_questions_max: int = 3
    claims_max: int = 3
    """Claims taken from one note, or from one piece of a note over M."""
    summary_words_max: int = 120
    answer_words_max: int = 300

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError("question must not be empty")
        if not self._places():
            raise ValueError("notes: there are none, or all of them are empty")
        for name in ("sub_questions_max", "claims_max", "summary_words_max", "answer_words_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be above zero, not {getattr(self, name)}")
        places: dict[str, int] = {}
        for place, note in enumerate(self.notes, start=1):
            if note.name in places:
                raise ValueError(f"notes {places[note.name]} and {place} are both named {note.name!r}")
            places[note.name] = place

    # -- three of the four verbs ---------------------------------------------------------------------------------

    def begin(self, k: State) -> Iterable[Change]:
        """Yield the notes, as items 1 to n, and the top goal."""
        for note in self.notes:
            yield Item("note", note.text)
        yield Goal("analyse", self.question)

    def select(self, k: State) -> Iterable[Ask | Change]:
        """Yield the calls of open goals: the plan, filters, summaries; and the top goal's next step, when its children
        have ended.
        """
        for goal in k.open("plan"):
            prompt = notes_prompts.plan(self.question, [note.name for note in self.notes], self.sub_questions_max)
            tokens_max = self.sub_questions_max * notes_prompts.CLAIM_WORDS_MAX * notes_prompts.TOKENS_PER_WORD
            yield Ask(goal, prompt, output_tokens_max=tokens_max)
        for goal in k.open("filter"):
            yield from self._filter(k, goal)
        for goal in k.open("summarise"):
            yield from self._summarise(k, goal)
        for goal in k.open("analyse"):
            yield from self._advance(k, goal)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Turn a plan into filter goals; a judgement, a summary and a synthesis become their goals' answers."""
        if goal.kind == "plan":
            lines = notes_prompts.as_plan(reply, self.sub_questions_max)
            yield from self._filters(k, k.goals[goal.parent], lines)
            yield Resolve(goal, lines)
        elif goal.kind == "filter":
            yield Resolve(goal, msgspec.structs.asdict(notes_prompts.as_judgement(reply, self.claims_max)))
        elif goal.kind == "summarise":
            yield Resolve(goal, notes_prompts.as_summary(reply, k.items[goal.value].value["summary_bytes"]))
        else:
            text, whole = notes_prompts.as_answer(reply, self.answer_words_max)
            missing = [] if whole else ["the answer was cut at its token limit"]
            yield Resolve(goal, self._answer(k, goal, text, self._documents(k, goal), missing))

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """Answer with the claims found, labelled partial, if the synthesis failed and there are any."""
        if goal.kind == "analyse" and failure.kind not in _NO_LAST_WORD and any(notes_artefacts.relevant(k)):
            yield Resolve(goal, self._claims_alone(k, goal, f"{failure.kind}: {failure.message}"))
        else:
            yield Fail(goal, failure.message)

    def satisfied(self, k: State) -> bool:
        """Return True when the top goal is resolved; if it failed, the job has failed."""
        return self._top(k).status == Status.RESOLVED

    def answer(self, k: State) -> dict[str, Any]:
        """Return the top goal's answer; before there is one, the claims found so far, labelled partial."""
        top = self._top(k)
        if top.status == Status.RESOLVED:
            return dict(top.answer)
        found = notes_artefacts.relevant_so_far(k, top)
        places = sorted({value["place"] for value in found})
        text = "\n".join(f"{self.notes[value['place']].name}: {claim}" for value in found for claim in value["claims"])
        facts = self._answer(k, top, text, [], [f"no answer yet, only claims: {top.story()}"])
        facts["counts"]["relevant"] = len(places)
        return {**facts, "notes": [self.notes[place].name for place in places], "left_out": []}

    # -- the top goal --------------------------------------------------------------------------------------------

    def _advance(self, k: State, top: Goal) -> Iterator[Ask | Change]:
        """Yield the next step of the top goal, from K alone; all goals that serve it have ended."""
        if top.children:
            if len(notes_artefacts.filters(k, top)) < len(self._places()):  # another window
                yield from self._filters(k, top, self._sub_questions(k))
                yield Wait(top)
                return
            fresh = [*notes_artefacts.fresh_findings(k, top), *notes_artefacts.fresh_summaries(k)]
            if fresh:
                yield from fresh
                return
            if not any(k.items_of("finding")):
                first = notes_artefacts.first_failure(k, top)
                yield Fail(top, f"none of {len(self._places())} notes could be judged; the first: {first}")
                return
            if not any(notes_artefacts.relevant(k)):
                text = f"None of the {len(self.notes)} notes bears on the question."
                yield Resolve(top, self._answer(k, top, text, []))
                return
        yield from self._conclude(k, top, self._documents(k, top))

    def _conclude(self, k: State, top: Goal, shown: Sequence[Document]) -> Iterator[Ask | Change]:
        """Yield the synthesis of these documents if they fit; otherwise a step that makes them smaller."""
        brief, level = self._brief(k), notes_artefacts.level(k, top)
        behind = notes_artefacts.beneath(k, [each.id for each in shown if each.summary])
        findings = [notes_artefacts.document(k, k.items[item_id], self.notes) for item_id in behind]
        prompt = brief.synthesis(k, shown, findings, level)
        if prompt is not None:
            yield self._ask(k, top, prompt, shown)
        elif not top.children:
            yield Goal("plan", parent=top.id)
            yield Wait(top)
        elif not shown:
            yield Resolve(top, self._claims_alone(k, top, "no summary could be made"))
        elif clusters := notes_artefacts.unasked(k):
            for cluster in clusters:
                yield Goal("summarise", cluster.id, parent=top.id)
            yield Wait(top)
        elif made := list(notes_artefacts.clustered(k, *brief.clusters(k, shown, level))):
            yield from made
        else:  # nothing can be made smaller: the loop handles a prompt that does not fit
            bare = [part for each in shown for part in each.parts()]
            yield self._ask(k, top, brief.synthesise(notes_prompts.DOCUMENTS, bare), shown)

    def _documents(self, k: State, top: Goal) -> list[Document]:
        """Documents for the synthesis now: the notes themselves before anything was asked."""
        items = notes_artefacts.frontier(k) if top.children else (k.items[place + 1] for place in self._places())
        return [notes_artefacts.document(k, item, self.notes) for item in items]

    def _ask(self, k: State, top: Goal, prompt: Prompt, shown: Sequence[Document]) -> Ask:
        uses = notes_artefacts.sources(k, [each.id for each in shown])
        return Ask(top, prompt, output_tokens_max=self._brief(k).answer_tokens, uses=uses)

    # -- goals that serve the top goal ------------------------------------------------------------------------------

    def _filters(self, k: State, top: Goal, sub_questions: Sequence[str]) -> Iterator[Goal]:
        """Filter goals for the notes that have none, as many as one plan may add.

        First for those that fit M whole. Their usage teaches how many bytes a token has, so that no more of the rest,
        asked in the next window, are divided than necessary.
        """
        brief, level = self._brief(k, sub_questions), notes_artefacts.level(k, top)
        asked = {goal.value["place"] for goal in notes_artefacts.filters(k, top)}
        rest = [place for place in self._places() if place not in asked]
        fitting = [at for at in rest if brief.fits_filter(k, self.notes[at].name, self.notes[at].text, level)]
        for place in (fitting or rest)[: k.terms.limits.plan_goals_max]:
            name, text = self.notes[place].name, self.notes[place].text
            cuts = [] if fitting else brief.cuts(k, name, text, level)
            yield Goal("filter", {"place": place, "start": 0, "end": len(text), "cuts": cuts}, parent=top.id)

    def _filter(self, k: State, goal: Goal) -> Iterator[Ask | Change]:
        """The call of one note or piece; or its division; or, when the pieces are judged, their merge."""
        place, start, end, cuts = (goal.value[name] for name in ("place", "start", "end", "cuts"))
        item, name, brief = k.items[place + 1], self.notes[place].name, self._brief(k)
        text = item.value[start:end]
        if goal.children:
            merged = notes_artefacts.merged(k, goal)
            yield Fail(goal, f"no piece of {name} could be judged") if merged is None else Resolve(goal, merged)
            return
        if goal.too_large:
            cuts = brief.cuts(k, name, text, BY_BYTES)
        if cuts:
            for low, high in pairwise([0, *cuts]):
                value = {"place": place, "start": start + low, "end": start + high, "cuts": []}
                yield Goal("filter", value, parent=goal.id)
            yield Wait(goal)
            return
        shown = notes_prompts.document(notes_prompts.title(name, start, end, len(item.value)), text)
        yield Ask(goal, brief.judge([shown]), output_tokens_max=brief.filter_tokens, uses=(item,))

    def _summarise(self, k: State, goal: Goal) -> Iterator[Ask | Change]:
        """The call of one cluster. A prompt that was found too large returns its documents, to be clustered again."""
        if goal.too_large:
            yield Abandon(goal)
            return
        cluster, brief = k.items[goal.value], self._brief(k)
        shown = [notes_artefacts.document(k, k.items[source], self.notes) for source in cluster.sources]
        parts = [part for each, form in zip(shown, cluster.value["forms"], strict=True) for part in each.parts(form)]
        prompt = brief.summarise(cluster.value["summary_bytes"] // notes_prompts.BYTES_PER_WORD, parts)
        uses = notes_artefacts.sources(k, cluster.sources)
        yield Ask(goal, prompt, output_tokens_max=brief.summary_tokens, uses=uses)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _top(self, k: State) -> Goal:
        return next(k.goals_of("analyse"))

    def _places(self) -> list[int]:
        """Positions of the notes with text: an empty note is judged without a call."""
        return [place for place, note in enumerate(self.notes) if note.text.strip()]

    def _sub_questions(self, k: State) -> Sequence[str]:
        return next((goal.answer for goal in k.goals_of("plan") if goal.answer), ())

    def _brief(self, k: State, sub_questions: Sequence[str] | None = None) -> NotesBrief:
        parts = tuple(self._sub_questions(k) if sub_questions is None else sub_questions)
        return NotesBrief(self.question, parts, self.claims_max, self.summary_words_max, self.answer_words_max)

    def _claims_alone(self, k: State, top: Goal, why: str) -> dict[str, Any]:
        """Answer in place of a synthesis: the claims found, each with its note's name."""
        found = [notes_artefacts.document(k, item, self.notes) for item in notes_artefacts.relevant(k)]
        text = "\n".join(f"{each.name}: {claim}" for each in found for claim in each.claims)
        return self._answer(k, top, text, found, [f"no synthesis, {why}; these are the claims found"])

    def _answer(
        self, k: State, top: Goal, text: str, shown: Sequence[Document], missing: Sequence[str] = ()
    ) -> dict[str, Any]:  # fmt: skip
        seen = notes_artefacts.seen(k, top, [each.id for each in shown])
        why = list(missing)
        if seen.unread:
            why.append(f"{len(seen.unread)} of {len(self.notes)} notes could not be judged, or not whole")
        if seen.left_out:
            why.append(f"{len(seen.left_out)} of the relevant notes are not in the answer, or not whole")
        counts = {
            "notes": len(self.notes), "relevant": len(seen.relevant), "rounds": notes_artefacts.rounds(k),
            "sub_questions": len(self._sub_questions(k)), "summaries": sum(1 for _ in k.items_of("summary")),
        }  # fmt: skip
        named = {field: [self.notes[place].name for place in getattr(seen, field)] for field in ("unread", "left_out")}
        return {
            "text": text, "notes": [self.notes[place].name for place in seen.used], "partial": bool(why),
            "why": "; ".join(why), **named, "framing": top.constructor, "counts": counts,
        }  # fmt: skip
