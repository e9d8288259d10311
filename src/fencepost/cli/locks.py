"""``fencepost ls``, ``show``, ``watch``, ``break`` and ``bump``: the locks of a store."""

import json
import time
from typing import Annotated

import typer

from fencepost import check
from fencepost.backend import Status
from fencepost.cli import exits
from fencepost.cli.options import Backend, Duration, Json, Name, Prefix, store
from fencepost.cli.text import as_fact, as_line, listing, named, say


def ls(
    prefix: Prefix = "",
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """List the locks that are held right now: name, token, seconds left, how many wait, and who holds.

    The holder is what its process tells of itself: command, pid, user and host. See also show, watch and top.
    """
    import fencepost

    with fencepost.connect(store(backend)) as locks:
        held = locks.list(prefix)
    if as_json:
        print(json.dumps([as_fact(status) for status in held], indent=2))
    else:
        for line in listing(held):
            say(line)


def show(
    name: Name,
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Show a lock: holder or sharers, token, ttl left, and its waiters in order. JSON null means that it is free."""
    import fencepost

    with fencepost.connect(store(backend)) as locks:
        status = locks.status(name)
    if as_json:
        print(json.dumps(status and as_fact(status), indent=2))
    elif status is None:
        say(f"{name}  free")
    else:
        say(as_line(status))
        for sharer in status.sharers:
            say(f"  shared by {named(status, sharer)}")
        for place, waiter in enumerate(status.waiters, 1):
            say(f"  {place}. {named(status, waiter)}")


def watch(
    prefix: Prefix = "",
    backend: Backend = None,
    every: Annotated[float, Duration(help="How often to look; what comes and goes in between is not seen.")] = 0.5,
    duration: Annotated[float | None, Duration("--for", help="How long to watch; default: until Ctrl-C.")] = None,
    as_json: Json = False,
) -> None:
    """Print a line whenever a lock is taken, handed on or freed, or its waiters change."""
    import fencepost

    def report(name: str, status: Status | None) -> None:
        if as_json:
            print(json.dumps({"at": time.time(), "name": name, "status": status and as_fact(status)}), flush=True)
        else:
            say(f"{time.strftime('%H:%M:%S')} {as_line(status) if status else f'{name}  free'}")

    if every <= 0:
        raise typer.BadParameter("--every must be greater than 0: it is the pause between two looks")
    until = None if duration is None else time.monotonic() + duration
    known: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {}
    with fencepost.connect(store(backend)) as locks:
        while True:
            held = {status.name: status for status in locks.list(prefix)}
            for name in sorted(known.keys() | held.keys()):
                status = held.get(name)
                seen = status and (status.token, status.sharers, status.waiters)
                if seen != known.get(name):
                    report(name, status)
            known = {name: (status.token, status.sharers, status.waiters) for name, status in held.items()}
            left = every if until is None else min(every, until - time.monotonic())
            if left <= 0:
                return
            time.sleep(left)


def break_lock(
    name: Name,
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Take a lock from its holder by force, and hand it to the next waiter; exit code 1 if nobody held it.

    The holder learns of it when it next renews. Until then only a guard keeps it from writing.
    """
    import fencepost

    with fencepost.connect(store(backend)) as locks:
        ended = locks.break_lock(name)
    if as_json:
        print(json.dumps(ended and as_fact(ended), indent=2))
    else:
        say(f"ended: {as_line(ended)}" if ended else f"{name}  free: nobody to take it from")
    if ended is None:
        raise typer.Exit(exits.FAILED)


def bump(
    name: Name,
    above: Annotated[int, typer.Option(help="The token seen, such as a stale verdict names it.")],
    force: Annotated[bool, typer.Option("--force", help="Also past what any issuer can have come to by now.")] = False,
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Make every later token of a lock larger than one that was seen.

    For a store that was restored from a backup, or lost its data: its guards refuse the smaller
    tokens it now gives out, and name the one they have seen.
    """
    import fencepost

    with fencepost.connect(store(backend)) as locks:
        locks.bump(name, above=above, force=force)
    if as_json:
        print(json.dumps({"name": name, "above": check.json_number(above)}))
    else:
        say(f"{name}  the next token is larger than {above}")
