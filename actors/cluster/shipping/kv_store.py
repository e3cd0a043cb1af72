"""What stands in a cluster's own key-value store: jobs' programs, which all actors find there, and notes."""

from __future__ import annotations

from typing import Any

from actors.cluster.bootstrap import code_paths
from actors.cluster.shipping import export
from actors.programs import loader
from cortex.programs import READY
from cortex.state.program import Program


class ClusterStore:
    """``kv`` is the cluster's key-value store; ``job`` the job whose actor asks; ``pickler`` packs code of a notebook.

    A driver has its programs at hand (``own``) and learns none from there.
    """

    def __init__(self, kv: Any, pickler: Any, job: str, own: bool) -> None:
        self._kv = kv
        self._pickler = pickler
        self._job = job
        self._own = own
        self._learnt: dict[str, bytes] = {}

    def share(self, where: str, job: str) -> None:
        """Let a job's actors find a program of this process: where its code is, or from a notebook the code itself."""
        if where not in READY:
            packed = export.pack(where, code_paths(), self._pickler)
            self._kv._internal_kv_put(_place(job or self._job, where), packed, overwrite=True)

    def load(self, where: str, params_json: bytes, job: str) -> Program:
        """A program by its place, as the driver of the job has it."""
        self._learn(where, job)
        return loader.load(where, params_json)

    def fingerprint(self, where: str, params_json: bytes) -> str:
        """Hash over a program."""
        self._learn(where, "")
        return loader.fingerprint(where, params_json)

    def set_host(self, job: str, address: str) -> None:
        """Have it known which host a job's channel is tied to."""
        self._kv._internal_kv_put(_place(job, _HOST_PREFIX + job), address.encode(), overwrite=True)

    def host_of(self, job: str) -> str:
        """The host that a job's channel is tied to; empty where it is tied to none."""
        return bytes(self._kv._internal_kv_get(_place(job, _HOST_PREFIX + job)) or b"").decode()

    def clear(self, name: str) -> None:
        """This actor has ended: with a job's channel, its program goes; a child job's is its parent's."""
        role, _, job = name.partition(":")
        if role == "channel" and "~" not in job:
            self._kv._internal_kv_del(_place(job, ""), del_by_prefix=True)

    def _learn(self, where: str, job: str) -> None:
        if where in READY or self._own:
            return
        packed: bytes | None = self._kv._internal_kv_get(_place(job or self._job, where))
        if packed is not None and packed != self._learnt.get(where):
            export.unpack(where, packed)
            self._learnt[where] = packed


class ClusterNotes:
    """A few words that outlive every actor; ``kv`` is the cluster's key-value store."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv

    def put(self, name: str, value: bytes) -> None:
        """Have this stand under the name."""
        self._kv._internal_kv_put(f"{_NOTES}{name}".encode(), value, overwrite=True)

    def found(self, prefix: str) -> dict[str, bytes]:
        """What stands under names that begin so."""
        names = [key.decode() for key in self._kv._internal_kv_list(f"{_NOTES}{prefix}".encode())]
        return {name.removeprefix(_NOTES): self._kv._internal_kv_get(name.encode()) for name in names}

    def clear(self) -> None:
        """Nothing of ours is left in the store, jobs' programs included."""
        self._kv._internal_kv_del(b"cortex/", del_by_prefix=True)


_NOTES = "cortex/note/"
_HOST_PREFIX = "@home/"


def _place(job: str, where: str) -> bytes:
    """Where a job's program stands. A child job's stands with its parent's."""
    return f"cortex/program/{job.partition('~')[0]}/{where}".encode()
