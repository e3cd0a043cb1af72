"""The demo without the small model: a rehearsal that says so, and the same again at once."""

from __future__ import annotations

import json
import sys

from actors.cli import demo


def test_the_demo_rehearses_where_the_model_is_not_installed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr("actors.providers.local.model.installed", lambda: False)
    assert demo.main() == 0
    first = capsys.readouterr().out
    assert "simulated provider" in first
    rows = [json.loads(line) for line in demo.RESULTS.read_text().splitlines()]
    assert [row["package"] for row in rows] == list(demo.installed_packages())
    assert all(row["topic"].isalpha() for row in rows)
    assert demo.main() == 0
    assert f"{len(rows)} bounded calls" in capsys.readouterr().out
