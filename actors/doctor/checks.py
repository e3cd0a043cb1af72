"""What a doctor is asked, what it finds, and how its checks run: side by side, each under a time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from actors.common.findings import Finding as Finding
from actors.common.findings import ok as ok
from actors.common.findings import warning as warning
from actors.common.findings import wrong as wrong
from actors.providers.credentials.credential import Credential
from actors.providers.registry import of_model


class DoctorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at: what the user named, and the environment that a run would see."""

    environ: Mapping[str, str]
    """With its secrets: nothing of it is ever shown."""
    state: str = ".cortex"
    base_url: str = ""
    provider: dict[str, str] = msgspec.field(default_factory=dict)
    """Provider of the model, as ``provider``, and the words for the place of the account; empty: the default provider,
    or a server that speaks its API."""
    api_key_file: str = ""
    model: str = ""
    cluster: str = ""
    concurrency: int = 100
    metrics_listen: str = ""
    paid: bool = False
    """Whether one call may be made that costs something."""
    timeout_s: float = 5.0
    """What a single connection or answer may take."""

    @property
    def remote(self) -> bool:
        """Whether calls would go to a provider over the network."""
        return of_model(self.model) is None


Check = Callable[[DoctorOptions], Iterator[Finding]]


def examine(
    checks: Sequence[tuple[str, Check]], asked: DoctorOptions, secrets: Sequence[Credential], limit_s: float
) -> list[Finding]:
    """All findings, in the order of their checks. Each check has ``limit_s`` seconds, in a thread of its own.

    What one raises, and what takes too long, is a finding too. Every word passes the redactor of each credential.
    """
    found: list[list[Finding]] = [[] for _ in checks]
    over: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(place: int, name: str, check: Check) -> None:
        try:
            for finding in check(asked):
                found[place].append(finding)
        except Exception as error:  # a doctor that falls ill says so
            text = f"the check itself failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            found[place].append(warning(name, text, "a fault of cortex: please report it"))
        over.put(place)

    for place, (name, check) in enumerate(checks):
        threading.Thread(target=run, args=(place, name, check), daemon=True).start()
    waited, end_s = set(range(len(checks))), time.monotonic() + limit_s
    while waited and (left_s := end_s - time.monotonic()) > 0:
        try:
            waited.discard(over.get(timeout=left_s))
        except queue.Empty:
            break
    entries = []
    for place, (name, _) in enumerate(checks):
        entries += list(found[place])
        if place in waited:
            entries.append(wrong(name, f"no end within {limit_s:g} s", "see why it hangs: the network, or the disk"))
    return [_clean(finding, secrets) for finding in entries]


def _clean(finding: Finding, secrets: Sequence[Credential]) -> Finding:
    text, do = finding.message, finding.do
    for credential in secrets or (Credential(),):
        redact = credential.redactor()
        text, do = redact(text), redact(do)
    return msgspec.structs.replace(finding, message=" ".join(text.split()), do=" ".join(do.split()))
