"""Export of a program to other processes: its place in the code, and the code itself for processes that do not have it.

Code in files is sent as these files: a machine that has the same files under the same paths uses its own.

Pickling a class by value does not support msgspec's structs, which cannot be filled in after they are made. So each
struct is taken apart into its fields, options and methods here, and made again by the receiver.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import sys
from types import MemberDescriptorType
from typing import Any

import msgspec

from actors.cluster.shipping.bundle import ProgramBundle, packed, unpacked
from actors.ports.runtime import ClusterError
from actors.programs import answer_types, loader
from actors.programs.fingerprint import class_of, sources_of
from cortex.state.program import Program

_StructType = type(msgspec.Struct)
_OPTIONS = (
    "frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "weakref", "dict",
    "cache_hash", "tag", "tag_field", "forbid_unknown_fields",
)  # fmt: skip


class ExportedProgram(msgspec.Struct, array_like=True):
    """Program in transit."""

    paths: tuple[str, ...]
    """Folders of modules, for a machine that has them."""
    version: str
    place: str
    """Place of the class in a process that has not received it."""
    code: bytes = b""
    """Class pickled by value, if it was defined at a prompt or inside a function."""
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    """Source texts of the classes in ``code``, by qualified name, for the fingerprint of the program."""
    bundle: ProgramBundle = ProgramBundle()
    """Files that hold the program, if it is in files."""


def pack(where: str, paths: tuple[str, ...], pickler: type[Any]) -> bytes:
    """Return a program for other processes. ``pickler``: cloudpickle's. Raises ``ClusterError`` if it cannot be
    pickled.
    """
    type_ = loader.find(where)
    payload = ExportedProgram(paths, loader.fingerprint(where, b""), loader.place_of(type_))
    if _by_value(type_):
        payload.code, payload.sources = _code_of(type_, f"the program {type_.__qualname__}", pickler)
    payload.bundle = packed(type_)
    return msgspec.msgpack.encode(payload)


def _code_of(type_: type, noun: str, pickler: type[Any]) -> tuple[bytes, dict[str, str]]:
    """Return a class pickled by value, and the sources of the classes in it. Raises ``ClusterError``."""
    try:
        code, inside = _pickled(type_, pickler)
    except Exception as error:  # any object that the class refers to may refuse
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClusterError(f"{noun} cannot be sent to a cluster ({text}): put it into a file") from None
    return code, {each.__qualname__: loader.source(each).decode() for each in inside}


def unpack(where: str, packed: bytes) -> None:
    """Make a program loadable in this process under its place; an earlier one there is replaced."""
    payload = msgspec.msgpack.decode(packed, type=ExportedProgram)
    sys.path.extend(path for path in payload.paths if path not in sys.path)
    loader.forget(where)
    moved = unpacked(payload.bundle)
    if payload.code:
        loader.adopt_sources({name: text.encode() for name, text in payload.sources.items()})
        loader.adopt(where, pickle.loads(payload.code))
    elif moved:
        loader.settle(where, payload.place, moved)
    elif payload.place != where:
        loader.forget(payload.place)
        loader.alias(where, payload.place)


def pack_type(place: str, paths: tuple[str, ...], pickler: type[Any]) -> bytes:
    """Return a registered Python type of answers for other processes. Raises ``ClusterError`` if it cannot be pickled.
    """
    type_ = class_of(answer_types.type_at(place))
    payload = ExportedProgram(paths, "", place)
    if _by_value(type_):
        payload.code, payload.sources = _code_of(type_, f"the type {type_.__qualname__}", pickler)
        payload.sources[type_.__qualname__] = b"\0".join(sources_of(type_, {})).decode()
    payload.bundle = packed(type_)
    return msgspec.msgpack.encode(payload)


def unpack_type(place: str, packed: bytes) -> None:
    """Register a Python type in this process under its place; an earlier one there is replaced. Raises ``ValueError``
    with one line if it cannot be imported on this machine."""
    payload = msgspec.msgpack.decode(packed, type=ExportedProgram)
    sys.path.extend(path for path in payload.paths if path not in sys.path)
    moved = unpacked(payload.bundle)
    if payload.code:
        loader.adopt_sources({name: text.encode() for name, text in payload.sources.items()})
        answer_types.adopt(place, pickle.loads(payload.code))
        return
    file, _, name = place.rpartition(":")
    for module in payload.bundle.modules:  # imported from an earlier version
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    answer_types.adopt(place, loader.at(f"{moved.get(file, file)}:{name}", f"the type {place}"))


def _by_value(type_: type) -> bool:
    return type_.__module__ == "__main__" or "<locals>" in type_.__qualname__


def _pickled(type_: type, pickler: type[Any]) -> tuple[bytes, list[type]]:
    """Pickle a class by value; return the pickle, and all structs in it: its bases, and those that its methods refer
    to.
    """
    inside: list[type] = []

    class Pickler(pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, _StructType) and _by_value(obj):
                inside.append(obj)
                return _taken_apart(obj)
            return super().reducer_override(obj)

    held = io.BytesIO()
    Pickler(held).dump(type_)
    return held.getvalue(), inside


def _taken_apart(type_: Any) -> tuple[Any, ...]:
    own = inspect.get_annotations(type_)
    fields = [field for field in msgspec.structs.fields(type_) if field.name in own]
    kinds = inspect.signature(type_).parameters
    options = {name: getattr(type_.__struct_config__, name) for name in _OPTIONS}
    if callable(options["tag"]):
        options["tag"] = type_.__struct_config__.tag
    options["kw_only"] = all(kinds[f.name].kind is inspect.Parameter.KEYWORD_ONLY for f in fields)
    born_with = {"__doc__": type_.__doc__, "__qualname__": type_.__qualname__}
    if "__post_init__" in type_.__dict__:
        born_with["__post_init__"] = type_.__dict__["__post_init__"]
    place = loader.place_of(type_) if issubclass(type_, Program) else ""
    made = (type_.__name__, tuple(map(_field, fields)), type_.__bases__, type_.__module__, options, born_with, place)
    return _put_together, made, _attributes(type_, born_with), None, None, _filled


def _field(field: Any) -> tuple[Any, ...]:
    """Return (name, type, encoded name, has a default, default, default factory)."""
    no = msgspec.NODEFAULT
    has = field.default is not no
    factory = None if field.default_factory is no else field.default_factory
    return field.name, field.type, field.encode_name, has, field.default if has else None, factory


def _attributes(type_: type, born_with: dict[str, Any]) -> dict[str, Any]:
    """Return methods and class attributes, without those that every struct has."""
    plain = vars(msgspec.defstruct("Plain", []))
    return {
        name: value
        for name, value in vars(type_).items()
        if name not in born_with and not isinstance(value, MemberDescriptorType)
        and (name not in plain or (name.startswith("__") and inspect.isfunction(value)))
        and name not in ("__annotations__", "__weakref__", "__dict__")
    }  # fmt: skip


def _put_together(
    name: str, fields: tuple[tuple[Any, ...], ...], bases: tuple[type, ...], module: str, options: dict[str, Any],
    born_with: dict[str, Any], place: str,
) -> type:  # fmt: skip
    made = []
    for field, kind, encoded, has, default, factory in fields:
        shown = msgspec.field(
            default=default if has else msgspec.NODEFAULT, name=encoded if encoded != field else None,
            **({"default_factory": factory} if factory is not None else {}),
        )  # fmt: skip
        made.append((field, kind, shown))
    type_: Any = msgspec.defstruct(name, made, bases=bases, module=module, namespace=born_with, **options)
    if place:
        loader.adopt(place, type_)
    return type_  # type: ignore[no-any-return]


def _filled(type_: type, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(type_, name, value)
