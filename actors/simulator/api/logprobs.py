"""Log probabilities of the simulated provider: made up, and equal for equal requests.

An answer is cut into tokens of at most four bytes, white space included, so that the quotes of JSON are glued to words.
Each field of the request's schema with listed values has a distribution over them: the value of the answer has a share
of .6 to .99 by a draw (.34 to .64 where the simulator erred), the others divide the rest. The probability of a token is
that of the values that go on with it, among those that are possible there; a reader of the tokens can thus get the
shares back. The first token of an answer without such fields has a probability of that kind. All other tokens are
certain.
"""

import math
from typing import Any

import msgspec

from actors.simulator import random_draws
from actors.simulator.api.reasoner import SimulatedAnswer
from actors.simulator.reasoning.schema_text import inlined
from actors.simulator.request import ParsedRequest

TOKEN_BYTES = 4
LEAST = 1e-9
"""Probability below which an alternative is not listed."""

Entry = tuple[str, float, list[tuple[str, float]]]
"""Token, its log probability, and the most likely tokens of its place."""

_encode = msgspec.json.Encoder().encode


def token_logprobs(answer: SimulatedAnswer, ask: ParsedRequest) -> list[Entry]:
    """Return the tokens of an answer with as many alternatives as the request wants."""
    fields = _alternatives(answer, ask)
    entries: list[Entry] = []
    begin = 0
    for token in pieces(answer.text):
        before, end = answer.text[:begin], begin + len(token)
        chances = {token: 1.0}
        for texts in fields:
            open_ = [(_piece(text, begin), chance) for text, chance in texts.items() if text.startswith(before)]
            if all(each == token for each, _ in open_):  # this field is decided, or further on
                continue
            for each, chance in open_:
                chances[each] = chances.get(each, 0.0) + chance
        whole = sum(chances.values())
        listed = [(each, round(math.log(chance / whole), 6)) for each, chance in chances.items() if chance > LEAST]
        listed.sort(key=lambda each: (-each[1], each[0]))
        entries.append((token, dict(listed)[token], listed[: ask.top_logprobs]))
        begin = end
    if not fields:
        chance = round(math.log(_own(answer, ask, 0)), 6)
        entries[0] = entries[0][0], chance, [(entries[0][0], chance)][: ask.top_logprobs]
    return entries


def shares(answer: SimulatedAnswer, ask: ParsedRequest) -> dict[str, dict[str, float]]:
    """Return the probability of each listed value, as JSON, by field; of fields that the answer has."""
    found: dict[str, dict[str, float]] = {}
    for at, (name, values) in enumerate(_listed(ask).items()):
        begun = answer.text.partition(f"{_json(name)}:")[2]
        written = next((each for each in values if begun.startswith((f"{each},", f"{each}}}"))), None)
        if written is None or len(values) < 2:
            continue
        own = _own(answer, ask, at)
        others = [each for each in values if each != written]
        weights = [len(others) - place for place in range(len(others))]
        found[name] = {written: own} | {
            each: (1 - own) * weight / sum(weights) for each, weight in zip(others, weights, strict=True)
        }
    return found


def _own(answer: SimulatedAnswer, ask: ParsedRequest, at: int) -> float:
    """Return the probability of the answer in its field of this number."""
    drawn = random_draws.draw(0, ask.text_id, at, random_draws.CONFIDENCE)
    return 0.34 + 0.3 * drawn if answer.erred else 0.6 + 0.39 * drawn


def pieces(text: str) -> list[str]:
    """Return the tokens of a text: at most four bytes each; joined, they give the text."""
    found, at = [], 0
    while at < len(text):
        found.append(_piece(text, at))
        at += len(found[-1])
    return found


def _piece(text: str, at: int) -> str:
    end = at + 1
    while end < len(text) and len(text[at : end + 1].encode("utf-8", "replace")) <= TOKEN_BYTES:
        end += 1
    return text[at:end]


def _alternatives(answer: SimulatedAnswer, ask: ParsedRequest) -> list[dict[str, float]]:
    """Return for each field the texts that the answer could have been with another value there, each with its
    probability as a multiple of the answer's."""
    found = []
    for name, values in shares(answer, ask).items():
        written, *others = values
        lead = f"{_json(name)}:"
        found.append({
            answer.text.replace(f"{lead}{written}", f"{lead}{each}", 1): values[each] / values[written]
            for each in others
        })  # fmt: skip
    return found


def _listed(ask: ParsedRequest) -> dict[str, list[str]]:
    """Return the listed values of the fields of the request's schema, as JSON."""
    properties = inlined(ask.schema).get("properties", {}) if ask.schema else {}
    return {name: list(dict.fromkeys(map(_json, _values(each)))) for name, each in properties.items()}


def _values(schema: dict[str, Any]) -> list[Any]:
    if "enum" in schema:
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    if "anyOf" in schema:
        parts = [_values(each) for each in schema["anyOf"]]
        return [value for part in parts for value in part] if all(parts) else []
    plain: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
    return plain.get(str(schema.get("type")), [])


def _json(value: Any) -> str:
    return _encode(value).decode()
