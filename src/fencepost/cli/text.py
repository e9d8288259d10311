"""Text for a terminal: what comes from a store may hold escape sequences, and is shown, never obeyed."""

import os
import sys


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
