"""What a contender does while it holds: it counts a value up at the protected resource."""

import threading
from collections import Counter
from typing import Any

from fencepost.driver import Driver
from fencepost.errors import BackendError, ConfigError
from fencepost_lab.contend.clients import Held
from fencepost_lab.contend.diary import Diary
from fencepost_lab.stage.client import Client, Reply

_REFUSED = (409, 428)


class Counting:
    """Reads, lets the work be done, and writes one more, never looking whether its lease still holds.

    The value counts the versions of the resource: one that was read, and what was written, says which.
    """

    def __init__(self, url: str, fence: bool, driver: Driver, diary: Diary) -> None:
        self._url = url
        self._fence = fence
        self._driver = driver
        self._diary = diary
        self._own = threading.local()
        self.outcomes: Counter[str] = Counter()

    def _client(self) -> Client:
        if not hasattr(self._own, "client"):
            self._own.client = Client(self._url)
        client: Client = self._own.client
        return client

    def _read(self, key: str, headers: dict[str, str]) -> Reply:
        return self._client().read(key, headers)

    def _write(self, key: str, value: str, headers: dict[str, str]) -> Reply:
        client = self._client()
        client.send(key, value.encode(), headers)
        return client.answer()

    async def read(self, who: str, key: str, held: Held) -> int | None:
        """The value, with the stamp that enters; None if that was refused."""
        facts, headers = self._facts(who, key, held)
        reply = await self._driver.offload(self._read, key, headers)
        if reply.status in _REFUSED:
            self._note("read", reply, facts, outcome="refused")
            return None
        try:
            value = 0 if reply.status == 404 else int(_expect(reply).body)
        except ValueError:
            raise ConfigError(f"{key!r} holds {reply.body[:40]!r}, which cannot be counted up") from None
        self._diary.write("read", **facts, value=value, version=value)
        return value

    async def write(self, who: str, key: str, held: Held, base: int) -> None:
        """Write one more than was read."""
        facts, headers = self._facts(who, key, held)
        facts |= {"value": base + 1, "base": base, "attempts": 1}
        try:
            reply = await self._driver.offload(self._write, key, str(base + 1), headers)
        except BackendError:
            self._diary.write("wrote", **facts, outcome="unknown")
            self.outcomes["unknown"] += 1
            raise
        if reply.status in _REFUSED:
            self._note("wrote", reply, facts, outcome="refused")
            return
        _expect(reply)
        self.outcomes["done"] += 1
        self._diary.write("wrote", **facts, outcome="done")

    def _facts(self, who: str, key: str, held: Held) -> tuple[dict[str, Any], dict[str, str]]:
        headers = held.headers() if self._fence else {}
        facts: dict[str, Any] = {"who": who, "token": held.token, "holder": held.holder, "key": key, "lock": key}
        if headers:
            facts["seq"] = int(headers["X-Fence-Seq"])
        return facts | {"asked": self._diary.now()}, headers

    def _note(self, ev: str, reply: Reply, facts: dict[str, Any], outcome: str) -> None:
        seen = reply.facts.get("seen")
        self.outcomes[outcome] += 1
        self._diary.write(ev, **facts, outcome=outcome, verdict=reply.verdict, seen=None if seen is None else int(seen))


def _expect(reply: Reply) -> Reply:
    if reply.status != 200:
        raise BackendError(f"the resource answered {reply.status}", backend="resource", ambiguous=reply.status >= 500)
    return reply
