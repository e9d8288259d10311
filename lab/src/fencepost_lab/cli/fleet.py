"""``fencepost fleet sim``: a simulated fleet under faults."""

import json
import sys
from typing import Annotated

import typer

from fencepost.cli.options import Json


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
