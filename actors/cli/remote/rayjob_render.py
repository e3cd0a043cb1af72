"""``k8s render``: a job file, as a RayJob for KubeRay.

The job file itself goes to the cluster with what lies beside it, so that it means there what it means here. The command
that KubeRay is given names it, and nothing else: that command passes two shells on its way, which would change texts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

import cortex
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

FILES = "/var/lib/cortex/files"
"""Where the head has the files of users, unless told otherwise: on the volume that outlives it."""
IMAGE = f"cortex:{cortex.__version__}"
THE_CLUSTERS = ("state", "cluster")
"""What the cluster's own environment says, which wins over a job file that was written for another machine."""
TEXTS_MAX_BYTES = 1_000_000
"""A ConfigMap has 1 MiB at most."""


class RayJobTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a RayJob goes, as the command line has it. Empty: nothing was said."""

    cluster: str = ""
    cluster_of: str = ""
    queue: str = ""
    namespace: str = NAMESPACE
    image: str = ""
    files: str = FILES


def render(path: str, to: RayJobTarget) -> int:
    """``cortex k8s render``; the exit code. Raises ``CommandError``, or what ``batch`` raises before it begins."""
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
            print_error(f"{found.origin(key)}: {known[key].name} is the cluster's own: passed over there")
    if own is None:
        print_error(f"copy to {there} on the head first: {' '.join(beside)}")
        for each in beside:
            if not (folder / each).exists():
                print_error(f"{folder / each} is not here: the job finds it there, or is refused")
    print(yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True), end="", flush=True)
    return COMPLETE


def _refuse_what_stays(found: JobFile, own_cluster: bool) -> None:
    """What a job file may say on a laptop and must not say there. Raises ``CommandError``."""
    key_file = str(found.values.get("api_key_file", ""))
    if key_file and not Path(key_file).is_absolute():
        raise CommandError(
            f"{found.origin('api_key_file')}: api-key-file: the key goes to no cluster with a job: take it out, and "
            "make the secret cortex-provider (k8s/README.md), or name a file that the head has"
        )
    if own_cluster and "notify" in found.values:
        raise CommandError(
            f"{found.origin('notify')}: notify: its URL may be a secret, and would stand in a ConfigMap: take it out, "
            "and set CORTEX_NOTIFY on the head from a secret"
        )


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # it comes without types
    """YAML for people: a text of several lines stands as it is, and nothing refers to what stands elsewhere."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _command(found: JobFile) -> str:
    if "program" not in found.values and "input" not in found.values:
        raise CommandError(f"{found.path} names neither an input nor a program: there is nothing to run")
    return "run" if "program" in found.values else "batch"


def _entrypoint(command: str, there: str, name: str) -> tuple[str, ...]:
    """The command that does what the job file says, there.

    A job that ends partial ends well: KubeRay takes every other exit code for a failure, and would begin it again.
    """
    return ("cortex", command, "-f", there, "--job", name, "--accept-partial", "--wait", "--json")


# -- what lies beside the job file -----------------------------------------------------------------------------------


def _beside(found: JobFile, folder: Path) -> list[str]:
    """What goes to the cluster, as it stands beside the job file; that first. Raises ``CommandError``."""
    _inside(found.values.get("output") or "none", folder)
    names = [Path(found.path).name, *(_inside(each, folder) for each in _read_there(found))]
    return list(dict.fromkeys(filter(None, names)))


def _texts(found: JobFile, folder: Path, beside: list[str]) -> dict[str, str]:
    """The texts that go to a cluster of the job's own. Raises ``CommandError`` for what needs a disk there."""
    for key in ("input", "inputs", "output"):
        value = found.values.get(key, [])
        for each in value if isinstance(value, list) else [value]:
            if _inside(str(each), folder):
                raise CommandError(
                    f"{found.origin(key)}: a cluster of the job's own keeps no file: give {key} as s3://…"
                )
    texts = {}
    for name in beside:
        try:
            texts[name] = (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            answer = getattr(error, "strerror", None) or "no text in UTF-8"
            raise CommandError(f"{folder / name} cannot go to the cluster: {answer}") from None
        if "/" in name:
            raise CommandError(f"{folder / name} is in a folder of its own: put it beside the job file")
    if (size := sum(len(text.encode()) for text in texts.values())) > TEXTS_MAX_BYTES:
        raise CommandError(f"{', '.join(beside)} have {size:,} bytes: Kubernetes takes {TEXTS_MAX_BYTES:,} at most")
    return texts


def _read_there(found: JobFile) -> Iterator[str]:
    """Paths of all that the job reads, as this machine has them."""
    for name, value in found.values.items():
        if name in ("input", "inputs"):
            yield from value if isinstance(value, list) else [value]
        elif name in TEXTS and value.startswith("@") and not value.startswith("@@"):
            yield value[1:]
        elif name == "param":
            texts = (pair.partition("=")[2] for pair in value)
            yield from (text[1:] for text in texts if text.startswith("@") and text[1:2] != "@")
        elif name in ("program", "schema") and value.partition(":")[0].partition("@")[0].endswith((*SOURCES, ".json")):
            yield value.partition(":")[0]


def _inside(path: str, folder: Path) -> str:
    """A path as it stands beside the job file; empty for what is elsewhere in the cluster too.

    Raises ``CommandError`` for what cannot be there.
    """
    if "://" in path:
        return ""
    if path in ("", "-") or path.startswith("~"):
        raise CommandError(f"{path or 'an empty path'}: a job in a cluster reads and writes files there: name one")
    inside = os.path.relpath(path, folder)
    if not inside.startswith(".."):
        return inside
    if Path(path).is_absolute():
        return ""  # somewhere on the head, or in its image
    raise CommandError(f"{path} is not below the job file's folder, which goes to the cluster: put it there")


# -- a cluster of its own --------------------------------------------------------------------------------------------


def _cluster_spec(path: str) -> dict[str, Any]:
    """The spec of the one RayCluster among the objects of a YAML stream. Raises ``CommandError``."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        found = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from None
    clusters = [each for each in found if each.get("kind") == "RayCluster"]
    if not clusters:
        raise CommandError(f"{path} holds no RayCluster: give what `kubectl kustomize` prints for your overlay")
    if len(clusters) > 1:
        names = ", ".join(str(each.get("metadata", {}).get("name")) for each in clusters)
        raise CommandError(f"{path} holds {len(clusters)} RayClusters ({names}): a job gets one: give a file with that")
    try:
        spec = dict(clusters[0]["spec"])
        image_of(spec)
    except (KeyError, IndexError, TypeError, ValueError):
        raise CommandError(f"{path}: its RayCluster has no head with a container") from None
    return spec
