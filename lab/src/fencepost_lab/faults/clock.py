"""Wall clocks that jump and drift, each for one server process alone.

libfaketime aborts Debian's Redis: its allocator reads the clock before a preloaded library can serve it. So
the clock is a few lines of C of our own, compiled on the spot.
"""

import mmap
import struct
import subprocess
import time
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import Postgres, Redis
from fencepost_lab.servers.processes import Missing, program
from fencepost_lab.servers.server import Server, StartFailed

_SETTING = struct.Struct("=ddd")  # real time when it began, time shown then, rate
_SIZE = 8 + 2 * _SETTING.size


def _build(library: Path) -> None:
    try:
        compiler = program("CC")
    except Missing:
        raise Missing(
            "a clock that jumps is compiled on the spot, and there is no C compiler: apt-get install gcc libc6-dev, "
            "or run 'scripts/servers cc' in a clone"
        ) from None
    source = files("fencepost_lab.faults").joinpath("clock.c").read_bytes()
    said = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-x", "c", "-o", str(library), "-"], input=source, capture_output=True
    )
    if said.returncode:
        raise StartFailed(f"{compiler} could not build the clock:\n{said.stderr.decode(errors='replace')[-2000:]}")


class Clock:
    """The wall clock of one program, set while it runs; it lives in ``folder``. Monotonic clocks stay true.

    Raises Missing if there is no C compiler.
    """

    def __init__(self, folder: Path, *, who: str, faults: Faults | None = None) -> None:
        self._file = folder / "clock"
        self._who = who
        self._faults = Faults() if faults is None else faults
        self._rate = 1.0
        self._library = folder / "clock.so"
        _build(self._library)
        self._file.write_bytes(struct.pack("=Q", 0) + _SETTING.pack(0.0, 0.0, 1.0) * 2)

    def wrap(self, command: list[str]) -> list[str]:
        """The command line of the program under this clock."""
        return ["env", f"LD_PRELOAD={self._library}", f"FENCEPOST_CLOCK={self._file}", *command]

    @property
    def offset(self) -> float:
        """How many seconds it is ahead of the real time."""
        now = time.time()
        return self._shown(now) - now

    def jump(self, seconds: float) -> None:
        """Set it forward, or back."""
        now = time.time()
        self._set(now, self._shown(now) + seconds, self._rate)
        self._faults.note("jump", self._who, by=seconds)

    def skew(self, rate: float) -> None:
        """Let it run this many times as fast as real time from now on."""
        now = time.time()
        self._set(now, self._shown(now), rate)
        self._rate = rate
        self._faults.note("skew", self._who, rate=rate)

    def _shown(self, now: float) -> float:
        content = self._file.read_bytes()
        (current,) = struct.unpack_from("=Q", content)
        began, showed, rate = _SETTING.unpack_from(content, 8 + _SETTING.size * current)
        return float(showed + (now - began) * rate)

    def _set(self, *setting: float) -> None:
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), _SIZE) as settings:
            (current,) = struct.unpack_from("=Q", settings)
            _SETTING.pack_into(settings, 8 + _SETTING.size * (1 - current), *setting)
            struct.pack_into("=Q", settings, 0, 1 - current)


@dataclass(kw_only=True, eq=False)
class _Clocked(Server):
    who: str
    faults: Faults = field(default_factory=Faults)
    clock: Clock = field(init=False, repr=False)

    def prepare(self) -> None:
        self.clock = Clock(self.folder, who=self.who, faults=self.faults)
        super().prepare()

    def command(self) -> list[str]:
        return self.clock.wrap(super().command())


@dataclass(kw_only=True, eq=False)
class ClockedRedis(_Clocked, Redis):
    """A Redis with a wall clock of its own. Raises Missing if there is no C compiler."""

    who: str = "redis"


@dataclass(kw_only=True, eq=False)
class ClockedPostgres(_Clocked, Postgres):
    """A Postgres with a wall clock of its own. Raises Missing if there is no C compiler."""

    who: str = "postgres"
