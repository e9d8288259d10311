"""Text for a terminal: what comes from a store may hold escape sequences, and is shown, never obeyed."""

import os
import sys
from dataclasses import asdict
from math import isinf
from typing import Any

from fencepost import check
from fencepost.backend import Status


def escaped(text: str) -> str:
    """The text with everything that a terminal would not print as one character written as an escape."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def say(line: str) -> None:
    """Print one line, at once."""
    print(escaped(line), flush=True)


def complain(what: str = "") -> None:
    """Print this on stderr, at once, after what waits there. What cannot be written is dropped, and the caller goes on.

    Left for the end of the process, it would change the exit code.
    """
    if sys.stderr is None:  # closed when we began; print would write to stdout instead
        return
    try:
        for line in f"fencepost: {what}".split("\n") if what else ():  # a database's message may have several
            print(escaped(line), file=sys.stderr)
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


def as_fact(status: Status) -> dict[str, Any]:
    """A status as JSON has it: tokens beyond 2^53 as text, a time without end as null."""
    remaining = None if isinf(status.remaining) else round(status.remaining, 3)
    return asdict(status) | {"token": check.json_number(status.token), "remaining": remaining}


def as_line(status: Status) -> str:
    """A status in one line."""
    waiting = f", {len(status.waiters)} waiting" if status.waiters else ""
    held = f"shared by {len(status.sharers)}" if status.sharers else f"holder {status.holder}"
    left = "no expiry" if isinf(status.remaining) else f"{status.remaining:.1f} s left"
    return f"{status.name}  token {status.token}, {held}, {left}{waiting}"
