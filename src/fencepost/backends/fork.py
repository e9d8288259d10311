"""What a forked child does with its parent's connections."""

import os
from typing import Any


def sever(raw: Any) -> None:
    """Drop the child's copy of a parent's socket. Never raises.

    Otherwise the server would believe the parent alive for as long as the child lives. The descriptor's number stays in
    use: a later close of it closes no other file, and removes nothing from an event loop that both processes share.
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
    """Close only the child's descriptor: send the server neither a shutdown nor a TLS close_notify."""
    detach = getattr(getattr(raw, "_sock", raw), "detach", None)  # asyncio's and gevent's wrap a socket
    if detach is None:
        return  # uvloop's: it stays open until the child ends
    try:
        os.close(detach())
    except OSError:
        pass  # the descriptor is closed even then
