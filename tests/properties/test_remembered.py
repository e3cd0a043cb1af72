"""What several processes put down, look for and remove in one index of replies, in any order: none is missed."""

from __future__ import annotations

import tempfile
from hashlib import blake2b
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from actors.journal.sqlite import reply_index
from actors.journal.sqlite.hash_set import HashSet
from actors.journal.sqlite.reply_index import FileReplyIndex, known, unremember, whose

PROCESSES = 2
SMALL = {"RECENT_MAX": 3, "LEARN_MAX": 2, "KNOWN_MAX": 3, "SORT_AT_ONCE": 3, "PUT_AT_ONCE": 2}
_PROCESS = st.integers(0, PROCESSES - 1)
_JOBS = st.sampled_from(["one", "two"])
_NUMBERS = st.lists(st.integers(0, 2), max_size=3, unique=True)


def hash_of(job: str, number: int) -> bytes:
    """A question that only this job asks."""
    return f"{number:<2}{job:-<14}".encode()


ALL = [hash_of(job, number) for job in ("one", "two") for number in range(3)]
_HASHES = st.sets(st.integers(0, 2**20).map(lambda number: blake2b(number.to_bytes(3), digest_size=16).digest()))


class Remembering(RuleBasedStateMachine):
    """The index beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "replies.sqlite"
        self._was = {name: getattr(reply_index, name) for name in SMALL}
        vars(reply_index).update(SMALL)
        self._paid: dict[bytes, tuple[str, int, int]] = {}
        self._seq = 0

    @initialize()
    def begin(self) -> None:
        self._open = [FileReplyIndex(self._path) for _ in range(PROCESSES)]

    @rule(process=_PROCESS, job=_JOBS, numbers=_NUMBERS)
    def put(self, process: int, job: str, numbers: list[int]) -> None:
        self._seq += 1
        rows = [(hash_of(job, number), self._seq, place) for place, number in enumerate(numbers)]
        self._open[process].put(job, self._seq, rows)
        self._paid.update((hash_, (job, seq, place)) for hash_, seq, place in rows)

    @rule(process=_PROCESS, asked=st.lists(st.sampled_from(ALL), unique=True))
    def find(self, process: int, asked: list[bytes]) -> None:
        found: dict[bytes, tuple[str, int, int]] = {}
        for hash_, *where in self._open[process].find(asked):
            found.setdefault(hash_, (where[0], where[1], where[2]))  # as `Memory.find` does: the latest comes first
        assert found == {hash_: self._paid[hash_] for hash_ in asked if hash_ in self._paid}

    @rule(process=_PROCESS)
    def begin_anew(self, process: int) -> None:
        self._open[process].close()
        self._open[process] = FileReplyIndex(self._path)

    @rule(job=_JOBS)
    def remove(self, job: str) -> None:
        unremember(self._path, [job])
        self._paid = {hash_: where for hash_, where in self._paid.items() if where[0] != job}

    @rule()
    def read(self) -> None:
        assert known(self._path, ALL) == set(self._paid)
        for hash_ in ALL:
            assert whose(self._path, hash_) == self._paid.get(hash_, ("", 0))[:2]

    def teardown(self) -> None:
        for each in getattr(self, "_open", []):
            each.close()
        vars(reply_index).update(self._was)
        self._folder.cleanup()


TestRemembering = Remembering.TestCase
TestRemembering.settings = settings(max_examples=60, stateful_step_count=30)


@given(_HASHES, _HASHES)
def test_a_set_of_hashes_has_what_was_added(added: set[bytes], others: set[bytes]) -> None:
    some = HashSet()
    some.add(added)
    some.add(list(added)[:3])
    assert set(some.among(added)) == added
    assert set(some.among(others)) - added == set(), "as likely as that eight bytes are the same by chance"
