"""Text for a terminal: escape sequences that come from a store are shown as text, so that they have no effect."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import isinf
from typing import Any
from unicodedata import combining, east_asian_width

from fencepost import check
from fencepost.backend import Status
from fencepost.errors import FencepostError, NotAcquired, QueueFull


def escaped(text: str) -> str:
    """The text with everything that a terminal would not print as one character written as an escape."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def say(line: str) -> None:
    """Print one line, at once."""
    print(escaped(line), flush=True)


def complain(what: str = "") -> None:
    """Print this on stderr, and flush it with what is still buffered. What cannot be written is dropped.

    If it stayed in the buffer until the end of the process, it would change the exit code.
    """
    if sys.stderr is None:  # it was closed when we started; print would write to stdout instead
        return
    try:
        for line in f"fencepost: {what}".split("\n") if what else ():  # a database's message may have several
            print(escaped(line), file=sys.stderr)
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process


def in_words(error: FencepostError) -> str:
    """What an error says, in the words of the command line instead of those of Python."""
    if isinstance(error, QueueFull):
        return f"lock {error.name!r} has {error.limit} waiters already, the most its queue takes; come back later"
    return str(error).replace("(timeout=)", "(--timeout)") if isinstance(error, NotAcquired) else str(error)


def as_fact(status: Status) -> dict[str, Any]:
    """A status as JSON has it: tokens beyond 2^53 as text, a time without end as null."""
    remaining = None if isinf(status.remaining) else round(status.remaining, 3)
    return asdict(status) | {"token": check.json_number(status.token), "remaining": remaining}


def as_line(status: Status) -> str:
    """A status in one line."""
    waiting = f", {len(status.waiters)} waiting" if status.waiters else ""
    held = f"shared by {len(status.sharers)}" if status.sharers else f"holder {named(status, status.holder)}"
    return f"{status.name}  token {status.token}, {held}, {left(status)}{waiting}"


def left(status: Status) -> str:
    """How much time is left."""
    return "no expiry" if isinf(status.remaining) else f"{status.remaining:.1f} s left"


def named(status: Status, holder: str) -> str:
    """A holder, sharer or waiter: the label of its process, and its id."""
    label = status.labels.get(holder)
    return f"{label} ({holder})" if label else holder


def told(status: Status) -> str:
    """Who holds a lock, in brief: the label of the process, or else the holder's id."""
    if status.sharers:
        labels = {status.labels.get(each, each) for each in status.sharers}
        return f"shared by {len(status.sharers)}" + (f": {labels.pop()}" if len(labels) == 1 else "")
    return status.labels.get(status.holder, status.holder)


def listing(held: Sequence[Status]) -> list[str]:
    """The table of held locks, its head first; nothing if there are none."""
    rows = [("NAME", "TOKEN", "LEFT", "WAITING", "HOLDER")]
    for status in held:
        left = "-" if isinf(status.remaining) else f"{status.remaining:.1f} s"
        rows.append((status.name, str(status.token), left, str(len(status.waiters)), told(status)))
    return table(rows, right=(1, 2, 3)) if held else []


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows as lines with aligned columns; the columns in ``right`` are right-aligned."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        spaces = [" " * (most - width(cell)) for cell, most in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, spaces, strict=True))
        return "  ".join(space + cell if at in right else cell + space for at, (cell, space) in pairs).rstrip()

    return [line(row) for row in cells]


def width(text: str) -> int:
    """How many columns of a terminal a text takes: two for the wide letters of East Asia, none for what combines."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)
