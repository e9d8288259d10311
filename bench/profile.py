"""Where the time of a side goes: py-spy samples this process while the side runs again and again."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

RATE = 500
_LEAST = 20
SECONDS = 3.0
TOP = 4
INSTALL = "make setup"
MISSING = "py-spy is missing"
_START = 10.0  # seconds for py-spy to start, at the most
_END = 10.0  # and to write what it has
_FRAME = re.compile(r"(.*) \(([^()]*)\)")
_WRAPPER = "interruptible (fencepost/driver/interrupts.py)"  # only calls what it is given: its caller tells more
_OWN = re.compile(r"Sampling\.\w+ \(bench/profile\.py\)")  # while py-spy starts and ends
_LOST = re.compile(r"Errors: (\d+)")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The functions that most samples were in, not counting what they call: each with its part of all samples."""

    samples: int = 0
    lost: int = 0
    """Samples that failed: the stack changed while py-spy read it, so Python code was running. They count in a part."""
    top: tuple[tuple[str, float], ...] = ()
    failure: str = ""
    """Why there is none."""

    @property
    def size(self) -> str:
        """How many samples there are."""
        return f"{self.samples}, {self.lost} lost" if self.samples else ""

    @property
    def text(self) -> str:
        """The functions, or why there are none."""
        if not self.top:
            return f"not profiled: {self.failure or 'no sample found Python at work'}"
        return ", ".join(f"`{name}` {100 * part:.0f} %" for name, part in self.top)


def parse(raw: str, lost: int = 0) -> Profile:
    """Count the samples of ``--format raw`` by the function that each was in: a stack and a number on each line.

    A function of the standard library is counted as itself, not as the one that calls it. py-spy does not stop the
    process, so what it takes for a function's name may be any other text, also of several lines: such a sample is lost.
    """
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if not count.isdecimal() or _OWN.search(stack):
            continue
        frame = stack.removesuffix(f";{_WRAPPER}").rpartition(";")[2]
        if found := _FRAME.fullmatch(frame):
            counts[f"{found[2]}: {found[1]}"] += int(count)
        else:
            lost += int(count)
    samples = counts.total()
    top = tuple((name, count / (samples + lost)) for name, count in counts.most_common(TOP))
    return Profile(samples=samples, lost=lost, top=top)


def tool() -> str | None:
    """The path of py-spy: that of this interpreter's environment, or another one."""
    return shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that still run."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has just ended
            found += map(int, (thread / "children").read_text().split())
    return found


def _pythons() -> int:
    """How many of the processes that this one has started are Python."""
    mine = os.path.realpath(sys.executable)
    return sum(os.path.realpath(f"/proc/{pid}/exe") == mine for pid in children(os.getpid()))


class Sampling:
    """Samples this process from the beginning of a ``with`` block to its end; ``profile`` is what it found.

    So it does with the Python processes that this one has started; with ``starts``, also with those that it starts
    inside the block. A failure of py-spy is told by ``profile``, and raises nothing.
    """

    def __init__(self, *, starts: bool = False) -> None:
        self.profile = Profile(failure="it did not run")
        self._starts = starts
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> "Sampling":
        command = tool()
        if command is None:
            self.profile = Profile(failure=MISSING)
            return self
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._raw, self._log = folder / "raw", folder / "log"
        # Without --idle: how long the process waits is in the column "client". Nonblocking: where py-spy stops the
        # process for each sample, all of its idle threads wake up each time, and seem to be at work.
        options = ["--nonblocking", "--format", "raw", "--nolineno", "--output", str(self._raw)]
        # Less often if there are many processes, or py-spy keeps them from running. Only if there are any: it looks
        # again and again whether a server has become a Python.
        others = _pythons()
        options += ["--rate", str(max(_LEAST, RATE // (1 + others)))]
        options += ["--subprocesses"] if others or self._starts else []
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [command, "record", "--pid", str(os.getpid()), *options],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "RUST_BACKTRACE": "0"},  # the error itself is its last line then
                )
            except OSError as error:
                self.profile = Profile(failure=f"py-spy cannot be started: {error}")
                return self
        end = time.monotonic() + _START
        while self.running and "Sampling" not in self._said() and time.monotonic() < end:
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            if self._process is not None:
                self.profile = self._ended(self._process)

    def _ended(self, process: subprocess.Popen[bytes]) -> Profile:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it writes what it has
        try:
            status = process.wait(_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return Profile(failure=f"py-spy did not end within {_END:g} seconds")
        said = self._said()
        if status != 0 or not self._raw.exists():
            lines = said.split("\n\nCaused by:")[0].split("\n")
            return Profile(
                failure=next(
                    (line.strip() for line in reversed(lines) if line.strip()), f"py-spy ended with status {status}"
                )
            )
        lost = _LOST.search(said)
        return parse(self._raw.read_text(encoding="utf-8"), int(lost[1]) if lost else 0)

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


def repeat(turn: Callable[[], object], seconds: float = SECONDS) -> Profile:
    """Profile what is called again and again for so many seconds."""
    with Sampling() as sampling:
        end = time.monotonic() + seconds
        while sampling.running and time.monotonic() < end:
            turn()
    return sampling.profile
