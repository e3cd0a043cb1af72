"""Repair of actor classes whose export Ray has lost.

Ray's head deletes the exports of a driver when it considers the driver gone, at times while detached actors of that
driver are alive (seen with 2.60 when a host was cut off). From then on no process can find such an actor by its name,
and Ray restarts the actor's process again and again, because an assertion of Ray fails in it. All actor classes of this
project are made by one function, so a process that finds an export missing makes the class again and stores it where
Ray looks.

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
"""Namespace in which Ray keeps exports: ``KV_NAMESPACE_FUNCTION_TABLE`` of its ``ray_constants``."""


def have_classes(
    worker: Any, class_of: Callable[[str], type], modify: Callable[[type], type], kv: Any, pickler: Any
) -> None:
    """Patch Ray's class loader in this process: a class that the head lacks is made here, and stored in the head.

    ``class_of`` returns the class of a role; ``modify`` turns the class into the one that Ray would have exported.
    """
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
            with contextlib.suppress(Exception):  # the head may be unavailable; the class is usable here all the same
                kv._internal_kv_put(export_key(job_id, descriptor), export, namespace=_TABLE)
            return found

    loaded.is_ours = True  # type: ignore[attr-defined]
    manager._load_actor_class_from_gcs = loaded


def export_key(job_id: Any, descriptor: Any) -> bytes:
    """Return the key under which Ray looks for a class: ``make_function_table_key`` of its ``function_manager``."""
    return b":".join([b"ActorClass", job_id.hex().encode(), descriptor.function_id.binary()])


def _exported(job_id: Any, descriptor: Any, found: type, pickler: Any) -> bytes:
    """Return the bytes that ``export_actor_class`` of Ray's ``function_manager`` writes, under the job of the actor."""
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
