"""The demo: its figures are counted from its answers, and it says so where no model is installed."""

from __future__ import annotations

import csv
import sys
from collections import Counter

import pytest

from actors.cli import demo
from actors.providers.local import model as local


def test_the_demo_rehearses_where_the_model_is_not_installed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr("actors.providers.local.model.installed", lambda: False)
    assert demo.main() == 0
    first = capsys.readouterr().out
    assert "simulated provider" in first and local.INSTALL in first
    with demo.RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["pep"] for row in rows] == [row["pep"] for row in demo.given()]
    assert {row["topic"] for row in rows} <= set(demo.TOPICS)
    assert all(0 <= float(row["topic_probability"]) <= 1 for row in rows)
    right = sum(mine["topic"] == given["topic"] for mine, given in zip(rows, demo.given(), strict=True))
    assert f"right: {right} of {len(rows)} (" in first
    assert demo.main() == 0
    assert f"{len(rows)} bounded calls" in capsys.readouterr().out


def test_its_rows_are_of_each_topic_and_hold_no_answer_twice():
    rows = demo.given()
    assert Counter(row["topic"] for row in rows) == dict.fromkeys(demo.TOPICS, 16)
    assert len({row["title"] for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("answers", "right", "better"),
    [
        ({"1": "a", "2": "a", "3": "b"}, 3, True),
        ({"1": "a", "2": "a", "3": "a"}, 2, False),
        ({"1": "b", "2": None}, 0, False),
        ({"3": "b"}, 1, False),
    ],
)
def test_the_score_is_beside_what_is_right_without_a_model(answers, right, better):
    rows = [{"pep": "1", "topic": "a"}, {"pep": "2", "topic": "a"}, {"pep": "3", "topic": "b"}]
    found = demo.score(answers, rows)
    assert (found.right, found.rows, found.most_frequent, found.base, found.better) == (right, 3, "a", 2, better)
    assert found.text() == f"right: {right} of 3 ({right / 3:.0%}); without a model, always a: 2 of 3 (67%)"


@pytest.mark.local
@pytest.mark.long
@pytest.mark.skipif(not local.installed(), reason="the local model is not installed")
def test_the_real_model_is_right_more_often_than_the_most_frequent_topic(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == 0
    rows = demo.given()
    with demo.RESULTS.open(newline="") as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == len(rows) and all(0 < float(row["topic_probability"]) <= 1 for row in answers)
    found = demo.score({row["pep"]: row["topic"] for row in answers}, rows)
    assert found.better, found.text()
    assert found.text() in capsys.readouterr().out
