"""Locks in etcd, in the layout of etcd's own Mutex: they exclude ``etcdctl lock`` and Go's concurrency package too."""

from collections.abc import Sequence
from functools import partial
from math import inf

from fencepost.address import Address
from fencepost.backend import Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.backends import exposure
from fencepost.backends.etcd import inspect as view
from fencepost.backends.etcd import keys
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.channels import Channels
from fencepost.backends.etcd.doctor import examine
from fencepost.backends.etcd.keeper import Contender, Session
from fencepost.backends.etcd.methods import RANGE, TXN, TXNS, LeaseGone, Outage, Sent
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.sessions import Sessions
from fencepost.backends.etcd.watch import Watch, Watches
from fencepost.backends.refusals import Answers, ask_apart, in_batches
from fencepost.backends.sharing import blocking, waiting
from fencepost.driver import Driver, Signal
from fencepost.driver.backoff import Backoff
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError, QueueFull
from fencepost.lease import Grant

# etcd refuses transactions of more than 128 operations, unless told otherwise.
_BATCH = 100


_GOING = 0.05  # seconds between two looks whether the keeper has removed a key
Found = Grant | tuple[bytes, bytes, int] | None
"""A grant; or what to watch: the first key of a range, its end (empty for one key), a revision; None to look again."""


