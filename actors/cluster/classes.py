"""Classes of actors whose export Ray has lost: its head drops what a driver brought when it takes that driver for
gone, at times while detached actors of it live on (seen with 2.60 when a host was cut off). Then nobody could find an
actor by its name any more: Ray fails at an assertion of its own. Ours are all made by one function, so all have them.

Ray's worker and the function that makes a class are arguments (``actors.runtime``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def have_classes(worker: Any, class_of: Callable[[str], type], modify: Callable[[type], type]) -> None:
    """Have Ray, in this process, take our own class where its head has none. ``class_of``: by the role; ``modify``
    makes of it what Ray would have exported."""
    manager = worker.function_actor_manager
    load = manager._load_actor_class_from_gcs
    if getattr(load, "is_ours", False):
        return

    def loaded(job_id: Any, descriptor: Any) -> Any:
        try:
            return load(job_id, descriptor)
        except AssertionError:
            return modify(class_of(descriptor.class_name.lower()))

    loaded.is_ours = True  # type: ignore[attr-defined]
    manager._load_actor_class_from_gcs = loaded
