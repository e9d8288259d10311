"""What an SQLite file and its file system mean for the locks in it."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from fencepost.address import state_file
from fencepost.backend import Finding
from fencepost.backends.sqlite.file import File
from fencepost.errors import ConfigError

_REMOTE = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "sshfs", "fuse.sshfs", "virtiofs")


def examine(file: File) -> list[Finding]:
    """Open the file, and examine it and its file system."""
    ((mode,),) = file.read("PRAGMA journal_mode")
    ((locks, last),) = file.read("SELECT count(*) FILTER (WHERE name != ''), max(token) FROM lock")
    return list(_findings(file.path.absolute(), mode, locks, last))


def _findings(path: Path, mode: str, locks: int, last: int) -> Iterator[Finding]:
    yield Finding("ok", f"SQLite {sqlite3.sqlite_version}, {path}", f"{locks} locks, last token {last}")
    kind = _file_system(path)
    if kind.startswith(_REMOTE):
        yield Finding("risk", f"the file lies on {kind}", "several hosts see it, yet its locks work on one host only")
    else:
        share = "all processes of this host that may open it share it"
        if path == _default():
            share = (
                "the processes of this user on this host share it, and nobody else; for several users name a file that "
                "all of them may write, such as sqlite:///var/lib/app/locks.db"
            )
        yield Finding("ok", f"the file lies on {kind or 'a local file system'}", share)
    if mode != "wal":
        yield Finding("warn", f"journal_mode={mode} instead of wal", "every lock waits for the disk several times")
    yield Finding(
        "ok",
        "tokens are reserved on disk before they are given out",
        "they survive kill -9 and power loss; a file restored from a backup repeats them: 'fencepost bump' past what "
        "the guards have seen",
    )


def _default() -> Path | None:
    try:
        return state_file("locks.db").absolute()
    except ConfigError:  # there is no home folder
        return None


def _file_system(path: Path) -> str:
    """The type of the file system with ``path``; empty if the kernel does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    found, kind = Path("/"), ""
    for mount in mounts:
        _, at, fstype, *_ = mount.split(" ")
        point = Path(at.replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= len(found.parts):
            found, kind = point, fstype
    return kind
