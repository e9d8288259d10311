"""The connections to an etcd cluster's members, which survive neither silence nor a fork."""

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
        """How often we have hung up."""
        self.closed = False
        self._gate = threading.Lock()
        self._sockets: set[Socket] = set()
        # For locks that nobody closes: none of these is in use by then.
        weakref.finalize(self, _close, self._sockets).atexit = False
        self._pools = [Pool(dial, self._sockets) for dial in self._dials]
        self._links: dict[tuple[int, asyncio.AbstractEventLoop], Link] = {}
        self._all_links: set[Link] = set()
        """Those as well on which the server takes no more calls."""
        self._openings: dict[tuple[int, asyncio.AbstractEventLoop], asyncio.Task[Link]] = {}
        self._keepers: set[asyncio.Task[None]] = set()

    @classmethod
    def to(cls, address: Address) -> "Channels":
        """Those to the members that a URL names; ConfigError if it cannot be meant."""
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
        """What a member answers a request; Failure if it does not within so many seconds."""
        self._check()
        return self._pools[member].call(head, body, timeout)

    def socket(self, member: int) -> Socket:
        """A connection for the caller alone, who gives it to ``drop`` in the end."""
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
        """The same, connected first where there is none; Failure if that takes longer than so many seconds."""
        self._check()
        try:
            async with asyncio.timeout(timeout):
                return await joined(self._connecting(member, timeout))
        except TimeoutError:
            raise cannot_connect("no answer in time") from None
        except ConnectionAbortedError:
            self._check()
            raise cannot_connect("the connection was closed") from None

    def _connecting(self, member: int, timeout: float) -> "asyncio.Task[Link]":
        """The attempt that is under way, not any caller's to cancel: others wait for the same connection."""
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
        """Ask another member from now on, unless somebody turned away from ``member`` already."""
        if member == self.member:
            self.member = (member + 1) % len(self.hosts)

    def hang_up(self, dial: int | None = None) -> None:
        """End every call and stream, unless that was done since ``dial``; the next call connects again."""
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
        """Hang up for good; what is in use ends."""
        self.closed = True
        for pool in self._pools:
            pool.end()
        self.hang_up()

    async def end(self) -> None:
        """The same; returns once the connections of the running event loop are closed."""
        loop = asyncio._get_running_loop()
        mine = [task for task in list(self._keepers) if task.get_loop() is loop]
        openings = [task for (_, its), task in list(self._openings.items()) if its is loop]
        self.close()
        if mine or openings:
            for task in openings:
                task.cancel()
            await asyncio.wait([*mine, *openings])

    def again(self) -> "Channels":
        """Others to the same members, without a connection yet."""
        return Channels(self._dials, self.timeout)  # the files of the URL may be out of reach by now

    def forked(self) -> None:
        """In a forked child: let go of the parent's connections."""
        for socket in list(self._sockets):
            socket.forked()
        for link in list(self._all_links):
            link.forked()


def _close(sockets: set[Socket]) -> None:
    for socket in list(sockets):
        socket.raw.close()
