"""Held locks in one Redis, exactly as the backend keeps them: prefix + name -> holder:token, with PX."""

from collections import deque
from collections.abc import Iterable, Iterator
from importlib.resources import files
from math import ceil
from typing import Any, NoReturn

from hiredis import ReplyError

from fencepost.address import Address
from fencepost.backends.redis.address import dial, options
from fencepost.backends.redis.connection import pack, refusal
from fencepost.backends.redis.pool import Socket
from fencepost.backends.redis.scripts import MARK, Layout, build
from fencepost_lab.gen.ground import Facts, Laid
from fencepost_lab.gen.keys import Batch

_UNDER_WAY = 4  # batches: enough that the server never waits for us
_FACTS = ("used_memory", "used_memory_rss", "expired_keys", "mem_fragmentation_bytes")

_LAY = (files("fencepost_lab.gen") / "lay.lua").read_text("utf-8")


class RedisGround:
    """One connection: the server carries batches out in order, so what was laid is always a beginning of the list."""

    size = "used_memory"

    def __init__(self, address: Address) -> None:
        found = options(address)
        self._layout = Layout(found.prefix, found.fence, False)
        self._db = found.db
        self._own = found.fence == "counter"
        self._script = build("lay", {"mint": f"mint_{found.fence}"}, _LAY)
        self._dial = dial(address, found, [self._script])
        self._endpoint = found.endpoints[0]
        self._socket = Socket(self._dial, self._endpoint)

    def progress(self, seed: int) -> int:
        return int(self._call("GET", self._progress(seed)) or 0)

    def lay(self, batches: Iterable[Batch], seed: int, ttl: float) -> Iterator[Laid]:
        under_way: deque[int] = deque()
        for batch in batches:
            self._post(self._request(batch, seed, ttl))
            under_way.append(len(batch.names))
            if len(under_way) >= _UNDER_WAY:
                yield Laid(under_way.popleft(), self._read())
        while under_way:
            yield Laid(under_way.popleft(), self._read())

    def facts(self) -> Facts:
        text = self._call("INFO", "everything")
        text = text if isinstance(text, bytes) else str(text).encode()
        said = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        space = dict(part.split("=") for part in said.get(f"db{self._db}", "keys=0,expires=0").split(","))
        counts = {"keys": int(space["keys"]), "expiring": int(space["expires"])}
        return counts | {name: int(said[name]) for name in _FACTS if name in said}

    def close(self) -> None:
        self._socket.raw.close()

    def _progress(self, seed: int) -> str:
        # It expires with the last lock that it counts: there is nothing to go on with after that.
        return f"{self._layout.prefix}{MARK}gen:{seed}"

    def _request(self, batch: Batch, seed: int, ttl: float) -> bytes:
        if self._own:
            keys = [self._layout.keys(name) for name in batch.names]
            locks, counters = [each.lock for each in keys], [each.counter for each in keys]
        else:
            locks = [self._layout.prefix + name for name in batch.names]
            counters = [self._layout.keys("").counter]
        return pack(
            (
                *("EVALSHA", self._script.sha, 1 + len(locks) + len(counters)),
                *(self._progress(seed), *locks, *counters),
                *(ceil(ttl * 1000), batch.end, *batch.holders),
            )
        )

    def _call(self, *command: str) -> Any:
        self._post(pack(command))
        return self._read()

    def _post(self, request: bytes) -> None:
        try:
            self._socket.post(request)
        except OSError as error:
            self._fail(error)

    def _read(self) -> Any:
        try:
            reply = self._socket.read()
        except OSError as error:
            self._fail(error)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._dial.scheme)
        return reply

    def _fail(self, error: OSError) -> NoReturn:
        why = "no answer in time" if isinstance(error, (BlockingIOError, TimeoutError)) else error
        self._dial.fail(self._endpoint, why, ambiguous=True)
