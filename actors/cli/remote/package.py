"""Package of a command for an empty folder of another machine.

A package holds a job file with all given options, and the files that they name. No option names this machine, and none
is a secret. Options that cannot be packaged are refused before anything is sent.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from actors.cli.jobs.settings import given_addresses
from actors.cli.options.job_file import TEXTS, JobFileKey
from actors.cli.options.options import Options, keys
from actors.cluster.jobs_api import PACKAGE_BYTES_MAX
from actors.cluster.shipping.bundle import ProgramBundle, packed
from actors.common.errors import CommandError
from actors.files.paths import is_remote
from actors.providers.registry import of_model

JOB_FILE = "cortex-job.toml"
_OURS = frozenset({"cluster", "state", "job", "as_json", "verbose", "metrics_listen", "log_format", "log_level", "wait",
                   "overwrite", "output"})  # fmt: skip
"""Options of the local command's own run, or options that the remote command line sets."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


class JobPackage:
    """Files by path, and the values of the job file."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.values: dict[str, Any] = {}

    def name(self) -> str:
        """Return the name of the package in Ray; equal content has the same name."""
        return f"_ray_pkg_{self.digest()}.zip"

    def digest(self) -> str:
        """Return 16 hex digits of a SHA-256 over the content."""
        digest = sha256(self._job_file())
        for path, content in sorted(self.files.items()):
            digest.update(path.encode() + b"\0" + sha256(content).digest())
        return digest.hexdigest()[:16]

    def zipped(self) -> bytes:
        """Return the package as a zip archive. Raises ``CommandError`` if the archive is too large for Ray."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
            for path, content in sorted({**self.files, JOB_FILE: self._job_file()}.items()):
                made.writestr(zipfile.ZipInfo(path, _EPOCH), content, zipfile.ZIP_DEFLATED)
        if out.tell() > PACKAGE_BYTES_MAX:
            raise CommandError(
                f"input and program have {out.tell():,} bytes, and Ray takes {PACKAGE_BYTES_MAX:,}: "
                "give the input as s3://…"
            )
        return out.getvalue()

    def _job_file(self) -> bytes:
        known = keys()
        lines = [f"{known[name].name} = {_toml(value)}\n" for name, value in sorted(self.values.items())]
        return "".join(lines).encode()


def package(given: Mapping[str, Any], options: Options, stdin: bytes = b"") -> JobPackage:
    """Return the package of a command. ``given``: the command's own arguments. Raises ``CommandError``."""
    made = JobPackage()
    for name, key in keys().items():
        value = given.get(name) if name in given else getattr(options, name, None)
        if name in _OURS or not value:
            continue
        if name == "notify":
            raise CommandError("--notify: the URL would be shown on Ray's dashboard: set CORTEX_NOTIFY on the head")
        if name == "api_key_file" and not Path(str(value)).is_absolute():
            text = f"--api-key-file {value}: the nodes of the cluster read the key: give its absolute path there"
            raise CommandError(text)
        made.values[name] = _moved(made, name, key, value, stdin)
    if str(given.get("output") or "") and is_remote(str(given["output"])):
        made.values["output"] = given["output"]
    row = of_model(options.model)
    if row is not None and row.on_this_machine:
        text = f"--model {row.name} runs on this machine only: give the model of a server that the nodes reach"
        raise CommandError(text)
    return made


def _moved(made: JobPackage, name: str, key: JobFileKey, value: Any, stdin: bytes) -> Any:
    """Return the value that the option has in the package, and add the files that it names."""
    if name == "input":
        return _file(made, "input", str(value), stdin)
    if name == "inputs":
        return [_file(made, "input", each, stdin) for each in value]
    if name in TEXTS and value.startswith("@") and not value.startswith("@@"):
        return "@" + _file(made, "texts", value[1:])
    if name == "base_url":
        return given_addresses(value)
    if name == "param":
        return [_parameter(made, each) for each in value]
    if name == "program":
        return _program(made, value)
    if name == "schema":
        return _schema(made, value)
    return value if key.kind is not str else str(value)


def _parameter(made: JobPackage, pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not value.startswith("@") or value.startswith("@@"):
        return pair
    return f"{name}{equals}@{_file(made, 'texts', value[1:])}"


def _program(made: JobPackage, where: str) -> str:
    file = where.partition("@")[0]
    if file.endswith(".toml"):
        return _file(made, "program", file) + where[len(file) :]
    from actors.cli.jobs.programs import program_named

    type_ = program_named(where)
    return _code(made, where, packed(type_))


def _code(made: JobPackage, where: str, bundle: ProgramBundle) -> str:
    """Add the files that hold a program or a type, and return its place in the package. Without files it is installed,
    on the nodes as well."""
    if bundle.left:
        raise CommandError(f"{where} cannot be packaged: {bundle.too_large()}: put it into the image of the nodes")
    made.files |= bundle.files
    module, colon, name = where.partition(":")
    return f"{Path(module).name}{colon}{name}" if module.endswith(".py") and bundle.files else where


def _schema(made: JobPackage, value: str) -> str:
    from actors.programs.answer_types import type_at
    from actors.programs.fingerprint import class_of
    from actors.programs.schemas import answer_schema

    found = answer_schema(value)
    if found.answer_type is msgspec.UNSET:
        made.files["schema.json"] = found.schema.encode()
        return "schema.json"
    bundle = packed(class_of(type_at(found.answer_type.place)))
    return _code(made, value, bundle)


def _file(made: JobPackage, folder: str, path: str, stdin: bytes = b"") -> str:
    """Add a file or a folder to the package and return its path in the package."""
    if is_remote(path):
        return path
    if path == "-":
        made.files[f"{folder}/stdin.jsonl"] = stdin
        return f"{folder}/stdin.jsonl"
    here = Path(path).expanduser()
    there = f"{folder}/{here.resolve().name}"
    try:
        for each, content in _contents(here):
            made.files[f"{there}/{each}" if each else there] = content
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    return there


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if not path.is_dir():
        yield "", path.read_bytes()
        return
    for each in sorted(path.rglob("*")):
        inside = each.relative_to(path)
        if each.is_file() and not any(part.startswith(".") for part in inside.parts):
            yield inside.as_posix(), each.read_bytes()


def _toml(value: Any) -> str:
    """Return a text, number, bool or list of texts as TOML. JSON texts are valid TOML but for the character DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
