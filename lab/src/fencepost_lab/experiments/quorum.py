"""Five Redis as each client sees them: through proxies of its own, so that each can be cut off from each."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Self

import redis

from fencepost.holders import unlabelled
from fencepost_lab.faults.proxy import Proxy
from fencepost_lab.faults.record import Faults
from fencepost_lab.servers import HOST, Redis
from fencepost_lab.stage.processes import Unexpected


class Views:
    """The nodes r1, r2... behind one proxy for each client and node."""

    def __init__(self, members: Sequence[Redis], clients: str, faults: Faults) -> None:
        self._members = members
        self._clients = clients
        self._faults = faults
        self._proxies: dict[str, list[Proxy]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for client in self._clients:
            self._proxies[client] = [
                self._stack.enter_context(Proxy(member.port, who=f"{client} from r{number}", faults=self._faults))
                for number, member in enumerate(self._members, 1)
            ]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, client: str, *, patience: float = 0.3) -> str:
        """The address under which a client finds its majority."""
        addresses = ",".join(proxy.address for proxy in self._proxies[client])
        return f"redlock://{addresses}/0?node_timeout={patience}s"

    def of(self, client: str, *numbers: int) -> Iterator[Proxy]:
        """The proxies between a client and these nodes, or all."""
        wanted = numbers or range(1, len(self._members) + 1)
        yield from (self._proxies[client][number - 1] for number in wanted)

    def cut(self, client: str, *numbers: int) -> None:
        """Cut a client off from these nodes."""
        for proxy in self.of(client, *numbers):
            proxy.cut()

    def votes(self, lock: str, holder: str) -> list[str]:
        """The nodes where the holder has the lock, as they say themselves, past all proxies."""
        found = []
        for number, member in enumerate(self._members, 1):
            with redis.Redis(HOST, member.port, decode_responses=True) as node:
                value = node.get(f"fencepost:lock:{lock}")
            if unlabelled(str(value or "").rpartition(":")[0])[0] == holder:
                found.append(f"r{number}")
        return found

    def majority(self, lock: str, holder: str) -> list[str]:
        """The same; Unexpected if they are no majority."""
        found = self.votes(lock, holder)
        if len(found) <= len(self._members) // 2:
            raise Unexpected(f"{holder} was to have a majority, and has {', '.join(found) or 'no node'}")
        return found
