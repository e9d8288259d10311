"""Power loss, as a disk shows it: the end of a file that had not been written through is missing."""

import os
from pathlib import Path

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
