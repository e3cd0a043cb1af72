"""The next step of a task with tools: follow the steps that the task states, by what the conversation holds.

The form is a numbered list of steps, ``1. call NAME with ...``, and what to answer at the end. Either they are to be
done *for each item* of a line ``Items: a, b, c``, with arguments named (``with item and label``); or once, with the
arguments given (``with {"command": "next_task"}``), where one may be repeated ``until it says "..."``.

Nothing is known of any tool but what the request says of it. An argument ``item`` is the item; one that has an ``enum``
is judged from what the tools, or else the task, said of this item; any other is what they said last. How far the work
has come is read off the conversation: the uses of tools in it, and lines ``ITEM: LABEL`` that somebody wrote into it. A
reader goes on after the item that it dealt with last, and does not look back: what was passed over stays undone.

It may be mistaken as such loops are: a tool that is not the one (each that is offered is as likely), a wrong argument,
an item passed over, one done twice, an end too early. One that misses the form says what it would do, and does nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from actors.simulator.conversation import OfferedTool, PastToolUse, TurnContext
from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.classification import AnswerOptions, chosen, option

_STEP: Final = re.compile(r"^\s*\d+\.\s+call (\w+)(?: with (.+?))?\s*$", re.MULTILINE | re.IGNORECASE)
_UNTIL: Final = re.compile(r",? until it says \"([^\"]+)\"$", re.IGNORECASE)
_ITEMS: Final = re.compile(r"^items:\s*(.+)$", re.MULTILINE | re.IGNORECASE)
_EACH: Final = re.compile(r"\bfor each item\b", re.IGNORECASE)
_LINE: Final = re.compile(r"^\s*[-*]?\s*([\w./-]+): ([\w -]+)$", re.MULTILINE)
_LISTED: Final = re.compile(r"^([\w./-]+): (.+)$", re.MULTILINE)
_ALTERNATIVES: Final = r"\b{}: ([\w-]+(?:\|[\w-]+)+)"
_MISSING: Final = re.compile(r"^not done yet: (.+)$", re.MULTILINE | re.IGNORECASE)
_SO_FAR: Final = re.compile(r"\b(?:write down|list|note|sum up)\b[^.\n]{0,80}\b(?:done|so far)\b", re.IGNORECASE)
_COUNTS: Final = re.compile(r"\banswer with how many\b", re.IGNORECASE)
FAILED_MAX: Final = 3
"""So often a step that fails is tried; then the item is passed over."""
_SHOWN: Final = 200


class TurnAction(NamedTuple):
    """What is done in one turn: a tool is used, or a text said."""

    text: str = ""
    name: str = ""
    given: dict[str, Any] = {}  # noqa: RUF012 - never changed


class PlannedStep(NamedTuple):
    """The step held for right, how it could be wrong, and what is said where the form is missed."""

    right: TurnAction
    wrong: tuple[TurnAction, ...]
    rambling: TurnAction


class _Step(NamedTuple):
    name: str
    named: tuple[str, ...]
    given: dict[str, Any] | None
    until: str


def act(scene: TurnContext) -> PlannedStep | None:
    """The next turn; None where the task states no steps."""
    steps = [_step(name, answer or "") for name, answer in _STEP.findall(scene.task)]
    if not steps:
        return None
    listed = _ITEMS.search(scene.task)
    if listed is not None and _EACH.search(scene.task):
        items = [each.strip() for each in listed[1].split(",") if each.strip()]
        return _Rounds(scene, steps, items).intent()
    return _in_turn(scene, [step for step in steps if step.given is not None])


def _step(name: str, text: str) -> _Step:
    until = _UNTIL.search(text)
    text = _UNTIL.sub("", text).strip()
    try:
        given = msgspec.json.decode(text, type=dict[str, Any]) if text.startswith("{") else None
    except msgspec.DecodeError:
        given = None
    named = () if given is not None else tuple(re.findall(r"\w+", re.sub(r"\band\b|\bits\b|\bthe\b", " ", text)))
    return _Step(name, named, given, until[1] if until else "")


# -- steps for each item --------------------------------------------------------------------------------------------


class _Rounds:
    """Steps that are to be done for each of some items."""

    def __init__(self, scene: TurnContext, steps: list[_Step], items: list[str]) -> None:
        self.scene, self.steps, self.items = scene, steps, items
        self.place = {item: at for at, item in enumerate(items)}
        self.names = {step.name for step in steps}
        self.uses: dict[str, list[PastToolUse]] = {item: [] for item in items}
        last = -1
        for use in map(_unpacked, scene.uses):
            at = self.place.get(next((value for value in use.given.values() if _is(value, self.place)), ""), -1)
            if at >= 0 and use.name in self.names:
                self.uses[items[at]].append(use)
                last = at
        self.noted = self._noted()
        self.texts: dict[str, list[str]] = {}
        """What the task itself says of an item, ``ITEM: TEXT``: as good as a tool that says it."""
        for item, answer in _LISTED.findall(scene.task):
            if item in self.place and item not in self.noted:
                self.texts.setdefault(item, []).append(answer)
        self.last = last

    def _noted(self) -> dict[str, str]:
        """Items that somebody wrote down as done, and what for."""
        texts = [
            self.scene.task,
            *self.scene.instructions,
            *(use.result for use in self.scene.uses if use.name not in self.names),
        ]
        return {item: answer.strip() for text in texts for item, answer in _LINE.findall(text) if item in self.place}

    def intent(self) -> PlannedStep:
        if self.scene.asked and _SO_FAR.search(self.scene.instructions[-1]):
            return self._so_far()
        at = self._next()
        if at is None:
            return self._answered()
        item = self.items[at]
        step = self._due(item)
        assert step is not None
        right = self._deed(step, item)
        return PlannedStep(
            right, tuple(self._mistakes(at, step, right)), TurnAction(f"I will call {step.name} for {item} now.")
        )

    def _next(self) -> int | None:
        """The place of the item to go on with."""
        entries = [answer for text in self.scene.instructions for answer in _MISSING.findall(text)][-1:]
        missing = {each.strip() for each in ",".join(entries).split(",")}
        for at, item in enumerate(self.items):
            if item in missing and self._due(item) is not None:
                return at
        start = max(self.last, 0)
        return next((at for at in range(start, len(self.items)) if self._due(self.items[at]) is not None), None)

    def _due(self, item: str) -> _Step | None:
        """The step that this item needs next."""
        if item in self.noted:
            return None
        for step in self.steps:
            mine = [use for use in self.uses[item] if use.name == step.name]
            if any(not use.failed for use in mine):
                continue
            return None if len(mine) >= FAILED_MAX else step
        return None

    def _deed(self, step: _Step, item: str) -> TurnAction:
        """A use of the step's tool for an item; where no such tool is offered, that is said."""
        offer = next((each for each in self.scene.offers if each.name == step.name), None)
        if offer is not None:
            wanted = [name for name in offer.properties if name in step.named or name in offer.required]
            return TurnAction("", step.name, self._filled(offer, wanted, item))
        for each in self.scene.offers:
            field = _multiplexed(each, step.name)
            if field:
                return TurnAction("", each.name, {field: step.name, "arguments": self._filled(each, step.named, item)})
        return TurnAction(f"There is no tool {step.name}.")

    def _filled(self, offer: OfferedTool, names: Iterable[str], item: str) -> dict[str, Any]:
        """These arguments, for an item."""
        lines = [use.result for use in self.uses[item] if not use.failed] or self.texts.get(item, [])
        given: dict[str, Any] = {}
        for name in names:
            allowed = _allowed(offer, name)
            if allowed:
                given[name] = _judged("\n".join(lines), allowed)
            else:
                given[name] = item if name == "item" else (lines[-1] if lines else item)
        return given

    def _mistakes(self, at: int, step: _Step, right: TurnAction) -> Iterator[TurnAction]:
        item = self.items[at]
        for offer in self.scene.offers:
            if offer.name != right.name:
                yield TurnAction("", offer.name, self._filled(offer, offer.properties, item))
                continue
            field = _multiplexed(offer, step.name)
            for other in offer.allowed(field) if field else ():
                if other != step.name:
                    yield TurnAction("", offer.name, {**right.given, field: other})
            for given in self._wrong_arguments(offer, right.given["arguments"] if field else right.given, at):
                yield right._replace(given={**right.given, "arguments": given} if field else given)
        if at + 1 < len(self.items):
            yield self._deed(self.steps[0], self.items[at + 1])
        if at:
            yield self._deed(self.steps[-1], self.items[at - 1])
        yield self._answered().right

    def _wrong_arguments(self, offer: OfferedTool, given: dict[str, Any], at: int) -> Iterator[dict[str, Any]]:
        """Another of what an argument may be; another item."""
        for name, value in given.items():
            others = [each for each in _allowed(offer, name) if each != value]
            if others:
                yield {**given, name: others[0]}
            elif name == "item" and at + 1 < len(self.items):
                yield {**given, name: self.items[at + 1]}

    # -- what is said -----------------------------------------------------------------------------------------------

    def _labels(self) -> dict[str, str]:
        """What each item was found to be: as noted, else by the argument that was judged in its last use."""
        labels = dict(self.noted)
        for item, uses in self.uses.items():
            for use in uses:
                judged = [str(value) for value in use.given.values() if str(value) in self._allowed()]
                if judged and not use.failed:
                    labels[item] = judged[-1]
        return labels

    def _allowed(self) -> list[str]:
        found: list[str] = []
        for offer in self.scene.offers:
            named = (
                offer.properties if offer.name in self.names else [name for step in self.steps for name in step.named]
            )
            if offer.name in self.names or any(_multiplexed(offer, name) for name in self.names):
                found += [each for name in named for each in _allowed(offer, name)]
        return list(dict.fromkeys(found))

    def _answered(self) -> PlannedStep:
        """The end of it: how many of each, in the order in which the tools name them."""
        labels = self._labels()
        if not _COUNTS.search(self.scene.task):
            done = sum(1 for item in self.items if self._due(item) is None)
            return PlannedStep(
                TurnAction(f"done: {done}"),
                (TurnAction(f"done: {done + 1}"),),
                TurnAction("I am done with all of this."),
            )
        counts = Counter(labels.values())
        names = self._allowed()
        right = _counted(names, counts)
        wrong = [_counted(names, counts + Counter({name: 1})) for name in names]
        wrong += [_counted(names, counts - Counter({name: 1})) for name in names if counts[name]]
        return PlannedStep(
            TurnAction(right), tuple(map(TurnAction, wrong)), TurnAction("I have dealt with all of the items.")
        )

    def _so_far(self) -> PlannedStep:
        """What is done so far, a line for each item."""
        labels = self._labels()
        done = [item for item in self.items if self._due(item) is None]
        lines = [f"{item}: {labels.get(item, 'done')}" for item in done]
        other = {name: each for name in self._allowed() for each in self._allowed() if each != name}
        wrong = ["\n".join(lines[:at] + lines[at + 1 :]) or "none" for at in range(len(lines))][-3:]
        if done and labels.get(done[-1]) in other:
            wrong.append("\n".join([*lines[:-1], f"{done[-1]}: {other[labels[done[-1]]]}"]))
        return PlannedStep(
            TurnAction("\n".join(lines) or "none"), tuple(map(TurnAction, wrong)), TurnAction("Most of it is done.")
        )


