"""``fencepost sim``: the simulator's page, and its seeded tests."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.options import Json

app = typer.Typer(add_completion=False)


class Fencing(StrEnum):
    """How much of the rule is in force."""

    OFF = "off"
    WRITES = "writes"
    ENTER = "enter"
    NOSEQ = "noseq"
    NOBARRIER = "nobarrier"
    NOHOLDER = "noholder"


@app.command()
def sim(
    port: Annotated[int, typer.Option(help="Port of 127.0.0.1 for the page; 0 picks a free one.")] = 8710,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    play: Annotated[
        Path | None, typer.Option(help="A history, or a kept scenario, to play in the page.", metavar="FILE")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the page for any file server into a folder, with Python inside (Pyodide, by npm), and end.",
            metavar="DIR",
        ),
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="With --export: without Python; it plays the guided scenarios only.")
    ] = False,
    run: Annotated[
        Path | None, typer.Option(help="Run a scenario, print its trace, and check it.", metavar="SCENARIO")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Run one seed of the seeded tests, print its trace, check it.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Run so many seeds, and check every trace.")] = None,
    first: Annotated[int, typer.Option(help="With --seeds: the first one.")] = 0,
    fencing: Annotated[Fencing, typer.Option(help="With seeds: how much of the rule is in force.")] = Fencing.ENTER,
    calm: Annotated[
        bool, typer.Option("--calm", help="With seeds: stop the faults half-way; all work must finish.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="With --seeds: write failing scenarios into a folder.")] = None,
    workers: Annotated[int | None, typer.Option(help="With --seeds: processes; default: one per core.")] = None,
    as_json: Json = False,
) -> None:
    """Play with a world of locks and faults in the browser, or test the real core with thousands of seeds.

    With --seeds, --seed or --run, exit code 1 means that a promise was broken.
    """
    if export is not None:
        from fencepost_lab.sim.site import export as write

        written = write(export, play, recorded=recorded)
        print(json.dumps({"files": len(written)}) if as_json else f"wrote {len(written)} files into {export}")
    elif seeds is not None:
        _seeds(first, seeds, fencing, calm, keep, workers, as_json)
    elif seed is not None or run is not None:
        _one(seed, run, fencing, calm)
    else:
        _serve(port, browser, play, as_json)


def _seeds(
    first: int, seeds: int, fencing: str, calm: bool, folder: Path | None, workers: int | None, as_json: bool
) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from fencepost_lab.sim.seeds import keep, try_many

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("seeds", total=seeds)
        tally = try_many(
            first,
            seeds,
            fencing=fencing,
            calm=calm,
            workers=workers,
            progress=lambda tally: bar.update(task, completed=tally.seeds),
        )
    if as_json:
        failures = [
            {"seed": each.scenario.seed, "violations": [found._asdict() for found in each.violations]}
            for each in tally.failures
        ]
        print(json.dumps({"seeds": tally.seeds, "failures": failures, "counts": dict(sorted(tally.counts.items()))}))
    else:
        print(f"{tally.seeds} seeds, {tally.counts['events']} events, {len(tally.failures)} failed")
        for failure in tally.failures[:20]:
            print(f"  {failure.violations[0].check}: {failure.violations[0].what}")
            print(f"    replay: {failure.replay(fencing, calm)}")
    if folder is not None:
        for failure in tally.failures:
            print(f"kept {keep(failure, folder)}", file=sys.stderr)
    if tally.failures:
        raise typer.Exit(exits.FAILED)


def _one(seed: int | None, file: Path | None, fencing: str, calm: bool) -> None:
    from fencepost.errors import ConfigError
    from fencepost_lab.history.format import lines
    from fencepost_lab.sim import parse, run
    from fencepost_lab.sim.chaos import chaos
    from fencepost_lab.sim.seeds import check_trace

    if file is not None:
        try:
            scenario = parse(file.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot read {str(file)!r}: {error.strerror}") from error
    else:
        scenario = chaos(seed or 0, fencing=fencing, calm=calm)
    trace = run(scenario)
    sys.stdout.write(lines(trace))
    found = check_trace(trace, weakened=scenario.settings.fencing != "enter", calm=calm).violations
    for each in found:
        print(f"fencepost: {each.t:.6f} {each.check}: {each.what}", file=sys.stderr)
    if found:
        raise typer.Exit(exits.FAILED)


def _serve(port: int, browser: bool, play: Path | None, as_json: bool) -> None:
    import webbrowser

    from fencepost_lab.sim.serve import server

    with server(port, play) as page:
        url = f"http://127.0.0.1:{page.server_port}/"
        print(json.dumps({"url": url}) if as_json else f"{url}  Ctrl-C stops", flush=True)
        if browser:
            webbrowser.open(url)
        try:
            page.serve_forever()
        except KeyboardInterrupt:
            pass
