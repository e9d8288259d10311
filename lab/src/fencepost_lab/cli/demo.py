"""``fencepost demo``: see what fencing is for."""

import json
from typing import Annotated

import typer

from fencepost.cli.options import Json

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Shorter leases and pauses, all parts at once.")] = False,
    as_json: Json = False,
) -> None:
    """Freeze a lock's holder past its ttl, and watch what it does when it wakes.

    Real processes, a real SIGSTOP, no server needed. Ends with 0 only if everything happened as shown.
    """
    from fencepost_lab.stage import processes
    from fencepost_lab.stage.demo import run_demo

    picture = processes.run(run_demo(fast=fast, quiet=as_json))
    if as_json:
        print(json.dumps(picture))
