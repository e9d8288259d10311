"""The command line's root: which commands there are, and how errors end it."""

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fencepost.cli import exits
from fencepost.errors import FencepostError

COMMANDS = {
    "run": "fencepost.cli.run",
    "ls": "fencepost.cli.ls",
    "show": "fencepost.cli.show",
    "watch": "fencepost.cli.watch",
    "break": "fencepost.cli.evict",
    "bump": "fencepost.cli.bump",
    "fleet": "fencepost.cli.fleet",
    "backends": "fencepost.cli.backends",
    "doctor": "fencepost.cli.doctor",
    "demo": "fencepost.cli.demo",
    "worker": "fencepost.cli.worker",
    "contend": "fencepost.cli.contend",
    "gen": "fencepost.cli.gen",
    "resource": "fencepost.cli.resource",
    "guard": "fencepost.cli.guard",
    "saga": "fencepost.cli.saga",
    "advise": "fencepost.cli.advise",
    "sim": "fencepost.cli.sim",
    "check": "fencepost.cli.check",
    "lab": "fencepost.cli.lab",
}
"""Name -> module. Each module has an ``app``, a Typer with one command, or with several for a group.

A command's module imports what is heavy inside its function, so that ``--help`` stays quick.
"""


class Root(TyperGroup):
    """Loads a command when it is asked for, and ends with one line on stderr for each of our errors."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            module = importlib.import_module(COMMANDS[cmd_name])
            command = typer.main.get_command(module.app)
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
