"""Locks in Redis or Valkey: one server, the master that Sentinel names, or a cluster."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, ClassVar, NamedTuple

from hiredis import ReplyError

from fencepost.address import Address
from fencepost.backend import Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.backends import exposure
from fencepost.backends.cleanups import Cleanups
from fencepost.backends.redis import doctor
from fencepost.backends.redis.address import Options, dial, options
from fencepost.backends.redis.answers import answers_for
from fencepost.backends.redis.calls import Calls
from fencepost.backends.redis.connection import Denied, astray, refusal
from fencepost.backends.redis.inspect import View
from fencepost.backends.redis.nodes import Node, Transport, cannot_listen
from fencepost.backends.redis.scripts import KEEP, Keys, Layout, Requests, kept, remains, scripts
from fencepost.backends.redis.topology import Masters, Single, fixed, sentinel
from fencepost.backends.redis.waiters import LocalQueue, Waiter, Waiters
from fencepost.driver import Driver
from fencepost.errors import BackendError, ConfigError, QueueFull
from fencepost.lease import Grant

_GONE = 60_000  # ms for which the server refuses late requests of a holder that has left
_ANY = 2**31  # no limit: a waiter that is queued already never finds the queue full
_TOGETHER = 100  # leases that one request renews
_PRUNE = 5.0  # seconds between two searches of a full queue for dead waiters


class _Left(NamedTuple):
    """A holder that has left a lock and its queue, without a confirmation of the server yet."""

    name: str
    holder: str
    entry: str
    token: str
    """The token under which it still holds the lock and keeps it; '' if there is none."""
    late: bool
    """Whether one of its requests may still arrive."""


class _Item(NamedTuple):
    """One of many holds to renew or release."""

    at: int
    """Its index among them."""
    lock: str
    """Its key."""
    hold: Hold


class Redis(Backend):
    """``redis://user:password@host:6379/0``, ``rediss://`` with TLS, ``redis+unix:///path/to.sock?db=0``.

    The key of a lock is ``prefix + name`` and its value is ``holder:token``. The script that releases a lock
    also grants it to the first live waiter, and notifies only that waiter: no other client can overtake it.
    """

    scheme = "redis"
    credentials = True
    promises = Promises(
        reach="everybody who reaches the server",
        fair=True,
        consensus=False,
        failover="a restart without persistence, an eviction or a failover can forget who holds: then two hold at "
        "once; tokens still grow, unless counter and clock are lost together, or the counter after a bump past the "
        "clock",
        clock="the server's wall clock; the holder counts its own deadline on its own clock",
        token="max(last + 1, server time in us), one counter per prefix; ?fence=counter has one per lock, which starts "
        "again if Redis forgets it",
        wakeup="the release itself hands over and tells the next waiter; besides, one look per process and lock when "
        "the holder's lease expires, or after 2 s",
        shared=True,
    )
    cluster: ClassVar[bool] = False

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        self.options: Options = options(address)
        self.layout = Layout(self.options.prefix, self.options.fence, self.cluster)
        self.scripts = scripts(self.options.fence, self.options.pollers)
        self._requests = Requests(self.scripts)
        self.dial = dial(address, self.options, self.scripts)
        self._closed = False
        self._renews_together = True
        """Whether one request may renew several locks: not behind a proxy that sends them to different servers."""
        self._pruned: dict[str, float] = {}
        self._waiters = Waiters(driver, self._look, self._forsake)
        self._begin()

    def _begin(self) -> None:
        self._cleanups: Cleanups[_Left] = Cleanups(
            self.driver,
            self._clean,
            "fencepost-redis-leave",
            pauses=(0.1, 2.0),
            lasting=_GONE / 1000,
            home=lambda left: self.home(left.name),
        )
        self._nodes = self._servers()
        self._calls = Calls(self.driver, self.dial, self._nodes)
        self._view = View(self._calls, self.layout, self.scripts, self.scheme)

    def _servers(self) -> Single:
        if len(self.options.endpoints) > 1:
            raise ConfigError(
                f"{self.address.scheme}:// takes one server; several are redis+cluster://, redis+sentinel:// or redlock://"
            )
        return Single(
            self.driver, self.dial, fixed(self.options.endpoints[0]), _channel(), self._waiters.hear, self._waiters.lost
        )

    # The contract

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        keys = self.layout.keys(name)
        nodes = self._nodes
        node = nodes.only or await nodes.at(keys.lock)
        transport = node.at_hand() or await node.ready()
        if queue is not None and transport.ordered and not node.listening and transport.refused is None:
            await node.listen()  # this connection also receives messages, so SUBSCRIBE goes out with the request
        joins = queue is not None and node.listening
        asking = self._waiters.asking
        try:
            while True:
                most = queue if joins and queue is not None else -1
                entry = _entry(node, holder, ttl, limit) if joins else ""
                asking[holder] = transport, entry
                sent = self.driver.now()
                if limit is not None:
                    asked = (holder, kept(ttl), most, entry, KEEP, limit, 0)
                    reply = await self._calls.run(self.scripts.share, keys[:4], *asked, transport=transport)
                else:
                    reply = await transport.call(
                        self._requests.take(keys, holder, ttl, most, entry), self.scripts.take.fits
                    )
                if reply.__class__ is ReplyError:
                    args = (holder, kept(ttl), most, entry, KEEP)
                    reply = await self._calls.again(reply, self.scripts.take, keys[:4], args)
                if reply.__class__ is bytes:
                    del asking[holder]
                    if self.options.wait_replicas:
                        await self._confirm(keys, holder, int(reply), ttl)
                    return Grant(int(reply), ttl, sent)
                if reply == 0 and queue is not None and not joins:
                    # Listening needs a connection and a thread of its own, so a client listens only if it has to wait.
                    await node.listen()
                    transport = await node.ready()
                    joins = True
                elif not joins and reply not in (0, -2):
                    # A request that does not join cannot be queued, nor find the queue full.
                    raise BackendError(f"Redis: {astray()}", backend=self.scheme, ambiguous=True)
                elif reply != -1 or not await self._prune(name, node, keys):
                    break
        except (BackendError, ConfigError) as error:
            if not getattr(error, "ambiguous", False):
                asking.pop(holder, None)  # nothing was taken, so the caller will not call leave
            raise
        if isinstance(reply, list):
            if joins and transport.refused is not None:
                raise cannot_listen(self.dial, transport.refused, Denied, ambiguous=True)
            waiter = self._waiters.join(name, keys, node, holder, ttl, entry, limit)
            self._answer(waiter, sent, reply)
            return None
        del asking[holder]
        if reply == -1:
            assert queue is not None, "only one who would join can find the queue full"
            raise QueueFull(name, queue)
        return None

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        waiter = self._waiters.waiters.get(holder)
        if waiter is None:
            keys = self.layout.keys(name)
            waiter = self._waiters.join(name, keys, await self._nodes.at(keys.lock), holder, ttl, "", limit)
            await self._look(waiter.queue, waiter)
        until = inf if timeout is None else self.driver.now() + timeout
        while waiter.grant is None and waiter.error is None:
            left = until - self.driver.now()
            if left <= 0:
                return None
            if not waiter.hinted and not await waiter.signal.wait(None if left == inf else left):
                return None
            waiter.signal.clear()  # first: a message that arrives from here on sets it again
            if waiter.hinted and waiter.grant is None:
                waiter.hinted = False
                await self._verify(waiter)
        if waiter.grant is None:
            assert waiter.error is not None, "there is no other end"
            raise waiter.error
        self._waiters.part(holder)
        token, _, since = waiter.grant
        if waiter.doubtful:
            self._later(name, holder, waiter.entry, str(token))
        if self.options.wait_replicas:
            await self._confirm(waiter.queue.keys, holder, token, ttl)
        return Grant(token, ttl, since)

    async def leave(self, name: str, holder: str) -> str | None:
        earlier, entry = self._waiters.asking.pop(holder, (None, ""))
        waiter = self._waiters.part(holder)
        if waiter is not None:
            entry = waiter.entry
        try:
            # If one of its looks got no answer, that request may still arrive and take the lock.
            return await self._leave(name, holder, entry, earlier, late=waiter is not None and waiter.doubtful)
        except GeneratorExit:
            raise
        except BaseException:  # also if it is cancelled: a second call of leave would not know the entry
            self._later(name, holder, entry)
            raise

    async def _leave(
        self,
        name: str,
        holder: str,
        entry: str,
        earlier: Transport | None = None,
        late: bool = False,
        token: str = "",
    ) -> str | None:
        keys = self.layout.keys(name)
        transport = await self._calls.transport(keys.lock)
        # On the same connection this request arrives after those in flight. On another one it may arrive before them.
        late = late or (earlier is not None and not (earlier.ordered and earlier is transport))
        other = await self._calls.run(
            self.scripts.leave, keys[:4], holder, entry, _GONE if late else 0, token, transport=transport
        )
        return other.decode("utf-8", "replace") if isinstance(other, bytes) else None

    def _later(self, name: str, holder: str, entry: str, token: str = "") -> None:
        """Clean up once the server answers again, but keep what is held under ``token``; otherwise the ttl ends it."""
        if not self._closed:
            self._cleanups.add(_Left(name, holder, entry, token, late=True))

    def _forsake(self, name: str, holder: str, token: str, entry: str) -> None:
        """Leave for a waiter that is done, but was granted the lock, as after a failover, or is still queued."""
        if not self._closed:  # any client can publish such messages, and many; one clean-up is enough
            self._cleanups.add(_Left(name, holder, entry, token, late=False), at_once=True)

    async def _clean(self, left: "_Left") -> None:
        await self._leave(left.name, left.holder, left.entry, late=left.late, token=left.token)

    def home(self, name: str) -> Node | None:
        return self._nodes.home(self.layout.prefix + name)

    async def renew(self, holds: Sequence[Hold]) -> Sequence[Renewal]:
        answers = [Renewal.UNKNOWN] * len(holds)
        by_node, failure = await self._by_node(holds)
        for node, batch in by_node.items():
            try:
                alone = await self._renew_together(node, batch, answers)
                if alone:
                    await self._renew_each(node, alone, answers)
            except BackendError as error:
                failure = error
        if failure is not None and all(answer is Renewal.UNKNOWN for answer in answers):
            raise failure
        return answers

    async def _by_node(self, holds: Sequence[Hold]) -> tuple[dict[Node, list["_Item"]], BackendError | None]:
        """The holds by the servers of their locks, and the error if some of them have no server."""
        by_node: dict[Node, list[_Item]] = {}
        failure: BackendError | None = None
        prefix, only = self.layout.prefix, self._nodes.only
        if only is not None:
            return {only: [_Item(index, prefix + hold.name, hold) for index, hold in enumerate(holds)]}, None
        for index, hold in enumerate(holds):
            item = _Item(index, prefix + hold.name, hold)
            if failure is not None and self._nodes.home(item.lock) is None:
                continue  # its server was looked for just now, which takes long if no server answers
            try:
                by_node.setdefault(await self._nodes.at(item.lock), []).append(item)
            except BackendError as error:  # no server has its slot; other slots may have one
                failure = error
        return by_node, failure

    async def _renew_together(self, node: Node, batch: list["_Item"], answers: list[Renewal]) -> list["_Item"]:
        """Renew many holds with each request; return those to ask for alone, since their answer is no, or an error."""
        if len(batch) == 1 or self.layout.cluster or not self._renews_together:  # a request has keys of one slot only
            return batch
        parts = [batch[at : at + _TOGETHER] for at in range(0, len(batch), _TOGETHER)]
        fits = [partial(answers_for, len(part)) for part in parts]
        requests = [
            self._requests.renew_all([item.lock for item in part], [item.hold for item in part]) for part in parts
        ]
        replies = await (await node.ready()).calls(requests, fits)
        alone = []
        for part, fit, reply in zip(parts, fits, replies, strict=True):
            if reply.__class__ is ReplyError and str(reply).startswith("NOSCRIPT"):
                script = self.scripts.renew_all._replace(fits=fit)
                args = [word for item in part for word in self._requests.own(item.hold)]
                try:
                    reply = await self._calls.again(reply, script, [item.lock for item in part], args)
                except Denied:
                    pass
            if reply.__class__ is ReplyError:
                alone += part
                continue
            for item, answer in zip(part, reply, strict=True):
                if answer == 1:
                    answers[item.at] = Renewal.RENEWED
                else:
                    if answer == 0:
                        answers[item.at] = Renewal.LOST  # until this lock is asked for alone
                    alone.append(item)
        return alone

    async def _renew_each(self, node: Node, batch: list["_Item"], answers: list[Renewal]) -> None:
        """Renew with a request for each hold, so that an error for one lock does not affect the others."""
        doubted = [item for item in batch if answers[item.at] is Renewal.LOST]
        for item in doubted:
            answers[item.at] = Renewal.UNKNOWN
        requests = [self._requests.renew(item.lock, item.hold) for item in batch]
        replies = await (await node.ready()).calls(requests, [self.scripts.renew.fits] * len(batch))
        failed: BackendError | None = None
        for item, reply in zip(batch, replies, strict=True):
            if reply.__class__ is ReplyError:
                if failed is not None and not isinstance(failed, Denied):
                    continue  # one failure is enough: an unhealthy server may take long over each retry
                try:
                    args = self._requests.own(item.hold)
                    reply = await self._calls.again(reply, self.scripts.renew, (item.lock,), args)
                except BackendError as error:
                    failed = error
                    continue
            answers[item.at] = Renewal.RENEWED if reply == 1 else Renewal.LOST
        if any(answers[item.at] is Renewal.RENEWED for item in doubted):
            # A proxy sends each request to the server of its first key; that server does not have the other keys.
            self._renews_together = False
        if failed is not None:
            raise failed

    async def release(self, name: str, holder: str, token: int) -> bool:
        keys = self.layout.keys(name)
        node = self._nodes.only or await self._nodes.at(keys.lock)
        own = f"{holder}:{token}"
        transport = node.at_hand() or await node.ready()
        if not transport.ordered:
            await self._waiters.looked(holder)
        if name in self._waiters.queues:
            return await self._hand_over(name, keys, node, transport, own)
        request = self._requests.release(keys, own)
        try:
            reply = await transport.call(request, self.scripts.release.fits)
            if reply.__class__ is ReplyError:
                used = keys.lock, keys.queue, keys.counter
                reply = await self._calls.again(reply, self.scripts.release, used, (own,))
            return bool(reply)
        except BackendError as error:
            # Release is idempotent, so retry once. A 0 is then ambiguous: the first attempt may have succeeded.
            if error.ambiguous and await self._once_more(node, request):
                return True
            raise

    async def release_all(self, holds: Sequence[Hold]) -> Sequence[bool | BackendError | None]:
        by_node, failure = await self._by_node(holds)
        answers: list[bool | BackendError | None] = [failure] * len(holds)
        for node, batch in by_node.items():
            await self._release_together(node, batch, answers)
        return answers

    async def _release_together(
        self, node: Node, batch: list["_Item"], answers: list[bool | BackendError | None]
    ) -> None:
        requests = [
            self._requests.release(self.layout.keys(item.hold.name), self._requests.own(item.hold)[0]) for item in batch
        ]
        fits = [self.scripts.release.fits] * len(batch)
        for item in batch:
            await self._waiters.looked(item.hold.holder)
        unsure: BackendError | None = None
        try:
            try:
                replies = await (await node.ready()).calls(requests, fits)
            except BackendError as error:
                if not error.ambiguous:
                    raise
                unsure = error  # as in release(): retry once; a 0 is then ambiguous
                replies = await (await node.ready()).calls(requests, fits)
        except BackendError as error:
            for item in batch:
                answers[item.at] = unsure or error
            return
        failed: BackendError | None = None
        for item, reply in zip(batch, replies, strict=True):
            hold = item.hold
            if reply.__class__ is not ReplyError:
                answers[item.at] = unsure if unsure is not None and not reply else bool(reply)
            elif failed is not None:
                answers[item.at] = refusal(reply, self.scheme)  # no retry: an unhealthy server may take long over each
            else:
                try:
                    answers[item.at] = await self.release(hold.name, hold.holder, hold.token)
                except BackendError as error:
                    answers[item.at] = error
                    failed = None if isinstance(error, Denied) else error

    async def _hand_over(self, name: str, keys: Keys, node: Node, transport: Transport, own: str) -> bool:
        """Release a lock for which this process has waiters: the answer says which of them got it."""
        sent = self.driver.now()
        request = self._requests.release(keys, own, node.channel)
        try:
            reply = await transport.call(request, self.scripts.release.fits)
            if reply.__class__ is ReplyError:
                used = keys.lock, keys.queue, keys.counter
                reply = await self._calls.again(reply, self.scripts.release, used, (own, node.channel))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._waiters.missed(name)  # one of them may have been granted the lock without a message
            if isinstance(error, BackendError) and error.ambiguous and await self._once_more(node, request):
                return True
            raise
        if isinstance(reply, list):
            self._waiters.served(reply, sent)
        return bool(reply)

    async def _once_more(self, node: Node, request: bytes) -> bool:
        """Try to release a second time; return whether this attempt released the lock."""
        try:
            reply = await (await node.ready()).call(request, self.scripts.release.fits)
        except BackendError:
            return False  # the caller raises the first error: that request may have been executed
        return reply == 1 or isinstance(reply, list)

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        if name is None:
            return await self._view.all(prefix)
        found = await self._view.one(name)
        return [found] if found else []

    async def break_lock(self, name: str) -> Status | None:
        return await self._view.break_lock(name)

    async def bump(self, name: str, above: int) -> None:
        await self._calls.run(self.scripts.bump, (self.layout.keys(name).counter,), above)

    async def doctor(self) -> list[Finding]:
        findings: list[Finding] = []
        for node in await self._nodes.all():
            findings += await doctor.examine(await node.ready(), self.options)
        encrypted = self.dial.tls is not None
        return findings + exposure.examine(self.address, encrypted=encrypted, remedy="use rediss://")

    async def close(self) -> None:
        self._closed = True
        self._cleanups.close()
        self._waiters.close()
        for node in self._nodes.nodes:
            await node.end()

    def forked(self) -> None:
        for node in self._nodes.nodes:
            node.forked()
        self._waiters.forked()
        self._begin()

    # Waiting

    async def _look(self, queue: LocalQueue, waiter: Waiter) -> None:
        """Ask whether a waiter was granted the lock; the server hands an expired lock to the first waiter."""
        keys, holder = queue.keys, waiter.holder
        node = self._nodes.only or await self._nodes.at(keys.lock)
        if node is not queue.node:
            queue.moved(node)
        await node.listen()
        transport = await node.ready()
        waiter.entry = _entry(node, holder, waiter.ttl, waiter.limit)
        self._waiters.asking[holder] = transport, waiter.entry
        sent = self.driver.now()
        script, more = (self.scripts.take, ()) if waiter.limit is None else (self.scripts.share, (waiter.limit, 1))
        asked = (holder, kept(waiter.ttl), _ANY, waiter.entry, KEEP, *more)
        try:
            reply = await self._calls.run(script, keys[:4], *asked, transport=transport)
        except BackendError as error:
            waiter.doubtful = waiter.doubtful or error.ambiguous
            if self._waiters.waiters.get(holder) is not waiter:
                self._waiters.asking.pop(holder, None)
                if error.ambiguous:
                    self._later(queue.name, holder, waiter.entry, _kept(waiter))
            raise
        self._waiters.asking.pop(holder, None)
        if not self._answer(waiter, sent, reply):
            # The waiter was granted the lock in the meantime, or has left. So undo what this request took or queued.
            self._waiters.part(holder)
            token = _kept(waiter)
            try:
                await self._calls.run(self.scripts.leave, keys[:4], holder, waiter.entry, 0, token, transport=transport)
            except BackendError:
                self._later(queue.name, holder, waiter.entry, token)
                raise

    async def _verify(self, waiter: Waiter) -> None:
        """Ask the server whether a waiter was granted the lock, as a message says. If that fails, the look-out asks."""
        queue = waiter.queue
        try:
            if waiter.limit is None:
                sent = self.driver.now()
                reply = await self._calls.run(self.scripts.claim, queue.keys[:1], waiter.holder)
                if isinstance(reply, list):
                    self._answer(waiter, sent, reply)
                    return
            await self._look(queue, waiter)
        except BackendError:
            self._waiters.audit(queue)

    def _answer(self, waiter: Waiter, sent: float, reply: Any) -> bool:
        """Pass the server's answer to a waiter; False if it no longer waits."""
        if reply.__class__ is bytes:
            return self._waiters.give(waiter, Grant(int(reply), waiter.ttl, sent))
        if not isinstance(reply, list):
            return True
        if reply[0].__class__ is bytes:
            token, ms = reply
            return self._waiters.give(waiter, Grant(int(token), waiter.ttl, sent + min(remains(ms) - waiter.ttl, 0.0)))
        return self._waiters.stands(waiter, reply)

    async def _prune(self, name: str, node: Node, keys: Keys) -> bool:
        """Remove dead waiters from a full queue, though not each time; return whether there were any."""
        now = self.driver.now()
        if now - self._pruned.get(name, -inf) < _PRUNE:
            return False
        self._pruned = {each: at for each, at in self._pruned.items() if now - at < _PRUNE} | {name: now}
        return bool(await self._calls.run(self.scripts.prune, (keys.queue,), transport=await node.ready()))

    async def _confirm(self, keys: Keys, holder: str, token: int, ttl: float) -> None:
        """Return once enough replicas have the grant. WAIT only covers writes of its own connection, so renew first."""
        args = f"{holder}:{token}", kept(ttl)
        try:
            await self._calls.confirm(keys.lock, self.scripts.renew, args, self.options.wait_replicas)
        except BackendError as error:
            # The grant was made even if the replicas did not confirm it, so the caller must give it back.
            raise BackendError(str(error), backend=error.backend, ambiguous=True) from error


