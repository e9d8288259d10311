"""Disks that fail: the end of a file is lost with the power, and a file system has no room left."""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Self

from fencepost.errors import ConfigError
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import Redis


def aof(server: Redis) -> Path:
    """The file that a Redis with ``--appendonly yes`` appends to."""
    found = sorted((server.folder / "appendonlydir").glob("*.incr.aof"))
    if not found:
        raise ConfigError("this Redis keeps no append-only file; start it with --appendonly yes")
    return found[-1]


def lose_tail(server: Redis, *, keep: int, who: str, faults: Faults) -> int:
    """Cut a killed Redis's append-only file to its first ``keep`` bytes; how many are lost.

    SIGKILL alone loses nothing: what the process wrote, the kernel still has. Raises ConfigError if the
    server runs, or there is nothing to lose.
    """
    if server.running:
        raise ConfigError("kill the server first: a power loss ends the process, too")
    file = aof(server)
    size = file.stat().st_size
    if not 0 <= keep < size:
        raise ConfigError(f"{file.name} has {size} bytes; it cannot lose what is beyond {keep}")
    os.truncate(file, keep)
    faults.note("truncate", who, file=file.name, lost=size - keep, kept=keep)
    return size - keep


_NEWNS = 0x20000  # of unshare(2)
_PRIVATE, _DETACH = 0x4000 | 1 << 18, 2  # of mount(2), for all mounts, and of umount2(2)
_libc = ctypes.CDLL(None, use_errno=True)
_own: list[int] = []


def own_mounts() -> None:
    """Have what this process mounts seen by nobody but it and what it starts from now on; gone when it ends.

    Call it before anything is started. Raises ConfigError where the kernel does not permit it.
    """
    if os.getpid() in _own:
        return
    try:
        _check(_libc.unshare(_NEWNS))
        _check(_libc.mount(b"none", b"/", None, _PRIVATE, None))
    except (OSError, AttributeError) as error:
        raise ConfigError(f"no disk of one's own can be mounted here ({error}): run as root on Linux") from error
    _own.append(os.getpid())


class SmallDisk:
    """A folder on a file system of its own, which can be filled. ConfigError unless ``own_mounts`` was called."""

    def __init__(self, folder: Path, size: int, *, who: str, faults: Faults) -> None:
        self._folder = folder
        self._size = size
        self._who = who
        self._faults = faults

    def __enter__(self) -> Self:
        if os.getpid() not in _own:
            raise ConfigError("this process has no mounts of its own: a disk would be seen by everybody")
        self._folder.mkdir(parents=True, exist_ok=True)
        _check(_libc.mount(b"none", os.fsencode(self._folder), b"tmpfs", 0, b"size=%d" % self._size))
        return self

    def __exit__(self, *_: object) -> None:
        _check(_libc.umount2(os.fsencode(self._folder), _DETACH))

    def fill(self) -> int:
        """Leave no room: what is written from now on fails with ENOSPC. How many bytes it took."""
        taken = 0
        with (self._folder / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                taken += ballast.write(bytes(1 << 16))
        self._faults.note("fill", self._who, bytes=taken)
        return taken

    def free(self) -> None:
        """Make room again."""
        (self._folder / "ballast").unlink(missing_ok=True)
        self._faults.note("free", self._who)


def _check(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
