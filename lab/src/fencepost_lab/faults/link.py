"""A store as one client sees it: through proxies of its own, so that this client alone can be cut off."""

import re
from contextlib import ExitStack
from typing import Self

from fencepost.address import masked, parse
from fencepost.errors import ConfigError
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults

_PORTS = {
    "redis": 6379,
    "etcd": 2379,
    "zookeeper": 2181,
    "zk": 2181,
    "consul": 8500,
    "postgres": 5432,
    "postgresql": 5432,
}


class Link:
    """The way of ``who`` to the store behind a URL. ConfigError where clients would find a way around a proxy."""

    def __init__(self, url: str, *, who: str, faults: Faults | None = None) -> None:
        address = parse(url)
        if address.scheme not in _PORTS:
            raise ConfigError(
                f"no client can be cut off from {masked(url)!r} by a proxy; take a store of {', '.join(_PORTS)}"
            )
        self.who = who
        self.url = url
        """How the client reaches the store, once this was entered."""
        self._hosts = [(host, port or _PORTS[address.scheme]) for host, port in address.hosts or (("", None),)]
        self._scheme = address.scheme
        self._faults = Faults() if faults is None else faults
        self._proxies: list[Proxy] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for number, (host, port) in enumerate(self._hosts, 1):
            store = self._scheme if len(self._hosts) == 1 else f"{self._scheme} {number}"
            proxy = Proxy(port, host=host or "localhost", who=f"{self.who} from {store}", faults=self._faults)
            self._proxies.append(self._stack.enter_context(proxy))
        addresses = ",".join(proxy.address for proxy in self._proxies)
        self.url = re.sub(r"^(\w+://(?:[^/?#]*@)?)[^/?#]*", lambda match: match[1] + addresses, self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def held(self) -> int:
        """Bytes that did not pass while it was cut."""
        return sum(proxy.held for proxy in self._proxies)

    def cut(self) -> None:
        """Let nothing pass in either direction; no connection is closed, and new ones are silent too."""
        for proxy in self._proxies:
            proxy.cut()

    def heal(self) -> None:
        """Let everything pass again, also what was held back."""
        for proxy in self._proxies:
            proxy.heal()
