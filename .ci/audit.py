"""Audit of the image's lock against known vulnerabilities, by pip-audit: ``python .ci/audit.py [--required]``.

Exit code 0: no vulnerability is known, or the service was not reached, which is said (with ``--required``: 1). Exit
code 1: a vulnerability is known. pip-audit answers "no known vulnerabilities" for a package that its service does not
know and for a service that is not there; so it is first asked about a package with known vulnerabilities, and believed
only if it names them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parent.parent / "k8s" / "image" / "requirements.lock"
KNOWN = "jinja2==3.1.2"
"""CVE-2024-22195 and later ones: https://github.com/pypa/advisory-database."""
PROBE_S, AUDIT_S = 15, 300
SKIPPED = "audit skipped: the vulnerability service of PyPI was not reached, so nothing is known of {} packages"


def ask(requirements: Path, timeout_s: float) -> list[dict[str, Any]]:
    """Return what pip-audit says of each package. Raises ``OSError`` or ``ValueError`` if it says nothing."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"]
    try:
        done = subprocess.run(
            [*command, "--format=json", "-r", str(requirements)],
            capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {timeout_s} s") from None
    packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    return packages


def reached() -> bool:
    """Return whether the service names the vulnerabilities of a package that has some."""
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "known.txt"
        known.write_text(f"{KNOWN}\n")
        try:
            return any(package.get("vulns") for package in ask(known, PROBE_S))
        except (OSError, ValueError):
            return False


def main(required: bool) -> int:
    """Run the audit, print its result, and return the exit code."""
    count = sum("==" in line and not line.startswith("#") for line in LOCK.read_text().splitlines())
    if not reached():
        print(SKIPPED.format(count))
        return int(required)
    try:
        packages = ask(LOCK, AUDIT_S)
    except (OSError, ValueError) as error:
        print(f"audit failed: pip-audit said nothing of {LOCK.name}: {error}")
        return 1
    bad = [f"{each['name']} {each['version']}: {vuln['id']}" for each in packages for vuln in each.get("vulns", ())]
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    for line in [*bad, *(f"{name}: not audited" for name in unknown)]:
        print(line)
    print(f"audited {len(packages) - len(unknown)} of {count} packages: {len(bad)} known vulnerabilities")
    return int(bool(bad or (unknown and required)))


if __name__ == "__main__":
    sys.exit(main("--required" in sys.argv[1:]))
