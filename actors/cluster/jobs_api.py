"""Client of Ray's Jobs API, as far as needed to run a command:
https://docs.ray.io/en/latest/cluster/running-applications/ job-submission/rest.html. A job of that API is a shell
command on the head; here it is called a submission.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from actors.ports.runtime import ClusterError

ANSWER_S = 30.0
FIRST_ANSWER_S = 5.0
PACKAGE_BYTES_MAX = 100_000_000
"""Bytes of one package, at most, that Ray's dashboard accepts (``DASHBOARD_CLIENT_MAX_SIZE``)."""
STARTING_S = 60.0
"""Seconds to wait for a head that is starting."""
_LATER = "try again later"
_BY_A_PROXY = frozenset({502, 503, 504})  # from a proxy that could not reach the head
OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_EXIT_CODE = re.compile(r"exit code (\d+)")


class NoResponse(ClusterError):
    """No answer from a Ray: the request may have been carried out all the same."""


class JobSubmission(msgspec.Struct, frozen=True):
    """State of a submission. ``code``: exit code of the command, once it has ended."""

    status: str
    message: str = ""
    code: int | None = None
    metadata: Mapping[str, str] = {}

    @property
    def over(self) -> bool:
        """True if the command has ended."""
        return self.status in OVER


def token_of(environ: Mapping[str, str]) -> str:
    """Return the token for Ray, read where Ray itself looks; empty unless ``RAY_AUTH_MODE=token`` is set.

    The token is a secret, so it is sent only if that variable says so. Raises ``ClusterError`` if no token is found
    then.
    """
    if environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return ""
    token = environ.get("RAY_AUTH_TOKEN", "")
    for path in (environ.get("RAY_AUTH_TOKEN_PATH", ""), "~/.ray/auth_token"):
        if not token and path and Path(path).expanduser().is_file():
            token = Path(path).expanduser().read_text().strip()
    if not token:
        where = "RAY_AUTH_TOKEN, a file named by RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"
        raise ClusterError(f"RAY_AUTH_MODE=token, but there is no token: give {where}")
    return token


class JobsApi:
    """Jobs API at an address. Every method raises ``ClusterError``, one line, if the API does not answer."""

    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ClusterError(f"--cluster {address}: give the address of the dashboard, http://host:8265")
        self.address = address.rstrip("/")
        self._token = token_of(environ)

    def see(self) -> str:
        """Return the release of the Ray at the address."""
        data = self._asked("GET", "/api/version", timeout_s=FIRST_ANSWER_S)
        try:
            return str(json.loads(data)["ray_version"])
        except (ValueError, KeyError, TypeError):
            raise ClusterError(_other(self.address)) from None

    def submission(self, name: str) -> JobSubmission | None:
        """Return the state of a submission; None if no submission has this name."""
        try:
            reported = json.loads(self._asked("GET", f"/api/jobs/{_quoted(name)}"))
            status = str(reported["status"])
        except _NotFound:
            return None
        except (ValueError, KeyError, TypeError):
            raise NoResponse(_other(self.address)) from None
        message = reported.get("message") or ""
        code = reported.get("driver_exit_code")
        if code is None and status in OVER:
            found = _EXIT_CODE.search(message)
            code = 0 if status == "SUCCEEDED" else int(found[1]) if found else None
        return JobSubmission(status, message, code, reported.get("metadata") or {})

    def submit(self, name: str, entrypoint: str, package: str = "", metadata: Mapping[str, str] | None = None) -> None:
        """Run a command on the head, in a new folder with the content of the package."""
        body: dict[str, Any] = {"entrypoint": entrypoint, "submission_id": name, "metadata": dict(metadata or {})}
        if package:
            body["runtime_env"] = {"working_dir": f"gcs://{package}"}
        until_s = time.monotonic() + STARTING_S
        while True:
            try:
                self._asked("POST", "/api/jobs/", json.dumps(body).encode(), "application/json")
                return
            except ClusterError as error:
                if _LATER not in str(error) or time.monotonic() >= until_s:
                    raise
            time.sleep(1.0)

    def upload(self, package: str, content: bytes) -> None:
        """Upload a package to the cluster, unless the cluster has it."""
        try:
            self._asked("GET", f"/api/packages/gcs/{package}")
        except _NotFound:
            self._asked("PUT", f"/api/packages/gcs/{package}", content, "application/octet-stream")

    def logs(self, name: str) -> str:
        """Return all output of a submission so far; empty if there is none."""
        try:
            return str(json.loads(self._asked("GET", f"/api/jobs/{_quoted(name)}/logs"))["logs"])
        except (_NotFound, ValueError, KeyError):
            return ""

    def forget(self, name: str) -> None:
        """Delete an ended submission from the list."""
        self._asked("DELETE", f"/api/jobs/{_quoted(name)}")

    def _asked(
        self, method: str, path: str, body: bytes | None = None, kind: str = "", timeout_s: float = ANSWER_S
    ) -> bytes:  # fmt: skip
        headers = {"Content-Type": kind} if kind else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.address + path, body, headers, method=method)
        try:
            with _OPENER.open(request, timeout=timeout_s) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(2000).decode(errors="replace")
            raise _refused(self.address, error.code, text, self._token) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            message = "no answer" if isinstance(reason, TimeoutError) else getattr(reason, "strerror", None)
            other = isinstance(error, http.client.HTTPException)
            message = message or ("something else listens there" if other else str(reason))
            raise NoResponse(f"no Ray answers at {self.address}: {message}") from None


class _NotFound(ClusterError):
    """HTTP status 404."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect: a token is sent only to the address that the user named."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _other(address: str) -> str:
    return f"no Ray answers at {address}: something else listens there"


def _refused(address: str, code: int, text: str, token: str) -> ClusterError:
    if code == 404 or (code in (401, 403) and "authentication token" not in text):
        return _NotFound(_other(address))
    if code in (401, 403):
        if token:
            return ClusterError(f"the Ray at {address} refuses the token: RAY_AUTH_TOKEN or its file is of another Ray")
        return ClusterError(f"the Ray at {address} asks for a token: set RAY_AUTH_MODE=token, and give RAY_AUTH_TOKEN")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = f"the Ray at {address} answers {code}: {(lines or ['nothing more'])[-1][:300]}"
    return NoResponse(text) if code in _BY_A_PROXY else ClusterError(text)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def wait_for(look: Callable[[], JobSubmission | None], pause: Callable[[], None]) -> JobSubmission | None:
    """Poll with ``look`` until a submission has ended or is unknown; return its last state, or None. ``pause`` waits
    between.
    """
    while (found := look()) is not None and not found.over:
        pause()
    return found
