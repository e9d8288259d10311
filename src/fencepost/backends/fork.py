"""What a forked child does with its parent's connections."""

import os
from typing import Any


def sever(raw: Any) -> None:
    """Let go of a parent's socket, or the parent would seem alive for as long as the child is. Never raises.

    The descriptor itself stays taken, so that a later close closes nothing else, and takes
    nothing from an event loop that both processes share.
    """
    if raw is None or (descriptor := raw.fileno()) < 0:
        return
    try:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            os.dup2(null, descriptor)
        finally:
            os.close(null)
    except OSError:  # no descriptor is free, or there is no /dev/null
        _close(raw)


def _close(raw: Any) -> None:
    """Close the child's descriptor, and nothing else: no shutdown, and no goodbye of TLS, reaches the server."""
    detach = getattr(getattr(raw, "_sock", raw), "detach", None)  # asyncio's and gevent's wrap a socket
    if detach is None:
        return  # uvloop's: it stays open until the child ends
    try:
        os.close(detach())
    except OSError:
        pass  # closed all the same
