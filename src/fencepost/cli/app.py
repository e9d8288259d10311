"""The command line's root: which commands there are, and how errors end it."""

from typing import Annotated, Any, ClassVar

import typer

from fencepost.cli import exits
from fencepost.cli.loader import Loader
from fencepost.cli.text import complain, in_words
from fencepost.errors import FencepostError

COMMANDS = {
    "run": "fencepost.cli.run:app",
    "ls": "fencepost.cli.locks:ls",
    "show": "fencepost.cli.locks:show",
    "watch": "fencepost.cli.locks:watch",
    "top": "fencepost.cli.top:top",
    "break": "fencepost.cli.locks:break_lock",
    "bump": "fencepost.cli.locks:bump",
    "migrate": "fencepost.cli.migrate:migrate",
    "fleet": "fencepost.cli.fleet:app",
    "backends": "fencepost.cli.stores:backends",
    "doctor": "fencepost.cli.stores:doctor",
    "completion": "fencepost.cli.completion:completion",
    "resource": "fencepost.cli.resource:app",
    "guard": "fencepost.cli.guard:app",
    "saga": "fencepost.cli.saga:app",
}
"""Name -> module:attribute, which is the command's function, or a Typer with several commands.

A command imports heavy modules inside its function, so that ``--help`` stays quick.
"""


class Root(Loader):
    """All commands; ends with one line on stderr for each of our errors."""

    builtin: ClassVar[dict[str, str]] = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FencepostError as error:
            complain(in_words(error))
            raise typer.Exit(exits.code(error)) from None


app = typer.Typer(
    cls=Root,
    epilog=exits.table(),
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(version("fencepost"))
        raise typer.Exit


@app.callback(no_args_is_help=True)
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Distributed locks with fencing: leases from the store you run, guards where the data lives."""
