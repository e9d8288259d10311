"""Somebody else's program, which a test talks to over its standard input and output."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self

from fencepost.lab.servers.processes import dying_with_us, wait_until
from tests import ROOT


class Peer:
    """A process whose lines are collected as it prints them; it never outlives the test."""

    def __init__(self, command: Sequence[str], *, cwd: Path = ROOT, errors: IO[str] | None = None) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            dying_with_us(command),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        self._listener = background(self._listen)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def heard(self, line: str, timeout: float) -> bool:
        return wait_until(lambda: line in self.said, timeout=timeout, poll=0.005)

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._listener.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def background(job: Callable[[], object]) -> threading.Thread:
    """Run something beside the test."""
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    return thread
