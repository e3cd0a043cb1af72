"""Which files are shown, and how much of each."""

from __future__ import annotations

import pytest

from policies.decisions.file_selection import FolderFile, shown

FILES = [
    FolderFile("a.py", 300),
    FolderFile("b.py", 500),
    FolderFile("sub/c.py", 400),
    FolderFile("notes.md", 100),
    FolderFile("x", 50),
]


@pytest.mark.parametrize(
    ("more", "bytes_max", "each_max", "chosen"),
    [
        ({}, 2_000, 2_000, [("x", 50), ("notes.md", 100), ("a.py", 300), ("sub/c.py", 400), ("b.py", 500)]),
        ({}, 500, 2_000, [("x", 50), ("notes.md", 100), ("a.py", 300)]),  # 50 bytes of a file are of no use
        ({}, 700, 2_000, [("x", 50), ("notes.md", 100), ("a.py", 300), ("sub/c.py", 250)]),
        ({}, 2_000, 350, [("x", 50), ("notes.md", 100), ("a.py", 300), ("sub/c.py", 350), ("b.py", 350)]),
        ({"wanted": {"b.py"}}, 600, 2_000, [("b.py", 500), ("x", 50)]),
        ({"texts": ["b.py line 3"]}, 600, 2_000, [("b.py", 500), ("x", 50)]),
        ({"texts": ["c.py line 3"]}, 450, 2_000, [("sub/c.py", 400), ("x", 50)]),
        ({"texts": ["c.py fails", "see b.py"]}, 950, 2_000, [("sub/c.py", 400), ("b.py", 500), ("x", 50)]),
        ({"texts": ["six and xylophone"]}, 100, 2_000, [("x", 50)]),  # a name of one letter names nothing
        ({"changed": {"b.py"}}, 600, 2_000, [("b.py", 500), ("x", 50)]),
        ({"changed": {"b.py"}, "texts": ["a.py"]}, 800, 2_000, [("a.py", 300), ("b.py", 500)]),
        ({}, 0, 2_000, []),
    ],
)
def test_the_most_wanted_first_and_within_the_bound(more, bytes_max, each_max, chosen):
    found = shown(FILES, bytes_max, each_max, **more)
    assert found == chosen
    assert sum(take for _, take in found) <= bytes_max
