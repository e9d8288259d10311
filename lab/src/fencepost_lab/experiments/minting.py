"""Ways to mint tokens in Redis, driven by their scripts alone: what is compared is the mint, not the client."""

import secrets
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from fencepost.backends.redis.connection import Dial, pack
from fencepost.backends.redis.pool import Socket
from fencepost.backends.redis.scripts import Layout, scripts
from fencepost.errors import BackendError
from fencepost_lab.servers import HOST

# The script that mints, and the key that it counts in, which need not be those of one and the same fence.
KINDS = {
    "per lock": ("counter", "counter"),
    "per namespace": ("counter", "clock"),
    "hybrid": ("clock", "clock"),
}
"""INCR of a counter for each lock; INCR of one counter; max(last + 1, time in us) in one counter, fencepost's own."""


class Mint:
    """Takes and releases locks whose tokens are minted one of these ways, on one connection."""

    def __init__(self, port: int, kind: str, prefix: str) -> None:
        script, counter = KINDS[kind]
        self.holder = secrets.token_hex(16)
        self._scripts = scripts(script)
        self._layout = Layout(prefix, counter, False)
        teach = tuple(pack(("SCRIPT", "LOAD", each.text)) for each in self._scripts)
        self._socket = Socket(Dial("redis", None, None, 0, None, 5.0, 30.0, teach), (HOST, port))

    def take(self, name: str, ttl: float = 60.0) -> int:
        """Take a free lock; its token."""
        return int(_granted(self._socket.call(self._taking(name, ttl), self._scripts.take.fits)))

    def release(self, name: str, token: int) -> bool:
        lock, queue, _, counter = self._layout.keys(name)[:4]
        own = f"{self.holder}:{token}"
        request = pack(("EVALSHA", self._scripts.release.sha, 3, lock, queue, counter, own))
        return bool(self._socket.call(request, self._scripts.release.fits))

    def fill(self, names: Iterable[str], ttl: float) -> int:
        """Take many free locks, many at a time; how many."""
        count = 0
        for batch in _batches(names, 500):
            requests = [self._taking(name, ttl) for name in batch]
            for reply in self._socket.calls(requests, [self._scripts.take.fits] * len(requests)):
                count += int(_granted(reply)) > 0
        return count

    def close(self) -> None:
        self._socket.raw.close()

    def _taking(self, name: str, ttl: float) -> bytes:
        keys = self._layout.keys(name)[:4]
        return pack(("EVALSHA", self._scripts.take.sha, 4, *keys, self.holder, int(ttl * 1000), -1, "", 60_000))


def _granted(reply: Any) -> bytes:
    if not isinstance(reply, bytes):
        raise BackendError(f"Redis: a free lock was answered with {reply!r}", backend="redis", ambiguous=False)
    return reply


def _batches(names: Iterable[str], size: int) -> Iterator[list[str]]:
    left = iter(names)
    while batch := list(islice(left, size)):
        yield batch
