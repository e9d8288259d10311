"""``fencepost check``: hold histories to their promises, and the lab's results to their histories."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.options import Json

if TYPE_CHECKING:
    from fencepost_lab.history.checks import Report
    from fencepost_lab.history.kept import Checked

UNCHECKED = 3
"""The exit code if nothing is broken, and a promise could not be checked."""
_SHOWN = 50

app = typer.Typer(add_completion=False)


@app.command()
def check(
    history: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Histories as JSON lines, also compressed by gzip, from the lab, the simulator or contend; or folders "
            "of them."
        ),
    ] = None,
    promise: Annotated[
        list[str] | None,
        typer.Option(
            help="Hold it to this promise, whatever its run line says; give it several times for several. "
            "--promises lists them."
        ),
    ] = None,
    promises: Annotated[
        bool, typer.Option("--promises", help="List every promise, and every kind of violation, then stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a history of grants and accesses completely, and say which of its promises were kept.

    A history is what happened in a run, one JSON object per line; docs/check.md has its format. Its run line names
    what it promises: data (no lost updates, no stale writes, true reads), order (tokens), exclusion, turns, live...

    Each promise is kept, broken, or not checked: the history says nothing about it, for example because its leases
    have no deadlines. What is broken is listed with its instant and its kind.

    In a folder of the lab's results, such as docs/lab, each history must show what its result says was found in it:
    also that one is broken, where a run without the fence was to break it. --promise leaves the results aside.

    Exit code 0: every promise was kept, or all is as the results say. 1: a promise was broken, or a history differs
    from its result or is missing. 3: none was broken, and one could not be checked.
    2: it is no history: lines out of order, missing, twice, or of an unknown kind.
    """
    from fencepost.errors import ConfigError
    from fencepost_lab.history import checks
    from fencepost_lab.history.gather import KINDS
    from fencepost_lab.history.kept import verify

    if promises:
        kinds = {name: {kind: text for kind, (of, text) in KINDS.items() if of == name} for name in checks.PROMISES}
        if as_json:
            print(json.dumps({name: {"means": checks.PROMISES[name], "kinds": kinds[name]} for name in kinds}))
            return
        for name, meaning in checks.PROMISES.items():
            print(f"{name}: {meaning}", *(f"  {kind}: {text}" for kind, text in kinds[name].items()), sep="\n")
        return
    if not history:
        raise ConfigError("name a history, or a folder of them: fencepost check history.jsonl")
    seen = []
    alone = len(history) == 1 and not history[0].is_dir()
    for each in verify(history, promise):
        seen.append(each)
        if not as_json:
            _show(each, alone)
    if as_json:
        facts = [
            {"file": str(each.path), "as": each.verdict} | (each.report.data() if each.report else {}) for each in seen
        ]
        print(json.dumps(seen[0].report.data() if alone and seen[0].report else facts))
    elif not alone:
        counts = Counter(each.verdict for each in seen)
        print(f"{len(seen)} histories: {', '.join(f'{number} {name}' for name, number in counts.items())}")
    verdicts = {each.verdict for each in seen}
    if verdicts & {"broken", "not as reported", "missing"}:
        raise typer.Exit(exits.FAILED)
    if "not checked" in verdicts:
        raise typer.Exit(UNCHECKED)


def _show(checked: "Checked", alone: bool) -> None:
    """Tell what was found in one history: all of it if it is the only one, else in a line."""
    report = checked.report
    if report is None:
        print(f"{checked.path}: missing, and its result says that it is {(checked.said or {}).get('verdict')}")
        return
    states = _states(report)
    if not alone:
        said = f", and its result says {checked.said['verdict']}" if checked.said and checked.differs else ""
        print(
            f"{checked.path}: {checked.verdict}{said}; {', '.join(f'{name} {state}' for name, state in states.items())}"
        )
        return
    from fencepost_lab.history.checks import PROMISES

    for each in report.violations[:_SHOWN]:
        print(f"{each.t:.6f} {each.check}: {each.what} ({each.kind})")
    if len(report.violations) > _SHOWN:
        print(f"... and {len(report.violations) - _SHOWN} more")
    counts = report.counts
    print(
        f"{counts['events']} events, {counts['acquired']} leases, {counts['applied']} writes, "
        f"{counts['overlapping_beliefs']} overlapping beliefs, {counts['lost_updates']} lost updates"
    )
    for name, state in states.items():
        print(f"  {name}: {state} ({PROMISES[name]})")


def _states(report: "Report") -> dict[str, str]:
    """Each promise: kept, broken how often, or why it was not checked."""
    broken = Counter(each.check for each in report.violations)
    states = report.states()
    for name, state in states.items():
        if state == "broken":
            states[name] = f"broken {broken[name]} times"
        elif state == "not checked":
            states[name] = f"not checked: {report.unchecked[name]}"
    return states
