"""``fencepost fleet sim`` and ``fleet work``: a simulated fleet under faults, and a worker of a real one."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.cli.metrics import AUTO, Metrics, serve
from fencepost.cli.options import Duration, Json, Switch
from fencepost.cli.text import complain
from fencepost.errors import ConfigError

if TYPE_CHECKING:
    from fencepost_lab.stage.member import Member


def sim(
    seeds: Annotated[int, typer.Option(help="Run so many seeds.", min=1)] = 10,
    first: Annotated[int, typer.Option(help="The first one.")] = 0,
    members: Annotated[int, typer.Option(help="Simulated workers.", min=1)] = 200,
    hosts: Annotated[int, typer.Option(help="Simulated hosts.", min=1)] = 12,
    partitions: Annotated[int, typer.Option(help="Partitions.", min=1)] = 240,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one per core.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Run a simulated fleet under kills, freezes, cuts, joins, leaves and restarts of its store, and check it.

    Every partition has an owner again within twice the ttl, the fleet finds its balance, and never are two
    workers admitted for one partition. Exit code 1 means that a promise was broken.
    """
    from rich.console import Console
    from rich.progress import Progress

    from fencepost.cli import exits
    from fencepost_lab.sim.fleet import Size, facts, run_seeds

    size = Size(workers=members, hosts=hosts, partitions=partitions)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        running = run_seeds(range(first, first + seeds), size, workers)
        outcomes = [*bar.track(running, total=seeds, description="seeds")]
    found = facts(outcomes)
    print(json.dumps(found) if as_json else "\n".join(f"{name:>20} {value}" for name, value in found.items()))
    broken = [(each.seed, what) for each in outcomes for what in each.violations[:3]]
    for seed, what in broken[:20]:
        print(f"  seed {seed}: {what.check}: {what.what}", file=sys.stderr)
    if broken:
        raise typer.Exit(exits.FAILED)


def work(
    group: Annotated[str, typer.Argument(help="The group, whose workers share the partitions.")],
    partitions: Annotated[int, typer.Option(help="How many partitions the group has.", min=1)],
    resource: Annotated[
        str,
        typer.Option(
            envvar="FENCEPOST_RESOURCE",
            help="What to write to, as for 'fencepost worker': http://..., postgresql://...",
        ),
    ],
    backend: Annotated[
        str | None, typer.Option(help="Where the locks live; default: $FENCEPOST_URL, else the embedded SQLite file.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What this worker calls itself; no two may share a name; default: by its pid.")
    ] = None,
    ttl: Annotated[float, Duration(help="How long a dead worker's partitions stay with it.")] = 3.0,
    work: Annotated[float, Duration(help="How long a job takes between reading and writing, on average.")] = 0.5,
    fence: Annotated[Switch, typer.Option(help="Send the lease's token to the resource.")] = Switch.ON,
    orders: Annotated[
        bool,
        typer.Option(
            "--orders",
            help="Take orders on stdin, one a line: join, hold (send no write), go (send them), rest (begin no job), "
            "leave.",
        ),
    ] = False,
    metrics: Metrics = AUTO,
    as_json: Json = False,
) -> None:
    """Join a group, and count up the value of each partition that this worker owns, until Ctrl-C or SIGTERM.

    Start several, kill or freeze one, and see the others take over: the resource refuses what the replaced one writes.
    With --json it prints lines of a history (docs/check.md), with instants on this host's boot-time clock.
    """
    import os
    import signal
    import threading

    from fencepost.driver import boottime
    from fencepost.hooks.page import Page
    from fencepost_lab.history.format import Line, encode
    from fencepost_lab.stage.member import Member, Membership

    who = name or f"worker-{os.getpid()}"

    def show(line: Line) -> None:
        facts = [f"{key} {line[key]}" for key in ("token", "value", "outcome", "verdict", "why") if key in line]
        what = line["text"] if line["ev"] == "note" else f"{line['ev']} {line['lock']}"
        plain = " ".join([f"{line['t']:.3f} {who} {what}", *facts])
        try:
            print(encode(line) if as_json else plain, flush=True)
        except BrokenPipeError:  # nobody reads any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            member.order("leave")

    member = Member(
        Membership(
            backend=backend,
            group=group,
            partitions=partitions,
            resource=resource,
            name=who,
            ttl=ttl,
            work=work,
            fence=fence is Switch.ON,
        ),
        show,
        ordered=orders,
    )
    page = Page()
    if served := serve(metrics, page.text):
        show({"t": boottime(), "ev": "note", "who": who, "text": f"serves {served.url}"})
    signal.signal(signal.SIGTERM, lambda *_: member.order("leave"))
    signal.signal(signal.SIGINT, lambda *_: member.order("leave"))
    if orders:
        threading.Thread(target=_obey, args=(member,), daemon=True).start()
    member.run([page])


def _obey(member: "Member") -> None:
    """Pass on what stands on stdin; when that ends, leave."""
    for line in sys.stdin:
        try:
            member.order(line.strip())
        except ConfigError as error:
            complain(str(error))
    member.order("leave")
