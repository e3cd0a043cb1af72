"""Records of which the fields are set all the time, a field in the time of a slot's.

A record of msgspec has its own way to set a field: it tells the garbage collector of the record, should that hold
something from now on of which there might be a cycle. The interpreter takes a longer way to it each time. What is
marked here is set as an object of any class with ``__slots__`` is; so only records that are in no cycle, or that the
collector knows from their beginning, since they begin with lists.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def quick_to_set(made: type[T]) -> type[T]:
    """A decorator of such a class."""
    type.__setattr__(made, "__delattr__", object.__delattr__)  # both share a place, and are one way or the other
    type.__setattr__(made, "__setattr__", object.__setattr__)
    return made
