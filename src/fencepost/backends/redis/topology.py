"""The servers behind a URL: a single one, the master that Sentinel names, or the masters of a cluster."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from hiredis import ReplyError

from fencepost.address import is_host
from fencepost.backends.redis import answers
from fencepost.backends.redis.answers import Fits
from fencepost.backends.redis.connection import Dial, Endpoint, Locate, pack, refusal, spell
from fencepost.backends.redis.nodes import Hear, Lost, Node, ThreadNode
from fencepost.backends.redis.pool import Socket
from fencepost.backends.redis.scripts import SLOTS, slot
from fencepost.driver import Driver
from fencepost.errors import BackendError, ConfigError

_REDIRECTED = re.compile(r"(MOVED|ASK) ([0-9]{1,5}) (.*):([0-9]{1,5})")
_FORGET = 0.5  # for this many seconds after looking for servers, failures do not cause another search


Remap = Callable[[tuple[str, int]], tuple[str, int]]
"""Translates an address that the cluster or Sentinel names into one that this client can reach."""


async def ask(driver: Driver, dial: Dial, endpoint: Endpoint, request: bytes, fits: Fits) -> Any:
    """Send a request over a new connection, and close that."""
    if not driver.blocking:
        from fencepost.backends.redis.stream import Stream

        stream = await Stream.connect(dial, endpoint, lambda push: None, lambda stream: None)
        try:
            return await stream.call(request, fits)
        finally:
            stream.close()
            await stream.gone()
    connection = Socket(dial, endpoint)
    try:
        return connection.call(request, fits)
    except OSError as error:
        raise dial.error(endpoint, error, ambiguous=False) from error
    finally:
        connection.raw.close()


def kind(driver: Driver) -> type[Node]:
    """The class of nodes, for threads or for asyncio. A blocking program does not load the latter."""
    if driver.blocking:
        return ThreadNode
    from fencepost.backends.redis.task_node import TaskNode

    return TaskNode


class Single:
    """The one server that ``locate`` finds."""

    def __init__(self, driver: Driver, dial: Dial, locate: Locate, channel: str, hear: Hear, lost: Lost) -> None:
        node = kind(driver)(dial, locate, channel, hear, lost)
        self._driver = driver
        self._forgotten = -inf
        self.only: Node | None = node
        self._node = node

    @property
    def nodes(self) -> list[Node]:
        """Every server to which requests may have been sent."""
        return [self._node]

    async def at(self, key: str) -> Node:
        """The server that has ``key``."""
        return self._node

    def home(self, key: str) -> Node | None:
        """In a cluster, the server that has ``key``, as far as that is known; otherwise None."""
        return None

    async def all(self) -> list[Node]:
        """Every server that has locks."""
        return self.nodes

    def moved(self, text: str, node: Node | None) -> tuple[Node, bool]:
        """The target of a redirection by ``node``, and whether it counts for this request only.

        Raises ConfigError if this is not a cluster.
        """
        raise ConfigError(
            "this Redis is a node of a cluster; connect to it with redis+cluster:// (or rediss+cluster://)"
        )

    def forget(self) -> None:
        """Look for the servers again, because a key is no longer where it was."""
        now = self._driver.now()
        if now - self._forgotten > _FORGET:  # a request sent before the last search says nothing about its result
            self._forgotten = now
            self._node.close()
            self._node.lost(self._node)


class Masters(Single):
    """The masters of a cluster, found by asking any of the nodes."""

    def __init__(
        self,
        driver: Driver,
        dial: Dial,
        seeds: Sequence[Endpoint],
        channel: str,
        hear: Hear,
        lost: Lost,
        remap: Remap | None = None,
    ) -> None:
        self.only = None
        self._remap = remap
        self._driver = driver
        self._dial = dial
        self._seeds = tuple(seeds)
        self._channel = channel
        self._hear, self._lost = hear, lost
        self._by_endpoint: dict[Endpoint, Node] = {}
        self._slots: list[Node | None] = [None] * SLOTS
        self._known: tuple[Endpoint, ...] = ()
        """Every node of the cluster, replicas as well, as it was last described."""
        self._ill: dict[Node, float] = {}
        """When a node could last not be reached."""
        self._discovered = -inf

    async def at(self, key: str) -> Node:
        home = slot(key)
        node = self._slots[home]
        if node is None:
            await self._discover()
            node = self._slots[home]
            if node is None:
                raise BackendError(
                    f"Redis cluster: no node serves slot {home}; 'redis-cli cluster info' says why",
                    backend=self._dial.scheme,
                    ambiguous=False,
                )
        return node

    def home(self, key: str) -> Node | None:
        return self._slots[slot(key)]

    async def all(self) -> list[Node]:
        await self._discover()
        return list({id(node): node for node in self._slots if node is not None}.values())

    def moved(self, text: str, node: Node | None) -> tuple[Node, bool]:
        if text.startswith("CROSSSLOT"):
            raise refusal(text, self._dial.scheme)
        told = _REDIRECTED.fullmatch(text)
        if told is None or int(told[2]) >= SLOTS or not (is_host(told[3]) and 0 < int(told[4]) < 65536):
            raise refusal(f"{text}; no server can be there", self._dial.scheme)
        kind, number, host, port = told.groups()
        if not host:  # an empty host stands for the node that redirects
            here = node or self._slots[int(number)]
            host = next(
                (endpoint[0] for endpoint, each in self._by_endpoint.items() if each is here), self._seeds[0][0]
            )
        goal = self._node_at(self._mapped(host, int(port)))
        if kind == "MOVED":
            self._slots[int(number)] = goal
        return goal, kind == "ASK"

    def _mapped(self, host: str, port: int) -> Endpoint:
        return (host, port) if self._remap is None else self._remap((host, port))

    def forget(self) -> None:
        self._slots = [None] * SLOTS

    def _node_at(self, endpoint: Endpoint) -> Node:
        node = self._by_endpoint.get(endpoint)
        if node is None:
            # A cluster repeats each message at all its nodes, so each node has a channel of its own.
            channel = f"{self._channel}@{spell(endpoint).replace(':', '.')}"
            node = self._by_endpoint.setdefault(
                endpoint, kind(self._driver)(self._dial, fixed(endpoint), channel, self._hear, self._lost)
            )
            node.failed = self._failed
        return node

    def _failed(self, node: Node) -> None:
        """Forget the slots of a node that cannot be reached: another node may have them by now."""
        now = self._driver.now()
        if any(each is node for each in self._by_endpoint.values()):
            self._ill[node] = now
        if now - self._discovered > _FORGET:
            self._slots = [None if each is node else each for each in self._slots]

    def _failed_at(self, endpoint: Endpoint) -> float:
        node = self._by_endpoint.get(endpoint)
        return -inf if node is None else self._ill.get(node, -inf)

    async def _discover(self) -> None:
        failure: BackendError | None = None
        endpoints = dict.fromkeys([*self._known, *self._seeds])
        # A node that hangs costs time: ask the nodes that failed most recently last.
        for endpoint in sorted(endpoints, key=self._failed_at):
            try:
                reply = await ask(self._driver, self._dial, endpoint, pack(("CLUSTER", "SLOTS")), answers.slots)
            except BackendError as error:
                failure = error
                continue
            if isinstance(reply, ReplyError):
                failure = self._dial.error(endpoint, reply, ambiguous=False)
                continue
            slots: list[Node | None] = [None] * SLOTS
            known: dict[Endpoint, None] = {}
            for first, last, *members in reply:
                named: list[Endpoint] = [
                    self._mapped(host.decode() if host and host != b"?" else endpoint[0], port)
                    for host, port, *_ in members
                ]
                known |= dict.fromkeys(named)
                slots[first : last + 1] = [self._node_at(named[0])] * (last + 1 - first)
            self._slots, self._known, self._discovered = slots, tuple(known), self._driver.now()
            self._retire({each for each in slots if each is not None})
            return
        assert failure is not None, "a cluster's URL names at least one node"
        raise failure

    def _retire(self, masters: set[Node]) -> None:
        """Drop nodes that failed and have no slots any more; their waiters look for the new nodes."""
        for endpoint, node in list(self._by_endpoint.items()):
            if node in self._ill and node not in masters:
                del self._by_endpoint[endpoint]
                del self._ill[node]
                node.close()
                node.lost(node)

    @property
    def nodes(self) -> list[Node]:
        return list(self._by_endpoint.values())


def fixed(endpoint: Endpoint) -> Locate:
    """Always finds the server that the URL names."""

    async def locate() -> Endpoint:
        return endpoint

    return locate


def sentinel(
    driver: Driver,
    dial: Dial,
    seeds: Sequence[Endpoint],
    service: str,
    apart: Dial | None = None,
    remap: Remap | None = None,
) -> Locate:
    """Finds the master that a sentinel names; the server itself must confirm that it is a master.

    The connections to sentinels use ``apart``. Without it they use the master's credentials if a sentinel asks for any.
    """
    request = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service))
    guarded = replace(dial, db=0, opening=())
    plain = apart or replace(guarded, user=None, password=None, login=None)
    open_to_all = apart is not None or (dial.password is None and dial.login is None)

    async def locate() -> Endpoint:
        failure: BackendError | None = None
        for endpoint in seeds:
            try:
                try:
                    reply = await ask(driver, plain, endpoint, request, answers.address)
                except BackendError as error:
                    if open_to_all or "NOAUTH" not in str(error):
                        raise
                    reply = await ask(driver, guarded, endpoint, request, answers.address)
                if reply is None or isinstance(reply, ReplyError):
                    raise dial.error(endpoint, reply or f"this sentinel knows no {service!r}", ambiguous=False)
                master = (reply[0].decode(), int(reply[1]))
                if remap is not None:
                    master = remap(master)
                role = await ask(driver, dial, master, pack(("ROLE",)), answers.role)
                if isinstance(role, ReplyError):
                    raise dial.error(master, f"it does not tell its role: {role}", ambiguous=False)
                if role[0] != b"master":
                    raise dial.error(master, "not a master yet", ambiguous=False)
                return master
            except BackendError as error:
                failure = error
        assert failure is not None, "a sentinel URL names at least one sentinel"
        raise failure

    return locate
