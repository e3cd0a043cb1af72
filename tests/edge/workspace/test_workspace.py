"""A round in a folder, whole or not at all: applied, checked, repeated after a crash, and kept within the folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from actors.workspace import edits as editing
from actors.workspace import folder_closed, folder_opened, folder_round
from actors.workspace.snapshots import FolderSnapshots
from actors.workspace.tree import STORE, FolderRefused, tree_of
from tests.support.patience import PATIENCE_S

KEY = "job/1/tool-1"
WRITE = {"do": "write", "path": "a.txt", "text": "new\n"}
APPEND = {"do": "append", "path": "b.txt", "text": "more\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, a folder, and something that is no part of the work."""
    place = tmp_path / "work"
    (place / "sub").mkdir(parents=True)
    (place / "a.txt").write_text("old\n")
    (place / "b.txt").write_text("one\n")
    (place / "sub" / "c.sh").write_text("#!/bin/sh\n")
    (place / "sub" / "c.sh").chmod(0o755)
    (place / ".git").mkdir()
    (place / ".git" / "HEAD").write_text("ref")
    return place


def opened(folder: Path, check: str = "echo 3 missing; false", key: str = KEY, show: tuple[str, ...] = ()) -> Any:
    return folder_opened(str(folder), "the task", check, PATIENCE_S, list(show), 4_000, key)


def round_(folder: Path, number: int, *edits: Any, check: str = "true", protect: list[str] | None = None) -> Any:
    return folder_round(str(folder), number, list(edits), "the task", check, PATIENCE_S, [], protect, 4_000, KEY)


def state(folder: Path) -> dict[str, str]:
    """Contents by path; what is no part of the work left out."""
    return {path: (folder / path).read_text() for path, entry in tree_of(folder).items() if entry.kind == "file"}


# -- rounds --------------------------------------------------------------------------------------------------------


def test_opened_it_is_checked_shown_and_claimed_and_at_the_end_nothing_of_ours_is_left(folder):
    seen = opened(folder, show=("sub",))
    assert seen["check"] == {"passed": False, "exit": 1, "failing": 3, "said": "3 missing"} | {
        "found": seen["check"]["found"]
    }
    view = seen["view"]
    assert [path for path, _ in view["files"]] == ["a.txt", "b.txt", "sub/c.sh"]
    assert view["texts"][0] == ["sub/c.sh", "#!/bin/sh\n", True] and view["more"] == 0
    with pytest.raises(FolderRefused, match="job job works on"):
        opened(folder, key="other/1/tool-1")
    folder_closed(str(folder), KEY)
    assert not (folder / STORE).exists()
    opened(folder, key="other/1/tool-1")


def test_a_round_applies_checks_and_tells(folder):
    number = opened(folder)["number"]
    seen = round_(folder, number, WRITE, APPEND, check="cat a.txt b.txt")
    assert (seen["refused"], seen["check"]["said"], seen["check"]["passed"]) == ("", "new\none\nmore", True)
    assert seen["number"] == number + 1 and seen["changed"] == ["a.txt", "b.txt"]


def test_a_round_that_is_run_again_is_not_done_on_top_of_itself(folder):
    number = opened(folder)["number"]
    first = round_(folder, number, APPEND, check="echo ran >> log; false")
    again = round_(folder, number, APPEND, check="echo ran >> log; false")
    assert again == first
    assert state(folder) == {"a.txt": "old\n", "b.txt": "one\nmore\n", "sub/c.sh": "#!/bin/sh\n", "log": "ran\n"}
    after = round_(folder, number + 1, APPEND, check="false")
    assert after["refused"] == "" and state(folder)["b.txt"] == "one\nmore\nmore\n"


class Killed(BaseException):
    """As good as kill -9: nothing after it is done."""


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5])
def test_a_crash_anywhere_in_a_round_leaves_no_half_of_it_behind(folder, monkeypatch, after):
    """Every write that a round makes is the last one once."""
    edits = [
        WRITE,
        APPEND,
        {"do": "write", "path": "sub/new/d.txt", "text": "d\n"},
        {"do": "delete", "path": "sub/c.sh"},
    ]
    number = opened(folder)["number"]
    straight = folder.parent / "straight"
    os.system(f"cp -r {folder} {straight}")
    wanted = round_(straight, number, *edits, check="false")

    from actors.workspace import snapshots as keeping

    real, left = keeping._write, [after]

    def dying(place: Path, content: bytes, mode: int = 0o644) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        real(place, content, mode)

    monkeypatch.setattr(keeping, "_write", dying)
    monkeypatch.setattr(editing, "write", dying)
    with pytest.raises(Killed):
        round_(folder, number, *edits, check="false")
    monkeypatch.undo()
    again = round_(folder, number, *edits, check="false")
    assert {**again, "folder": ""} == {**wanted, "folder": ""}
    assert state(folder) == state(straight) and (folder / ".git" / "HEAD").read_text() == "ref"


