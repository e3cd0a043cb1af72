"""``tend``: begin the jobs again that rest because their cluster was lost, each with a driver of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from logging import WARNING
from typing import Final

from actors.cli.control.drain import cluster_meant
from actors.cli.jobs.resting import AGAIN_S, RestingJob, RestingJobs, is_halted, note_try
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, PARTIAL, print_error
from actors.cli.options.exit_codes import signals_taken
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.units import duration_s
from actors.journal.journal import StateFolder, StoreError
from actors.journal.state_folder import advised
from actors.ports.runtime import ClusterError

AT_ONCE: Final = 8
"""Drivers at once: each is a process of some 80 MB. The others follow when one ends."""
_LOOK_S = 1.0


class Tender:
    """Keeper of the drivers of jobs that were begun again. ``begin`` starts the driver of a job, ``tell`` takes each
    line, once, and ``answers`` returns whether the head at an address does: it is asked once a look for each address.
    ``ends``: whether a look is to end early.

    A job of another cluster is taken over only if that has no head: else its Ray may start the channel again, and two
    channels would fence each other in turns.
    """

    def __init__(
        self, folder: StateFolder, cluster: str, begin: Callable[[str], subprocess.Popen[bytes]],
        tell: Callable[[str], None], answers: Callable[[str], bool], now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic, ends: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._folder, self._cluster, self._begin, self._tell = folder, cluster, begin, tell
        self._answers, self._now_s, self._ends = answers, now_s, ends
        self._resting = RestingJobs(folder, now_s, monotonic_s, ends)
        self._answered: dict[str, bool] = {}
        self._drivers: dict[str, subprocess.Popen[bytes]] = {}
        self._told: dict[str, str] = {}
        self.left: set[str] = set()
        """Jobs that rest, and were not begun again, as of the last look."""
        self.codes: dict[str, int] = {}
        """Exit code of each driver that has ended."""

    def look(self) -> None:
        """Begin each job again that may go on, as far as there is room, and tell of those that may not."""
        for job, driver in list(self._drivers.items()):
            if (code := driver.poll()) is not None:
                del self._drivers[job]
                self.codes[job] = code
        self.left, self._answered = set(), {}
        for each in self._resting.look():
            if each.job not in self._drivers and (self._ends() or not self._begun(each)):
                self.left.add(each.job)

    def _begun(self, each: RestingJob) -> bool:
        needs = each.needs
        if self._folder.remote and _is_of_its_host(each.cluster):
            needs = f"its Ray was at {each.cluster} of a host that is not known"
        elif not needs and len(self._drivers) < AT_ONCE and each.cluster != self._cluster and self._lives(each.cluster):
            needs = f"it belongs to the Ray at {each.cluster}, which answers"
        if needs:
            self._once(each.job, f"job {each.job} rests: {needs}: {advised(self._folder, 'resume', each.job)}")
        if needs or len(self._drivers) >= AT_ONCE or self._now_s() - self._resting.tried_s(each.job) < AGAIN_S:
            return False
        note_try(self._folder, each.job, self._now_s())
        self._told.pop(each.job, None)
        self._tell(f"job {each.job} goes on: the Ray at {each.cluster} was lost, and {self._cluster} answers")
        self._drivers[each.job] = self._begin(each.job)
        return True

    def _lives(self, cluster: str) -> bool:
        if cluster not in self._answered:
            self._answered[cluster] = self._answers(cluster)
        return self._answered[cluster]

    def _once(self, job: str, line: str) -> None:
        if self._told.get(job) != line:
            self._told[job] = line
            self._tell(line)

    @property
    def busy(self) -> bool:
        """Whether a driver runs."""
        return bool(self._drivers)

    @property
    def unsure(self) -> bool:
        """Whether another look is needed to know which jobs rest."""
        return self._resting.unsure

    def let_go(self) -> None:
        """End the drivers without a word to their jobs, which go on in the cluster."""
        for driver in self._drivers.values():
            driver.kill()
        for driver in self._drivers.values():
            driver.wait()


def tend(every: str, options: Options) -> int:
    """Run ``cortex tend`` and return the exit code: 0 if every job that rested has gone on to its end, complete."""
    cluster, folder = cluster_meant(options, "jobs that rest"), named_folder(options)
    try:
        every_s = duration_s(every) if every else 0.0
    except ValueError as error:
        raise CommandError(f"--every: {error}") from None
    begin, tell = partial(_driver, folder, cluster, options), partial(print_error, level=WARNING)
    over = threading.Event()
    tender = Tender(folder, cluster, begin, tell, _answers, ends=over.is_set)
    with _until_told(over):
        if every_s:
            _go_on(tender, folder, cluster, every_s, over)
            tender.let_go()
            return COMPLETE
        _see_answers(cluster)
        look_to_the_end(tender, over.wait)
        tender.let_go()
    return PARTIAL if tender.left or over.is_set() or any(tender.codes.values()) else COMPLETE


def look_to_the_end(tender: Tender, wait: Callable[[float], bool]) -> None:
    """Look until it is known which jobs rest, and no driver runs. ``wait``: waits seconds, and returns True to end."""
    tender.look()
    while (tender.busy or tender.unsure) and not wait(_LOOK_S):
        tender.look()  # a job that failed to begin again is not tried once more within ``AGAIN_S``


def pause_s(tender: Tender, folder: StateFolder, every_s: float) -> float:
    """Return the seconds until the next look: less than ``--every`` if that is to be a second one."""
    return min(every_s, folder.back_s) if tender.unsure else every_s


def _go_on(tender: Tender, folder: StateFolder, cluster: str, every_s: float, over: threading.Event) -> None:
    """Look again and again until told to end. A cluster or a folder that does not answer is waited for."""
    wrong, began_s = "", time.time()
    while True:
        try:
            if is_halted(folder, began_s):
                print_error("this machine ends: nothing is begun on it any more")
                return
            _see_answers(cluster)
            tender.look()
            wrong = ""
        except (ClusterError, StoreError, OSError) as error:
            if str(error) != wrong:
                wrong = str(error)
                print_error(wrong, level=WARNING)
        if over.wait(pause_s(tender, folder, every_s)):
            return


def _is_of_its_host(cluster: str) -> bool:
    """Return whether the address means another Ray on each host, as ``RAY_ADDRESS`` in the pod of a head does."""
    return cluster.rpartition("://")[2].rpartition(":")[0].strip("[]") in ("127.0.0.1", "localhost", "::1")


def _see_answers(cluster: str) -> None:
    """Raise ``ClusterError`` if no head answers there."""
    from actors.cluster.bootstrap import checked_address

    checked_address(cluster)


def _answers(cluster: str) -> bool:
    try:
        _see_answers(cluster)
    except ClusterError:
        return False
    return True


def _driver(folder: StateFolder, cluster: str, options: Options, job: str) -> subprocess.Popen[bytes]:
    """Start ``cortex resume`` of a job, in a process group of its own: a Ctrl-C here is none for the job."""
    words = ["resume", job, "--state", folder.address, "--cluster", cluster]
    for name in ("api_key_file", "log_format", "log_level"):
        if given := getattr(options, name):
            words += [f"--{name.replace('_', '-')}", given]
    command = [sys.executable, "-m", "actors.cli", *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)


@contextlib.contextmanager
def _until_told(over: threading.Event) -> Iterator[None]:
    """Set the event at a signal that ends commands."""
    before = {number: signal.signal(number, lambda *args: over.set()) for number in signals_taken()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
