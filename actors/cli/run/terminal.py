"""A session on a terminal: header, progress bar and signals. Ctrl-C drains, a second one stops at once; SIGTERM
and SIGHUP drain (``actors.cli.options.exit_codes.SIGNAL_RULES``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from actors.api.client import new_loop
from actors.api.progress_bar import ProgressBar
from actors.api.session import RunOutcome, Session
from actors.cli.options.errors import HUNG_UP, print_error
from actors.cli.options.exit_codes import signals_taken
from actors.common.gc_tuning import settle_where_owned
from actors.jobs.spec import who


class ImmediateStop(Exception):
    """The user stopped the run without waiting for calls in flight. The job can be resumed."""


class SessionRunner:
    """Runner of a session. ``code`` is 129, 130 or 143 after a signal, else 0."""

    def __init__(self, session: Session, bar: ProgressBar, header: Callable[[Session], str]) -> None:
        self._session = session
        self._bar = bar
        self._header = header
        self._began = False
        self._signals = 0
        self._stopping: asyncio.Task[None] | None = None
        self._work: asyncio.Task[RunOutcome] | None = None
        self.code = 0
        self._held: list[str] = []
        session.log = self._log

    def run(self) -> RunOutcome:
        """Run the session to its end. Raises ``ImmediateStop``, and the errors of the session."""
        settle_where_owned()
        hook, sys.breakpointhook = sys.breakpointhook, self._breakpoint
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                return runner.run(self._run())
        finally:
            sys.breakpointhook = hook
            self._bar.close()

    def _breakpoint(self, *args: Any, **named: Any) -> Any:
        """Stop in a flow for its author: close the progress bar, which would overwrite the prompt."""
        self._bar.close()
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **named)
        import pdb

        return pdb.Pdb().set_trace(sys._getframe(1))  # the frame of the flow

    def progress(self, facts: dict[str, Any]) -> None:
        """Show progress of the session; at first the header line."""
        if not self._began:
            self._began = True
            print_error(self._header(self._session))
            for line in self._held:
                self._log(line)
        self._bar.show(facts)

    def _log(self, line: str) -> None:
        """Print a log line of the program, after the header line."""
        if self._began:
            self._bar.print_line(f"cortex: {self._session.job}: {line}")
        else:
            self._held.append(line)

    async def _run(self) -> RunOutcome:
        loop = asyncio.get_running_loop()
        taken = signals_taken()
        for number, code in taken.items():
            loop.add_signal_handler(number, self._signalled, code)
        self._work = asyncio.create_task(self._session.run())
        try:
            return await self._work
        except asyncio.CancelledError:
            raise ImmediateStop from None
        finally:
            for number in taken:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # no work is left to stop

    def _signalled(self, code: int) -> None:
        if code == HUNG_UP and self._signals:
            return  # a lost terminal sends two
        self._signals += 1
        self.code = self.code or code
        if self._signals == 1:
            print_error("draining: the calls in flight are finished first; once more stops now")
            self._stopping = asyncio.get_running_loop().create_task(self._drain())
        elif self._signals == 2:
            assert self._work is not None
            self._work.cancel()
        else:
            self._bar.close()
            os._exit(self.code)  # even an orderly exit takes too long

    async def _drain(self) -> None:
        with contextlib.suppress(Exception):  # a channel that cannot be reached ends by itself and reports the reason
            await self._session.stop("drain", who())
