"""``fencepost run``: a command under a lock."""

from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.metrics import AUTO, Metrics, serve
from fencepost.cli.options import Backend, Duration, Name, store
from fencepost.cli.text import complain, in_words
from fencepost.errors import ConfigError, NotAcquired

app = typer.Typer(add_completion=False)


@app.command(
    epilog="The command's exit code is ours, 128 + n if signal n ended it. Our own: 75, or what --busy-exit says, "
    "could not acquire the lock in time; 76 the lease was lost and the command ended; 126 the command cannot be run; "
    "127 there is no such command; 69 the store failed; 2 wrong usage."
)
def run(
    name: Name,
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.", metavar="COMMAND")],
    ttl: Annotated[float, Duration(help="How long the lease lasts unless renewed, which it is.")] = 15.0,
    timeout: Annotated[float | None, Duration(help="How long to wait for the lock; default: without a limit.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Give up at once if somebody holds it.")] = False,
    busy_exit: Annotated[
        int,
        typer.Option(
            "--busy-exit",
            "-E",
            metavar="CODE",
            min=0,
            max=255,
            help="The exit code if the lock cannot be acquired in time, as flock -E has it: with 0 a skipped run is a "
            "success.",
        ),
    ] = exits.CODES[NotAcquired][0],
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Say nothing about a busy lock or the embedded store: cron mails what is said."
        ),
    ] = False,
    grace: Annotated[float, Duration(help="After losing the lease: time from SIGTERM to SIGKILL.")] = 5.0,
    metrics: Metrics = AUTO,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")] = False,
    backend: Backend = None,
) -> None:
    """Run a command while holding a lock: fencepost run nightly -- ./report.sh

    From cron, to skip a run while the last one is at work:

    fencepost run -q --no-wait --busy-exit 0 nightly -- ./report.sh

    The command finds FENCE_TOKEN, FENCE_HOLDER and FENCE_NAME in its environment: pass the token on to
    what it writes to. FENCE_METRICS says where /metrics of this run is; -v prints it. Signals are forwarded to the
    command. If the lease is lost it gets SIGTERM at once, and SIGKILL after the grace period. If this program itself is
    killed, so is the command (Linux).
    """
    import asyncio
    import os

    if not hasattr(os, "killpg"):
        raise ConfigError("fencepost run needs a Unix system, to signal the command; hold the lock from Python here")
    from fencepost.cli.holding import hold
    from fencepost.hooks.page import Page

    if no_wait and timeout is not None:
        raise typer.BadParameter("--no-wait and --timeout exclude each other")
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other")
    url, patience = store(backend, quiet=quiet), 0.0 if no_wait else timeout
    page = Page()
    served = serve(metrics, page.text)
    told = None if served is None else served.url
    job = hold(url, name, command, ttl=ttl, timeout=patience, grace=grace, verbose=verbose, hooks=[page], metrics=told)
    try:
        code = asyncio.run(job)
    except NotAcquired as error:
        if not quiet:
            complain(in_words(error))
        code = busy_exit
    raise typer.Exit(code)
