"""Shares of a lock in etcd: keys in the same line, which say how many may hold beside each other."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable

from fencepost.backend import Backend
from fencepost.backends.etcd import inspect as view
from fencepost.backends.etcd import keys
from fencepost.backends.etcd.keeper import Entry
from fencepost.backends.etcd.methods import TXN, LeaseGone
from fencepost.backends.etcd.proto import etcd_pb2 as pb
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.sessions import Sessions
from fencepost.errors import BackendError, QueueFull
from fencepost.lease import Grant

Found = Grant | tuple[bytes, bytes, int] | None
"""A grant; or else the key to watch, or the range up to the second, from a revision on; None to look again."""


class Shares(Backend):
    """What a sharer does otherwise: it is in nobody's way but those who want the lock alone, or have no room left."""

    _rpc: Rpc
    _sessions: Sessions

    async def take_share(self, name: str, holder: str, ttl: float, limit: int, queue: int | None) -> Grant | None:
        if queue is None and keys.blocking(await view.line(self._rpc, name), limit):
            return None
        while True:
            entry = await self._sessions.enter(name, holder, ttl, limit)
            try:
                await self._stand(entry)
                found = await self._look_share(entry)
                if entry.session.gone or found is None:
                    continue
                if isinstance(found, Grant):
                    return found
                line = await view.line(self._rpc, name)
            except LeaseGone:
                self._sessions.lose(entry.session, "etcd no longer knows its session")
                continue
            except BackendError as error:
                self._failed(entry, error)
                raise
            waiting = [kv for kv in view.waiting(line) if kv.create_revision < entry.revision]
            if queue is not None and len(waiting) < queue:
                return None
            await self._remove(entry)
            if queue is None:
                return None
            raise QueueFull(name, queue)

    async def _stand(self, entry: Entry) -> pb.TxnResponse:
        """Put a contender's key in line; or find the one that an earlier try put there after all."""
        answer = await self._put(entry, keys.join(entry.name, entry.key, entry.value, entry.session.id))
        mine = answer.responses[0].response_range.kvs
        entry.revision = answer.header.revision if answer.succeeded else mine[0].create_revision
        return answer

    def _failed(self, entry: Entry, error: BackendError) -> None:
        """A key that stands in line although what came after it failed has to be left like any that may."""
        if entry.revision:
            error.ambiguous = True
        elif not error.ambiguous:
            self._sessions.leave(entry)

    async def wait_share(self, name: str, holder: str, ttl: float, limit: int, timeout: float | None) -> Grant | None:
        async def rejoin(entry: Entry | None) -> Grant | None:
            return await self.take_share(name, holder, ttl, limit, 2**62)

        return await self._wait(holder, timeout, self._look_share, rejoin)

    async def _look_share(self, entry: Entry) -> Found:
        self._sessions.freshen(entry.session)
        answer = await self._rpc.call(TXN, keys.look_all(entry.name))
        start = keys.prefix(entry.name)
        line = [kv for kv in answer.responses[0].response_range.kvs if keys.contends(kv, start)]
        mine = next((kv for kv in line if kv.key == entry.key), None)
        if mine is None or mine.create_revision != entry.revision:
            self._sessions.leave(entry)
            return None
        limit = keys.limit(entry.key)
        assert limit is not None, "a sharer's key tells its limit"
        blocking = keys.blocking([kv for kv in line if kv.create_revision < entry.revision], limit)
        revision = answer.header.revision + 1
        if not blocking:
            return await self._grant(entry)
        if keys.limit(blocking[-1].key) is None:
            return blocking[-1].key, b"", revision
        return start, keys.end(start), revision

    @abstractmethod
    async def _put(self, entry: Entry, request: pb.TxnRequest) -> pb.TxnResponse: ...
    @abstractmethod
    async def _grant(self, entry: Entry) -> Grant | None: ...
    @abstractmethod
    async def _remove(self, entry: Entry) -> None: ...
    @abstractmethod
    async def _wait(
        self,
        holder: str,
        timeout: float | None,
        look: Callable[[Entry], Awaitable[Found]],
        rejoin: Callable[[Entry | None], Awaitable[Grant | None]],
    ) -> Grant | None: ...
