"""Type of the file system that holds a path."""

from __future__ import annotations

from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "9p", "fuse.sshfs", "lustre", "ceph", "glusterfs",
     "fuse.glusterfs", "beegfs", "gpfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"}
)  # fmt: skip
"""Network file systems. They lack the shared memory that SQLite's write-ahead log needs:
https://www.sqlite.org/wal.html."""


def file_system(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds a path; empty if it is unknown."""
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text()
        except OSError:
            return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        where = fields[1].replace("\\040", " ")
        if (str(path) + "/").startswith(where.rstrip("/") + "/") and len(where) >= len(best):
            best, kind = where, fields[2]
    return kind
