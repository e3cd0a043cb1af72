"""The tools themselves are what the tests take them for: each is here and runs, or its absence is said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e import tools
from tests.support.repository_rules import ROOT


@pytest.mark.parametrize(("name", "asks"), [("prometheus", "--version"), ("promtool", "--version"), ("tmux", "-V")])
def test_a_tool_runs(name, asks, request):
    done = subprocess.run([request.getfixturevalue(name), asks], capture_output=True, text=True, timeout=60, check=True)
    assert name in done.stdout + done.stderr


def test_a_page_is_shown(browser):
    page = browser.new_page()
    page.set_content("<title>t</title><button onclick='document.title = \"pressed\"'>b</button>")
    page.get_by_role("button").click()
    assert page.title() == "pressed"


def test_what_is_missing_is_skipped_and_said(tmp_path):
    """Never a false pass: without the tool the run says at its end what was not tested, and how to get it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_tools.py", "-k", "runs"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "NOT TESTED, for want of a tool" in done.stdout
    assert f"1 skipped, {tools.MISSING}tmux. On Debian, as root: apt-get install tmux" in done.stdout
    assert f"1 skipped, {tools.MISSING}promtool. On Debian, as root: apt-get install prometheus" in done.stdout
    assert "3 skipped" in done.stdout.splitlines()[-1]
