"""Which locks a server has."""

from hiredis import ReplyError

from fencepost.backends.redis.connection import pack, refusal
from fencepost.backends.redis.pool import Pool
from fencepost.backends.redis.scripts import Layout
from fencepost.backends.redis.stream import Stream


async def held(wire: Pool | Stream, layout: Layout, prefix: str, scheme: str) -> list[str]:
    """The names of the locks under ``prefix`` that somebody holds at this server."""
    pattern = "".join(f"\\{each}" if each in "*?[]\\^-" else each for each in layout.prefix + prefix) + "*"
    names: list[str] = []
    cursor = b"0"
    while True:
        reply = await wire.call(pack(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "string")))
        if reply.__class__ is ReplyError:
            raise refusal(reply, scheme)
        cursor, keys = reply
        names += [name for key in keys if (name := layout.name(key)) is not None]
        if cursor == b"0":
            return names
