"""The release that many write first, kept for the experiment that shows why one must not: never use it.

Between its GET and its DEL the lease can expire and the lock be granted to somebody else, whose lock the
DEL then deletes. ``backends/redis/lua/release.lua`` compares and deletes in one step.
"""

from collections.abc import Callable
from typing import Protocol


class Client(Protocol):
    """What it needs of redis-py's blocking client."""

    def get(self, name: str) -> object: ...
    def delete(self, name: str) -> object: ...


def buggy_release(client: Client, key: str, value: bytes, between: Callable[[], None] = lambda: None) -> bool:
    """GET, compare, DEL: three steps. ``between`` is where a pause does the harm."""
    if client.get(key) != value:
        return False
    between()
    client.delete(key)
    return True