def test_a_job_that_begins_anew_finds_no_half_of_a_round(folder, monkeypatch):
    number = opened(folder)["number"]
    before = state(folder)
    monkeypatch.setattr("actors.workspace.tools.checked", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        round_(folder, number, WRITE)
    assert state(folder) != before
    monkeypatch.undo()
    opened(folder)
    assert state(folder) == before


def test_a_round_that_was_whole_once_and_is_cut_when_it_is_repeated_is_half_a_round_too(folder, monkeypatch):
    number = opened(folder)["number"]
    before = state(folder)
    round_(folder, number, WRITE, check="false")
    monkeypatch.setattr("actors.workspace.tools.checked", lambda *_: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        round_(folder, number, WRITE)
    monkeypatch.undo()
    opened(folder)
    assert state(folder) == before


def test_what_a_finished_round_left_stays_when_a_job_begins_anew(folder):
    number = opened(folder)["number"]
    round_(folder, number, WRITE, check="false")
    opened(folder)
    assert state(folder)["a.txt"] == "new\n"


def test_restored_are_contents_modes_links_and_folders_and_nothing_else_is_touched(folder):
    (folder / "link").symlink_to("a.txt")
    (folder / "empty").mkdir()
    keeping = FolderSnapshots(folder)
    keeping.claim("job")
    before = keeping.take(1)
    (folder / "sub" / "c.sh").unlink()
    (folder / "sub").rmdir()
    (folder / "empty").rmdir()
    (folder / "link").unlink()
    (folder / "link").mkdir()
    (folder / "link" / "x").write_text("x")
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to("/etc/passwd")
    (folder / ".git" / "HEAD").write_text("changed")
    keeping.restore(1)
    assert tree_of(folder) == before
    assert os.access(folder / "sub" / "c.sh", os.X_OK) and (folder / ".git" / "HEAD").read_text() == "changed"


def test_what_somebody_else_changed_meanwhile_is_not_written_over(folder):
    number = opened(folder)["number"]
    (folder / "a.txt").write_text("theirs\n")
    seen = round_(folder, number, WRITE, APPEND, check="false")
    assert "somebody else changed the folder" in seen["refused"]
    assert state(folder)["a.txt"] == "theirs\n" and state(folder)["b.txt"] == "one\n"
    assert round_(folder, seen["number"], WRITE)["refused"] == ""


def test_snapshots_that_somebody_deleted_cost_a_round_and_nothing_else(folder):
    number = opened(folder)["number"]
    folder_closed(str(folder), KEY)
    seen = round_(folder, number, WRITE, check="false")
    assert "snapshot is gone" in seen["refused"] and state(folder)["a.txt"] == "old\n"
    assert round_(folder, seen["number"], WRITE)["refused"] == ""


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"do": "write", "path": "../out.txt", "text": "x"}, "leads out of the folder"),
        ({"do": "write", "path": "/tmp-out.txt", "text": "x"}, "leads out of the folder"),
        ({"do": "write", "path": "way/out.txt", "text": "x"}, "way is a link"),
        ({"do": "append", "path": "leads", "text": "x"}, "leads is a link"),
        ({"do": "delete", "path": "way"}, "way is a link"),
        ({"do": "write", "path": ".git/hooks/pre-commit", "text": "x"}, "no part of the work"),
        ({"do": "write", "path": f"{STORE}/before-1.json", "text": "x"}, "no part of the work"),
        ({"do": "write", "path": "sub", "text": "x"}, "it is no file"),
        ({"do": "write", "path": "a.txt/b", "text": "x"}, "a.txt is a file"),
        ({"do": "delete", "path": "sub"}, "it is no file"),
        ({"do": "delete", "path": "nothing"}, "no such file"),
        ({"do": "replace", "path": "nothing", "old": "x\n", "new": "y\n"}, "no such file"),
        ({"do": "replace", "path": "a.txt", "old": "x\n", "new": "y\n"}, "stand there nowhere"),
        ({"do": "replace", "path": "twice.txt", "old": "x\n", "new": "y\n"}, "more than once"),
        ({"do": "append", "path": "binary", "text": "x"}, "no UTF-8 text"),
        ({"do": "write", "path": "huge.txt", "text": "x" * ((4 << 20) + 1)}, "larger than 4 MB"),
        ({"do": "delete", "path": "tests/t.py"}, "belongs to the check"),
        ({"do": "write", "path": "tests/u.py", "text": "x"}, "belongs to the check"),
    ],
)
def test_an_edit_that_may_not_be_made_is_refused_and_none_beside_it_is_made(folder, edit, said):
    (folder / "way").symlink_to(folder.parent)
    (folder / "leads").symlink_to(folder / "a.txt")
    (folder / "twice.txt").write_text("x\nx\n")
    (folder / "binary").write_bytes(b"\xff\xfe\x00")
    (folder / "tests").mkdir()
    (folder / "tests" / "t.py").write_text("")
    number = opened(folder)["number"]
    before = tree_of(folder)
    seen = round_(folder, number, APPEND, edit, check="false", protect=["tests"])
    assert said in seen["refused"] and edit["path"] in seen["refused"]
    assert tree_of(folder) == before and not (folder.parent / "out.txt").exists()


