"""A file that ``report`` and ``export`` make: whole or not at all, and nothing but files is replaced by one."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from actors.cli.options.atomic_write import check_free, whole
from actors.common.errors import CommandError
from tests.support.patience import PATIENCE_S


def test_a_pipe_or_device_is_written_to_and_stays_what_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_free(str(pipe), overwrite=False)
    with whole(str(pipe)) as path:
        path.write_bytes(b"all of it")
    reader.join(PATIENCE_S)
    assert read == [b"all of it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_a_link_points_to_is_written_and_the_link_stays(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "page.html")
    with whole(str(tmp_path / "link")) as path:
        path.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "page.html").read_text() == "new"
    assert [each.name for each in (tmp_path / "there").iterdir()] == ["page.html"]


def test_a_file_that_is_made_meanwhile_stays(tmp_path):
    refused = pytest.raises(CommandError, match="was made by something else meanwhile, and stays: name another with -o")
    with refused, whole(str(tmp_path / "page.html")) as path:
        path.write_text("new")
        (tmp_path / "page.html").write_text("mine")
    assert (tmp_path / "page.html").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_what_was_there_stays_when_the_disk_is_full(tmp_path):
    (tmp_path / "page.html").write_text("old")
    refused = pytest.raises(CommandError, match=r"cannot write .*page\.html: No space left")
    with refused, whole(str(tmp_path / "page.html")) as path:
        path.write_text("half")
        raise OSError(28, "No space left on device")
    assert (tmp_path / "page.html").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_device_that_is_full_is_told():
    refused = pytest.raises(CommandError, match="cannot write /dev/full: No space left")
    with refused, whole("/dev/full") as path, path.open("wb") as file:
        file.write(b"x")
    assert Path("/dev/full").is_char_device()


def test_a_folder_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for output in (".", str(tmp_path)):
        with pytest.raises(CommandError, match="is a folder: name a file in it"):
            check_free(output, overwrite=True)
