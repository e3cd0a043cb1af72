"""The form of journals as text: every type that stands in one, its fields in their order, and their defaults.

``python -m tests.journals.form`` writes it down; ``tests/unit/cortex/journal/test_form.py`` shows what is another since.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec

from cortex.journal import codec, snapshots
from cortex.state import events
from cortex.state.state import State

WHERE = Path(__file__).with_name("form.txt")


def form() -> str:
    """Of turns, of the accounts that they carry, and of snapshots."""
    facts: dict[str, str] = {}
    for root in (events.Turn, codec._WrittenAccount, State, snapshots.SplitSnapshot):
        _tell(root, facts)
    return "\n".join([f"format {codec.FORMAT}", *(facts[name] for name in sorted(facts))]) + "\n"


def _tell(kind: Any, told: dict[str, str]) -> None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in told:
            return
        config = kind.__struct_config__
        told[name] = ""
        fields = []
        for field in msgspec.structs.fields(kind):
            fields.append(f"  {field.encode_name}: {_named(field.type)}{_default(field)}")
            _tell(field.type, told)
        tag = f" tag {config.tag!r}" if config.tag is not None else ""
        told[name] = "\n".join([f"{name} {'array' if config.array_like else 'map'}{tag}", *fields])
        return
    for inner in typing.get_args(kind):
        _tell(inner, told)


def _named(kind: Any) -> str:
    """A type as it stands in a file, whatever the version of Python calls it."""
    args = typing.get_args(kind)
    if not args:
        return getattr(kind, "__qualname__", None) or repr(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    name = getattr(origin, "__qualname__", "Union")
    if name in ("Union", "UnionType"):
        return " | ".join(sorted(_named(each) for each in args))
    return f"{name}[{', '.join(_named(each) if each is not ... else '...' for each in args)}]"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return (
            f" = {field.default!r}"
            if isinstance(field.default, (int, float, str, bytes, bool, type(None)))
            else " = ..."
        )
    return " = ..." if field.default_factory is not msgspec.NODEFAULT else ""


if __name__ == "__main__":
    WHERE.write_text(form())
