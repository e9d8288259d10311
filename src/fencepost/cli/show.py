"""``fencepost show``: who holds a lock, and who waits for it."""

import json
from typing import Annotated

import typer

from fencepost.cli.options import Backend, Json

app = typer.Typer(add_completion=False)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The lock.")],
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Show a lock: holder or sharers, token, ttl left, and its waiters in order. JSON null means that it is free."""
    import fencepost
    from fencepost.cli import told

    with fencepost.connect(backend) as locks:
        status = locks.status(name)
    if as_json:
        print(json.dumps(status and told.fact(status), indent=2))
    elif status is None:
        print(f"{name}  free")
    else:
        print(told.line(status))
        for sharer in status.sharers:
            print(f"  shared by {sharer}")
        for place, waiter in enumerate(status.waiters, 1):
            print(f"  {place}. {waiter}")
