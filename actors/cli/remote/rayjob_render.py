"""``k8s render``: a job file as a RayJob for KubeRay.

The job file itself goes to the cluster, with the files beside it, so that its paths stay valid. KubeRay's entrypoint
only names the job file: an entrypoint passes through two shells, which would change other texts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

import cortex
from actors.cli.jobs.texts import standard_input
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.job_file import SOURCES, TEXTS, JobFile, read
from actors.cli.options.options import keys
from actors.cli.remote.job_file_check import refuse_as_begun
from actors.cli.remote.rayjob import (
    CLUSTER,
    NAMESPACE,
    RayJobSpec,
    image_of,
    job_name,
    objects,
    refuse_image,
    refuse_place,
)
from actors.common.errors import CommandError
from cortex.values.bounds.json_depth import deep_words

FILES = "/var/lib/cortex/files"
"""Default folder of users' files on the head, on the volume that outlives the head."""
IMAGE = f"cortex:{cortex.__version__}"
THE_CLUSTERS = ("state", "cluster")
"""Keys that the cluster's own environment sets; it wins over a job file written for another machine."""
TEXTS_MAX_BYTES = 1_000_000
"""Most bytes of texts in a ConfigMap, which Kubernetes limits to 1 MiB."""


class RayJobTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Destination of a RayJob, from the command line. An empty value: not given."""

    cluster: str = ""
    cluster_of: str = ""
    queue: str = ""
    namespace: str = NAMESPACE
    image: str = ""
    files: str = FILES


def render(path: str, to: RayJobTarget) -> int:
    """Run ``cortex k8s render`` and return the exit code.

    Raises ``CommandError``, or the errors that ``batch`` raises before it begins.
    """
    known = keys()
    found = read(path, known)
    folder = Path(path).parent
    _refuse_what_stays(found, own_cluster=bool(to.cluster_of))
    try:
        refuse_place(to.cluster, to.cluster_of, to.namespace, to.queue, to.files)
        name = job_name(str(found.values.get("job", "")), Path(path).stem)
        there = f"{to.files.rstrip('/')}/{name}"
        beside = _beside(found, folder)
        own = _cluster_spec(to.cluster_of) if to.cluster_of else None
        text = to.image or (own and image_of(own)) or IMAGE
        refuse_image("--image" if to.image or own is None else f"{to.cluster_of}: image", text)
        command = _command(found)
        made = objects(
            RayJobSpec(
                name=name, entrypoint=_entrypoint(command, f"{there}/{Path(path).name}", name), image=text,
                namespace=to.namespace, cluster=to.cluster or CLUSTER, own=own, queue=to.queue, folder=there,
                files=_texts(found, folder, beside) if own is not None else {},
            )
        )  # fmt: skip
    except ValueError as error:
        raise CommandError(str(error)) from None
    refuse_as_begun(found, command)
    for key in THE_CLUSTERS:
        if key in found.values:
            print_error(f"{found.origin(key)}: {known[key].name} is set by the cluster: ignored there")
    if own is None:
        print_error(f"copy to {there} on the head first: {' '.join(beside)}")
        for each in beside:
            if not (folder / each).exists():
                print_error(f"{folder / each} is not on this machine: it must be on the head when the job starts")
    print(yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True), end="", flush=True)
    return COMPLETE


def _refuse_what_stays(found: JobFile, own_cluster: bool) -> None:
    """Raise ``CommandError`` for keys that must not be sent to a cluster."""
    key_file = str(found.values.get("api_key_file", ""))
    if key_file and not Path(key_file).is_absolute():
        raise CommandError(
            f"{found.origin('api_key_file')}: api-key-file: a key is never sent with a job: remove the line, and "
            "create the secret cortex-provider (k8s/README.md), or name a file on the head"
        )
    if own_cluster and "notify" in found.values:
        raise CommandError(
            f"{found.origin('notify')}: notify: its URL may be a secret, and would be in a ConfigMap: remove the line, "
            "and set CORTEX_NOTIFY on the head from a secret"
        )


class _Dumper(yaml.SafeDumper):  # type: ignore[misc] # PyYAML has no types
    """YAML dumper for readers: texts of several lines as block scalars, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _command(found: JobFile) -> str:
    if "program" not in found.values and "input" not in found.values:
        raise CommandError(f"{found.path} names neither an input nor a program: add one of the two")
    return "run" if "program" in found.values else "batch"