def test_all_files_of_a_folder_are_not_deleted_in_one_round(folder):
    number = opened(folder)["number"]
    edits = [{"do": "delete", "path": path} for path in state(folder)]
    assert "deletes every file" in round_(folder, number, *edits)["refused"]
    assert round_(folder, number, *edits[1:])["refused"] == ""


def test_edits_of_one_file_follow_each_other(folder):
    number = opened(folder)["number"]
    edits = [
        {"do": "append", "path": "a.txt", "text": "x\n"},
        {"do": "replace", "path": "a.txt", "old": "old\n", "new": "new\n"},
        {"do": "write", "path": "e.txt", "text": "e\n"},
        {"do": "delete", "path": "e.txt"},
    ]
    assert round_(folder, number, *edits)["refused"] == ""
    assert state(folder)["a.txt"] == "new\nx\n" and "e.txt" not in state(folder)


def test_a_round_that_cannot_be_finished_leaves_the_folder_as_it_was(folder, monkeypatch):
    number = opened(folder)["number"]
    before = tree_of(folder)
    monkeypatch.setattr("actors.workspace.tools.make", _half_made)
    with pytest.raises(FolderRefused, match="no space"):
        round_(folder, number, WRITE, APPEND)
    assert tree_of(folder) == before


def _half_made(folder: Path, texts: dict[str, str]) -> None:
    path, text = next(iter(texts.items()))
    (folder / path).write_text(text)
    raise FolderRefused("no space left")


def test_who_comes_to_a_folder_that_is_worked_on_waits_and_another_job_does_not_take_its_snapshots_away(folder):
    opened(folder)
    folder_closed(str(folder), "other/1/tool-1")
    assert FolderSnapshots(folder).has(1)
    order = []
    with FolderSnapshots(folder).held("job"):
        second = threading.Thread(target=lambda: order.append(opened(folder)["number"]))
        second.start()
        second.join(0.2)
        order.append("first is done")
    second.join(PATIENCE_S)
    assert order == ["first is done", 1]


@pytest.mark.parametrize("made", ["missing", "file", "large", "many", "link", "name"])
def test_a_folder_that_cannot_be_worked_on_is_refused_in_a_line(folder, monkeypatch, made):
    if made == "missing":
        folder = folder / "nowhere"
    elif made == "file":
        folder = folder / "a.txt"
    elif made == "large":
        monkeypatch.setattr("actors.workspace.tree.FILE_BYTES_MAX", 3)
    elif made == "many":
        monkeypatch.setattr("actors.workspace.tree.FILES_MAX", 2)
    elif made == "name":
        (folder / "two\nlines").write_text("x")
    else:
        (folder / STORE).symlink_to(folder.parent)
    with pytest.raises(FolderRefused) as refused:
        opened(folder)
    assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


def test_a_state_folder_inside_is_no_part_of_the_work(folder):
    (folder / "state" / "jobs").mkdir(parents=True)
    (folder / "state" / "jobs" / "x.sqlite").write_text("journal")
    (folder / ".cortex").mkdir()
    (folder / ".cortex" / "x").write_text("x")
    assert not [path for path in tree_of(folder) if "state" in path or "cortex" in path]


def test_a_view_is_bounded_however_much_there_is(folder):
    for number in range(400):
        (folder / f"f{number:03}.txt").write_text("line of text\n" * 200)
    (folder / "bytes.bin").write_bytes(b"\0" * 100)
    view = opened(folder)["view"]
    assert len(view["files"]) == 300 and view["more"] == 104
    assert sum(len(text) for _, text, _ in view["texts"]) <= 4_000
    assert all(path != "bytes.bin" for path, _, _ in view["texts"])
    cut = [text for _, text, whole in view["texts"] if not whole]
    assert cut and all(text.endswith("\n") for text in cut)


def test_the_checks_own_file_cannot_be_changed_unless_the_user_says_so(folder):
    (folder / "check.py").write_text("raise SystemExit(1)")
    number = opened(folder)["number"]
    edit = {"do": "write", "path": "check.py", "text": ""}
    command = f"{sys.executable} ./check.py"
    seen = round_(folder, number, edit, check=command)
    assert "check.py may not be changed: it belongs to the check" in seen["refused"] and not seen["check"]["passed"]
    assert round_(folder, seen["number"], edit, check=command, protect=[])["check"]["passed"]


def test_a_check_that_a_crash_left_running_is_ended_before_anything_else(folder):
    number = opened(folder)["number"]
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        FolderSnapshots(folder).note_check(child.pid)
        round_(folder, number, WRITE)
        assert child.wait(PATIENCE_S) == -9
