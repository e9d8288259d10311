"""The locks of a Redis as every client sees them, and breaking them by force."""

from collections.abc import Sequence
from math import inf
from typing import Any

from hiredis import ReplyError

from fencepost.backend import Status
from fencepost.backends.redis.answers import scanned
from fencepost.backends.redis.calls import Calls
from fencepost.backends.redis.connection import pack, refusal
from fencepost.backends.redis.nodes import Transport
from fencepost.backends.redis.scripts import Layout, Scripts, owner, remains

_AT_ONCE = 100  # locks that one round trip asks for


class View:
    """The requests of operators."""

    def __init__(self, calls: Calls, layout: Layout, scripts: Scripts, scheme: str) -> None:
        self._calls = calls
        self._layout = layout
        self._scripts = scripts
        self._scheme = scheme

    async def one(self, name: str) -> Status | None:
        """A lock, if it is held."""
        keys = self._layout.keys(name)
        return _seen(name, await self._calls.run(self._scripts.status, (keys.lock, keys.queue)))

    async def all(self, prefix: str) -> list[Status]:
        """The held locks whose names begin with ``prefix``, by name."""
        found: dict[str, Status | None] = {}
        for node in await self._calls.nodes.all():
            transport = await node.ready()
            names = sorted(set(await held(transport, self._layout, prefix, self._scheme)))
            for first in range(0, len(names), _AT_ONCE):
                some = names[first : first + _AT_ONCE]
                found |= zip(some, await self._several(some, transport), strict=True)
        # Without a prefix, a key with a value of another form may be anything, not only a lock.
        return [each for _, each in sorted(found.items()) if each and (each.token or self._layout.prefix)]

    async def _several(self, names: Sequence[str], transport: Transport) -> list[Status | None]:
        """Locks of one server, asked for in one round trip."""
        script = self._scripts.status
        asked = [(keys.lock, keys.queue) for keys in map(self._layout.keys, names)]
        requests = [pack(("EVALSHA", script.sha, len(keys), *keys)) for keys in asked]
        replies = await transport.calls(requests, [script.fits] * len(requests))
        return [
            _seen(name, await self._calls.again(reply, script, keys, ()) if reply.__class__ is ReplyError else reply)
            for name, keys, reply in zip(names, asked, replies, strict=True)
        ]

    async def break_lock(self, name: str) -> Status | None:
        """Take the lock from its holder and hand it over; return the hold that this ended."""
        keys = self._layout.keys(name)
        return _seen(name, await self._calls.run(self._scripts.break_lock, (keys.lock, keys.queue, keys.counter)))


def _seen(name: str, reply: Any) -> Status | None:
    if reply is None:
        return None
    value, left, entries, *shares = reply
    # Skip queue entries and shares that fencepost did not write, as the scripts do.
    queued = (entry.decode("utf-8", "replace").split(":", 2) for entry in entries)
    waiters = tuple(parts[2] for parts in queued if len(parts) == 3)
    if shares:
        told = (owner(own.decode("utf-8", "replace")) for own in shares[0])
        owners = sorted((own for own in told if own[1]), key=lambda own: own[1])
        if not owners:
            return None
        sharers = tuple(holder for holder, _ in owners)
        return Status(name, sharers[0], owners[-1][1], remains(left), waiters, sharers)
    holder, token = owner(value.decode("utf-8", "replace"))
    lives = inf if left < 0 else remains(left) if token else left / 1000
    return Status(name, holder, token, lives, waiters)


async def held(transport: Transport, layout: Layout, prefix: str, scheme: str) -> list[str]:
    """The names of the locks under ``prefix`` that are held at this server."""
    pattern = "".join(f"\\{each}" if each in "*?[]\\^-" else each for each in layout.prefix + prefix) + "*"
    names: list[str] = []
    cursor = b"0"
    while True:
        reply = await transport.call(pack(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "string")), scanned)
        if reply.__class__ is ReplyError:
            raise refusal(reply, scheme)
        cursor, keys = reply
        names += [name for key in keys if (name := layout.name(key)) is not None]
        if cursor == b"0":
            return names