def _entrypoint(command: str, there: str, name: str) -> tuple[str, ...]:
    """Return the command that runs the job file in the cluster.

    ``--accept-partial``: KubeRay treats every exit code but 0 as a failure, and would run a partial job again.
    """
    return ("cortex", command, "-f", there, "--job", name, "--accept-partial", "--wait", "--json")


# -- files beside the job file ----------------------------------------------------------------------------------------


def _beside(found: JobFile, folder: Path) -> list[str]:
    """Return the paths, relative to the job file, of all files that go to the cluster. Raises ``CommandError``."""
    _inside(found.values.get("output") or "none", folder)
    names = [Path(found.path).name, *(_inside(each, folder) for each in _read_there(found))]
    return list(dict.fromkeys(filter(None, names)))


def _texts(found: JobFile, folder: Path, beside: list[str]) -> dict[str, str]:
    """Return the texts for a cluster of the job's own. Raises ``CommandError`` for files that need a disk there."""
    for key in ("input", "inputs", "output"):
        value = found.values.get(key, [])
        for each in value if isinstance(value, list) else [value]:
            if _inside(str(each), folder):
                raise CommandError(f"{found.origin(key)}: a cluster of its own keeps no files: give {key} as s3://…")
    texts = {}
    for name in beside:
        try:
            texts[name] = (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            answer = getattr(error, "strerror", None) or "not UTF-8 text"
            raise CommandError(f"{folder / name} cannot go to the cluster: {answer}") from None
        if "/" in name:
            raise CommandError(f"{folder / name} is in a subfolder: move it beside the job file")
    if (size := sum(len(text.encode()) for text in texts.values())) > TEXTS_MAX_BYTES:
        raise CommandError(f"{', '.join(beside)} have {size:,} bytes: Kubernetes takes {TEXTS_MAX_BYTES:,} at most")
    return texts


def _read_there(found: JobFile) -> Iterator[str]:
    """Yield the paths of all files that the job reads, as given on this machine."""
    for name, value in found.values.items():
        if name in ("input", "inputs"):
            yield from value if isinstance(value, list) else [value]
        elif name in TEXTS and value.startswith("@") and not value.startswith("@@"):
            yield value[1:]
        elif name == "base_url":
            yield from (each[1:] for each in value if each.startswith("@"))
        elif name == "param":
            texts = (pair.partition("=")[2] for pair in value)
            yield from (text[1:] for text in texts if text.startswith("@") and text[1:2] != "@")
        elif name in ("program", "schema") and value.partition(":")[0].partition("@")[0].endswith((*SOURCES, ".json")):
            yield value.partition(":")[0]


def _inside(path: str, folder: Path) -> str:
    """Return a path relative to the job file's folder; empty for a path that exists elsewhere in the cluster.

    Raises ``CommandError`` for a path that cannot exist there.
    """
    if "://" in path:
        return ""
    if path in ("", "-") or path.startswith("~"):
        raise CommandError(f"{path or 'an empty path'}: a job in a cluster reads and writes files there: name a file")
    inside = os.path.relpath(path, folder)
    if not inside.startswith(".."):
        return inside
    if Path(path).is_absolute():
        return ""  # on the head's disk, or in its image
    raise CommandError(f"{path} is not below the job file's folder, which goes to the cluster: put it there")


# -- a cluster of the job's own -------------------------------------------------------------------------------------


def _cluster_spec(path: str) -> dict[str, Any]:
    """Return the spec of the only RayCluster in a YAML stream. Raises ``CommandError``."""
    try:
        text = standard_input().decode() if path == "-" else Path(path).read_text(encoding="utf-8")
        found = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise CommandError(f"{path} holds a value that is {deep_words()}: flatten it") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from None
    clusters = [each for each in found if each.get("kind") == "RayCluster"]
    if not clusters:
        raise CommandError(f"{path} holds no RayCluster: give the output of `kubectl kustomize` for your overlay")
    if len(clusters) > 1:
        names = ", ".join(str(each.get("metadata", {}).get("name")) for each in clusters)
        raise CommandError(f"{path} holds {len(clusters)} RayClusters ({names}): give a file with one of them")
    try:
        spec = dict(clusters[0]["spec"])
        image_of(spec)
    except (KeyError, IndexError, TypeError, ValueError):
        raise CommandError(f"{path}: its RayCluster has no head with a container") from None
    return spec