class Cluster(Redis):
    """``redis+cluster://host:7000,host:7001/``, ``rediss+cluster://``: each lock lives on one master of a cluster.

    Names keep their slots: a lock has the slot of its key, and all that belongs to the lock is in that slot.
    """

    scheme = "redis+cluster"
    cluster = True
    # No request names the key of the sharers, so a script may not find that key while its slot is being migrated.
    promises = replace(Redis.promises, shared=False)

    def _servers(self) -> Single:
        return Masters(
            self.driver,
            self.dial,
            self.options.endpoints,
            _channel(),
            self._waiters.hear,
            self._waiters.lost,
            self.address.given.get("remap"),
        )


class Sentinel(Redis):
    """``redis+sentinel://host:26379,host:26379/service/0``, ``rediss+sentinel://``: the master that Sentinel names."""

    scheme = "redis+sentinel"

    def _servers(self) -> Single:
        given: Address | None = self.address.given.get("sentinel")
        apart = None if given is None else dial(given, replace(self.options, db=0, tls=given.given["tls"]), ())
        locate = sentinel(
            self.driver,
            self.dial,
            self.options.endpoints,
            self.options.service,
            apart,
            self.address.given.get("remap"),
        )
        return Single(self.driver, self.dial, locate, _channel(), self._waiters.hear, self._waiters.lost)


def _kept(waiter: Waiter) -> str:
    """The token under which a former waiter may hold the lock, as an argument of leave.lua."""
    return "" if waiter.grant is None else str(waiter.grant.token)


def _channel() -> str:
    return f"fencepost.{os.urandom(8).hex()}"


def _entry(node: Node, holder: str, ttl: float, limit: int | None) -> str:
    ms = kept(ttl)
    return f"{ms}:{node.channel}:{holder}" if limit is None else f"{ms}/{limit}:{node.channel}:{holder}"
