"""Scripts run where their keys live, and once more where a server says that it did not."""

from collections.abc import Sequence
from typing import Any

from hiredis import ReplyError

from fencepost.backends.redis.connection import LATER, Dial, pack, refusal
from fencepost.backends.redis.pool import Pool
from fencepost.backends.redis.scripts import Script
from fencepost.backends.redis.stream import Stream
from fencepost.backends.redis.topology import Single
from fencepost.driver import Driver
from fencepost.errors import BackendError


class Calls:
    """Requests to the servers behind one URL."""

    def __init__(self, driver: Driver, dial: Dial, nodes: Single) -> None:
        self._driver = driver
        self._dial = dial
        self.nodes = nodes

    async def wire(self, key: str) -> Pool | Stream:
        """A connection to the server that has ``key``."""
        return await (await self.nodes.at(key)).ready()

    async def run(self, script: Script, keys: Sequence[str], *args: Any, wire: Pool | Stream | None = None) -> Any:
        """A script's answer, over ``wire`` if that is to be the first to be asked; BackendError if it has none."""
        request = pack(("EVALSHA", script.sha, len(keys), *keys, *args))
        reply = await (wire or await self.wire(keys[0])).call(request)
        return await self.again(reply, script, keys, args) if reply.__class__ is ReplyError else reply

    async def again(self, reply: Any, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Ask again, with the script's text, where the server says that it did not execute the request."""
        request = pack(("EVAL", script.text, len(keys), *keys, *args))
        until = self._driver.now() + self._dial.timeout
        while reply.__class__ is ReplyError:
            text, once = str(reply), False
            if text.startswith(("MOVED", "ASK", "CROSSSLOT")):
                node, once = self.nodes.moved(text)
            else:
                if text.startswith(LATER) and self._driver.now() < until:
                    self.nodes.forget()
                    await self._driver.sleep(0.1)
                elif not text.startswith("NOSCRIPT"):
                    raise refusal(reply, self._dial.scheme)
                node = await self.nodes.at(keys[0])
            wire = await node.ready()
            reply = (await wire.calls([pack(("ASKING",)), request] if once else [request]))[-1]
        return reply

    async def confirm(self, key: str, request: bytes, replicas: int) -> None:
        """Return once so many replicas have what ``request`` wrote; BackendError if not in time."""
        ms = int(self._dial.timeout * 500)
        done, have = await (await self.wire(key)).calls([request, pack(("WAIT", replicas, ms))])
        if done != 1 or not isinstance(have, int) or have < replicas:
            raise BackendError(
                f"the grant reached {have} of {replicas} replicas within {ms} ms; look at the replicas, or lower "
                f"wait_replicas",
                backend=self._dial.scheme,
                ambiguous=True,
            )
