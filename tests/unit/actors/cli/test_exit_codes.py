"""Exit codes and signals: one table, from which help and the reference are made."""

from __future__ import annotations

import signal

import pytest

from actors.cli.options import errors
from actors.cli.options.exit_codes import EXIT_CODES, SIGNAL_RULES, epilog, section, signals_taken
from actors.common.errors import USAGE


def test_every_code_of_the_command_line_is_in_the_table() -> None:
    names = ("COMPLETE", "FAILED", "PARTIAL", "HUNG_UP", "INTERRUPTED", "TERMINATED")
    assert sorted([USAGE, *(getattr(errors, name) for name in names)]) == [each.code for each in EXIT_CODES]


def test_a_signal_has_the_code_that_a_shell_gives_it() -> None:
    assert {rule.code for rule in SIGNAL_RULES} == {code for code in (each.code for each in EXIT_CODES) if code > 128}
    assert all(rule.code == 128 + getattr(signal, rule.name) for rule in SIGNAL_RULES)


def test_help_and_the_page_say_each_meaning() -> None:
    for each in EXIT_CODES:
        assert f"{each.code} {each.meaning}" in epilog()
        assert f"| {each.code} | {each.meaning} |" in section()


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hang_up_that_the_parent_ignores_stays_ignored(ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        assert (signal.SIGHUP in signals_taken()) is not ignored
        assert {signal.SIGINT, signal.SIGTERM} < {*signals_taken(), 0}
    finally:
        signal.signal(signal.SIGHUP, before)
