"""Class decorator for fast assignment to fields of msgspec structs.

After each assignment msgspec checks whether the garbage collector must track the struct from now on, in case the new
value can be part of a reference cycle (``Struct_setattro_default`` of
https://github.com/msgspec/msgspec/blob/main/src/msgspec/_core.c). A decorated class assigns directly, as a class with
``__slots__`` does. An assignment takes 11 ns for 26, and the step of a batch 10 to 18 % less.

Precondition, without which a reference cycle through the struct would never be freed: the struct is in no reference
cycle, or the collector tracks the struct from its creation. ``tests/unit/cortex/values/test_fast_setattr.py`` checks
the precondition for each decorated class, and that such a class is like any other in everything else.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def fast_setattr(made: type[T]) -> type[T]:
    """Make attribute assignment of this struct class as fast as that of a class with ``__slots__`` (fast path).

    Use the decorator only where the precondition of this module holds.
    """
    type.__setattr__(made, "__delattr__", object.__delattr__)  # both share one slot of the type, so both must be set
    type.__setattr__(made, "__setattr__", object.__setattr__)
    return made
