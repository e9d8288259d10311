"""``fencepost contend``: many contenders for one lock or many, measured."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli.metrics import AUTO, Metrics, serve, where
from fencepost.cli.options import Duration, Json, Switch
from fencepost.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command()
def contend(
    backend: Annotated[
        str | None, typer.Option("--backend", help="Where the locks live; default: the embedded SQLite file.")
    ] = None,
    client: Annotated[str, typer.Option(help="Whose lock: fencepost, or a peer; 'list' names them.")] = "fencepost",
    contenders: Annotated[int, typer.Option(help="How many want the lock.")] = 50,
    processes: Annotated[int, typer.Option(help="In how many processes.")] = 2,
    rate: Annotated[
        float | None,
        typer.Option(help="Open model: so many arrivals a second in all, on schedule. Without it, each comes again."),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="With --rate: arrivals come at random, as independent users do.")
    ] = False,
    keys: Annotated[int, typer.Option(help="How many locks; 1 is one hot lock.")] = 1,
    key: Annotated[str | None, typer.Option(help="The lock's name; default: a new one.")] = None,
    ttl: Annotated[float, Duration(help="How long each lease lasts unless renewed.")] = 10.0,
    work: Annotated[float, Duration(help="How long each section holds the lock.")] = 0.01,
    warmup: Annotated[float, Duration(help="What comes before is not measured.")] = 1.0,
    duration: Annotated[float, Duration(help="How long to measure.")] = 10.0,
    sections: Annotated[int | None, typer.Option(help="End after so many sections in all.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes which of many locks each arrival wants, and --random.")] = 0,
    resource: Annotated[
        str | None, typer.Option(help="Count a value up at this protected resource in each section.")
    ] = None,
    fence: Annotated[Switch, typer.Option(help="Send the lease's token to the resource.")] = Switch.ON,
    pause: Annotated[
        float, Duration(help="Stop one process for so long, half-way, while it holds (SIGSTOP); 0: none.")
    ] = 0.0,
    history: Annotated[
        Path | None, typer.Option(help="Write every event here, for 'fencepost check' and 'fencepost sim --play'.")
    ] = None,
    metrics: Metrics = AUTO,
    as_json: Json = False,
) -> None:
    """Let many contenders want the same lock, and measure what they meet.

    Waits are counted from when an arrival was due, so a stall is seen in full. Ctrl-C ends the run, with what there is
    so far.
    """
    from rich.console import Console
    from rich.table import Table

    from fencepost_lab.contend import clients, report
    from fencepost_lab.contend.plan import Plan
    from fencepost_lab.contend.run import contend as run
    from fencepost_lab.contend.totals import Totals

    if client == "list":
        for name, row in clients.CLIENTS.items():
            print(f"{name:18} {', '.join(row.schemes) or 'any backend':14} {row.about}")
        return
    if backend is None and os.environ.get("FENCEPOST_URL"):
        # What locks live in every day is not put under load by default.
        raise ConfigError('$FENCEPOST_URL is set; say which store to put under load: --backend "$FENCEPOST_URL"')
    plan = Plan(
        backend=backend,
        client=client,
        contenders=contenders,
        processes=processes,
        rate=rate,
        random=random,
        keys=keys,
        ttl=ttl,
        work=work,
        warmup=warmup,
        duration=duration,
        sections=sections,
        seed=seed,
        resource=resource,
        fence=fence is Switch.ON,
        pause=pause,
        history=history is not None,
        metrics=where(metrics) is not None,
        **({} if key is None else {"key": key}),
    )
    totals = Totals()
    if served := serve(metrics, totals.text):
        print(f"metrics at {served.url}", file=sys.stderr, flush=True)
    console = Console(stderr=True)
    with console.status("starting") as status:

        def show(seconds: float, acquired: int, backlog: int) -> None:
            status.update(f"{seconds:.0f} s: {acquired} sections, {backlog} waiting")

        result = run(plan, history=history, metrics=totals.take, progress=show)
    found = report.summary(result)
    if as_json:
        print(json.dumps(found))
        return
    table = Table(title=f"{client} on {found['backend'] or 'the default backend'}", show_header=False)
    for name, text in report.rows(found):
        table.add_row(name, text)
    Console().print(table)
