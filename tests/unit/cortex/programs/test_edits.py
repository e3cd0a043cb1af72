"""The form of edits, read strictly: what is anything else is refused in a line that says why."""

from __future__ import annotations

import pytest

from cortex.programs.parts.edits import EDITS_MAX, FORM, checked_path, edits_of
from cortex.values.reply import Malformed

WHOLE = """
<write path="a/b.txt">
one

  two
</write>

<append path="c.txt">
three
</append>
<replace path="c.txt">
<old>
x
</old>
<new>
y
z
</new>
</replace>
<delete path="d.txt"/>
"""


def test_every_kind_of_edit_in_its_order():
    assert edits_of(WHOLE) == [
        {"do": "write", "path": "a/b.txt", "text": "one\n\n  two\n"},
        {"do": "append", "path": "c.txt", "text": "three\n"},
        {"do": "replace", "path": "c.txt", "old": "x\n", "new": "y\nz\n"},
        {"do": "delete", "path": "d.txt"},
    ]


def test_the_form_that_is_asked_for_is_one_that_is_read():
    shown = "\n".join(part for part in FORM.split("\n\n") if part.startswith("<"))
    assert [edit["do"] for edit in edits_of(shown)] == ["write", "append", "replace", "delete"]
    assert edits_of("<done/>") == [] and edits_of("\n <done/> \n") == []
    assert edits_of('<write path="empty">\n</write>') == [{"do": "write", "path": "empty", "text": ""}]
    assert edits_of('<replace path="c">\n<old>\nx\n</old>\n<new>\n</new>\n</replace>')[0]["new"] == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no edit"),
        ("I changed it.", "stands in none"),
        ("Here it is:\n" + WHOLE, "stands in none"),
        (WHOLE + "\nThat was all.", "stands in none"),
        ('<write path="a">\ntext', "</write> is missing"),
        ('<write path="a">text</write>', "stands in none"),
        ("<write path='a'>\n</write>", "stands in none"),
        ('<replace path="a">\nx\n</replace>', "<old> lines </old>"),
        ('<replace path="a">\n<old>\n</old>\n<new>\ny\n</new>\n</replace>', "a replace of nothing"),
        ('<replace path="a">\n<old>\nx\n</old>\ny\n<new>\n</new>\n</replace>', "<new> must follow"),
        ('<replace path="a">\n<old>\nx\n</new>\n</replace>', "</old> is missing"),
        ('<delete path="a"/>\n' * (EDITS_MAX + 1), "at most"),
        ('<delete path="../a"/>', "leads out of the folder"),
    ],
)
def test_anything_else_is_refused_and_says_why(text, said):
    with pytest.raises(Malformed, match=said):
        edits_of(text)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd", "~/x", "../x", "a/../x", "a/..", "..", "a\\b", "C:/x", "a//b", "./a", "a/", "", " a", "a /b",
        "a\x00b", "a\u202eb", "x" * 501,
    ],
)  # fmt: skip
def test_paths_that_lead_out_or_are_none_are_refused(path):
    with pytest.raises(Malformed):
        checked_path(path)


@pytest.mark.parametrize("path", ["a", "a/b.txt", "a b/c", ".github/x.yml", "..a", "ünï/x"])
def test_plain_paths_are_taken(path):
    assert checked_path(path) == path
