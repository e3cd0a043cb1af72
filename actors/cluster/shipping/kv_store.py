"""Content of a cluster's key-value store: programs of jobs, which all actors load from there, and notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.cluster.bootstrap import code_paths
from actors.cluster.shipping import export
from actors.programs import loader
from cortex.programs import READY
from cortex.state.program import Program


class ClusterStore:
    """Programs of jobs in the cluster's key-value store.

    ``kv`` is the store; ``job`` is the job of the requesting actor; ``pickler`` pickles code of a notebook. A driver
    (``own``) has its programs in its own process and loads none from the store.
    """

    def __init__(self, kv: Any, pickler: Any, job: str, own: bool) -> None:
        self._kv = kv
        self._pickler = pickler
        self._job = job
        self._own = own
        self._learnt: dict[str, bytes] = {}

    def share(self, where: str, params_json: bytes, job: str) -> None:
        """Store a program of this process for a job's actors: the place of its code, or for a notebook the code itself;
        and the types that check its answers."""
        own = job or self._job
        if where not in READY:
            packed = export.pack(where, code_paths(), self._pickler)
            self._kv._internal_kv_put(_place(own, where), packed, overwrite=True)
        for place in loader.types_of(where, params_json):
            if self._own or self._kv._internal_kv_get(_place(own, place)) is None:  # a child job's are its parent's
                packed = export.pack_type(place, code_paths(), self._pickler)
                self._kv._internal_kv_put(_place(own, place), packed, overwrite=True)

    def load(self, where: str, params_json: bytes, job: str) -> Program:
        """Load a program by its place, in the version of the job's driver. Raises ``ValueError`` with one line."""
        self._learn(where, params_json, job)
        return loader.load(where, params_json)

    def fingerprint(self, where: str, params_json: bytes) -> str:
        """Return the hash of a program."""
        self._learn(where, params_json, "")
        return loader.fingerprint(where, params_json)

    def set_host(self, job: str, address: str) -> None:
        """Store the address of the host that a job's channel is tied to."""
        self._kv._internal_kv_put(_place(job, _HOST_PREFIX + job), address.encode(), overwrite=True)

    def host_of(self, job: str) -> str:
        """Return the address of the host that a job's channel is tied to; empty if it is tied to none."""
        return bytes(self._kv._internal_kv_get(_place(job, _HOST_PREFIX + job)) or b"").decode()

    def clear(self, name: str) -> None:
        """Remove the entries of an ended actor: a job's program is deleted with its channel. A child job uses its
        parent's.
        """
        role, _, job = name.partition(":")
        if role == "channel" and "~" not in job:
            self._kv._internal_kv_del(_place(job, ""), del_by_prefix=True)

    def _learn(self, where: str, params_json: bytes, job: str) -> None:
        if self._own:
            return
        if where not in READY:
            self._receive(where, job, export.unpack)
        for place in loader.types_of(where, params_json):
            self._receive(place, job, export.unpack_type)

    def _receive(self, where: str, job: str, unpack: Callable[[str, bytes], None]) -> None:
        packed: bytes | None = self._kv._internal_kv_get(_place(job or self._job, where))
        if packed is not None and packed != self._learnt.get(where):
            unpack(where, packed)
            self._learnt[where] = packed


class ClusterNotes:
    """Small values that outlive every actor; ``kv`` is the cluster's key-value store."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv

    def put(self, name: str, value: bytes) -> None:
        """Store a value under a name."""
        self._kv._internal_kv_put(f"{_NOTES}{name}".encode(), value, overwrite=True)

    def found(self, prefix: str) -> dict[str, bytes]:
        """Return the values whose names begin with the prefix, by name."""
        names = [key.decode() for key in self._kv._internal_kv_list(f"{_NOTES}{prefix}".encode())]
        return {name.removeprefix(_NOTES): self._kv._internal_kv_get(name.encode()) for name in names}

    def clear(self) -> None:
        """Delete all entries of this project in the store, jobs' programs included."""
        self._kv._internal_kv_del(b"cortex/", del_by_prefix=True)


_NOTES = "cortex/note/"
_HOST_PREFIX = "@home/"


def _place(job: str, where: str) -> bytes:
    """Return the key of a job's program. A child job's program has its parent's key."""
    return f"cortex/program/{job.partition('~')[0]}/{where}".encode()
