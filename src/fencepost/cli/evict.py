"""``fencepost break``: take a lock from its holder."""

import json
from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.options import Backend, Json

app = typer.Typer(add_completion=False)


@app.command()
def evict(
    name: Annotated[str, typer.Argument(help="The lock.")],
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Take a lock from its holder by force, and hand it to the next waiter; exit code 1 if nobody held it.

    The holder learns of it when it next renews. Until then only a guard keeps it from writing.
    """
    import fencepost
    from fencepost.cli import told

    with fencepost.connect(backend) as locks:
        ended = locks.evict(name)
    if as_json:
        print(json.dumps(ended and told.fact(ended), indent=2))
    else:
        print(f"ended: {told.line(ended)}" if ended else f"{name}  free: nobody to take it from")
    if ended is None:
        raise typer.Exit(exits.FAILED)
