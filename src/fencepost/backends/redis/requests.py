"""The requests of every acquire, renewal and release, packed by hand where that is worth a microsecond of each."""

from functools import lru_cache
from math import ceil

from fencepost.backend import Hold
from fencepost.backends.redis.connection import pack
from fencepost.backends.redis.scripts import Keys, Scripts

KEEP = 60_000  # ms that a queue outlives its last live waiter
_TO_KEEP = f"\r\n$5\r\n{KEEP}\r\n"  # as a request ends with it, after the argument before


class Requests:
    """Packs for one way to mint tokens."""

    def __init__(self, scripts: Scripts) -> None:
        self._take = scripts.take.head(4, 5)
        self._release = scripts.release.head(3, 1)
        self._renew = scripts.renew.sha

    def take(self, keys: Keys, holder: str, ttl: float, most: int, entry: str) -> bytes:
        amounts = _amounts(ttl, most)
        if holder.isascii():
            size, length = len(holder), len(entry)
        else:
            size, length = len(holder.encode()), len(entry.encode())
        return f"{self._take}{keys.to_take}${size}\r\n{holder}\r\n{amounts}${length}\r\n{entry}{_TO_KEEP}".encode()

    def release(self, keys: Keys, own: str) -> bytes:
        size = len(own) if own.isascii() else len(own.encode())
        return f"{self._release}{keys.to_release}${size}\r\n{own}\r\n".encode()

    def renew(self, keys: Keys, hold: Hold) -> bytes:
        return pack(("EVALSHA", self._renew, 1, keys.lock, f"{hold.holder}:{hold.token}", ceil(hold.ttl * 1000)))


@lru_cache(64)
def _amounts(ttl: float, most: int) -> str:
    """The ttl in ms and the most that may wait: the same for nearly all who ask."""
    ms = ceil(ttl * 1000)
    return f"${len(str(ms))}\r\n{ms}\r\n${len(str(most))}\r\n{most}\r\n"
