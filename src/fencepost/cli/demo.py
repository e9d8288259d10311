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
    import asyncio
    import signal

    from fencepost.lab.demo import Picture, play

    async def until_told() -> Picture:
        # Being told to end is like Ctrl-C: the demo's processes and files end with it.
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await play(fast=fast, quiet=as_json)

    try:
        picture = asyncio.run(until_told())
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    if as_json:
        print(json.dumps(picture))
