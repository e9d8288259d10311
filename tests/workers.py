"""`fencepost worker` as a process that a test reads, lets go step by step, and signals."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from fencepost.lab.servers.processes import dying_with_us

Fact = dict[str, Any]


class WorkerProcess:
    """A worker with `options`; what it says is read as it is asked for. Killed at the end of the block."""

    def __init__(self, *options: str) -> None:
        self.facts: list[Fact] = []
        self.process = subprocess.Popen(
            dying_with_us([sys.executable, "-m", "fencepost", "worker", "--json", *options]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def until(self, event: str) -> Fact:
        """The next fact of that name; everything before it is read too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.facts.append(json.loads(line))
            if self.facts[-1]["event"] == event:
                return self.facts[-1]
        raise AssertionError(f"the worker ended without {event!r}: {self.facts}")

    def go(self, *steps: str) -> None:
        """Let it take these steps, each when it is about to."""
        assert self.process.stdin is not None
        for step in steps:
            assert self.until("ready")["step"] == step
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def end(self) -> int:
        """Read the rest, and return the exit code."""
        assert self.process.stdout is not None
        self.facts += map(json.loads, self.process.stdout)
        return self.process.wait()

    @property
    def events(self) -> list[str]:
        return [fact["event"] for fact in self.facts]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
