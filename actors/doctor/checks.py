"""Framework of the checks: settings, findings, and concurrent execution under time limits."""

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
    """Settings of the checks: options of the user, and the environment that a run would see."""

    environ: Mapping[str, str]
    """Environment with its secrets, none of which is ever shown."""
    state: str = ".cortex"
    base_url: str = ""
    further: tuple[str, ...] = ()
    """Addresses of further servers of the same model."""
    host: str = ""
    """Name of the servers, where their addresses were found under it."""
    metrics_from: tuple[str, ...] = ()
    """URLs of the metrics of the server at ``base_url``, as the user named them."""
    provider: dict[str, str] = msgspec.field(default_factory=dict)
    """Provider and place, as fields of a ``ModelSpec``; empty: any server of the Messages API at ``base_url``."""
    api_key_file: str = ""
    model: str = ""
    cluster: str = ""
    concurrency: int = 100
    metrics_listen: str = ""
    paid: bool = False
    """True if one call with a cost may be made."""
    timeout_s: float = 5.0
    """Time limit of a single connection or answer, in seconds."""

    @property
    def remote(self) -> bool:
        """True if calls would go to a provider over the network."""
        return of_model(self.model) is None


Check = Callable[[DoctorOptions], Iterator[Finding]]


def examine(
    checks: Sequence[tuple[str, Check]], asked: DoctorOptions, secrets: Sequence[Credential], limit_s: float
) -> list[Finding]:
    """Return all findings, in the order of their checks. Each check runs in its own thread for at most ``limit_s``
    seconds.

    An exception or a timeout of a check is a finding too. All texts are redacted with every credential.
    """
    found: list[list[Finding]] = [[] for _ in checks]
    over: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(place: int, name: str, check: Check) -> None:
        try:
            for finding in check(asked):
                found[place].append(finding)
        except Exception as error:  # a failing check is reported as a finding
            text = f"the check itself failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            found[place].append(warning(name, text, "this is a bug in cortex: please report it"))
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
            entries.append(wrong(name, f"no end within {limit_s:g} s", "find out why it hangs: network, or disk"))
    return [_clean(finding, secrets) for finding in entries]


def _clean(finding: Finding, secrets: Sequence[Credential]) -> Finding:
    text, do = finding.message, finding.do
    for credential in secrets or (Credential(),):
        redact = credential.redactor()
        text, do = redact(text), redact(do)
    return msgspec.structs.replace(finding, message=" ".join(text.split()), do=" ".join(do.split()))
