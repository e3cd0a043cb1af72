"""``.ci/docs_site.py``: what ``make docs`` checks besides Zensical, each check with a sample that fails."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

from tests.support.repository_rules import ROOT

spec = importlib.util.spec_from_file_location("docs_site", ROOT / ".ci" / "docs_site.py")
assert spec is not None and spec.loader is not None
docs_site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs_site)

PAGES = ["README.md", "docs/README.md", "docs/tutorial.md"]


def test_the_navigation_is_complete():
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    named = list(docs_site.navigation_pages(settings["nav"]))
    assert docs_site.navigation_errors(named, docs_site.markdown_files(), ["api/client.md"]) == []


@pytest.mark.parametrize(
    ("navigation", "error"),
    [
        ([{"A": "README.md"}, {"B": ["docs/README.md"]}], "mkdocs.yml: the navigation lacks docs/tutorial.md"),
        ([*PAGES, "docs/gone.md"], "mkdocs.yml: docs/gone.md is not a page"),
        (["README.md", {"A": "docs/"}, {"B": "gone/"}], "mkdocs.yml: gone/ is not a page"),
        ([*PAGES, {"B": [{"C": "README.md"}]}], "mkdocs.yml: README.md is listed twice"),
    ],
)
def test_an_error_of_the_navigation_is_found(navigation, error):
    named = list(docs_site.navigation_pages(navigation))
    assert docs_site.navigation_errors(named, PAGES, []) == [error]


def test_links_between_pages_stay_and_links_to_other_files_become_text():
    text = "[a](tutorial.md#b) [c](../README.md) [`k8s/base`](../k8s/base) [the lint](../Makefile) [d](https://e.f) [g](#h)\n"
    assert docs_site.site_markdown("docs/README.md", text, PAGES) == (
        "[a](tutorial.md#b) [c](../README.md) `k8s/base` the lint (`Makefile`) [d](https://e.f) [g](#h)\n",
        [],
    )


@pytest.mark.parametrize("target", ["gone.md", "../gone/", "../../outside.md"])
def test_a_link_to_no_file_is_found(target):
    for text in (f"[b]({target})", f"![b]({target})"):
        _, errors = docs_site.site_markdown("docs/README.md", f"# A\n\n{text}\n", PAGES)
        assert errors == [f"docs/README.md:3: the link to {target} leads to no file"]


def test_an_image_of_docs_stays():
    text = "![a picture](docs/assets/site.css)\n"
    assert docs_site.site_markdown("README.md", text, PAGES) == (text, [])


def test_fences_keep_their_language_and_what_is_in_them():
    text = "```sh not-run: needs a cluster\n[a](gone.md)\n```\n\n```text about\n1\n```\n"
    assert docs_site.site_markdown("README.md", text, PAGES) == ("```sh\n[a](gone.md)\n```\n\n```text\n1\n```\n", [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://a.b/c.js">', True),
        ('<link rel="stylesheet" href="//a.b/c.css">', True),
        ("src: url(https://a.b/c.woff2)", True),
        ('<script src="../c.js"></script><a href="https://a.b">', False),
    ],
)
def test_what_is_loaded_from_another_host_is_found(text: str, found: bool, tmp_path: Path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.html").write_text(text)
    monkeypatch.setattr(docs_site, "BUILD", tmp_path)
    assert bool(docs_site.remote_loads()) is found


def test_whatever_is_printed_besides_progress_is_a_complaint():
    output = """Build started
griffe: cortex/a.py:3: Parameter 'b' does not appear in the function signature
\x1b[33mWarning:\x1b[0m anchor does not exist
   ╭─[ docs/jobs.md:178:21 ]
1 issue found
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
RuntimeError: Aborted because --strict flag is set
"""
    assert docs_site.complaints("Build started\nNo issues found\nBuild finished in 6.64s\n") == []
    assert docs_site.complaints(output) == [
        "griffe: cortex/a.py:3: Parameter 'b' does not appear in the function signature",
        "Warning: anchor does not exist",
        "   ╭─[ docs/jobs.md:178:21 ]",
        "1 issue found",
        "RuntimeError: Aborted because --strict flag is set",
    ]
