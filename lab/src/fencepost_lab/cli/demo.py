"""``fencepost demo``: see what fencing is for."""

import json
from importlib.util import find_spec
from typing import Annotated

import typer

from fencepost.cli.options import Json
from fencepost.errors import ConfigError
from fencepost.registry import LAB_HINT

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Shorter leases and pauses, all parts at once.")] = False,
    as_json: Json = False,
) -> None:
    """Freeze a lock's holder past its ttl, and watch what it does when it wakes.

    Real processes, a real SIGSTOP, no server needed. Ends with 0 only if everything happened as shown.
    """
    for package in ("starlette", "uvicorn", "httptools", "prometheus_client"):  # of processes that it starts
        if find_spec(package) is None:
            raise ConfigError(f"the demo needs the package {package!r}: {LAB_HINT}")

    from fencepost_lab.stage import processes
    from fencepost_lab.stage.demo import run_demo

    picture = processes.run(run_demo(fast=fast, quiet=as_json))
    if as_json:
        print(json.dumps(picture))