def _is(value: Any, known: dict[str, int]) -> bool:
    return isinstance(value, str) and value in known


def _unpacked(use: PastToolUse) -> PastToolUse:
    """A use of one tool through another that carries its name and arguments."""
    inner = use.given.get("arguments")
    if not isinstance(inner, dict):
        return use
    name = next((value for key, value in use.given.items() if key != "arguments" and isinstance(value, str)), "")
    return use._replace(name=name, given=inner) if name else use


def _multiplexed(offer: OfferedTool | None, name: str) -> str:
    """The property by which this tool does others' work, where it names this one among them."""
    if offer is None or "arguments" not in offer.properties:
        return ""
    return next((key for key in offer.properties if name in offer.allowed(key)), "")


def _allowed(offer: OfferedTool, name: str) -> list[str]:
    """What an argument may be, by the tool's schema or else by its description."""
    allowed = offer.allowed(name)
    if allowed:
        return allowed
    found = re.search(_ALTERNATIVES.format(re.escape(name)), offer.description)
    return found[1].split("|") if found else []


def _judged(material: str, allowed: list[str]) -> str:
    """The one of these that the material speaks for: read as a question alone would be."""
    reading = ParsedPrompt(f"Classify the text as {' or '.join(allowed)}.\n\n<text>{material}</text>")
    return chosen(reading, AnswerOptions([option(each) for each in allowed]))


def _counted(names: Iterable[str], counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {counts[name]}" for name in names)


# -- steps one after the other --------------------------------------------------------------------------------------


def _in_turn(scene: TurnContext, steps: list[_Step]) -> PlannedStep:
    """Steps whose arguments are given: each once, or until its tool has said what it waits for."""
    at = 0
    for use in scene.uses:
        if at < len(steps) and use.name == steps[at].name and use.given == steps[at].given and not use.failed:
            at += not steps[at].until or steps[at].until in use.result
    last = next((use.result for use in reversed(scene.uses) if not use.failed), "")
    end = TurnAction(last[:_SHOWN] or "done")
    if at == len(steps):
        return PlannedStep(end, (TurnAction("done"),) if last else (), TurnAction("All of it is done now."))
    step = steps[at]
    assert step.given is not None
    wrong = [TurnAction("", other.name, other.given or {}) for other in steps if other is not step]
    wrong += [TurnAction("", each.name, step.given) for each in scene.offers if each.name != step.name]
    return PlannedStep(
        TurnAction("", step.name, step.given), (*wrong, end), TurnAction(f"I will call {step.name} now.")
    )
