"""`fencepost worker` as a process that a test reads, lets go step by step, and signals."""

from __future__ import annotations

import json
import sys
from typing import Any

from fencepost_lab.servers.processes import state_of
from tests.harness.child import Child
from tests.harness.waiting import until

Fact = dict[str, Any]


class WorkerProcess(Child):
    """A worker with `options`; what it says is read as it is asked for."""

    def __init__(self, *options: str) -> None:
        quiet = () if "--metrics" in options else ("--metrics", "off")
        super().__init__([sys.executable, "-m", "fencepost", "worker", "--json", *quiet, *options])
        self.facts: list[Fact] = []

    def until(self, event: str) -> Fact:
        """The next fact of that name; everything before it is read too."""
        while True:
            self.facts.append(self.json())
            if self.facts[-1]["event"] == event:
                return self.facts[-1]

    def frozen(self) -> Fact:
        """Wait until it has announced its pause and the kernel has stopped it."""
        paused = self.until("paused")
        until(lambda: state_of(self.pid) == "T", "the worker stops", watching=[self])
        return paused

    def go(self, *steps: str) -> None:
        """Let it take these steps, each when it is about to."""
        for step in steps:
            assert self.until("ready")["step"] == step
            self.tell("")

    def end(self) -> int:
        """Read the rest, and return the exit code."""
        status = self.wait()
        self.facts = [json.loads(line) for line in self.output]
        return status

    @property
    def events(self) -> list[str]:
        return [fact["event"] for fact in self.facts]
