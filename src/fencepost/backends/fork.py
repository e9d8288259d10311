"""What a forked child does with its parent's connections."""

import os
from typing import Any


def sever(raw: Any) -> None:
    """Let go of a parent's socket, or the parent would seem alive for as long as the child is.

    The descriptor itself stays taken, so that a later close closes nothing else, and takes
    nothing from an event loop that both processes share.
    """
    if raw is not None and (descriptor := raw.fileno()) >= 0:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, descriptor)
        os.close(null)
