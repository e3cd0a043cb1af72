"""Files in object stores: s3://, gs://, az:// and all other protocols of ``fsspec``. Read and written as a whole.

Credentials are taken from the store's standard variables and files. They are never shown.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Final

from actors.files.errors import SinkError, SourceError
from actors.files.paths import READ_BYTES, is_remote, protocol_of

_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Protocol -> extra of this project that installs its driver."""
_SECRET: Final = re.compile(r"(?i)((?:key|secret|token|signature|sig|password|credential)[\w-]*\W{1,6})[^\s,;&'\")}]+")
_SECRET_NAME: Final = re.compile(r"(?i)key|secret|token|sas|password|credential|connection_string")
_SECRET_CHARACTERS_MIN: Final = 8
_MESSAGE_CHARS_MAX: Final = 200
PROBE: Final = ".part"
"""Suffix of the object that is written to test whether a store accepts writes."""


class ObjectStoreError(Exception):
    """Store that cannot be used, or refuses the request. The message is one line."""


def fetch(path: str, target: Path) -> None:
    """Copy the whole object to a file that is private to its user. Raises ``SourceError``."""
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with _refusals(path, "cannot be read"):
            store, where = _store(path)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "wb") as near, store.open(where, "rb") as far:
                while some := far.read(READ_BYTES):
                    near.write(some)
                near.flush()
                os.fsync(near.fileno())
        os.replace(part, target)
    except ObjectStoreError as refusal:
        raise SourceError(str(refusal)) from None
    except OSError as error:
        raise SourceError(f"{path} cannot be kept in {target}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def put(source: Path, path: str) -> None:
    """Write a whole file to the store. Raises ``SinkError``."""
    try:
        with _refusals(path, "cannot be written"):
            store, where = _store(path)
            store.put_file(str(source), where)
    except ObjectStoreError as refusal:
        raise SinkError(str(refusal)) from None


def try_out(path: str) -> None:
    """Write an empty object and delete it, so that a store that refuses writes fails early. Raises ``SinkError``."""
    try:
        with _refusals(path, "cannot be written"):
            store, where = _store(path)
            store.pipe_file(where + PROBE, b"")
    except ObjectStoreError as refusal:
        raise SinkError(str(refusal)) from None
    with contextlib.suppress(Exception):  # the right to write does not always include the right to delete
        store.rm_file(where + PROBE)


def there(path: str) -> bool:
    """Return whether an object of this name exists. Raises ``SinkError`` if the store cannot be asked."""
    try:
        with _refusals(path, "cannot be looked at"):
            store, where = _store(path)
            return bool(store.exists(where))
    except ObjectStoreError as refusal:
        raise SinkError(str(refusal)) from None


def head(path: str, size_bytes: int) -> bytes:
    """Return the first ``size_bytes`` of an object. Raises ``SinkError``."""
    try:
        with _refusals(path, "cannot be looked at"):
            store, where = _store(path)
            with store.open(where, "rb") as far:
                return bytes(far.read(size_bytes))
    except ObjectStoreError as refusal:
        raise SinkError(str(refusal)) from None


def modified_s(path: str) -> float:
    """Return the Unix time at which an object was last written; 0 if the store does not tell."""
    with contextlib.suppress(Exception):  # an optional method, whose drivers have errors of their own
        store, where = _store(path)
        return float(store.modified(where).timestamp())
    return 0.0


def opened(path: str) -> Any:
    """Return an object as a file to read from any position. Raises the errors of its driver."""
    store, where = _store(path)
    return store.open(where, "rb")


def _store(path: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ModuleNotFoundError:
        raise ObjectStoreError(_missing(path)) from None
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(path, **_options(path))
    except ImportError:
        raise ObjectStoreError(_missing(path)) from None
    except ValueError as error:
        known = "s3://, gs://, az:// or a path"
        raise ObjectStoreError(f"{path}: {_line(error)}: give {known}") from None
    return found


def _options(path: str) -> dict[str, Any]:
    return {"skip_instance_cache": True, "use_listings_cache": False} if protocol_of(path) in ("s3", "s3a") else {}


def _missing(path: str) -> str:
    extra = _EXTRAS.get(protocol_of(path))
    if extra is None:
        return f"{path}: no driver for {protocol_of(path)}:// is installed: pip install fsspec and that driver"
    return f"{path}: {protocol_of(path)}:// needs its driver: pip install 'cortex-bounded-calls[{extra}]'"


class _refusals(contextlib.AbstractContextManager[None]):
    """Context in which every error of a store's driver (each has its own types) becomes one line without secrets."""

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, ObjectStoreError) or not isinstance(error, Exception):
            return
        if isinstance(error, FileNotFoundError):
            raise ObjectStoreError(f"{self._path}: there is no such object, or no such bucket") from None
        text = _line(error)
        if isinstance(error, PermissionError) or "credential" in text.lower() or "denied" in text.lower():
            text += ": see to the credentials in the store's own variables or files"
        raise ObjectStoreError(f"{self._path} {self._what}: {text}") from None


def _line(error: Exception) -> str:
    text = " ".join((str(error) or type(error).__name__).split())
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _SECRET_CHARACTERS_MIN:
            text = text.replace(value, "…")
    return _SECRET.sub(r"\1…", text)[:_MESSAGE_CHARS_MAX]


__all__ = ["fetch", "head", "is_remote", "modified_s", "opened", "put", "there", "try_out"]
