"""A prompt with places for columns: what goes in, what is text, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from cortex.values.template import Template, TemplateError


@pytest.mark.parametrize(
    ("source", "row", "prompt"),
    [
        ("Label: {{text}}", {"text": "It crashes."}, "Label: It crashes."),
        ("{{ a }}-{{b}}-{{a}}", {"a": "x", "b": "y"}, "x-y-x"),
        ("{{first name}}", {"first name": "Ann"}, "Ann"),
        ("{{a.b}}", {"a.b": 1}, "1"),
        ("{{n}} {{f}} {{t}} {{l}} {{o}}", {"n": 7, "f": 0.5, "t": True, "l": [1, "é"], "o": {"a": None}},
         '7 0.5 true [1,"é"] {"a":null}'),
        ("a {{x}} b {{y}}", {"x": None, "y": "z"}, "a  b z"),
        ("a {{x}} b {{y}}", {"y": "z"}, "a  b z"),
        ('{"a": {"b": 1}} {{x}}', {"x": "z"}, '{"a": {"b": 1}} z'),
        (r"\{{x}} {{x}}", {"x": "z"}, "{{x}} z"),
        ("{{x}}", {"x": "{{y}}", "y": "secret"}, "{{y}}"),
        ("{x} {{x}}", {"x": "1"}, "{x} 1"),
        ("no column", {}, "no column"),
    ],
)  # fmt: skip
def test_a_row_is_put_in(source: str, row: dict[str, Any], prompt: str) -> None:
    assert Template(source).render(row) == prompt


@pytest.mark.parametrize("row", [{}, {"x": None}, {"x": ""}, {"x": " \n"}, {"x": "", "y": None}])
def test_a_row_whose_columns_are_all_blank_renders_to_nothing(row: dict[str, Any]) -> None:
    assert Template("Label: {{x}} {{y}}").render(row) == ""


def test_its_columns() -> None:
    assert Template("{{b}} {{a}} {{b}}").columns == ("b", "a", "b")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "it is empty"), (" \n", "it is empty"), ("a\nb {{x", "on its line 2 is never closed"),
        ("{{ }}", "names no column"), ("{{x}} {{", "never closed"),
    ],
)  # fmt: skip
def test_what_is_no_template(source: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        Template(source)
