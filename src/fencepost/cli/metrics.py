"""``--metrics``: where a long-running command serves what it counts."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer

from fencepost.errors import ConfigError
from fencepost.hooks.page import Server

AUTO = "auto"
OFF = "off"

Metrics = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="auto|off|[HOST:]PORT",
        envvar="FENCEPOST_METRICS",
        help="Where to serve /metrics while it runs: auto is a free port of 127.0.0.1, if there is one. They name no "
        "lock, holder or token.",
    ),
]


class Where(NamedTuple):
    """An address to serve metrics on; if ``needed``, it is an error if the address cannot be used."""

    host: str
    port: int
    needed: bool


def where(option: str) -> Where | None:
    """The address that the option names, None for off; ConfigError if it is invalid."""
    if option == OFF:
        return None
    if option == AUTO:
        return Where("127.0.0.1", 0, needed=False)
    host, _, port = option.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535) or option.startswith(":"):
        raise ConfigError(f"--metrics is auto, off, a port such as 9109, or HOST:PORT, not {option!r}")
    return Where(host.strip("[]") or "127.0.0.1", int(port), needed=True)


def serve(option: str, text: Callable[[], bytes]) -> Server | None:
    """Serve ``text()`` where the option says; None if it is off, or no port is free for auto.

    Raises ConfigError if a port that was named cannot be used.
    """
    if (found := where(option)) is None:
        return None
    try:
        return Server(text, found.host, found.port)
    except (OSError, OverflowError, RuntimeError) as error:
        if not found.needed:
            return None
        raise ConfigError(
            f"cannot serve metrics on {found.host} port {found.port}: {error}; choose another, or --metrics off"
        ) from error
