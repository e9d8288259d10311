"""Options that several commands share."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from fencepost import check
from fencepost.errors import ConfigError


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


def store(backend: str | None) -> str:
    """The store's URL: --backend, else $FENCEPOST_URL, else the embedded file, said outright: no warning here."""
    if backend is not None:
        return backend
    url = os.environ.get("FENCEPOST_URL", "sqlite:")
    if url == "":
        raise ConfigError("$FENCEPOST_URL is empty; unset it for the embedded SQLite file, or name a store in it")
    return url


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Ceiling = Annotated[
    Switch, typer.Option(help="off: accept tokens that no issuer can have come to by now, which lock others out.")
]
Backend = Annotated[
    str | None,
    typer.Option("--backend", help="Where locks live; default: $FENCEPOST_URL, else the embedded SQLite file."),
]
