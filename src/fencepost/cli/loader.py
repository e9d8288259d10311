"""Commands that are loaded by name: our own, those of fencepost-lab, and those of other packages.

Our own come first, then the lab's by a table, so that neither costs a search through what is installed, and no
other package can replace them. Others register in the entry point group ``fencepost.commands``; a name with a space,
such as ``fleet sim``, is a command of a group.
"""

import importlib
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from fencepost import registry
from fencepost.errors import ConfigError

LAB = {
    "demo": "fencepost_lab.cli.demo:app",
    "worker": "fencepost_lab.cli.worker:app",
    "contend": "fencepost_lab.cli.contend:app",
    "gen": "fencepost_lab.cli.gen:app",
    "check": "fencepost_lab.cli.check:app",
    "sim": "fencepost_lab.cli.sim:app",
    "lab": "fencepost_lab.cli.lab:app",
    "advise": "fencepost_lab.cli.advise:app",
    "torture": "fencepost_lab.cli.torture:app",
    "drill": "fencepost_lab.cli.drill:app",
    "fleet sim": "fencepost_lab.cli.fleet:sim",
    "fleet work": "fencepost_lab.cli.fleet:work",
}


def registered(**which: Any) -> Any:
    """The commands of other packages."""
    from importlib.metadata import entry_points  # only here: it takes longer to import than most commands run

    return entry_points(group="fencepost.commands", **which)


class Loader(TyperGroup):
    """A group whose commands are loaded when they are asked for."""

    builtin: ClassVar[dict[str, str]] = {}

    def _inside(self, names: Any) -> list[str]:
        """The names that are commands of this group."""
        prefix = "" if self.builtin else f"{self.name} "
        inner = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return [name for name in inner if " " not in name]

    def list_commands(self, ctx: Any) -> list[str]:
        others = [point.name for point in registered()]
        known = [*self.commands, *self.builtin, *self._inside(LAB), *sorted(self._inside(others))]
        return list(dict.fromkeys(known))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and (command := self._load(cmd_name)):
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)

    def _load(self, name: str) -> Any:
        whole = name if self.builtin else f"{self.name} {name}"
        if target := self.builtin.get(name) or LAB.get(whole):
            module, _, attribute = target.partition(":")
            try:
                if module.startswith("fencepost_lab."):
                    same_version()
                return _command(getattr(importlib.import_module(module), attribute))
            except ModuleNotFoundError as error:
                if error.name != "fencepost_lab":
                    raise
                why = f"{whole!r} is a command of the package fencepost-lab: {registry.LAB_HINT}"
                return _missing(whole, f"Needs fencepost-lab: {registry.LAB_HINT}", why)
            except ConfigError as error:
                return _missing(whole, "Needs another version of fencepost-lab", str(error))
        for point in registered(name=whole):
            try:
                return _command(point.load())
            except Exception as error:  # a mistake in another package must not break the other commands
                why = f"{whole!r} comes from {point.value!r}, which cannot be loaded: {error!r}; repair or remove it"
                return _missing(whole, f"Cannot be loaded from {point.value}", why)
        return None


def _command(target: Any) -> Any:
    """The command of click for a Typer, or a function."""
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command()(target)
        target = single
    target.rich_markup_mode = None  # plain help, wrapped to the terminal, that loads in half the time
    return typer.main.get_command(target)


def _missing(name: str, help: str, why: str) -> TyperCommand:
    """A stand-in for a command that cannot be loaded; it says why when it is called."""

    def refuse() -> None:
        raise ConfigError(why)

    return TyperCommand(
        name,
        callback=refuse,
        help=help.replace("[", r"\["),  # or rich takes the extra for markup
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


def same_version() -> None:
    """ConfigError if fencepost-lab was installed for another version of fencepost."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        lab, ours = version("fencepost-lab"), version("fencepost")
    except PackageNotFoundError:  # not installed, or run from its sources
        return
    if lab != ours:
        raise ConfigError(f"fencepost-lab {lab} does not fit fencepost {ours}: pip install 'fencepost-lab=={ours}'")
