"""A lock's status, told to people and to programs."""

from dataclasses import asdict
from math import isinf
from typing import Any

from fencepost.backend import Status


def fact(status: Status) -> dict[str, Any]:
    """A status as JSON has it: a token beyond what a double holds exactly goes as text, a time without end as null."""
    facts = asdict(status)
    if status.token >= 2**53:
        facts["token"] = str(status.token)
    return facts | {"remaining": None if isinf(status.remaining) else round(status.remaining, 3)}


def line(status: Status) -> str:
    """A status in one line."""
    waiting = f", {len(status.waiters)} waiting" if status.waiters else ""
    held = f"shared by {len(status.sharers)}" if status.sharers else f"holder {status.holder}"
    left = "no expiry" if isinf(status.remaining) else f"{status.remaining:.1f} s left"
    return f"{status.name}  token {status.token}, {held}, {left}{waiting}"
