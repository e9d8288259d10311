"""The lab's command line, run as its users do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fencepost.lab.servers.processes import Missing, program
from tests.harness.servers import unavailable


class Done(NamedTuple):
    """How a command ended: its exit code, the JSON it printed, what it said on stderr."""

    code: int
    facts: Any
    said: str


def lab(*words: str, source: Path | None = None) -> Done:
    """Run ``fencepost lab``, from a copy of the package in the folder ``source`` if there is one."""
    environment = dict(os.environ, **({"PYTHONPATH": str(source)} if source else {}))
    command = [sys.executable, "-P", "-m", "fencepost", "lab", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return Done(done.returncode, json.loads(done.stdout) if "--json" in words and done.stdout else None, done.stderr)


def needs(key: str) -> None:
    """Return if the program is on this machine."""
    try:
        program(key)
    except Missing as missing:
        unavailable(str(missing))


def held(done: Done) -> None:
    """Fail, with what was seen instead, unless every claim held and the command said so."""
    broken = [f"{each['text']}: {each['evidence']}" for each in done.facts["claims"] if not each["held"]]
    if broken or done.code or not done.facts["claims"]:
        pytest.fail("\n".join([f"exit code {done.code}", *broken, done.said]), pytrace=False)
