"""``fencepost check``: hold a history to its promises."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command()
def check(
    history: Annotated[Path, typer.Argument(help="A history as JSON lines, from the lab or the simulator.")],
    promise: Annotated[
        list[str] | None,
        typer.Option(
            help="Hold it to this promise (data, order, owner, left, told, deadline, exclusion), whatever it says."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a history of grants and writes completely: lost updates, stale writes, repeated tokens, broken exclusion.

    Exit code 1 means that a promise was broken.
    """
    from fencepost.errors import ConfigError
    from fencepost_lab.history import checks
    from fencepost_lab.history.format import load

    report = checks.check(load(history), promise or None)
    if not report.counts["events"]:
        raise ConfigError(f"{str(history)!r} is empty: no history, and nothing that could be said to be kept")
    if as_json:
        print(json.dumps(report.data()))
    else:
        for each in report.violations[:50]:
            print(f"{each.t:.6f} {each.check}: {each.what}")
        if len(report.violations) > 50:
            print(f"... and {len(report.violations) - 50} more")
        counts = report.counts
        print(
            f"{counts['events']} events, {counts['acquired']} leases, {counts['applied']} writes, "
            f"{counts['overlapping_beliefs']} overlapping beliefs, {counts['lost_updates']} lost updates"
        )
        for name in report.promises:
            broken = sum(each.check == name for each in report.violations)
            print(f"  {name}: {f'broken {broken} times' if broken else 'kept'} ({checks.PROMISES.get(name, '')})")
    if not report.ok:
        raise typer.Exit(exits.FAILED)
