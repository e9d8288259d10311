"""The connections to the members of an etcd cluster. They are closed if a member stays silent, and after a fork."""

import asyncio
import threading
import weakref
from collections.abc import Sequence
from time import monotonic

from fencepost.address import TLS, Address, seconds, secure, tls_context
from fencepost.backends.etcd.dial import Dial
from fencepost.backends.etcd.link import Link
from fencepost.backends.etcd.pool import Pool, Socket
from fencepost.backends.etcd.status import cannot_connect
from fencepost.driver.tasks import joined, shared
from fencepost.errors import BackendError, ConfigError


class Channels:
    """The connections to each member, opened on first use; calls go to ``member``, an index of ``hosts``.

    Blocking code has a pool of sockets for each member, asyncio code one connection for each member and event loop.
    """

    def __init__(self, dials: Sequence[Dial], timeout: float) -> None:
        self.timeout = timeout
        self.secure = dials[0].tls is not None
        self._dials = dials
        self.hosts = [dial.authority for dial in self._dials]
        self.member = 0
        self.dial = 0
        """How often ``hang_up`` has closed all connections."""
        self.closed = False
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._sockets: set[Socket] = set()
        # For locks that the caller never closes: when they are collected, none of these sockets is in use.
        weakref.finalize(self, _close, self._sockets).atexit = False
        self._pools = [Pool(dial, self._sockets) for dial in self._dials]
        self._links: dict[tuple[int, asyncio.AbstractEventLoop], Link] = {}
        self._all_links: set[Link] = set()
        """Also the connections on which the server accepts no more calls."""
        self._openings: dict[tuple[int, asyncio.AbstractEventLoop], asyncio.Task[Link]] = {}
        self._keepers: set[asyncio.Task[None]] = set()

    @classmethod
    def to(cls, address: Address) -> "Channels":
        """The connections to the members that a URL names; ConfigError if the URL is invalid."""
        options = address.options(**TLS, timeout=seconds)
        if not address.hosts or not all(host for host, _ in address.hosts) or address.path.strip("/"):
            raise ConfigError("an etcd URL is etcd://host:2379, or etcd://host1,host2,host3:2379; it has no path")
        tls = None
        if secure(options):
            tls = tls_context(address.scheme, options)
            tls.set_alpn_protocols(["h2"])
        return cls([Dial(host, port or 2379, tls) for host, port in address.hosts], options.get("timeout", 5.0))

    # Blocking

    def call(self, member: int, head: bytes, body: bytes, timeout: float) -> bytes:
        """A member's answer to a request; Failure if it does not answer within ``timeout`` seconds."""
        self._check()
        return self._pools[member].call(head, body, timeout)

    def socket(self, member: int) -> Socket:
        """A connection for this caller alone; the caller must pass it to ``drop`` in the end."""
        self._check()
        made = Socket(self._dials[member], monotonic() + self.timeout)
        self._sockets.add(made)
        if self.closed:
            self.drop(made)
            self._check()
        return made

    def drop(self, socket: Socket) -> None:
        self._sockets.discard(socket)
        socket.raw.close()

    def _check(self) -> None:
        if self.closed:
            raise BackendError("these locks are closed; connect again", backend="etcd", ambiguous=False)

    # asyncio

    def at_hand(self, member: int) -> Link | None:
        """The connection of the running event loop, if it can be used right now."""
        link = self._links.get((member, asyncio.get_running_loop()))
        return link if link is not None and link.usable else None

    async def ready(self, member: int, timeout: float) -> Link:
        """The connection of the running event loop, opened if need be; Failure if that takes more than ``timeout``."""
        self._check()
        try:
            async with asyncio.timeout(timeout):
                return await joined(self._connecting(member, timeout))
        except TimeoutError as error:
            raise cannot_connect(error) from None
        except ConnectionAbortedError:
            self._check()
            raise cannot_connect("the connection was closed") from None

    def _connecting(self, member: int, timeout: float) -> "asyncio.Task[Link]":
        """The attempt to connect that is under way. Callers must not cancel it: others wait for the same connection."""
        key = member, asyncio.get_running_loop()
        opening = self._openings.get(key)
        if opening is None or opening.done():
            opening = self._openings[key] = shared(self._open(member, timeout), "fencepost-etcd-connect")
        return opening

    async def _open(self, member: int, timeout: float) -> Link:
        loop = asyncio.get_running_loop()
        try:
            link = await Link.connect(self._dials[member], timeout, lambda lost: self._dropped(member, lost))
            if self.closed:
                link.close()
                await link.gone()
                self._check()
            for key in [each for each in self._links if each[1].is_closed()]:
                del self._links[key]
            self._all_links = {each for each in self._all_links if not each.loop.is_closed()} | {link}
            self._links[member, loop] = link
            keeper = loop.create_task(link.keep(), name="fencepost-etcd-connection")
            self._keepers.add(keeper)
            keeper.add_done_callback(self._keepers.discard)
            return link
        finally:
            self._openings.pop((member, loop), None)

    def _dropped(self, member: int, link: Link) -> None:
        self._all_links.discard(link)
        if self._links.get((member, link.loop)) is link:
            del self._links[member, link.loop]

    # Both

    def turn(self, member: int) -> None:
        """Ask another member from now on, unless another thread or task has turned away from ``member`` already."""
        if member == self.member:
            self.member = (member + 1) % len(self.hosts)

    def hang_up(self, dial: int | None = None) -> None:
        """End every call and stream; the next call connects again. Do nothing if this was done since ``dial``."""
        with self._gate:
            if dial not in (None, self.dial):
                return
            self.dial += 1
        for pool in self._pools:
            pool.close()
        for socket in list(self._sockets):
            socket.shut()
        for link in list(self._all_links):
            link.close()

    def close(self) -> None:
        """Close all connections for good; calls that are in flight fail."""
        self.closed = True
        for pool in self._pools:
            pool.end()
        self.hang_up()

    async def end(self) -> None:
        """Close, and return once the connections of the running event loop are closed."""
        loop = asyncio._get_running_loop()
        mine = [task for task in list(self._keepers) if task.get_loop() is loop]
        openings = [task for (_, its), task in list(self._openings.items()) if its is loop]
        self.close()
        if mine or openings:
            for task in openings:
                task.cancel()
            await asyncio.wait([*mine, *openings])

    def again(self) -> "Channels":
        """New channels to the same members, without a connection yet."""
        return Channels(self._dials, self.timeout)  # not from the URL: its TLS files may be unreadable by now

    def forked(self) -> None:
        """In a forked child: drop the parent's connections."""
        for socket in list(self._sockets):
            socket.forked()
        for link in list(self._all_links):
            link.forked()


def _close(sockets: set[Socket]) -> None:
    for socket in list(sockets):
        socket.raw.close()
