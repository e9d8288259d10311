"""The command line's root: which commands there are, and how errors end it."""

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fencepost.cli import exits
from fencepost.errors import FencepostError

COMMANDS = {
    "run": "fencepost.cli.run:app",
    "ls": "fencepost.cli.locks:ls",
    "show": "fencepost.cli.locks:show",
    "watch": "fencepost.cli.locks:watch",
    "break": "fencepost.cli.locks:break_lock",
    "bump": "fencepost.cli.locks:bump",
    "fleet": "fencepost.cli.fleet:app",
    "backends": "fencepost.cli.stores:backends",
    "doctor": "fencepost.cli.stores:doctor",
    "demo": "fencepost.cli.demo:app",
    "worker": "fencepost.cli.worker:app",
    "contend": "fencepost.cli.contend:app",
    "gen": "fencepost.cli.gen:app",
    "resource": "fencepost.cli.resource:app",
    "guard": "fencepost.cli.guard:app",
    "saga": "fencepost.cli.saga:app",
    "advise": "fencepost.cli.advise:app",
    "sim": "fencepost.cli.sim:app",
    "check": "fencepost.cli.check:app",
    "lab": "fencepost.cli.lab:app",
}
"""Name -> module:attribute, which is the command's function, or a Typer with several commands.

A command's module imports what is heavy inside its function, so that ``--help`` stays quick.
"""


class Root(TyperGroup):
    """Loads a command when it is asked for, and ends with one line on stderr for each of our errors."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            target = getattr(importlib.import_module(module), attribute)
            if not isinstance(target, typer.Typer):
                single = typer.Typer(add_completion=False)
                single.command()(target)
                target = single
            command = typer.main.get_command(target)
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FencepostError as error:
            print(f"fencepost: {error}", file=sys.stderr)
            raise typer.Exit(exits.code(error)) from None


app = typer.Typer(
    cls=Root,
    epilog=exits.table(),
    add_completion=False,
    pretty_exceptions_enable=False,
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
