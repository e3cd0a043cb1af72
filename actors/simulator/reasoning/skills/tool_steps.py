"""Next step of a task with tools: the steps that the task states, at the state that the conversation shows.

The form is a numbered list of steps, ``1. call NAME with ...``, and a description of the final answer. Steps are done
either *for each item* of a line ``Items: a, b, c``, with named arguments (``with item and label``); or once, with given
arguments (``with {"command": "next_task"}``), where a step may be repeated ``until it says "..."``.

Tools are known only from the request. An argument ``item`` is the item; an argument with an ``enum`` is judged from the
results of tools, or else from the task's text, on this item; any other is the last result. The progress is read from
the conversation: from its uses of tools, and from lines ``ITEM: LABEL`` in it. The reader continues after the last
handled item and does not look back: a skipped item stays undone.

Errors are those of such loops: another tool (each offered one is equally likely), a wrong argument, a skipped item, a
repeated item, an early end. An answer that misses the form announces the step and does nothing.
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
"""Most attempts of a failing step; then the item is skipped."""
_SHOWN: Final = 200


class TurnAction(NamedTuple):
    """Action of one turn: a tool use, or a text."""

    text: str = ""
    name: str = ""
    given: dict[str, Any] = {}  # noqa: RUF012 - never changed


class PlannedStep(NamedTuple):
    """The right step, possible wrong ones, and the text of an answer that misses the form."""

    right: TurnAction
    wrong: tuple[TurnAction, ...]
    rambling: TurnAction


class _Step(NamedTuple):
    name: str
    named: tuple[str, ...]
    given: dict[str, Any] | None
    until: str


def act(scene: TurnContext) -> PlannedStep | None:
    """Return the next turn; None if the task states no steps."""
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
    """Steps that are done for each item of a list."""

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
        """Item -> texts of the task about it, ``ITEM: TEXT``; used like results of tools."""
        for item, answer in _LISTED.findall(scene.task):
            if item in self.place and item not in self.noted:
                self.texts.setdefault(item, []).append(answer)
        self.last = last

    def _noted(self) -> dict[str, str]:
        """Return items that are written down as done, with their labels."""
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
        """Return the place of the next item."""
        entries = [answer for text in self.scene.instructions for answer in _MISSING.findall(text)][-1:]
        missing = {each.strip() for each in ",".join(entries).split(",")}
        for at, item in enumerate(self.items):
            if item in missing and self._due(item) is not None:
                return at
        start = max(self.last, 0)
        return next((at for at in range(start, len(self.items)) if self._due(self.items[at]) is not None), None)

    def _due(self, item: str) -> _Step | None:
        """Return the next step of this item."""
        if item in self.noted:
            return None
        for step in self.steps:
            mine = [use for use in self.uses[item] if use.name == step.name]
            if any(not use.failed for use in mine):
                continue
            return None if len(mine) >= FAILED_MAX else step
        return None

    def _deed(self, step: _Step, item: str) -> TurnAction:
        """Return the use of the step's tool for an item; a text if no such tool is offered."""
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
        """Return these arguments for an item."""
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
        """Yield arguments with another allowed value, or with another item."""
        for name, value in given.items():
            others = [each for each in _allowed(offer, name) if each != value]
            if others:
                yield {**given, name: others[0]}
            elif name == "item" and at + 1 < len(self.items):
                yield {**given, name: self.items[at + 1]}

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _labels(self) -> dict[str, str]:
        """Return the label of each item: as noted, else the judged argument of its last use."""
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
        """Return the final answer: the count of each label, in the order in which the tools name them."""
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
        """Return the items done so far, one a line."""
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
    """Return a tool use that was made through another tool with its name and arguments."""
    inner = use.given.get("arguments")
    if not isinstance(inner, dict):
        return use
    name = next((value for key, value in use.given.items() if key != "arguments" and isinstance(value, str)), "")
    return use._replace(name=name, given=inner) if name else use


def _multiplexed(offer: OfferedTool | None, name: str) -> str:
    """Return the property by which this tool calls others, if the named one is among them."""
    if offer is None or "arguments" not in offer.properties:
        return ""
    return next((key for key in offer.properties if name in offer.allowed(key)), "")


def _allowed(offer: OfferedTool, name: str) -> list[str]:
    """Return the allowed values of an argument, by the tool's schema or else by its description."""
    allowed = offer.allowed(name)
    if allowed:
        return allowed
    found = re.search(_ALTERNATIVES.format(re.escape(name)), offer.description)
    return found[1].split("|") if found else []


def _judged(material: str, allowed: list[str]) -> str:
    """Return the value that the material supports, as for a question of its own."""
    reading = ParsedPrompt(f"Classify the text as {' or '.join(allowed)}.\n\n<text>{material}</text>")
    return chosen(reading, AnswerOptions([option(each) for each in allowed]))


def _counted(names: Iterable[str], counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {counts[name]}" for name in names)


# -- steps one after the other --------------------------------------------------------------------------------------


def _in_turn(scene: TurnContext, steps: list[_Step]) -> PlannedStep:
    """Return the next of steps with given arguments: each once, or until its tool has said an expected text."""
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
