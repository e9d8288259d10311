"""The lab's command line, run as its users do."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from fencepost.cli.app import app
from fencepost_lab.report.outcome import Outcome
from fencepost_lab.servers.processes import Missing, program
from tests.harness.child import Child
from tests.harness.servers import unavailable

LONGEST = 280.0
"""Seconds that an experiment may take here; below the tests' own limit, so that a hanging one shows what it said."""


class Done(NamedTuple):
    """How a command ended: its exit code, the JSON it printed, what it said on stderr."""

    code: int
    facts: Any
    said: str


def lab(*words: str, source: Path | None = None) -> Done:
    """Run ``fencepost lab``, from a copy of the package in the folder ``source`` if there is one."""
    environment = {"PYTHONPATH": str(source)} if source else None
    with Child.python("-P", "-m", "fencepost", "lab", *words, env=environment) as child:
        code = child.wait(LONGEST)
        said = "\n".join(child.output)
        return Done(code, json.loads(said) if "--json" in words and said else None, child.errors)


def lab_here(*words: str) -> Done:
    """The same in this process, for what needs no process of its own."""
    done = CliRunner().invoke(app, ["lab", *words])
    return Done(done.exit_code, json.loads(done.stdout) if "--json" in words and done.stdout else None, done.stderr)


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


def as_claimed(outcome: Outcome, *measured: str) -> None:
    """Fail, with what was seen instead, unless every claim held.

    ``measured`` are words of claims that compare times: they must be made, but hold on a quiet machine only, where
    `make lab` checks them.
    """
    made = [each.text for each in outcome.claims]
    for words in measured:
        assert any(words in text for text in made), f"nothing was claimed of {words!r}: {made}"
    asserted = [each for each in outcome.claims if not any(words in each.text for words in measured)]
    broken = [f"{each.text}: {each.evidence}" for each in asserted if not each.held]
    if broken or not asserted:
        pytest.fail("\n".join(broken) or "nothing was claimed", pytrace=False)
