"""Program named on the command line, with its parameters parsed from texts."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from actors.common.errors import CommandError
from actors.programs import loader
from cortex.flows import Flow
from cortex.flows.determinism import first
from cortex.state.program import Program, build
from cortex.values.bounds.json_depth import deep_words, too_deep

_MISSING = "Object missing required field `"
_JSON = {"array": '["a", "b"]', "object": '{"a": 1}'}
"""Examples of JSON values, by the type that was expected."""


def program_named(where: str) -> type[Program]:
    """Return the program class for a built-in name, ``module:Class``, ``file.py:Class``, or a file or module with one
    program.

    Modules are searched for in the working directory too, after all other places. Raises ``CommandError``.
    """
    try:
        if where.endswith(".py") and ":" not in where:
            return _only_one(where)
        return loader.find(where)
    except loader.NoSuchProgram as error:
        raise CommandError(str(error)) from None


def _only_one(path: str) -> type[Program]:
    found = loader.programs_in(path)
    if len(found) != 1:
        if not found:
            raise CommandError(f"{path} holds no program: define a flow (@cortex.flow) or a subclass of cortex.Program")
        raise CommandError(f"{path} holds {', '.join(found)}: name the program as {path}:{found[0]}")
    return loader.find(f"{path}:{found[0]}")


def built(
    type_: type[Program], pairs: list[str], given: dict[str, Any], before: dict[str, Any] | None = None
) -> Program:  # fmt: skip
    """Return the program with its parameters.

    Values of ``-p name=value`` come first, then ``given`` (from the inputs), then those that the job had ``before``.
    Raises ``CommandError`` with the name of a parameter that is unknown, missing or of the wrong type.
    """
    named = called(type_)
    fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise CommandError(f"-p {pair!r} has no '=': give name=value")
        if name not in fields:
            takes = ", ".join(known for known in fields if known not in given) or "none"
            raise CommandError(f"-p {name}: {named} has no such parameter; it takes: {takes}")
        if name in values:
            raise CommandError(f"-p {name} is given twice")
        message = text_of(f"-p {name}=", text)
        values[name] = message if _kinds(fields[name].type) == [str] else _json_or_text(name, message)
    if issubclass(type_, Flow) and (complaint := first(type_.function)):
        raise CommandError(f"{named}: {complaint}")
    try:
        return build(type_, msgspec.json.encode({**(before or {}), **given, **values}))
    except ValueError as error:
        message = str(error)
        if _MISSING in message:
            name = message.split(_MISSING, 1)[1].split("`", 1)[0]
            raise CommandError(f"{named} needs {name}: give -p {name}=... {_inputs_hint(name)}".rstrip()) from None
        message, _, place = message.removeprefix(f"{type_.__name__}: ").partition(" - at `$.")
        if place:
            name = place.rstrip("`")
            form = next((form for kind, form in _JSON.items() if f"xpected `{kind}`" in message), "")
            hint = f"; write the value as JSON: -p {name}='{form}'" if form and name in fields else ""
            raise CommandError(f"-p {name}: {message[:1].lower()}{message[1:]}{hint}") from None
        raise CommandError(f"{named}: {message}") from None


def text_of(flag: str, text: str) -> str:
    """Return a text as given; after ``@``, the content of the named file. ``@@`` stands for a leading ``@``.

    Raises ``CommandError`` if the file cannot be read as UTF-8.
    """
    if not text.startswith("@"):
        return text
    if text.startswith("@@"):
        return text[1:]
    try:
        return Path(text[1:]).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        message = f"{flag}{text}: cannot read {text[1:]}: {why} (write @@ for a text that begins with @)"
        raise CommandError(message) from None


def called(type_: type[Program]) -> str:
    """Return the name of a program. A flow with a parameter ``name`` is called by its class name."""
    name: object = type_.name
    return name if isinstance(name, str) and name else type_.__name__


def class_help(type_: type[Program]) -> str:
    """Return description and parameters of a program, for ``cortex run PROGRAM --help``."""
    named = called(type_)
    lines = [f"{named}: {inspect.cleandoc(type_.__doc__ or '') or 'a program'}", ""]
    taken = [f"  -p {name}=…   {kind}, {default}" for name, kind, default in parameters_of(type_)]
    lines += [*taken, "" if taken else "  it takes no parameters"]
    return "\n".join([*lines, "cortex run --help: the other options"])


def parameters_of(type_: type[Program]) -> list[tuple[str, str, str]]:
    """Return (name, type, ``needed`` or its default) of each parameter of a program."""
    entries = []
    for field in msgspec.structs.fields(type_):
        kind = " | ".join(_kind(each) for each in _kinds(field.type))
        needed = field.required or field.default is msgspec.UNSET
        default = "needed" if needed else f"default {_shown(field)}"
        entries.append((field.encode_name, kind, default))
    return entries


def _kinds(type_: Any) -> list[Any]:
    """Return the types that a parameter may have, without ``UnsetType`` (a flow's parameter may be given later)."""
    if get_origin(type_) is Union or isinstance(type_, UnionType):
        return [each for each in get_args(type_) if each is not msgspec.UnsetType]
    return [type_]


def _kind(type_: Any) -> str:
    plain = isinstance(type_, type) and get_origin(type_) is None
    return str(type_.__name__ if plain else type_).replace("typing.", "")


def _shown(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.encode(value).decode()


def missing(program: Program) -> None:
    """Raise ``CommandError`` for a flow without all of its required parameters."""
    lacking = [name for name in program.required if name not in program.params()] if isinstance(program, Flow) else []
    if lacking:
        raise CommandError(f"{type(program).__name__} needs {lacking[0]}: give -p {lacking[0]}=...")


def _inputs_hint(name: str) -> str:
    return "or its files as INPUTS" if name == "notes" else ""


def _json_or_text(name: str, text: str) -> Any:
    """Return a value for a field that is no text: decoded from JSON if possible, else the text. Raises
    ``CommandError``."""
    if too_deep(text):
        raise CommandError(f"-p {name}: its value is {deep_words()}: flatten it")
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
