"""``fencepost bump``: raise the tokens of an issuer that lost its history."""

from typing import Annotated

import typer

from fencepost.cli.options import Backend

app = typer.Typer(add_completion=False)


@app.command()
def bump(
    name: Annotated[str, typer.Argument(help="The lock.")],
    above: Annotated[int, typer.Option(help="The token seen, such as a stale verdict names it.")],
    backend: Backend = None,
) -> None:
    """Make every later token of a lock larger than one that was seen.

    For a store that was restored from a backup, or lost its data: its guards refuse the smaller
    tokens it now gives out, and name the one they have seen.
    """
    import fencepost

    with fencepost.connect(backend) as locks:
        locks.bump(name, above=above)
    print(f"{name}  the next token is larger than {above}")
