"""``fencepost migrate``: from one store to another, while the programs run."""

import json
import os
import signal
import time
from typing import Annotated, Any

import typer

from fencepost import check
from fencepost.address import masked, parse
from fencepost.cli.metrics import AUTO, Metrics, serve
from fencepost.cli.options import Duration, Json
from fencepost.cli.text import complain, say
from fencepost.errors import ConfigError


def _url(argument: str, variable: str) -> str:
    """The URL; - stands for a variable, because everybody on the host sees a command's arguments."""
    url = os.environ.get(variable, "") if argument == "-" else argument
    if not url:
        raise ConfigError(f"{argument!r} names no store" + (f": ${variable} is not set" if argument == "-" else ""))
    return url


def migrate(
    old: Annotated[str, typer.Argument(help="The URL of the store that the programs use now; -: $FENCEPOST_URL.")],
    new: Annotated[str, typer.Argument(help="The URL of the store that they will use; -: $FENCEPOST_NEW_URL.")],
    names: Annotated[list[str], typer.Argument(help="The locks; free ones are not listed by any store, so name all.")],
    ttl: Annotated[float, Duration(help="Of the leases on the old store while it is closed.")] = 15.0,
    timeout: Annotated[
        float | None, Duration(help="How long to wait for each lock's holder; default: as long as it takes.")
    ] = None,
    margin: Annotated[
        float, Duration(help="How much later a program that was forgotten on the old store is still refused.")
    ] = 3600.0,
    duration: Annotated[
        float | None, Duration("--for", help="How long to keep the old store closed; default: until Ctrl-C.")
    ] = None,
    metrics: Metrics = AUTO,
    as_json: Json = False,
) -> None:
    """Move locks to another store, so that guards admit its tokens and nobody holds a lock in both.

    Each store counts for itself: after a change of the URL alone, guards may refuse every new holder, because its
    token is smaller than one they have seen. For each lock this waits for its turn in the old store, raises the tokens
    of the new store above those of the old one, and keeps the lock in the old store: programs that still use it wait.
    Start the programs with the new URL meanwhile, end those with the old one, then press Ctrl-C.
    """
    import fencepost
    from fencepost.hooks.page import Page

    old, new = _url(old, "FENCEPOST_URL"), _url(new, "FENCEPOST_NEW_URL")
    if parse(old) == parse(new):
        raise ConfigError("the old and the new store are the same")
    names = [check.name(name) for name in dict.fromkeys(names)]
    page = Page()
    if served := serve(metrics, page.text):
        complain(f"metrics at {served.url}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with fencepost.connect(old, ttl=ttl, hooks=[page]) as before, fencepost.connect(new) as after:
        leases = []
        for name in names:
            lease = before.acquire(name, timeout=timeout)
            leases.append(lease)
            above = lease.token + int(margin * 1e6)  # tokens that follow the clock grow by as much
            after.bump(name, above=above)
            if as_json:
                fact: dict[str, Any] = {"name": name, "old": check.json_number(lease.token)}
                print(json.dumps(fact | {"above": check.json_number(above)}), flush=True)
            else:
                say(f"{name}  closed in {masked(old)} at token {lease.token}; {masked(new)} goes on above {above}")
        if not as_json:
            ending = "press Ctrl-C" if duration is None else f"this ends by itself in {duration:g} s"
            say(f"start the programs with {masked(new)}, end those with {masked(old)}; then {ending}")
        until = None if duration is None else time.monotonic() + duration
        try:
            while until is None or time.monotonic() < until:
                for lease in leases:
                    lease.check()
                time.sleep(0.2 if until is None else max(min(0.2, until - time.monotonic()), 0.0))
        except KeyboardInterrupt:
            pass
        for lease in leases:
            lease.release()
