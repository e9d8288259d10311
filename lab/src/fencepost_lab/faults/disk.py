"""Disks that fail: the end of a file is lost with the power, and a file system has no room left."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Self

from fencepost.errors import ConfigError
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import Redis, wait_until
from fencepost_lab.servers.processes import program, spawn


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


class SmallDisk:
    """A folder that is a file system of its own, to the programs that are started by ``inside``: it can be filled.

    The mount belongs to a process that dies with this one; the rest of the machine sees an empty folder. Raises
    ConfigError where the kernel does not permit it.
    """

    def __init__(self, folder: Path, size: int, *, who: str, faults: Faults) -> None:
        self._folder = folder
        self._size = size
        self._who = who
        self._faults = faults
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        mount = f'mount -t tmpfs -o size={self._size} none "$0" && touch "$0/mounted" && exec sleep infinity'
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        command = [program("UNSHARE"), *user, "--mount", "sh", "-c", mount, str(self._folder)]
        self._holder = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        holder = self._holder
        wait_until(lambda: (self.there / "mounted").exists() or holder.poll() is not None, timeout=20, poll=0.005)
        if holder.poll() is not None:
            said = holder.communicate()[1].decode(errors="replace").strip()
            raise ConfigError(f"no file system can be mounted here: {said!r}; run as root, or leave out disk-full")
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()

    @property
    def there(self) -> Path:
        """The folder, as this process reaches it."""
        assert self._holder is not None, "not mounted"
        return Path(f"/proc/{self._holder.pid}/root{self._folder}")

    def inside(self, command: list[str]) -> list[str]:
        """The command line that runs a command where the folder is this disk."""
        assert self._holder is not None, "not mounted"
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return [program("NSENTER"), *user, "--mount", "--target", str(self._holder.pid), "--", *command]

    def fill(self) -> int:
        """Leave no room: what is written from now on fails with ENOSPC. How many bytes it took."""
        taken = 0
        with (self.there / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                taken += ballast.write(bytes(1 << 16))
        self._faults.note("fill", self._who, bytes=taken)
        return taken

    def free(self) -> None:
        """Make room again."""
        (self.there / "ballast").unlink(missing_ok=True)
        self._faults.note("free", self._who)
