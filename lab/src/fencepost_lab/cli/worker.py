"""``fencepost worker``: one client of a lock and a resource, with pauses on order."""

import sys
from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.metrics import AUTO, Metrics, serve
from fencepost.cli.options import Duration, Json, Switch
from fencepost.errors import LeaseLost, Refused
from fencepost_lab.stage.job import Edit, Job, PauseAt, PauseMode

app = typer.Typer(add_completion=False)


@app.command()
def worker(
    resource: Annotated[
        str,
        typer.Option(
            envvar="FENCEPOST_RESOURCE",
            help="What to write to: a resource service, as 'fencepost resource' prints it; a row, postgresql://... or "
            "column+postgresql://...; an object, s3+http://user:password@host:9000/bucket.",
        ),
    ],
    backend: Annotated[
        str | None, typer.Option(help="Where the lock lives; default: $FENCEPOST_URL, else the embedded SQLite file.")
    ] = None,
    key: Annotated[str, typer.Option(help="The resource's key, and the lock's name.")] = "demo",
    name: Annotated[str, typer.Option(help="What this worker calls itself.")] = "worker",
    ttl: Annotated[float, Duration(help="How long each lease lasts unless renewed.")] = 2.0,
    timeout: Annotated[float | None, Duration(help="How long to wait for the lock; default: without a limit.")] = None,
    work: Annotated[float, Duration(help="How long to work between reading and writing.")] = 0.0,
    pause: Annotated[float, Duration(help="How long to pause in each round; 0: not at all.")] = 0.0,
    pause_mode: Annotated[
        PauseMode, typer.Option(help="stop: SIGSTOP, renewals included; sleep: only the work waits.")
    ] = PauseMode.STOP,
    pause_at: Annotated[PauseAt, typer.Option(help="Where to pause.")] = PauseAt.BEFORE_WRITE,
    margin: Annotated[
        float | None,
        Duration(help="Look at the lease before each write, and stop while less than this is left; default: never."),
    ] = None,
    patience: Annotated[float, Duration(help="How long to wait for the resource's answer before trying again.")] = 60.0,
    renew: Annotated[bool, typer.Option(help="Renew the lease in the background.")] = True,
    fence: Annotated[Switch, typer.Option(help="Send the lease's token to the resource.")] = Switch.ON,
    enter: Annotated[bool, typer.Option(help="Read with the token, which enters, or plainly.")] = True,
    edit: Annotated[Edit, typer.Option(help="What a write does: count up, or append a line.")] = Edit.COUNT,
    writes: Annotated[int, typer.Option(help="Writes in each round, each after a read.")] = 1,
    iterations: Annotated[int, typer.Option(help="Rounds of acquire, read, work, write, release.")] = 1,
    steps: Annotated[bool, typer.Option("--steps", help="Wait for a line on stdin before each step.")] = False,
    metrics: Metrics = AUTO,
    as_json: Json = False,
) -> None:
    """Acquire a lock, work, write to the resource with the lease's token, release.

    Start two, freeze one with --pause, and see what the resource does about the zombie.
    """
    from fencepost.driver import boottime
    from fencepost.hooks.page import Page
    from fencepost_lab.history.format import encode
    from fencepost_lab.stage.narrate import tell
    from fencepost_lab.stage.worker import Fact, Worker

    def show(fact: Fact) -> None:
        print(encode(fact) if as_json else f"{fact['at']:.3f} {fact['worker']} {tell(fact)}", flush=True)

    def wait(step: str) -> None:
        show({"event": "ready", "worker": name, "at": boottime(), "step": step})
        if not sys.stdin.readline():
            raise SystemExit(exits.FAILED)

    job = Job(
        resource=resource,
        backend=backend,
        key=key,
        name=name,
        ttl=ttl,
        timeout=timeout,
        renew=renew,
        fence=fence is Switch.ON,
        enter=enter,
        edit=edit,
        writes=writes,
        iterations=iterations,
        work=work,
        margin=margin,
        patience=patience,
        pause=pause,
        pause_mode=pause_mode,
        pause_at=pause_at,
    )
    page = Page()
    if served := serve(metrics, page.text):
        show({"event": "metrics", "worker": name, "at": boottime(), "url": served.url})
    worker = Worker(job, show, step=wait) if steps else Worker(job, show)
    tally = worker.run([page])
    if tally.refused:
        raise typer.Exit(exits.CODES[Refused][0])
    if tally.lost:
        raise typer.Exit(exits.CODES[LeaseLost][0])
