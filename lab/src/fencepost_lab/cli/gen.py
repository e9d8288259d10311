"""``fencepost gen``: fill a store with held locks, the same ones for the same seed."""

import json
from typing import Annotated

import typer

from fencepost.cli.metrics import AUTO, Metrics, serve
from fencepost.cli.options import Duration, Json

app = typer.Typer(add_completion=False)


@app.command()
def gen(
    keys: Annotated[int, typer.Option(help="How many locks there shall be, such as 10_000_000.", min=1)],
    backend: Annotated[
        str | None,
        typer.Option(help="The store to fill: redis://..., or etcd://... with a lease per lock."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which locks: the same seed means the same ones in the same order.")] = 7,
    ttl: Annotated[float, Duration(help="How long each lock lasts.")] = 600.0,
    rate: Annotated[float | None, typer.Option(help="Locks per second; default: as fast as the store.")] = None,
    batch: Annotated[int, typer.Option(help="Locks in one request.")] = 1000,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin at the first lock, also where an earlier run was cut off.")
    ] = False,
    until_expired: Annotated[
        bool, typer.Option("--until-expired", help="Stay until the locks have expired, and report the store then.")
    ] = False,
    metrics: Metrics = AUTO,
    as_json: Json = False,
) -> None:
    """Lay down held locks, one holder each, exactly as the backend keeps them.

    Cut off half-way, the same command goes on where the store has confirmed the last batch.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from fencepost.errors import ConfigError
    from fencepost.hooks.page import Page
    from fencepost_lab.gen.ground import Laid
    from fencepost_lab.gen.run import Order, lay

    if backend is None:
        # Not $FENCEPOST_URL: what locks live in every day is not what to fill with millions of them.
        raise ConfigError('say which store to fill: --backend redis://localhost:6379/0, or --backend "$FENCEPOST_URL"')
    order = Order(keys=keys, seed=seed, ttl=ttl, rate=rate, batch=batch, fresh=fresh)
    console = Console(stderr=True)
    page = Page(["lock_acquire_attempts_total", "lock_acquire_success_total"])
    if served := serve(metrics, page.text):
        console.print(f"metrics at {served.url}", highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("locks", total=keys, pace="")

        def told(start: int, laid: Laid) -> None:
            if not laid.locks:
                bar.update(task, completed=start)
                return
            bar.update(task, advance=laid.locks)
            if speed := bar.tasks[0].speed:
                bar.update(task, pace=f"{speed:,.0f}/s")
            page.add("lock_acquire_attempts_total", laid.locks)
            page.add("lock_acquire_success_total", laid.free)

        done = lay(backend, order, told=told, wait=until_expired)
    if as_json:
        print(json.dumps(done.data()))
        return
    resumed = f", {done.resumed:,} were laid before" if done.resumed else ""
    found = f", {done.found:,} were not free" if done.found else ""
    print(f"{done.laid:,} locks laid in {done.seconds:.1f} s ({done.rate:,.0f}/s){resumed}{found}")
    print(
        f"{done.size}: {done.before[done.size]:,} -> {done.after[done.size]:,} ({done.each(done.after):.0f} per lock)"
    )
    if done.expired:
        print(f"after expiry: {done.expired[done.size]:,} ({done.each(done.expired):.1f} per lock)")
    print(f"this process had at most {done.peak_memory / 2**20:.0f} MiB")