class Etcd(Backend):
    """``etcd://host:2379``, ``etcd://h1,h2,h3:2379``, ``etcd://user:password@host``.

    Options: ``ca=``, ``cert=``, ``key=`` (files; any of them, or ``tls=1``, means TLS) and ``timeout=``,
    how long a request may take over all members (5 s).
    """

    scheme = "etcd"
    credentials = True
    promises = Promises(
        reach="everybody who reaches the cluster, also etcdctl lock and Go's concurrency package",
        fair=True,
        consensus=True,
        failover="locks and tokens survive restarts and the loss of a minority; a snapshot restored without "
        "--bump-revision repeats tokens",
        clock="the leader's; a new leader lengthens leases, never shortens them",
        token="the create revision of the holder's key, plus the lock's base once it was bumped",
        wakeup="each waiter watches the key before its own, all on one stream, and reads once when it is gone",
        shared=True,
        observe="a watch on the holder's key, or on all keys of a free lock",
        keeps="ttl",
        min_ttl=1.0,
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        self._connect(None)

    def _connect(self, channels: Channels | None) -> None:
        blocking = self.driver.blocking
        self._rpc = Rpc(self.address, self.driver, channels)
        # Streams and clean-ups have threads of their own, for asyncio too: they go on while the event loop is busy.
        self._back = self._rpc if blocking else self._rpc.twin(Blocking(self.driver.now))
        self._watches = Watches(self._back)
        self._sessions = Sessions(self._rpc, self._back, self.driver, lambda *lost: self.report(*lost))

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        if limit is not None and queue is None and blocking(await view.contenders(self._rpc, name), limit, keys.limit):
            return None  # a key that is put and deleted at once would block other sharers meanwhile
        while True:
            contender = await self._sessions.register(name, holder, ttl, limit)
            try:
                if limit is not None:
                    grant = await self._join_share(contender, queue)
                else:
                    grant = await (self._ask(contender) if queue is None else self._join(contender, queue))
            except GeneratorExit:
                self._sessions.abandon(contender)
                raise
            except LeaseGone:
                self._sessions.lose(contender.session, "etcd no longer knows its session")
                continue
            except BackendError as error:
                self._failed(contender, error)
                raise
            if contender.session.gone:
                continue
            return grant

    async def _ask(self, contender: Contender) -> Grant | None:
        """Take the lock if there are no other contenders."""
        name, key = contender.name, contender.key
        answer = await self._put(contender, keys.ask(name, key, contender.value, contender.session.id))
        if answer.succeeded:
            contender.revision = answer.header.revision
            return await self._grant(contender, answer.responses[1])
        mine, oldest = (part.kvs for part in answer.responses)
        if mine:
            self._recognize(contender, mine[0])
        elif keys.contends(oldest[0], keys.prefix(name)) or await view.contenders(self._rpc, name):
            self._sessions.leave(contender)
            return None
        else:
            # The transaction failed only because of locks whose names begin with this one's name and a slash.
            await self._join(contender, inf)
        found = await self._look(contender)
        if isinstance(found, Grant):
            return found
        await self._remove(contender)
        return None

    async def _join(self, contender: Contender, queue: float) -> Grant | None:
        """Put this contender's key into the queue; return a grant if it is first."""
        name = contender.name
        answer = await self._stand(contender)
        if answer.succeeded:
            _, stands, base = answer.responses
            oldest = stands.response_range
            assert oldest is not None
            first, count = oldest.kvs[0], oldest.count
            if first.key == contender.key:
                return await self._grant(contender, base)
            if keys.contends(first, keys.prefix(name)) and count - 2 < queue:
                if count == 2:
                    contender.before = first.key, answer.header.revision + 1
                return None
        # An earlier attempt put the key; or the queue may be full; or the answer counted locks below this one's name.
        contenders = [kv.key for kv in await view.contenders(self._rpc, name)]
        place = contenders.index(contender.key) if contender.key in contenders else 1
        if place == 0:
            found = await self._look(contender)
            return found if isinstance(found, Grant) else None
        if place - 1 >= queue:
            await self._remove(contender)
            raise QueueFull(name, int(queue))
        return None

    async def _join_share(self, contender: Contender, queue: float | None) -> Grant | None:
        """Put this sharer's key into the queue; return a grant if no contender before it blocks it."""
        await self._stand(contender)
        found = await self._look(contender)
        if isinstance(found, Grant) or found is None:
            return found
        waiters = waiting(await view.contenders(self._rpc, contender.name), keys.limit)
        before = sum(kv.create_revision < contender.revision for kv in waiters)
        if queue is None or before >= queue:
            await self._remove(contender)
        if queue is not None and before >= queue:
            raise QueueFull(contender.name, int(queue))
        return None

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        try:
            return await self._turn(name, holder, ttl, timeout, limit)
        except GeneratorExit:
            contender = self._sessions.find(holder)
            if contender is not None:
                self._sessions.abandon(contender)
            raise

    async def _turn(self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None) -> Grant | None:
        now = self.driver.now
        until = inf if timeout is None else now() + timeout
        signal = self.driver.signal()
        watch: Watch | None = None
        pauses = Backoff(0.05, 1.0)
        try:
            while True:
                contender = self._sessions.find(holder)
                signal.clear()
                if contender is not None:
                    contender.signal = signal  # before the fields are read: every later change sets the signal
                if contender is not None and contender.given_up and not contender.session.gone:
                    # Its event loop had stood still, or deleting its key failed. The keeper deletes the key; then this
                    # waiter puts another one.
                    if now() >= until:
                        return None
                    await self.driver.sleep(min(_GOING, until - now()))
                    continue
                try:
                    if contender is None or contender.session.gone or not contender.revision:
                        grant = await self._rejoin(contender, name, holder, ttl, limit)
                        if grant is not None:
                            return grant
                        continue
                    found = await self._look_first(contender)
                    if isinstance(found, Grant):
                        return found
                    watch = self._watch(found, signal, watch)
                    left = until - now()
                    if left <= 0:
                        return None
                    if watch is not None:
                        await signal.wait(None if left == inf else left)
                    if watch is None or not watch.refused:
                        pauses.reset()
                        continue
                except Outage:
                    pass  # the waiter tries again: it keeps its queue entry while its session lives
                watch = self._watch(None, signal, watch)
                # A waiter that may read keys but not watch them looks again after a pause, at most a second.
                left = until - now()
                if left <= 0:
                    return None
                await self.driver.sleep(min(pauses.next(), left))
        finally:
            self._watch(None, signal, watch)

    def _watch(self, found: tuple[bytes, bytes, int] | None, signal: Signal, watch: Watch | None) -> Watch | None:
        """Watch what was found; keep the present watch if it watches that already."""
        if watch is not None:
            if found is not None and found[:2] == (watch.key, watch.until) and not watch.over:
                return watch
            self._watches.remove(watch)
        if found is None:
            return None
        key, until, revision = found
        return self._watches.add(key, revision, signal, until, prompt=True)

    async def _stand(self, contender: Contender) -> pb.TxnResponse:
        """Put a contender's key into the queue; or find the key that an earlier attempt put there."""
        answer = await self._put(
            contender, keys.join(contender.name, contender.key, contender.value, contender.session.id)
        )
        mine = answer.responses[0].kvs
        if answer.succeeded:
            contender.revision = answer.header.revision
        else:
            self._recognize(contender, mine[0])
        return answer

    def _recognize(self, contender: Contender, found: pb.KeyValue) -> None:
        """Note the revision at which an earlier attempt put the key; LeaseGone if another process put it."""
        if found.value != contender.value:
            why = "another process uses its session"
            self._sessions.lose(contender.session, why)
            raise LeaseGone(why, backend="etcd", ambiguous=False)
        contender.revision = found.create_revision

    def _failed(self, contender: Contender, error: BackendError) -> None:
        """If the key is in the queue, mark the error as ambiguous, so that the caller leaves; else forget the key.

        If it is not known whether the key is there, the error is ambiguous already.
        """
        if contender.revision:
            error.ambiguous = True
        elif not error.ambiguous:
            self._sessions.leave(contender)

    async def _look_share(self, contender: Contender, limit: int) -> Found:
        answer = await self._rpc.call(TXN, keys.look_all(contender.name))
        start = keys.prefix(contender.name)
        contenders = [kv for kv in answer.responses[0].kvs if keys.contends(kv, start)]
        mine = next((kv for kv in contenders if kv.key == contender.key), None)
        if mine is None or mine.create_revision != contender.revision:
            self._sessions.leave(contender)
            return None
        before = [kv for kv in contenders if kv.create_revision < contender.revision]
        in_the_way = blocking(before, limit, keys.limit)
        revision = answer.header.revision + 1
        if not in_the_way:
            return await self._grant(contender, answer.responses[1])
        if keys.limit(in_the_way[-1]) is None:
            return in_the_way[-1].key, b"", revision
        return start, keys.end(start), revision

    async def _rejoin(
        self, contender: Contender | None, name: str, holder: str, ttl: float, limit: int | None
    ) -> Grant | None:
        """Join the queue again, at its end; or find out whether the last attempt to join succeeded."""
        if contender is None or contender.session.gone:
            return await self.take(name, holder, ttl, 2**62, limit)
        try:
            return await (self._join(contender, inf) if limit is None else self._join_share(contender, inf))
        except LeaseGone:
            self._sessions.lose(contender.session, "etcd no longer knows its session")
            return None

    async def _look_first(self, contender: Contender) -> Found:
        """What ``_look`` finds; without a request, if the answer to joining the queue contained it."""
        if contender.before is None:
            return await self._look(contender)
        (key, revision), contender.before = contender.before, None
        self._sessions.freshen(contender.session)
        return key, b"", revision

    async def _look(self, contender: Contender) -> Found:
        """A grant; or the key to watch, and the revision to watch it from; None to look again."""
        self._sessions.freshen(contender.session)
        if (limit := keys.limit_of(contender.key)) is not None:
            return await self._look_share(contender, limit)
        start = keys.prefix(contender.name)
        answer = await self._rpc.call(TXN, keys.look(contender.name, contender.key, contender.revision))
        mine, before = (list(part.kvs) for part in answer.responses[:2])
        if not mine or mine[0].create_revision != contender.revision:
            self._sessions.leave(contender)
            return None
        if before and not keys.contends(before[0], start):
            contenders = await view.contenders(self._rpc, contender.name)
            before = [kv for kv in contenders if kv.create_revision < contender.revision][-1:]
        if before:
            return before[0].key, b"", answer.header.revision + 1
        return await self._grant(contender, answer.responses[2])

    async def _grant(self, contender: Contender, found: pb.ResponseOp) -> Grant | None:
        """The grant for a key that is first in the queue; ``found`` is the base, from the same transaction."""
        session = contender.session
        base = keys.read_base(contender.name, found.kvs)
        if base.since > contender.revision:  # the base was raised after this key was put: its number is too small
            await self._remove(contender)
            return None
        now = self.driver.now()
        if now - session.since > session.ttl / 2 and not await self._sessions.confirm(session, now, self._rpc.timeout):
            return None
        contender.token = base.token(contender.revision)
        if not self._sessions.hold(contender, session.since):
            return None
        return Grant(contender.token, session.ttl, session.since)

    async def _put(self, contender: Contender, request: pb.TxnRequest | pb.Prepared) -> pb.TxnResponse:
        """Put a key. Cancelling this does not undo a request that was sent: ``leave`` waits for its outcome."""
        try:
            return await self._rpc.call(TXN, request, sent=contender.sent)
        finally:
            self._judge(contender)

    def _judge(self, contender: Contender) -> None:
        """Distrust the session if a put may take effect at any later time: only the end of the session undoes it."""
        if contender.sent.doubtful:
            self._sessions.distrust(contender.session)

    async def leave(self, name: str, holder: str) -> str | None:
        contender = self._sessions.find(holder)
        if contender is None:
            return None
        try:
            await self._rpc.settled(contender.sent)
        except BaseException:
            contender.sent.doubtful = True
            self._sessions.doom(contender)
            raise
        finally:
            self._judge(contender)
        return await self._remove(contender)

    async def _remove(self, contender: Contender) -> str | None:
        """Delete a contender's key, or let the keeper do it later; return the holder that is first in the queue now."""
        session, name, other = contender.session, contender.name, None
        try:
            if not session.gone:
                removal = keys.remove(contender.key, contender.value, lock=name)
                answer = await self._rpc.call(TXN, removal, timeout=min(self._rpc.timeout, 2.0))
                oldest = [kv for part in answer.responses[1:] for kv in part.kvs]
                other = keys.holder(oldest[0]) if oldest and keys.contends(oldest[0], keys.prefix(name)) else None
            self._sessions.leave(contender)
            if session.doubtful and not session.contenders and not session.gone:
                await self._sessions.revoke(session)
        except BaseException:
            self._sessions.doom(contender)
            raise
        return other

    async def release(self, name: str, holder: str, token: int) -> bool:
        contender = self._sessions.find(holder)
        if contender is None or contender.name != name or contender.token != token:
            return False
        sent = Sent()
        try:
            removal = keys.release(contender.key, contender.value, contender.revision)
            answer = await self._rpc.call(TXN, removal, sent=sent)
        except BaseException:
            self._sessions.doom(contender)
            raise
        held = self.driver.now() < contender.deadline
        self._sessions.leave(contender)
        return answer.succeeded or (sent.doubtful and held)

    async def release_all(self, holds: Sequence[Hold]) -> Sequence[bool | BackendError | None]:
        mine = [(at, contender) for at, hold in enumerate(holds) if (contender := self._own(hold)) is not None]
        return await in_batches(self._release_together, mine, _BATCH, [False] * len(holds))

    async def _release_together(self, batch: Sequence[tuple[int, Contender]], answers: Answers) -> BackendError | None:
        """Release these, and write the answers to ``answers``; return the error if etcd failed."""

        async def delete(some: Sequence[tuple[int, Contender]]) -> list[bool]:
            return await self._delete([contender for _, contender in some])

        def note(each: tuple[int, Contender], answer: bool | BackendError) -> None:
            at, contender = each
            answers[at] = answer
            if isinstance(answer, BackendError):
                self._sessions.doom(contender)

        try:
            await ask_apart(delete, batch, _refused, note)
        except BaseException as error:
            for at, contender in batch:
                if self._sessions.find(contender.holder) is contender:
                    self._sessions.doom(contender)
                    answers[at] = error if isinstance(error, BackendError) else None
            if isinstance(error, BackendError):
                return error
            raise
        return None

    async def _delete(self, contenders: Sequence[Contender]) -> list[bool]:
        """Delete the keys of holds; return for each whether it was still held."""
        sent = Sent()
        removals = [keys.remove(each.key, each.value, each.revision) for each in contenders]
        answer = await self._rpc.call(TXNS, keys.together(removals), sent=sent)
        now = self.driver.now()
        for each in contenders:
            self._sessions.leave(each)
        return [
            (inner.response_txn is not None and inner.response_txn.succeeded) or (sent.doubtful and now < each.deadline)
            for each, inner in zip(contenders, answer.responses, strict=True)
        ]

    async def keep(self, name: str, holder: str, token: int, seconds: float) -> bool:
        now, contender = self.driver.now(), self._own(Hold(name, holder, token, seconds))
        if contender is None:
            return False
        session = contender.session
        answer = await self._rpc.call(TXN, keys.present([(contender.key, contender.revision)]))
        if not answer.responses[0].kvs:
            self._sessions.leave(contender)
            return False
        # If this process ends, only the session keeps the key.
        if session.since + session.ttl < now + seconds and not await self._sessions.confirm(
            session, now, self._rpc.timeout
        ):
            return False
        return self._sessions.keep(contender, now + seconds)

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        begun = self.driver.now()
        contenders = [self._own(hold) for hold in holds]
        timeout = min(self._rpc.timeout, max(min(hold.ttl for hold in holds) / 4, 0.5))
        mine = [contender for contender in contenders if contender is not None]
        sessions = {id(contender.session): contender.session for contender in mine}
        for session in sessions.values():
            self._sessions.ping(session)
        there: dict[str, bool | BackendError] = {}
        for start in range(0, len(mine), _BATCH):
            some = mine[start : start + _BATCH]
            found = await ask_apart(partial(self._there, timeout), some, _refused)
            there.update(zip((contender.holder for contender in some), found, strict=True))
        kept = {key: await self._kept(session, begun, timeout) for key, session in sessions.items()}
        answers = [self._renewed(contender, there, kept, begun) for contender in contenders]
        refusals = [error for error in there.values() if isinstance(error, BackendError)]
        if refusals and all(answer is Renewal.UNKNOWN for answer in answers):
            raise refusals[0]
        return answers

    async def _there(self, timeout: float, contenders: Sequence[Contender]) -> list[bool]:
        """Whether each key is still there."""
        request = keys.present([(contender.key, contender.revision) for contender in contenders])
        answer = await self._rpc.call(TXN, request, timeout=timeout)
        return [bool(part.kvs) for part in answer.responses]

    def _own(self, hold: Hold) -> Contender | None:
        contender = self._sessions.find(hold.holder)
        ours = contender is not None and contender.held and (contender.name, contender.token) == (hold.name, hold.token)
        return contender if ours else None

    async def _kept(self, session: Session, begun: float, timeout: float) -> Renewal:
        try:
            alive = await self._sessions.confirm(session, begun, timeout)
        except Outage:
            return Renewal.UNKNOWN
        return Renewal.RENEWED if alive else Renewal.LOST

    def _renewed(
        self,
        contender: Contender | None,
        there: dict[str, bool | BackendError],
        kept: dict[int, Renewal],
        begun: float,
    ) -> Renewal:
        if contender is None:
            return Renewal.LOST
        found = there[contender.holder]
        if isinstance(found, BackendError):
            return Renewal.UNKNOWN
        if not found:
            self._sessions.leave(contender)
            return Renewal.LOST
        answer = kept[id(contender.session)]
        if answer is Renewal.RENEWED and not self._sessions.hold(contender, begun):
            return Renewal.LOST
        return answer

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        return await view.status(self._rpc, name, prefix)

    async def changed(self, name: str, token: int | None) -> None:
        await view.changed(self._rpc, self._watches, self.driver, name, token)

    async def break_lock(self, name: str) -> Status | None:
        return await view.break_lock(self._rpc, name)

    async def bump(self, name: str, above: int) -> None:
        raised = False
        while not raised:
            found = await self._rpc.call(RANGE, keys.base_of(name))
            base = keys.read_base(name, found.kvs)
            value = base.raised(above, found.header.revision)
            raised = value is None or (await self._rpc.call(TXN, keys.raise_base(base, value))).succeeded

    async def doctor(self) -> list[Finding]:
        exposed = exposure.examine(self.address, encrypted=self._rpc.channels.secure, remedy="use tls=1 or ca=")
        return [*await examine(self._rpc), *exposed]

    async def close(self) -> None:
        await self._sessions.close()
        self._watches.close()
        await self._rpc.channels.end()

    def forked(self) -> None:
        parents = self._rpc.channels
        # First of all: even if what follows fails, the child uses no connection or session of its parent.
        self._connect(parents.again())
        parents.forked()


def _refused(error: BackendError) -> bool:
    """Whether etcd answered that it refuses the request."""
    return not isinstance(error, Outage) and not error.ambiguous
