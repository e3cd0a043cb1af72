"""Build the documentation site from mkdocs.yml: ``docs_site.py``, run by ``make docs``.

Zensical builds the site, and aborts on a link, an anchor or a docstring reference that does not resolve. This script
adds what Zensical lacks:

- The pages are copied to ``build/docs/pages``, at their paths in the repository, so that a link between two pages is
  the same on GitHub and in the site. A link to any other file of the repository becomes plain text.
- The navigation is checked in both directions: each entry is a page, each page has an entry.
- Every line that Zensical or mkdocstrings prints besides its progress is an error.
- The site loads nothing from another host.

The exit code is 1 when the site has an error. The site is ``build/docs/site``, to be read without a server.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import cortex

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "docs"
FOLDERS = (".", "benchmarks", "docs/**", "k8s")
"""Where pages lie. Each Markdown file there needs an entry in the navigation."""

_FENCE = re.compile(r"^(\s*```+)([\w-]*).*$")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_PROGRESS = re.compile(r"Build started|Build finished in .*|No issues found|\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOADS = re.compile(r"""(?:<script[^>]*\bsrc=|<link[^>]*\bhref=|<img[^>]*\bsrc=|url\()["']?(https?:)?//[^"'\s>)]+""")


def markdown_files() -> list[str]:
    """Paths of all pages of the repository, relative to its root."""
    found = {path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md")}
    return sorted(str(path.relative_to(ROOT)) for path in found)


def navigation_pages(entries: list[Any]) -> Iterator[str]:
    """Paths of the pages that a list of navigation entries names, sections included."""
    for entry in entries:
        (target,) = entry.values() if isinstance(entry, dict) else [entry]
        if isinstance(target, str):
            yield target
        else:
            yield from navigation_pages(target)


def navigation_errors(named: list[str], pages: list[str], generated: list[str]) -> list[str]:
    """Pages without an entry in the navigation, entries without a page, pages with two entries.

    An entry that ends in a slash is a folder and lists all of its pages.
    """
    folders = tuple(name for name in named if name.endswith("/"))
    listed = {page for page in pages if page in named or page.startswith(folders)}
    unlisted = [f"mkdocs.yml: the navigation lacks {page}" for page in pages if page not in listed]
    known = {*pages, *generated, *(f"{parent}/" for page in pages for parent in Path(page).parents)}
    absent = [f"mkdocs.yml: {name} is not a page" for name in named if name not in known]
    twice = [f"mkdocs.yml: {name} is listed twice" for name in sorted(set(named)) if named.count(name) > 1]
    return unlisted + absent + twice


def site_markdown(page: str, text: str, pages: list[str]) -> tuple[str, list[str]]:
    """The Markdown of a page as the site needs it, and the broken links of the page.

    The information string of a fence is cut to its language: Python-Markdown reads no more. Links to files of the
    repository that are no pages become text.
    """
    lines, errors = [], []
    fence = ""

    def link(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path = target.partition("#")[0]
        if not path or ":" in path:
            return match[0]
        file = (ROOT / page).parent.joinpath(path).resolve()
        name = str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else ""
        if name in pages or (image and name.startswith("docs/") and file.exists()):
            return match[0]
        if image or not name or not file.exists():
            errors.append(f"{page}:{len(lines) + 1}: the link to {target} leads to no file")
        return label if name in label else f"{label} (`{name}`)"

    for line in text.splitlines():
        marker = _FENCE.match(line)
        if marker and not fence:
            fence, line = marker[1], marker[1] + marker[2]
        elif fence and line.strip() == fence.strip():
            fence = ""
        elif not fence:
            line = _LINK.sub(link, line)
        lines.append(line)
    return "\n".join([*lines, ""]), errors


def client_page() -> str:
    """The page of the functions that ``cortex`` imports from ``actors`` on first use, and of the classes returned."""
    headings: dict[Any, str] = {}
    for name in cortex.__all__:
        value = getattr(cortex, name)
        if inspect.isfunction(value) and _of_actors(value):
            headings[value] = f"cortex.{name}"
    for function in list(headings):
        returned = str(inspect.signature(function).return_annotation)
        value = getattr(inspect.getmodule(function), returned, None)
        if _of_actors(value):
            headings[value] = returned
    entries = [
        f"::: {each.__module__}.{each.__name__}\n"
        f"    options: {{heading: {heading}, heading_level: 2, show_root_heading: true}}\n"
        for each, heading in headings.items()
    ]
    return "\n".join(["# Running jobs from Python\n", *entries])


def _of_actors(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("actors.")


def stage(pages: list[str], generated: dict[str, str]) -> list[str]:
    """Write all pages, and the images and assets of docs/, to ``build/docs/pages``; returns the broken links."""
    shutil.rmtree(BUILD, ignore_errors=True)
    target = BUILD / "pages"
    shutil.copytree(ROOT / "docs", target / "docs", ignore=shutil.ignore_patterns("*.md"))
    texts = dict(generated)
    errors: list[str] = []
    for page in pages:
        texts[page], broken = site_markdown(page, (ROOT / page).read_text(), pages)
        errors += broken
    for page, text in texts.items():
        (target / page).parent.mkdir(parents=True, exist_ok=True)
        (target / page).write_text(text)
    return errors


def complaints(output: str) -> list[str]:
    """Lines of Zensical's output besides its progress and the stack of a traceback."""
    found: list[str] = []
    stack = False
    for line in _COLOUR.sub("", output).splitlines():
        stack = line.startswith("Traceback") or (stack and line.startswith(" "))
        if not stack and not _PROGRESS.fullmatch(line):
            found.append(line)
    return found


def build() -> list[str]:
    """Run Zensical; returns its complaints."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", "mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return complaints(done.stdout) or [f"zensical: exit code {done.returncode}"] * (done.returncode != 0)


def remote_loads() -> list[str]:
    """Scripts, styles, fonts and images that the built pages load from another host."""
    files = [path for path in (BUILD / "site").rglob("*") if path.suffix in (".html", ".css")]
    return [
        f"{path.relative_to(BUILD)}: loads {found[0]}" for path in files for found in _LOADS.finditer(path.read_text())
    ]


def main() -> int:
    """Build the site and print its errors; returns the exit code."""
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)  # the tags are for Zensical
    pages = markdown_files()
    generated = {"api/client.md": client_page()}
    errors = navigation_errors(list(navigation_pages(settings["nav"])), pages, list(generated))
    errors += stage(pages, generated)
    errors = errors or build() or remote_loads()
    print("\n".join(errors) or f"docs: {BUILD.relative_to(ROOT)}/site/index.html")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
