"""``fencepost doctor``: what a store is, and what that means for its locks."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fencepost.backend import Backend, Finding
from fencepost.cli import exits
from fencepost.cli.options import Json

app = typer.Typer(add_completion=False)

_SIGNS = {"ok": "ok  ", "warn": "warn", "risk": "RISK"}


@app.command()
def doctor(
    url: Annotated[
        str | None, typer.Argument(help="The store; default: $FENCEPOST_URL, else the embedded SQLite file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Connect to a store and report its version, topology, ttl limits, persistence and restore risks.

    Says in plain words what each finding means for locks. Exit code 1 if one of them is a risk.
    """
    from fencepost import url as urls
    from fencepost.drive import Blocking, run

    driver = Blocking()
    backend = urls.connect(url, driver)
    try:
        findings = [*run(backend.doctor()), *promised(backend)]
    finally:
        run(backend.close())
        driver.close()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{_SIGNS[finding.level]}  {finding.what}\n      {finding.means}")
    if any(finding.level == "risk" for finding in findings):
        raise typer.Exit(exits.FAILED)


def promised(backend: Backend) -> list[Finding]:
    """The guarantee level of the backend as such, in plain words."""
    promises = backend.promises
    exact = "agreed on by a majority" if promises.consensus else "one server's word"
    return [
        Finding(
            "ok",
            f"guarantee: grants are {exact}; {promises.failover}",
            "no store can stop a holder that was paused past its ttl: put a guard where the data lives",
        ),
        Finding(
            "ok",
            f"expiry is decided by {promises.clock}",
            "it must not jump by more than a ttl while locks are held",
        ),
        Finding(
            "ok",
            f"ttl from {promises.min_ttl:g} to {promises.max_ttl:g} s; waiters are "
            f"{'served in the order they came' if promises.fair else 'served in no particular order'}",
            f"tokens: {promises.token}"
            + ("" if promises.bump else "; they cannot be raised with 'fencepost bump': raise the store's own history"),
        ),
    ]
