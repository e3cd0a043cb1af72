"""Choice of one answer: labels, letters, yes or no, a rating; by word overlap, as a small model would."""

import functools
import re
from typing import Final, NamedTuple

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.text import all_words, sentences, words
from actors.simulator.reasoning.thought import Thought

_LIST = re.compile(
    r"\b(?:one of|(?:choose|pick|select)(?: exactly| only)?(?: one)?(?: from| between| among)|from (?:these|the"
    r" following|this list)|(?:options|labels|categories|classes|choices)(?: are)?)\b([^:\n.]{0,60}):[ \t]*([^\n]*)",
    re.IGNORECASE,
)
_AS = re.compile(
    r"\b(?:classify|label|categori[sz]e|mark|judge|sort)\b[^.\n:]{0,200}?\b(?:as|into)\s+([^.;:?\n]{3,200})",
    re.IGNORECASE,
)
_ANSWER_WITH = re.compile(
    r"\b(?:answer|reply|respond|say|output|return|write|print)(?:ing)?\b(?:\s+(?:only|just|exactly|simply|with|using|a"
    r"|one|word|the|single|either|label|of|strictly))*:?\s+([^.;:\n(]{3,200})",
    re.IGNORECASE,
)
_ONE_OF = re.compile(r"\b(?:one of|either|between)\s+([^.;:?\n]{3,200})", re.IGNORECASE)
_IS_IT = re.compile(r"\b(?:is|are)\s+(?:it|this|that|the [\w-]+|this [\w-]+)\s+([^.;:?\n]{3,80})\?", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+(.+)$")
_LETTERED = re.compile(r"^[ \t]*\(?([A-Z])[).:]\s+(.+)$", re.MULTILINE)
_SPLIT = re.compile(r"\s*(?:,\s*(?:or|and)\s+|,|[/|]|\s+or\s+|\s+and\s+(?=[\"'`]))\s*", re.IGNORECASE)
_DESCRIBED = re.compile(r"^[\"'`*]*(.{1,60}?)[\"'`*]*(?:\s*:\s+|\s+[-–—]\s+|\s*\()(.+)$")
_NO_OPTION = re.compile(
    r"^(?:as|in|if|by|for|when|to|at|so|nothing|anything)\b|\b(?:sentences?|words?|lines?|paragraphs?|bullets?|points?"
    r"|items?|fewer|less|more)\b",
    re.IGNORECASE,
)
_OR = re.compile(r"\bor\b|\w[/|]\w| [/|] ", re.IGNORECASE)
_PARTED = re.compile(r",|\bor\b|\w[/|]\w| [/|] ", re.IGNORECASE)
_NOT_THESE: Final = frozenset({"other", "none", "unknown", "neutral", "unclear", "neither", "miscellaneous", "unsure"})
_UNSURE: Final = frozenset({"maybe", "unsure", "unclear", "unknown", "uncertain", "cannot tell", "not sure", "partly"})
_POLAR: Final = {"yes": "no", "true": "false", "y": "n", "correct": "wrong", "agree": "disagree"}
_NEGATIONS: Final = ("not ", "non-", "non", "ir", "un", "in", "im", "no ", "dis")
_RATING = re.compile(
    r"\b(?:rate|score|rating|grade|number)\b[^\n]{0,80}?\b(\d{1,3})\s*(?:to|-|–|and|through)\s*(\d{1,3})\b",
    re.IGNORECASE,
)

_RATING_WORDS: Final = ("rate", "rating", "score", "grade", "number")

YES_SHARE: Final = 0.5
"""Least share of a question's telling words in a text that is about the question."""
UNSURE_SHARE: Final = 0.3
OPTION_WORDS_MAX: Final = 6


class AnswerOption(NamedTuple):
    """Allowed answer: its name, the name in lower case, and words that support it."""

    name: str
    low: str
    words: frozenset[str]


class AnswerOptions:
    """All allowed answers, and their yes, no and unsure, if they are such."""

    __slots__ = ("all", "polar", "words")

    def __init__(self, options: list[AnswerOption]) -> None:
        self.all = options if len(options) > 1 else []
        self.polar = polar(self.all)
        self.words: frozenset[str] = frozenset().union(*(each.words for each in self.all))


def option(name: str, text: str = "") -> AnswerOption:
    """Return an allowed answer from its name and description."""
    message = f"{name} {text}" if text else name
    return AnswerOption(name, name.lower(), words(message) or all_words(message))


def options_of(reading: ParsedPrompt) -> AnswerOptions:
    """Return the answers that a request allows; empty if it names none."""
    if reading.options_text:
        lines = [line for line in reading.options_text.split("\n") if line.strip()]
        return AnswerOptions(_listed(lines) if len(lines) > 1 else _inline(reading.options_text))
    lettered = _lettered(reading.text)
    if lettered:
        return AnswerOptions(lettered)
    low = reading.low
    if not (" or " in low or "," in low or ":" in low or "/" in low or "|" in low or " or " in reading.question):
        return NO_OPTIONS  # several answers are separated by one of these
    lead, found = _named(reading.instruction, reading.question)
    listed = _bulleted(f"{reading.system}\n{reading.text}", lead) if lead else []
    return AnswerOptions(listed) if listed else found


@functools.lru_cache(maxsize=256)
def _named(instruction: str, question: str) -> tuple[str, AnswerOptions]:
    """Return the lead-in of a list of answers below the instruction, if any, and the answers named within the
    instruction.

    Cached for recent instructions, since many calls share one.
    """
    asked = f"{instruction}\n{question}"
    named = _LIST.search(asked)
    lead = named[0] if named and not named[2].strip() else ""
    if named and not lead:
        found = _inline(named[2])
        if len(found) > 1:
            return "", AnswerOptions(found)
    for pattern, parting in ((_AS, _PARTED), (_ANSWER_WITH, _OR), (_ONE_OF, _PARTED), (_IS_IT, _OR)):
        for match in pattern.finditer(asked):
            found = _inline(match[1]) if parting.search(match[1]) else []
            if len(found) > 1:
                return lead, AnswerOptions(found)
    return lead, AnswerOptions([])


def _described(text: str) -> AnswerOption:
    described = _DESCRIBED.match(text)
    name = (described[1] if described else text).strip().strip("\"'`*[]<>").strip()
    return option(name, described[2] if described else "")


def _listed(lines: list[str]) -> list[AnswerOption]:
    found = [_described((match[1] if (match := _BULLET.match(line)) else line).strip()) for line in lines]
    return [each for each in found if each.name and len(each.name.split()) <= OPTION_WORDS_MAX]


def _inline(text: str) -> list[AnswerOption]:
    text = re.split(r"\.(?:\s|$)", text.strip(), maxsplit=1)[0].strip("[]{} ")
    names = [each.strip().strip("\"'`*").strip() for each in _SPLIT.split(text)]
    names = [re.sub(r"^(?:either|or|and)\s+", "", each) for each in names if each]
    if any(len(each.split()) > 3 or _NO_OPTION.search(each) for each in names):
        return []
    return [option(each) for each in dict.fromkeys(names) if each]


def _bulleted(text: str, after: str) -> list[AnswerOption]:
    """Return the answers in list lines after a lead-in such as "one of these labels:"."""
    at = text.find(after)
    lines: list[str] = []
    for line in text[at + len(after) :].split("\n") if at >= 0 else []:
        if _BULLET.match(line):
            lines.append(line)
        elif lines or line.strip():
            break
    return _listed(lines)


def _lettered(text: str) -> list[AnswerOption]:
    if not ("A)" in text or "A." in text or "A:" in text):
        return []
    found: list[AnswerOption] = []
    for letter, answer in _LETTERED.findall(text):
        if letter == chr(ord("A") + len(found)):
            found.append(AnswerOption(letter, letter.lower(), words(answer) or all_words(answer)))
    return found if len(found) > 1 else []


def spoken_share(reading: ParsedPrompt, without: frozenset[str] = frozenset()) -> float:
    """Return the share of the question's telling words that are in the material; 0 without telling words."""
    asked = reading.question_words - without
    if not asked or not reading.material:
        return 0.0
    return len(asked & reading.material_words) / len(asked)


def judged(reading: ParsedPrompt, without: frozenset[str] = frozenset()) -> bool:
    """Return True if the material is about the question: enough shared words, two of them in one sentence."""
    if spoken_share(reading, without) < YES_SHARE:
        return False
    asked = reading.question_words - without
    needed = min(2, len(asked))
    return needed < 2 or any(len(asked & words(each)) >= needed for each in sentences(reading.material))


def polar(options: list[AnswerOption]) -> tuple[str, str, str] | None:
    """Return yes, no and unsure in the request's own words, if its options are such; unsure may be empty."""
    if len(options) > 3:
        return None
    names = {each.low: each.name for each in options}
    for yes, name in names.items():
        no = _POLAR.get(yes, "")
        no = no if no in names else next((n + yes for n in _NEGATIONS if n + yes in names), "")
        others = set(names) - {yes, no}
        if no and others <= _UNSURE:
            return name, names[no], names[others.pop()] if others else ""
    return None


NO_OPTIONS: Final = AnswerOptions([])


def chosen(reading: ParsedPrompt, options: AnswerOptions) -> str:
    """Return the option that the material supports most."""
    if options.polar:
        yes, no, unsure = options.polar
        if unsure and UNSURE_SHARE <= spoken_share(reading, options.words) < YES_SHARE:
            return unsure
        return yes if judged(reading, options.words) else no
    matter = reading.material_words or reading.question_words
    low = reading.material.lower()
    best, found = 0.0, []
    for each in options.all:
        score = len(each.words & matter) / len(each.words) ** 0.5 if each.words else 0.0
        if len(each.name) > 1 and each.low in low:
            score += 1.0
        if score > best:
            best, found = score, [each.name]
        elif score == best and score > 0:
            found.append(each.name)
    if not found:
        open_ones = [each.name for each in options.all if each.low in _NOT_THESE]
        found = open_ones[:1] or [each.name for each in options.all]
    return found[0] if len(found) == 1 else max(found, key=reading.tie)


def choose(reading: ParsedPrompt) -> Thought | None:
    """Return one of the answers that the request allows."""
    options = options_of(reading)
    if not options.all:
        return None
    right = chosen(reading, options)
    return Thought(right, tuple([each.name for each in options.all if each.name != right]))


def rate(reading: ParsedPrompt) -> Thought | None:
    """Return a number within the requested range, by the share of the question that the material covers."""
    if not any(word in reading.low for word in _RATING_WORDS):
        return None
    match = _RATING.search(reading.instruction)
    if match is None:
        return None
    least, most = sorted((int(match[1]), int(match[2])))
    right = round(least + spoken_share(reading) * (most - least))
    near = tuple(str(n) for n in (right - 1, right + 1) if least <= n <= most)
    return Thought(str(right), near, f"{right} {most}")
