"""``fencepost torture``: many writers under locks, faults drawn from a seed, and a checker that decides."""

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fencepost.cli import exits
from fencepost.cli.options import Duration, Json
from fencepost.errors import ConfigError

app = typer.Typer(add_completion=False)


@app.command()
def torture(
    stores: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STORE|URL...",
            help="What to torture: sqlite, redis, redlock, redis+cluster, redis+sentinel, etcd, zookeeper, consul or "
            "postgres, started for you; all; or the URL of a running store, with --on.",
        ),
    ] = None,
    guard: Annotated[
        str,
        typer.Option(
            metavar="KIND:ADDRESS",
            help="Where the guarded values live: sqlite:FILE, postgres:URL, redis:URL, etcd:http://HOST:PORT, "
            "http:http://HOST:PORT of a fencepost resource, file:FOLDER, s3:BUCKET or s3:http://HOST:PORT/BUCKET; "
            "http, file or s3 alone starts one; default: what fits the store.",
        ),
    ] = "",
    minutes: Annotated[float | None, typer.Option(help="How long, on each store.")] = None,
    operations: Annotated[
        int | None, typer.Option(help="How many acquires, reads, writes and releases, on each store; default: 4000.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides the work and the faults; default: a new one, told.")] = None,
    faults: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Only these faults; 'list' names them, with what each does.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results and histories are kept.")] = Path(
        "torture-runs"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is kept in --out.")] = False,
    on: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The store behind a URL is not ours, but NAME's, such as my-staging: harm only our own processes.",
        ),
    ] = "",
    workers: Annotated[
        int, typer.Option(min=2, help="Processes that write; there are 3 locks for every 2 of them.")
    ] = 12,
    ttl: Annotated[
        float, Duration(help="How long a lease lasts; 0: as short as the store takes without losing leases.")
    ] = 0.0,
    controls: Annotated[
        bool, typer.Option(help="First show violations with the guard weakened or off, and with other locks.")
    ] = True,
    slice_: Annotated[
        int, typer.Option("--slice", min=100, help="Operations in one slice, which is one history.")
    ] = 4000,
    as_json: Json = False,
) -> None:
    """Do to a lock and its guard what Jepsen does to a database, and check every write.

    Workers count values up under locks, while their processes are paused and killed, and the store is paused, killed,
    cut off and robbed of its state. Exit code 1 means that a promise was broken, or that a control showed nothing.
    Ctrl-C ends it, with a verdict on what was done so far.
    """
    from fencepost_lab.torture import campaign as campaigns
    from fencepost_lab.torture.faults import CATALOGUE
    from fencepost_lab.torture.plan import STORES
    from fencepost_lab.torture.site import checked

    if faults == "list":
        for fault in CATALOGUE.values():
            print(f"{fault.name:20} {fault.about}")
        return
    if not stores:
        raise ConfigError(f"say what to torture: {', '.join(STORES)}, all, or the URL of a running store with --on")
    wanted = [one for each in stores for one in (STORES if each == "all" else (each,))]
    for each in wanted:
        checked(each, guard)
        if "://" in each and not on:
            raise ConfigError(
                "a store behind a URL is not ours to break; say --on NAME, such as --on my-staging: then only our own "
                "processes are paused and killed"
            )
    if on and not all("://" in each for each in wanted):
        raise ConfigError("--on is for a store that runs already; give its URL")
    chosen = None if faults is None else tuple(dict.fromkeys(faults.split(",")))
    if chosen and (unknown := [each for each in chosen if each not in CATALOGUE]):
        raise ConfigError(f"there is no fault {unknown[0]!r}; 'fencepost torture --faults list' names them")
    if minutes is None and operations is None:
        operations = 4000
    before = campaigns.kept(out)
    if seed is None:
        seed = before[0]["plan"]["seed"] if before and resume else random.SystemRandom().randrange(10**6)
    plan = campaigns.Campaign(
        stores=tuple(dict.fromkeys(wanted)),
        out=out,
        seed=seed,
        guard=guard,
        operations=operations,
        seconds=None if minutes is None else minutes * 60,
        faults=chosen,
        staging=on,
        workers=workers,
        ttl=ttl or None,
        slice=slice_,
        controls=controls and not on and chosen is None,
        resume=resume,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being told to end is like Ctrl-C
    summary = _run(campaigns, plan, as_json)
    if as_json:
        print(json.dumps(summary))
    else:
        _print(summary, seed, out)
    if not summary["ok"]:
        raise typer.Exit(exits.FAILED)


def _run(campaigns: Any, plan: Any, as_json: bool) -> dict[str, Any]:
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with console.status("starting") as status:
        told = [0.0]

        def show(progress: Any) -> None:
            counts = progress.counts
            rate = progress.operations / max(progress.seconds, 0.001)
            text = (
                f"{progress.plan.store}{', control ' + progress.plan.control if progress.plan.control else ''}, "
                f"seed {progress.plan.seed}: {progress.operations} operations, {rate:.0f}/s, "
                f"{counts['pauses']} pauses, {counts['kills']} kills, {sum(progress.faults.values())} faults, "
                f"{counts['wrote:stale'] + counts['read:stale']} refused"
            )
            status.update(text)
            if not console.is_terminal and time.monotonic() - told[0] > 10:
                told[0] = time.monotonic()
                print(text, file=sys.stderr, flush=True)

        def tell(result: dict[str, Any]) -> None:
            console.print(_line(result))

        found: dict[str, Any] = campaigns.run(plan, show=show, tell=tell)
        return found


def _line(result: dict[str, Any]) -> str:
    plan = result["plan"]
    control = plan["control"]
    said = f"{plan['store']}{f', control {control}' if control else ''}, seed {plan['seed']}: "
    said += f"{result['operations']} operations in {result['seconds']:g} s, "
    if control:
        return said + (f"{result['violations']} violations, as it must" if result["violations"] else "NO VIOLATION")
    faults = sum(result["faults"].values())
    return said + (
        f"{result['counts'].get('pauses', 0)} pauses, {result['counts'].get('kills', 0)} kills, {faults} faults, "
        + ("0 violations" if result["ok"] else f"{result['violations']} VIOLATIONS, {len(result['wrong'])} other")
    )


def _print(summary: dict[str, Any], seed: int, out: Path) -> None:
    for name, store in summary["stores"].items():
        print(
            f"{name}: {store['operations']} operations, {store['pauses']} pauses "
            f"({store['pauses that outlived the lease']} outlived the lease), {store['client kills']} kills, "
            f"{sum(store['faults'].values())} faults of the store, {store['overlapping beliefs']} overlapping beliefs, "
            f"{store['stale refused']} stale accesses refused: {store['violations']} violations"
        )
        for control, found in store["controls"].items():
            shown = (
                f"{found['violations']} violations" if found["violations"] else "NO VIOLATION: this run shows nothing"
            )
            print(f"    control {control}: {shown} in {found['operations']} operations")
        for text in store["wrong"]:
            print(f"    {text}")
    total = summary["total"]
    verdict = "every promise was kept" if summary["ok"] else "A PROMISE WAS BROKEN, or a control showed nothing"
    print(f"{total['operations']} operations, seed {seed}: {verdict}; kept in {out}")
