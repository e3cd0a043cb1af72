"""Classes of actors whose export Ray has lost: its head drops what a driver brought when it takes that driver for
gone, at times while detached actors of it live on (seen with 2.60 when a host was cut off). Then nobody could find such
an actor by its name any more, and Ray would begin its process again and again, as an assertion of its own fails in it.
Ours are all made by one function: whoever finds one lost has it, and puts it back where Ray looks.

Ray's worker, its key-value store, its pickler and the function that makes a class are arguments
(``actors.runtime.ray_runtime``).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

_TABLE = b"fun"
"""Where Ray keeps exports: ``KV_NAMESPACE_FUNCTION_TABLE`` of its ``ray_constants``."""


def have_classes(
    worker: Any, class_of: Callable[[str], type], modify: Callable[[type], type], kv: Any, pickler: Any
) -> None:
    """Have Ray, in this process, take our own class where its head has none, and give the head that one.
    ``class_of``: by the role; ``modify`` makes of it what Ray would have exported."""
    manager = worker.function_actor_manager
    load = manager._load_actor_class_from_gcs
    if getattr(load, "is_ours", False):
        return

    def loaded(job_id: Any, descriptor: Any) -> Any:
        try:
            return load(job_id, descriptor)
        except AssertionError:
            found = modify(class_of(descriptor.class_name.lower()))
            export = _exported(job_id, descriptor, found, pickler)
            with contextlib.suppress(Exception):  # a head that is away just now: we have the class in any case
                kv._internal_kv_put(export_key(job_id, descriptor), export, namespace=_TABLE)
            return found

    loaded.is_ours = True  # type: ignore[attr-defined]
    manager._load_actor_class_from_gcs = loaded


def export_key(job_id: Any, descriptor: Any) -> bytes:
    """Where Ray looks for a class: ``make_function_table_key`` of its ``function_manager``."""
    return b":".join([b"ActorClass", job_id.hex().encode(), descriptor.function_id.binary()])


def _exported(job_id: Any, descriptor: Any, found: type, pickler: Any) -> bytes:
    """What ``export_actor_class`` of Ray's ``function_manager`` writes, under the job that the actor is of."""
    return pickle.dumps(
        {
            "class_name": descriptor.class_name,
            "module": descriptor.module_name,
            "class": pickler.dumps(found),
            "job_id": job_id.binary(),
            "collision_identifier": b"",
            "actor_method_names": json.dumps([name for name, _ in inspect.getmembers(found, inspect.isfunction)]),
        }
    )
