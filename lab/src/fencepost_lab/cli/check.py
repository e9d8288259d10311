"""``fencepost check``: hold a history to its promises."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.options import Json

UNCHECKED = 3
"""The exit code if nothing is broken, and a promise could not be checked."""
_SHOWN = 50

app = typer.Typer(add_completion=False)


@app.command()
def check(
    history: Annotated[
        Path | None, typer.Argument(help="A history as JSON lines, from the lab, the simulator or contend.")
    ] = None,
    promise: Annotated[
        list[str] | None,
        typer.Option(
            help="Hold it to this promise, whatever its run line says; give it several times for several. "
            "--promises lists them."
        ),
    ] = None,
    promises: Annotated[
        bool, typer.Option("--promises", help="List every promise, and every kind of violation, then stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a history of grants and accesses completely, and say which of its promises were kept.

    A history is what happened in a run, one JSON object per line; docs/check.md has its format. Its run line names
    what it promises: data (no lost updates, no stale writes, true reads), order (tokens), exclusion, turns, live...

    Each promise is kept, broken, or not checked: the history says nothing about it, for example because its leases
    have no deadlines. What is broken is listed with its instant and its kind.

    Exit code 0: every promise was kept. 1: one was broken. 3: none was broken, and one could not be checked.
    2: it is no history: lines out of order, missing, twice, or of an unknown kind.
    """
    from fencepost.errors import ConfigError
    from fencepost_lab.history import checks
    from fencepost_lab.history.format import load
    from fencepost_lab.history.gather import KINDS

    if promises:
        kinds = {name: {kind: text for kind, (of, text) in KINDS.items() if of == name} for name in checks.PROMISES}
        if as_json:
            print(json.dumps({name: {"means": checks.PROMISES[name], "kinds": kinds[name]} for name in kinds}))
            return
        for name, meaning in checks.PROMISES.items():
            print(f"{name}: {meaning}", *(f"  {kind}: {text}" for kind, text in kinds[name].items()), sep="\n")
        return
    if history is None:
        raise ConfigError("name a history: fencepost check history.jsonl")
    report = checks.check(load(history), promise or None)
    if as_json:
        print(json.dumps(report.data()))
    else:
        for each in report.violations[:_SHOWN]:
            print(f"{each.t:.6f} {each.check}: {each.what} ({each.kind})")
        if len(report.violations) > _SHOWN:
            print(f"... and {len(report.violations) - _SHOWN} more")
        counts = report.counts
        print(
            f"{counts['events']} events, {counts['acquired']} leases, {counts['applied']} writes, "
            f"{counts['overlapping_beliefs']} overlapping beliefs, {counts['lost_updates']} lost updates"
        )
        broken = Counter(each.check for each in report.violations)
        for name, state in report.states().items():
            if state == "broken":
                state = f"broken {broken[name]} times"
            elif state == "not checked":
                state = f"not checked: {report.unchecked[name]}"
            print(f"  {name}: {state} ({checks.PROMISES[name]})")
    if not report.ok:
        raise typer.Exit(exits.FAILED)
    if report.unchecked:
        raise typer.Exit(UNCHECKED)
