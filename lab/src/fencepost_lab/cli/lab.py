"""``fencepost lab``: the experiments, and the report of what they found."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.options import Json

app = typer.Typer(add_completion=False, no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--out", help="Where results are kept.", metavar="DIR")]


@app.callback()
def lab() -> None:
    """Reproduce every claim about locks on real servers, one command each."""


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the experiments: what each asks, and what it claims."""
    from fencepost_lab.experiments import experiments

    found = experiments()
    if as_json:
        facts = [
            {"number": each.number, "name": each.name, "question": each.question, "claim": each.claim} for each in found
        ]
        print(json.dumps(facts, indent=2))
        return
    for each in found:
        print(f"{each.number:2}  {each.name:12} {each.question}")


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(help="Experiments, as 'fencepost lab list' names them, or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and shorter, with the same claims.")] = False,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="The store: sqlite, redis, redlock, etcd, zookeeper, consul or postgres, started for you, or the URL "
            "of one that runs; give it several times for several. Default: those that the experiment names."
        ),
    ] = None,
    out: Folder = Path("lab-runs"),
    as_json: Json = False,
) -> None:
    """Run experiments on real servers and keep what they find: JSON, plots and histories.

    With --backend, 'all' are those that can use servers that already run; the others are named. An experiment that
    stops, kills or fills its servers starts its own.

    Exit code 1 means that a claim did not hold.
    """
    from rich.console import Console

    from fencepost.cli.text import complain
    from fencepost_lab.experiments import fitting, runs
    from fencepost_lab.servers.stores import different

    backends = different(backend or [])
    wanted, left = fitting(names, backends)
    runs.equipped([each.settings(quick=quick, backends=backends) for each in wanted])
    for why in left.values():
        complain(f"left out: {why}")
    # Being told to end is like Ctrl-C: what was started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(exits.SIGNALLED + signal.SIGTERM))
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    results = []
    for each in wanted:
        with console.status(each.name) as status:

            def say(text: str, name: str = each.name) -> None:
                status.update(f"{name}: {text}")

            result = runs.run(each, quick=quick, backends=backends, out=out, say=say)
        results.append(result)
        if not as_json:
            print(f"{result['number']:2}  {each.name}: {'as claimed' if result['ok'] else 'NOT AS CLAIMED'}", end="")
            print(f", {result['seconds']:g} s")
            for claim in result["claims"]:
                print(f"      {'ok ' if claim['held'] else 'NOT'} {claim['text']}: {claim['evidence']}", flush=True)
    if as_json:
        json.dump(results[0] if len(results) == 1 else results, sys.stdout, indent=2)
        print()
    if not all(result["ok"] for result in results):
        raise typer.Exit(exits.FAILED)


@app.command()
def report(
    source: Annotated[Path, typer.Option("--from", help="Where the results are kept.", metavar="DIR")] = Path(
        "lab-runs"
    ),
    out: Annotated[
        Path | None, typer.Option(help="Where to write the report; default: beside the results.", metavar="DIR")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write what the runs found as report.md and report.html, one page that needs nothing else."""
    from fencepost_lab.experiments import runs

    runs.equipped()
    from fencepost_lab.experiments import report as reports

    written = [str(path) for path in reports.write(source, out)]
    print(json.dumps({"written": written}) if as_json else f"wrote {' and '.join(written)}")
