"""Options that several commands share."""

import os
import re
import time
from enum import StrEnum
from typing import Annotated

import typer

from fencepost import check
from fencepost.address import state_file
from fencepost.cli.text import complain
from fencepost.errors import ConfigError

_WORD = re.compile(r"[\w/.:@][\w/.:@+,-]*")


class Switch(StrEnum):
    """Whether a check is made."""

    ON = "on"
    OFF = "off"


def duration(text: str | float) -> float:
    """Parse a duration option: ``500ms``, ``2s``, ``5m``. A default comes as seconds already."""
    try:
        return check.duration(text) if isinstance(text, str) else text
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def Duration(*flags: str, help: str) -> typer.models.OptionInfo:
    """An option that takes a duration and gives float seconds."""
    option: typer.models.OptionInfo = typer.Option(*flags, help=help, parser=duration, metavar="DURATION")
    return option


def store(backend: str | None, *, quiet: bool = False) -> str:
    """The store's URL: --backend, else $FENCEPOST_URL, else the embedded file, which is then named on stderr."""
    if backend is not None:
        return backend
    url = os.environ.get("FENCEPOST_URL")
    if url == "":
        raise ConfigError("$FENCEPOST_URL is empty; unset it for the embedded SQLite file, or name a store in it")
    if url is None and not quiet:
        complain(
            f"locks are in {state_file('locks.db')}, which other users and hosts do not share; name another store "
            f"with --backend or $FENCEPOST_URL, or this one with sqlite:"
        )
    return url or "sqlite:"


SOON = 1.0
"""Seconds that a shell waits for the names of locks."""


def lock_names(incomplete: str) -> list[str]:
    """The held locks whose names begin like this, for the shell: of the store in the environment, or the embedded one.

    Silent, and empty if the store does not answer soon. Names come from the store, where anybody may have put them: one
    that a shell could take for anything but a word is left out.
    """
    import logging

    import fencepost
    from fencepost.driver.scope import deadline

    logging.disable()
    try:
        with fencepost.connect(os.environ.get("FENCEPOST_URL") or "sqlite:") as locks:
            deadline.set(time.monotonic() + SOON)
            return [status.name for status in locks.list(incomplete) if _WORD.fullmatch(status.name)]
    except Exception:  # the shell would show it in the middle of the line
        return []


Name = Annotated[str, typer.Argument(help="The lock.", metavar="NAME", autocompletion=lock_names)]
Prefix = Annotated[
    str,
    typer.Argument(help="Only locks whose names begin with this.", metavar="PREFIX", autocompletion=lock_names),
]


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Ceiling = Annotated[
    Switch, typer.Option(help="off: accept tokens that no issuer can have come to by now, which lock others out.")
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="URL",
        help="Where locks live, such as redis://host/0; default: $FENCEPOST_URL, else an SQLite file of this user.",
    ),
]
