"""``fencepost run``: a command under a lock."""

from typing import Annotated

import typer

from fencepost.cli.options import Backend, Duration, store
from fencepost.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command(
    epilog="The command's exit code is ours, 128 + n if signal n ended it. Our own: 75 could not acquire the lock "
    "in time, 76 the lease was lost and the command ended, 126 the command cannot be run, 127 there is no such "
    "command, 69 the store failed, 2 wrong usage."
)
def run(
    name: Annotated[str, typer.Argument(help="The lock.")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    ttl: Annotated[float, Duration(help="How long the lease lasts unless renewed, which it is.")] = 15.0,
    timeout: Annotated[float | None, Duration(help="How long to wait for the lock; default: without a limit.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Give up at once if somebody holds it.")] = False,
    grace: Annotated[float, Duration(help="After losing the lease: time from SIGTERM to SIGKILL.")] = 5.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")] = False,
    backend: Backend = None,
) -> None:
    """Run a command while holding a lock: fencepost run nightly -- ./report.sh

    The command finds FENCE_TOKEN, FENCE_HOLDER and FENCE_NAME in its environment: pass the token on to
    what it writes to. Signals are forwarded to it. If the lease is lost it gets SIGTERM at once, and SIGKILL
    after the grace period. If this program itself is killed, so is the command (Linux).
    """
    import asyncio
    import os

    if not hasattr(os, "killpg"):
        raise ConfigError("fencepost run needs a Unix system, to signal the command; hold the lock from Python here")
    from fencepost.cli.holding import hold

    if no_wait and timeout is not None:
        raise typer.BadParameter("--no-wait and --timeout exclude each other")
    code = asyncio.run(
        hold(store(backend), name, command, ttl=ttl, timeout=0.0 if no_wait else timeout, grace=grace, verbose=verbose)
    )
    raise typer.Exit(code)
