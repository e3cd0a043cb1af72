"""Checks of Python, of dependencies and their versions, and of packages that shadow each other."""

from __future__ import annotations

import importlib.util
import platform
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from actors.common.shadowing import HERE, PACKAGES, hidden_line
from actors.doctor.checks import DoctorOptions, Finding, ok, warning, wrong
from actors.providers.registry import PROVIDERS

DISTRIBUTION = "cortex-bounded-calls"
_IMPORTED = {
    "aiohttp": "aiohttp", "genai-prices": "genai_prices", "msgspec": "msgspec",
    "opentelemetry-sdk": "opentelemetry.sdk", "pybreaker": "pybreaker", "pydantic-monty": "pydantic_monty",
    "ray": "ray", "rich": "rich", "typer": "typer", "uvloop": "uvloop",
}  # fmt: skip
"""Distribution -> its module, which a user's file of the same name could shadow."""


def python(asked: DoctorOptions) -> Iterator[Finding]:
    """Check the Python version against the distribution's requirement."""
    wanted, _ = requirements()
    now = platform.python_version()
    text = f"Python {now} on {platform.system()} {platform.machine()}"
    if wanted and not SpecifierSet(wanted).contains(now, prereleases=True):
        yield wrong("python", f"{text}; cortex needs {wanted}", "install such a Python, and cortex in it")
        return
    yield ok("python", text)


def dependencies(asked: DoctorOptions) -> Iterator[Finding]:
    """Check that each dependency is installed in a supported version."""
    _, needed = requirements()
    if not needed:
        do = f"install the wheel of {DISTRIBUTION}, or, in a checkout: pip install ."
        yield warning("dependencies", "the distribution's metadata is missing: versions cannot be compared", do)
        return
    good = 0
    for requirement in needed:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            do = f"pip install '{requirement}'"
            yield wrong("dependencies", f"{requirement.name} is missing", do)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            text = f"{requirement.name} is {version}, but {requirement.specifier} is needed"
            yield wrong("dependencies", text, f"pip install -U '{requirement.name}{requirement.specifier}'")
            continue
        good += 1
        yield from _hidden(requirement.name)
    yield ok("dependencies", f"{good} dependencies of {DISTRIBUTION} have supported versions")


def _hidden(name: str) -> Iterator[Finding]:
    """Check whether another file is imported under a dependency's name."""
    of_providers = {each: module for row in PROVIDERS.values() for each, module in row.imported.items()}
    module = (_IMPORTED | of_providers).get(name)
    if module is None:
        return
    spec = importlib.util.find_spec(module)
    home = Path(str(metadata.distribution(name).locate_file(""))).resolve()
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec is not None else []
    if not any(place and Path(place).resolve().is_relative_to(home) for place in places):
        place = next((place for place in places if place), "nothing")
        yield wrong("packages", f"{place} hides the installed {name} (in {home})", "rename it, or run elsewhere")


def requirements() -> tuple[str, list[Requirement]]:
    """Return the required Python version and the required distributions: of the source tree if we run from one, else of
    the installed metadata."""
    try:
        project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
        if project["name"] == DISTRIBUTION:
            return str(project["requires-python"]), [Requirement(each) for each in project["dependencies"]]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        pass  # installed, not run from a source tree
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "", []
    return str(found.metadata.json.get("requires_python", "")), [Requirement(each) for each in found.requires or ()]


def packages(asked: DoctorOptions) -> Iterator[Finding]:
    """Check for packages that shadow ours, and for packages that ours shadow."""
    if text := hidden_line():
        yield wrong("packages", text, "rename your package")
        return
    others = metadata.packages_distributions()
    for name in PACKAGES:
        strangers = sorted(set(others.get(name, ())) - {DISTRIBUTION})
        if strangers:
            text = f"the package {name} is also installed by {', '.join(strangers)}: one of the two is hidden"
            yield wrong("packages", text, f"install cortex into an environment without {strangers[0]}")
    for folder in dict.fromkeys([Path.cwd(), *(Path(each) for each in sys.path if each)]):
        for name in PACKAGES:
            place = folder / name
            if folder.resolve() != HERE and ((place / "__init__.py").is_file() or place.with_suffix(".py").is_file()):
                text = f"{place} has the name of a package of cortex: a script there imports it instead"
                yield warning("packages", text, "rename it, or do not import cortex from scripts beside it")
    yield ok("packages", f"actors, cortex and policies are ours, in {HERE}")
