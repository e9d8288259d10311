"""A disk that is full, to this process: no file can be written beyond a size. For ``@isolated`` tests and children.

``small_disk`` is one that a server of the test's own fills up.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.isolated import LIMIT
from tests.harness.waiting import until

_NEWNS, _NEWUSER = 0x20000, 0x10000000  # of unshare(2)
_PRIVATE, _DETACH = 0x4000 | 1 << 18, 2  # of mount(2), for all mounts, and of umount2(2)
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """In here no file gets longer than ``size``: what is written beyond that fails with EFBIG. Any user may do this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@dataclass
class SmallDisk:
    """A file system that can be filled."""

    root: Path

    @property
    def _ballast(self) -> Path:
        return self.root / "ballast"

    def fill(self) -> None:
        """Leave no room: what is written from now on fails with ENOSPC."""
        with self._ballast.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(1 << 16))

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """Put a folder, with what is in it, on a file system that has room for ``size`` bytes. Any user may do this.

    Only this process sees it, and what it starts. For ``@isolated`` tests that have started no thread yet.
    """
    _unshare_mounts()
    before = folder.with_name(f"{folder.name}.before")
    folder.rename(before)
    folder.mkdir()
    _check(_libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=%d" % size))
    try:
        subprocess.run(["cp", "--archive", f"{before}/.", folder], check=True)
        yield SmallDisk(folder)
    finally:
        _check(_libc.umount2(os.fsencode(folder), _DETACH))


def _unshare_mounts() -> None:
    """Give this process a mount namespace of its own; without root, that needs a user namespace of its own, too."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _check(_libc.unshare(_NEWNS))
    else:
        faulthandler.cancel_dump_traceback_later()  # end its thread: a process with threads cannot unshare users
        until(lambda: len(os.listdir("/proc/self/task")) == 1, "no other thread is there")
        _check(_libc.unshare(_NEWNS | _NEWUSER))
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", file).write_text(text)
    _check(_libc.mount(b"none", b"/", None, _PRIVATE, None))


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
