"""``fencepost ls``: which locks are held."""

import json
from typing import Annotated

import typer

from fencepost.cli.options import Backend, Json

app = typer.Typer(add_completion=False)


@app.command()
def ls(
    prefix: Annotated[str, typer.Argument(help="Only locks whose names begin with this.")] = "",
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """List the locks that are held right now: name, token, holder, ttl left, waiters."""
    import fencepost
    from fencepost.cli import told

    with fencepost.connect(backend) as locks:
        held = locks.list(prefix)
    if as_json:
        print(json.dumps([told.fact(status) for status in held], indent=2))
    for status in () if as_json else held:
        print(told.line(status))
