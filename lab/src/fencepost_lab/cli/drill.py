"""``fencepost drill``: freeze one of your own holders past its ttl, and see whether a guard refuses it."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fencepost.cli import exits
from fencepost.cli.options import Backend, Duration, Json, store
from fencepost.errors import ConfigError

app = typer.Typer(add_completion=False)

NOTHING = 3
"""The exit code of a drill that showed neither."""


@app.command()
def drill(
    name: Annotated[str, typer.Option("--name", help="The lock that the holder holds.", metavar="LOCK")],
    pid: Annotated[int | None, typer.Option(help="The holder: a process of this host.")] = None,
    freeze_command: Annotated[
        str, typer.Option(help="Instead of --pid: what freezes the holder, such as a kubectl exec; needs the next one.")
    ] = "",
    thaw_command: Annotated[str, typer.Option(help="What wakes it.")] = "",
    pod: Annotated[
        str, typer.Option(metavar="NAMESPACE/POD", help="Print the two commands for a process of a pod, and end.")
    ] = "",
    backend: Backend = None,
    audit: Annotated[
        list[Path] | None, typer.Option(help="The audit log of the guard, or of the holders; may be repeated.")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A metrics endpoint of the guard; may be repeated.")
    ] = None,
    wait: Annotated[
        float, Duration(help="How long to wait for the lock to be held, and then for it to pass on.")
    ] = 60.0,
    watch: Annotated[float, Duration(help="How long to watch what the holder does once it is awake.")] = 10.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before freezing.")] = False,
    as_json: Json = False,
) -> None:
    """Freeze a holder of your staging past its ttl, wake it, and print whether a guard refused what it did then.

    A second worker must want the same lock: it takes over while the first one is frozen. Nothing is killed, and the
    holder is woken whatever happens to this command. Exit codes: 0 it was refused; 1 it was NOT refused; 3 nothing was
    seen that would show either.
    """
    import fencepost
    from fencepost_lab import drill as drills

    if pod:
        _print_commands(pod)
        return
    target = drills.checked(drills.Target(pid, freeze_command, thaw_command))
    if not audit and not metrics:
        raise ConfigError("what the guard does is seen in its audit log or its metrics: give --audit or --metrics")
    tails = [drills.Tail(path) for path in audit or []]
    for url in metrics or []:
        drills.scrape(url)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody is there to confirm it; say --yes to freeze without a question")
        typer.confirm(f"freeze {target.text} until its lease on {name!r} is over, for {wait:g} s at most?", abort=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with fencepost.connect(store(backend)) as locks:
        evidence = drills.Drill(locks, name, target, tails, list(metrics or []), wait, watch, say).run()
    if as_json:
        print(json.dumps(evidence.data()))
    else:
        for line in evidence.lines:
            print(line)
        print(f"{evidence.outcome} (frozen for {evidence.frozen:.1f} s)")
    code = {drills.REFUSED: 0, drills.ADMITTED: exits.FAILED}.get(evidence.outcome, NOTHING)
    if code:
        raise typer.Exit(code)


def _print_commands(pod: str) -> None:
    namespace, _, name = pod.rpartition("/")
    where = f"kubectl exec {f'-n {namespace} ' if namespace else ''}{name} --"
    print("The process must not be the first of its container: the kernel does not stop process 1 from inside.")
    print("In the pod, give it shareProcessNamespace: true, or start it under a small init. Then:")
    print(f"  --freeze-command '{where} pkill -STOP -f YOUR-WORKER'")
    print(f"  --thaw-command   '{where} pkill -CONT -f YOUR-WORKER'")
