"""Class decorator for fast assignment to fields of msgspec structs.

On each assignment msgspec checks whether the garbage collector must track the struct, in case its value can be part of
a reference cycle. A decorated class assigns directly, as a class with ``__slots__`` does. Use it only for structs that
are in no reference cycle, or that the collector tracks from the start because they hold lists.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def fast_setattr(made: type[T]) -> type[T]:
    """Make attribute assignment of this struct class as fast as that of a class with ``__slots__``."""
    type.__setattr__(made, "__delattr__", object.__delattr__)  # both share one slot of the type, so both must be set
    type.__setattr__(made, "__setattr__", object.__setattr__)
    return made
