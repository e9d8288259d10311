"""Runs scripts on the servers of their keys, and again if a server answers that it did not run them."""

from collections.abc import Sequence
from typing import Any

from hiredis import ReplyError

from fencepost.backends.redis import answers
from fencepost.backends.redis.connection import ELSEWHERE, LATER, Dial, cause, pack, refusal
from fencepost.backends.redis.nodes import Node, Transport
from fencepost.backends.redis.scripts import Script
from fencepost.backends.redis.topology import Single
from fencepost.driver import Driver
from fencepost.errors import BackendError

_REDIRECTIONS = 5  # after this many in a row, assume that the servers do not agree yet, and pause


class Calls:
    """Requests to the servers behind one URL."""

    def __init__(self, driver: Driver, dial: Dial, nodes: Single) -> None:
        self._driver = driver
        self._dial = dial
        self.nodes = nodes

    async def transport(self, key: str) -> Transport:
        """A connection to the server that has ``key``."""
        return await (await self.nodes.at(key)).ready()

    async def run(self, script: Script, keys: Sequence[str], *args: Any, transport: Transport | None = None) -> Any:
        """A script's answer, asked for over ``transport`` first, if given; BackendError if there is no answer."""
        request = pack(("EVALSHA", script.sha, len(keys), *keys, *args))
        reply = await (transport or await self.transport(keys[0])).call(request, script.fits)
        return await self.again(reply, script, keys, args) if reply.__class__ is ReplyError else reply

    async def again(self, reply: Any, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Ask again, with the script's text, if the server answers that it did not execute the request."""
        request = pack(("EVAL", script.text, len(keys), *keys, *args))
        until = self._driver.now() + self._dial.timeout
        node: Node | None = None
        redirections = 0
        while reply.__class__ is ReplyError:
            # Only the first request can be answered with NOSCRIPT: later ones contain the script's text.
            unknown = node is None and str(reply).startswith("NOSCRIPT")
            text, once = cause(reply), False
            away = text.startswith(ELSEWHERE)
            if (away and redirections < _REDIRECTIONS) or text.startswith("CROSSSLOT"):
                redirections += 1
                node, once = self.nodes.moved(text, node)
            else:
                if (away or text.startswith(LATER)) and self._driver.now() < until:
                    if not text.startswith("BUSY"):  # a server that is busy with a long script is the right one
                        self.nodes.forget()
                    await self._driver.sleep(0.1)
                    redirections = 0
                elif not unknown:
                    raise refusal(reply, self._dial.scheme)
                node = await self.nodes.at(keys[0])
            transport = await node.ready()
            if once:
                asked, reply = await transport.calls([pack(("ASKING",)), request], [answers.ok, script.fits])
                if asked.__class__ is ReplyError and reply.__class__ is ReplyError:
                    raise refusal(asked, self._dial.scheme)  # otherwise the two servers would redirect us forever
            else:
                reply = await transport.call(request, script.fits)
        return reply

    async def confirm(self, key: str, script: Script, args: Sequence[Any], replicas: int) -> None:
        """Return once ``replicas`` replicas have what a script wrote; BackendError if that takes too long.

        BackendError also if the script does not answer 1.
        """
        ms = int(self._dial.timeout * 500)
        requests = [pack(("EVALSHA", script.sha, 1, key, *args)), pack(("WAIT", replicas, ms))]
        fits = [script.fits, answers.number]
        done, have = await (await self.transport(key)).calls(requests, fits)
        if done.__class__ is ReplyError:
            # The server forgot the script, or does not have this key. The retry may use another connection, and WAIT
            # only covers writes of its own connection. So run both once more.
            await self.again(done, script, (key,), args)
            done, have = await (await self.transport(key)).calls(requests, fits)
        if done.__class__ is ReplyError:
            raise refusal(done, self._dial.scheme)
        why = ""
        if done != 1:
            why = "the grant was gone before the replicas had it"
        elif have.__class__ is ReplyError or have < replicas:
            why = f"the grant reached {have} of {replicas} replicas within {ms} ms"
        if why:
            raise BackendError(
                f"{why}; look at the replicas, or lower wait_replicas", backend=self._dial.scheme, ambiguous=True
            )
