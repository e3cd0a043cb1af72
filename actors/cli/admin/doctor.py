"""``doctor``: health checks of the installation, one line each: what is wrong and what to do."""

from __future__ import annotations

import sys
from collections import Counter

import msgspec

from actors.cli.jobs.settings import cluster_of, given_addresses, metrics_from_of, named_folder, provider_of
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.terminal import console
from actors.common.text_table import bounded_line
from actors.doctor import collector, machine, nodes, packages, provider, state_folder
from actors.doctor.checks import Check, DoctorOptions, Finding, examine
from actors.providers.credentials.base_url import read_server_url
from actors.providers.credentials.credential import Credential, CredentialError, absolute

LIMIT_S = 12.0
"""Time limit for all checks together, in seconds. The checks run concurrently."""
CLUSTER_LIMIT_S = 45.0
"""Time limit in seconds if a Ray cluster is joined and its nodes are checked. Joining takes up to 10 s on a slow
machine."""
_CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", packages.python), ("dependencies", packages.dependencies), ("packages", packages.packages),
    ("endpoint", provider.connection_findings), ("ray", nodes.ray), ("state", state_folder.state_folder), ("disk",
    state_folder.disk),
    ("descriptors", machine.descriptors), ("memory", machine.memory), ("port", machine.port),
    ("telemetry", collector.telemetry), ("local model", provider.installations),
)  # fmt: skip
_STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red"}
_WIDTH = 14


def doctor(metrics_listen: str, paid: bool, options: Options) -> int:
    """Run ``cortex doctor`` and return the exit code: 0 if no check fails."""
    environ = taken_environ()
    named_folder(options)  # raises CommandError for an invalid --state
    try:
        servers = given_addresses(options.base_url)
        for each in servers:
            read_server_url("--base-url", each)
        metrics_from = metrics_from_of(options) or ()
        concurrency = int(options.concurrency or 100)
    except CredentialError as error:
        raise CommandError(str(error)) from None
    except ValueError:
        raise CommandError(f"--concurrency {options.concurrency!r}: give a whole number above zero") from None
    if paid and not options.model:
        raise CommandError("--paid makes one call: give --model NAME with it")
    asked = DoctorOptions(
        environ=environ, state=options.state, base_url="".join(servers[:1]), further=tuple(dict.fromkeys(servers[1:])),
        metrics_from=metrics_from, model=options.model,
        provider=provider_of(options), api_key_file=absolute(options.api_key_file.strip()),
        cluster=cluster_of(options), concurrency=concurrency, metrics_listen=metrics_listen, paid=paid,
    )  # fmt: skip
    limit_s = CLUSTER_LIMIT_S if nodes.address_of(asked) else LIMIT_S
    found = examine(_CHECKS, asked, _secrets(asked), limit_s)
    if options.as_json:
        states = Counter(finding.state for finding in found)
        facts = {"wrong": states["wrong"], "warnings": states["warning"], "findings": found}
        print(msgspec.json.encode(facts).decode())
    else:
        _show(found)
    return FAILED if any(finding.state == "wrong" for finding in found) else COMPLETE


def _secrets(asked: DoctorOptions) -> list[Credential]:
    """Return everything that the output must not show: the key, proxy passwords, headers of the collector, the token of
    Ray."""
    headers = "\n".join(
        f"x-{number}: {pair.partition('=')[2]}"
        for number, pair in enumerate(
            part for name, value in asked.environ.items() if name.endswith("_HEADERS") and name.startswith("OTEL_")
            for part in value.split(",")
        )
    )  # fmt: skip
    token = asked.environ.get("RAY_AUTH_TOKEN", "").strip()
    pairs = [tuple(line.split(": ", 1)) for line in headers.splitlines()] + ([("x-ray", token)] if token else [])
    found = [Credential(custom_headers=tuple((name, value) for name, value in pairs))]
    found += provider.secrets_of(asked)
    found += [Credential(base_url=each.strip()) for each in (asked.base_url, *asked.further) if "@" in each]
    return found


def _show(found: list[Finding]) -> None:
    styled = None
    if sys.stdout.isatty():
        styled = console(highlight=False)
    for finding in found:
        text = finding.message + (f": {finding.do}" if finding.do and finding.state != "ok" else "")
        if styled is None:
            print(bounded_line(f"{finding.state:<8} {finding.check:<{_WIDTH}} {text}"))
            continue
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        table.add_column(width=8)
        table.add_column(width=_WIDTH)
        table.add_column(ratio=1)
        table.add_row(Text(finding.state, style=_STYLES[finding.state]), Text(finding.check), Text(text))
        styled.print(table)
    states = Counter(finding.state for finding in found)
    sys.stdout.flush()
    print_error(f"{states['wrong']} wrong, {states['warning']} warnings, {states['ok']} in order")
