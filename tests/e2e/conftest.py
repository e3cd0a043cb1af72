"""Tests with real tools: Prometheus, Chromium, a terminal, Phoenix, LiteLLM. ``make e2e`` runs them; ``make test`` does not.

They run one after another in one process. Each takes the tool it needs as a fixture, so that a machine without the tool
skips that test and says so at the end, in a section of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import tools


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not tested because a tool is not here: each reason once, with the number of tests."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _, found, missing = reason.partition(tools.MISSING)
        if found:
            reasons[missing] = reasons.get(missing, 0) + 1
    if reasons:
        terminalreporter.section("NOT TESTED, for want of a tool")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} skipped, {tools.MISSING}{reason}")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium's path. Give it ``tools.CHROMIUM`` as arguments."""
    return tools.on_path("chromium")


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A headless Chromium under Playwright (sync): ``page = browser.new_page()``. For modules without async tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason=f"{tools.MISSING}playwright. `make e2e` installs it")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=tools.CHROMIUM, timeout=180_000)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The path of the server."""
    return tools.on_path("prometheus")


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus' checker of rules."""
    return tools.on_path("promtool", "prometheus")


@pytest.fixture(scope="session")
def alertmanager() -> str:
    """The path of the server."""
    return tools.on_path("prometheus-alertmanager")


@pytest.fixture(scope="session")
def amtool() -> str:
    """The path of Alertmanager's checker of configurations."""
    return tools.on_path("amtool", "prometheus-alertmanager")


@pytest.fixture(scope="session")
def tmux() -> str:
    """The path of tmux. A test uses a socket of its own (``-S``) and ends that server."""
    return tools.on_path("tmux")


@pytest.fixture(scope="session")
def litellm() -> str:
    """The path of LiteLLM's command, with its proxy."""
    return tools.in_venv("LITELLM", "litellm", "'litellm[proxy]'")


@pytest.fixture(scope="session")
def phoenix() -> str:
    """The path of Phoenix' command."""
    return tools.in_venv("PHOENIX", "phoenix", "arize-phoenix")
