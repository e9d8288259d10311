"""``fencepost watch``: each change of the locks, as it is seen."""

import json
import time
from typing import Annotated

import typer

from fencepost.cli.options import Backend, Duration, Json

app = typer.Typer(add_completion=False)


@app.command()
def watch(
    prefix: Annotated[str, typer.Argument(help="Only locks whose names begin with this.")] = "",
    backend: Backend = None,
    every: Annotated[float, Duration(help="How often to look; what comes and goes in between is not seen.")] = 0.5,
    duration: Annotated[float | None, Duration("--for", help="How long to watch; default: until Ctrl-C.")] = None,
    as_json: Json = False,
) -> None:
    """Print a line whenever a lock is taken, handed on or freed, or its waiters change."""
    import fencepost
    from fencepost.backend import Status
    from fencepost.cli import told

    def show(name: str, status: Status | None) -> None:
        if as_json:
            print(json.dumps({"at": time.time(), "name": name, "status": status and told.fact(status)}), flush=True)
        else:
            print(time.strftime("%H:%M:%S"), told.line(status) if status else f"{name}  free", flush=True)

    if every <= 0:
        raise typer.BadParameter("--every must be greater than 0: it is the pause between two looks")
    until = None if duration is None else time.monotonic() + duration
    known: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {}
    with fencepost.connect(backend) as locks:
        while True:
            held = {status.name: status for status in locks.list(prefix)}
            for name in sorted(known.keys() | held.keys()):
                status = held.get(name)
                seen = status and (status.token, status.sharers, status.waiters)
                if seen != known.get(name):
                    show(name, status)
            known = {name: (status.token, status.sharers, status.waiters) for name, status in held.items()}
            left = every if until is None else min(every, until - time.monotonic())
            if left <= 0:
                return
            time.sleep(left)
