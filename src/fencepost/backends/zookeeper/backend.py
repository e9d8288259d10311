"""Locks in ZooKeeper: ephemeral sequential nodes, in the layouts of kazoo, Curator and the Java recipe."""

import logging
import math
import threading
from collections.abc import Sequence
from math import inf

from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.serialization import Delete, Exists, GetChildren, GetData, Sync

from fencepost.address import Address
from fencepost.backend import Backend, Finding, Hold, Promises, Renewal, Status
from fencepost.backends import exposure
from fencepost.backends.sharing import blocking, waiting
from fencepost.backends.zookeeper import names
from fencepost.backends.zookeeper.address import read
from fencepost.backends.zookeeper.contender import (
    Contender,
    Release,
    base,
    changed,
    contenders,
    nodes,
    raise_base,
    settle,
)
from fencepost.backends.zookeeper.doctor import examine
from fencepost.backends.zookeeper.session import DOUBTFUL, FRACTION, Reply, Session, sets
from fencepost.driver import Driver
from fencepost.driver.threads import Blocking
from fencepost.driver.timer import Timer
from fencepost.errors import BackendError, ConfigError, QueueFull
from fencepost.lease import Grant

_log = logging.getLogger("fencepost")
_USUAL = 15.0  # the ttl for a session that only reads
_AGAIN = 2.0  # seconds to wait for a lost connection to be back, and then for its answers, in ``release_all``
_UNCONFIRMED = 1000  # the most releases without an answer that are remembered, for callers that release again


class ZooKeeper(Backend):
    """``zk://host:2181,host:2181/path``: each lock is a node below ``path``, each contender a child of it.

    ``?layout=`` names our children as ``kazoo`` (the default), ``curator`` or ``zookeeper`` (the Java
    recipe) does, so that its clients count us; we count every sequential child, of any client. The
    server removes a lock's own node when it was idle for a while. A kazoo ``Lock`` object that is kept
    for longer does not expect that: use ``?parents=keep``. ``ca=``, ``cert=`` and ``key=`` are files for
    TLS, or ``tls=1``. With ``user:password@`` only that user can use the nodes, unless ``?acl=open``.
    """

    scheme = "zookeeper"
    credentials = True
    promises = Promises(
        reach="everybody who reaches the ensemble",
        fair=True,
        consensus=True,
        failover="locks and tokens survive the loss of a minority, and a restart of all within the session timeout",
        clock="the leader's clock expires sessions; a lease lasts two thirds of its session's timeout",
        token="the zxid that created the holder's node, plus the lock's base once it was bumped",
        wakeup="each waiter watches the one before it; nobody polls",
        shared=True,
        observe="a watch on the holder's node, or on the queue of a free lock",
        keeps="no",  # a holder's node ends with its session, and closing ends the session
        min_ttl=1.0,
    )

    def __init__(self, address: Address, driver: Driver) -> None:
        super().__init__(address, driver)
        self._settings = read(address)
        self._root = self._settings.root
        self.forked()

    def forked(self) -> None:
        self._closed = False
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._sessions: dict[float, Session] = {}
        self._contenders: dict[str, Contender] = {}  # by holder
        self._granting = threading.RLock()
        self._unconfirmed: dict[str, Contender] = {}  # released in time, but the answer was lost; by holder
        # On a thread, like the session: an event loop may end without a release, while the session lives on.
        self._expiry = Timer(Blocking(self.driver.now), self._expired, "fencepost-expiry")

    # The contract

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        session = await self._session(ttl)
        if queue is None and blocking(await nodes(session, self._folder(name)), limit, names.limit):
            return None  # a node that is created and deleted at once would block sharers meanwhile
        since = self.driver.now()
        contender = self._contenders[holder] = Contender(
            name, holder, self._folder(name), session, ttl, self._lost, limit
        )
        try:
            await contender.join(self._settings, self.driver)
        except GeneratorExit:
            contender.forsaken = True
            raise
        except BackendError as error:
            if contender.path:
                error.ambiguous = True  # the node exists, so the caller must leave
            elif not error.ambiguous:
                del self._contenders[holder]
            raise
        if not contender.blocking:
            try:
                return await self._grant(contender, since)
            except BackendError as error:
                error.ambiguous = True  # the node exists, so the caller must leave
                raise
        if queue is not None and len(waiting(contender.ahead, names.limit)) < queue:
            return None
        await self.leave(name, holder)
        if queue is None:
            return None
        raise QueueFull(name, queue)

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        try:
            return await self._turn(name, holder, ttl, timeout, limit)
        except GeneratorExit:
            if contender := self._contenders.get(holder):
                contender.forsaken = True
            raise

    async def _turn(self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None) -> Grant | None:
        now = self.driver.now
        until = inf if timeout is None else now() + timeout
        contender = self._contenders.get(holder)
        seen = contender is not None  # ``take`` has just read the queue
        while True:
            since = now()
            try:
                if contender is None or not contender.path or not (seen or await contender.look()):
                    await self.leave(name, holder)
                    session = await self._session(ttl)
                    since = now()
                    contender = Contender(name, holder, self._folder(name), session, ttl, self._lost, limit)
                    self._contenders[holder] = contender
                    await contender.join(self._settings, self.driver)
                seen = False
                if not contender.blocking:
                    if grant := await self._grant(contender, since):
                        return grant
                    contender = None
                    continue
                if since >= until or not await contender.passed(self.driver, until - now()):
                    return None
            except BackendError as error:
                # A waiter survives the loss of its connection, and even of its session; only its timeout ends it.
                if now() >= until:
                    return None
                if not error.ambiguous and any(each.connected for each in self._sessions.values()):
                    raise
                await self.driver.sleep(min(0.05, until - now()))

    async def leave(self, name: str, holder: str) -> None:
        contender = self._contenders.get(holder)
        if contender is None:
            return
        signal = self.driver.signal()

        def dropped(gone: bool) -> None:
            self._dropped(contender, gone)
            signal.set()

        contender.drop(dropped)
        await contender.session.answered(signal)
        if holder in self._contenders:
            raise BackendError(
                f"ZooKeeper at {self._settings.hosts}: the connection was lost; {name!r} is left when it is back, or "
                f"with its session",
                backend=self.scheme,
                ambiguous=True,
            )

    async def renew(self, holds: Sequence[Hold]) -> list[Renewal]:
        now = self.driver.now()
        answers = [Renewal.LOST] * len(holds)
        asked: dict[Session, list[tuple[int, Contender]]] = {}
        for index, (name, holder, token, _) in enumerate(holds):
            contender = self._held(name, holder, token)
            if contender is not None:
                asked.setdefault(contender.session, []).append((index, contender))
        waiting = []
        for session, batch in asked.items():
            done = self.driver.signal()
            synced = session.send(Sync("/"))  # see Session.read
            replies = [session.send(GetData(contender.path, contender.removed)) for _, contender in batch[:-1]]
            last = GetData(batch[-1][1].path, batch[-1][1].removed)
            replies.append(session.send(last, sets(done)))
            waiting.append((done, session.limit, batch, synced, replies))
        for done, limit, batch, synced, replies in waiting:
            await done.wait(min(limit, max(contender.ttl for _, contender in batch)))
            for (index, contender), reply in zip(batch, replies, strict=True):
                answers[index] = self._renewed(contender, synced if synced.error else reply, now + contender.ttl)
        return answers

    def _renewed(self, contender: Contender, reply: Reply, until: float) -> Renewal:
        if not reply.done or (reply.error is not None and not isinstance(reply.error, NoNodeError)):
            return Renewal.UNKNOWN
        if reply.value is None or reply.value[1].czxid != contender.zxid:
            return Renewal.LOST
        return Renewal.RENEWED if self._expiry.extend(contender.holder, until) else Renewal.LOST

    async def release(self, name: str, holder: str, token: int) -> bool:
        contender = self._held(name, holder, token)
        if contender is None:
            return await self._release_again(name, holder, token)
        [answer] = await self._release_together(contender.session, [contender])
        if isinstance(answer, BackendError):
            raise answer
        return answer

    async def release_all(self, holds: Sequence[Hold]) -> Sequence[bool | BackendError | None]:
        answers: list[bool | BackendError | None] = [None] * len(holds)
        asked: dict[Session, list[tuple[int, Contender]]] = {}
        for at, (name, holder, token, _) in enumerate(holds):
            contender = self._held(name, holder, token)
            if contender is not None:
                asked.setdefault(contender.session, []).append((at, contender))
                continue
            try:
                answers[at] = await self._release_again(name, holder, token)
            except BackendError as error:
                answers[at] = error
        for session, batch in asked.items():
            try:
                await self._release_batch(session, batch, answers)
            except BackendError as error:  # ZooKeeper does not answer: skip the holds of the other sessions
                for at, _ in batch:
                    answers[at] = error
                break
        return answers

    async def _release_batch(
        self, session: Session, batch: Sequence[tuple[int, Contender]], answers: list[bool | BackendError | None]
    ) -> None:
        """Release holds of one session; retry those whose answers were lost with the connection, if it is back soon."""
        era = session.era
        found = await self._release_together(session, [contender for _, contender in batch])
        for (at, _), answer in zip(batch, found, strict=True):
            answers[at] = answer
        lost = [(at, each) for at, each in batch if self._unconfirmed.get(each.holder) is each]
        if not lost:
            return
        try:
            await session.ready(_AGAIN)
            deleted = await session.ask(*(Delete(each.path, -1) for _, each in lost), within=_AGAIN)
        except BackendError:
            return
        for (at, each), reply in zip(lost, deleted, strict=True):
            # While its session lives, only its holder or an operator removes its node. So if the node is gone, the
            # earlier request has deleted it.
            if reply.era == era and reply.done and (reply.error is None or isinstance(reply.error, NoNodeError)):
                self._unconfirmed.pop(each.holder, None)
                self._dropped(each, True)
                answers[at] = True

    async def _release_together(self, session: Session, contenders: Sequence[Contender]) -> list[bool | BackendError]:
        """Delete the nodes of holds of one session; return for each whether it was still held, or the error.

        Raises BackendError if there is no answer in time.
        """
        unsure: dict[str, Contender] = {}
        in_time = []
        for each in contenders:
            each.ended = True
            in_time.append(self._expiry.cancel(each.holder))
            if in_time[-1]:
                unsure[each.holder] = each
        try:
            deleted = await self._delete(session, contenders)
            answers: list[bool | BackendError] = []
            for each, reply, soon in zip(contenders, deleted, in_time, strict=True):
                there = not isinstance(reply.error, NoNodeError)
                if not reply.done or (there and reply.error is not None):
                    answers.append(session.failure(reply.error or ConnectionLoss()))
                    continue
                unsure.pop(each.holder, None)
                self._dropped(each, True)
                answers.append(soon and there)
            return answers
        finally:
            self._unconfirmed.update(unsure)
            for oldest in list(self._unconfirmed)[:-_UNCONFIRMED]:
                self._unconfirmed.pop(oldest, None)

    async def _delete(self, session: Session, contenders: Sequence[Contender]) -> list[Reply]:
        """Delete the nodes of holds of one session."""
        replies = [settle(reply) for reply in await session.ask(*(each.release for each in contenders))]
        # A client that may not write to its own node, due to the caller's ACL or a quota, may still delete it.
        refused = [
            at
            for at, (each, reply) in enumerate(zip(contenders, replies, strict=True))
            if isinstance(each.release, Release)
            and reply.error is not None
            and not isinstance(reply.error, (NoNodeError, *DOUBTFUL))
        ]
        if refused:
            again = await session.ask(*(Delete(contenders[at].path, -1) for at in refused))
            for at, reply in zip(refused, again, strict=True):
                replies[at] = reply
        return replies

    async def _release_again(self, name: str, holder: str, token: int) -> bool:
        """Confirm a release whose answer was lost; True if its node is gone, and its session did not expire."""
        contender = self._unconfirmed.get(holder)
        if contender is None or contender.name != name or not contender.path or contender.token != token:
            return False
        [deleted] = await contender.session.ask(Delete(contender.path, -1))
        if not isinstance(deleted.error, NoNodeError):
            deleted.get()
        self._unconfirmed.pop(holder, None)
        self._dropped(contender, True)
        return True

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        if name is not None:
            return [status for status, _ in await self._found(name)]
        found = sorted(filter(None, map(names.decode, await self._children(await self._session()))))
        return [status for each in found if each.startswith(prefix) for status, _ in await self._found(each)]

    async def changed(self, name: str, token: int | None) -> None:
        await changed(await self._session(), self.driver, name, self._folder(name), token)

    async def break_lock(self, name: str) -> Status | None:
        for status, paths in await self._found(name):
            deleted = await (await self._session()).ask(*(Delete(path, -1) for path in paths))
            if all(isinstance(each.error, NoNodeError) for each in deleted):
                return None
            for each, holder in zip(deleted, status.sharers or (status.holder,), strict=True):
                if not isinstance(each.error, NoNodeError):
                    each.get()
                if contender := self._contenders.get(holder):
                    self._lost(contender, "it was evicted")
            return status
        return None

    async def bump(self, name: str, above: int) -> None:
        await raise_base(await self._session(), name, self._folder(name), above, self._settings.acl)

    async def doctor(self) -> list[Finding]:
        session = await self._session()
        folders = [f"{self._root.rstrip('/')}/{child}" for child in await self._children(session)]
        stats = await session.ask(*(Exists(folder, None) for folder in folders)) if folders else []
        # cversion is twice the number of children ever created, minus those that exist, modulo 2^32.
        counts = {
            folder: (stat.value.cversion + stat.value.numChildren) % 2**32 // 2
            for folder, stat in zip(folders, stats, strict=True)
            if stat.value
        }
        findings = await self.driver.offload(examine, session, len(self.address.hosts), _USUAL, counts)
        encrypted = bool(self._settings.client.get("use_ssl"))
        return findings + exposure.examine(self.address, encrypted=encrypted, remedy="use tls=1 or ca=")

    async def close(self) -> None:
        self._closed = True
        self._expiry.close()
        threads = [session.close() for session in self._sessions.values()]
        self._sessions, self._contenders, self._unconfirmed = {}, {}, {}
        until = self.driver.now() + 2.0
        for thread in threads:  # a server that hangs may take longer; then its sessions expire by themselves
            await self.driver.offload(thread.join, max(until - self.driver.now(), 0.0))

    # The pieces

    def _folder(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{names.encode(name)}"

    async def _children(self, session: Session) -> list[str]:
        """The children of the root, as the leader sees them."""
        listed = await session.read(GetChildren(self._root, None))
        return [] if isinstance(listed.error, NoNodeError) else listed.get()

    async def _session(self, ttl: float | None = None) -> Session:
        """A connected session for leases of this ttl; without a ttl, any session."""
        if ttl is None:
            for session in self._sessions.values():
                if session.connected:
                    return session
        wanted = (ttl or _USUAL) / FRACTION
        # Round up to seconds, or to tenths for short timeouts, so that nearly equal ttls share a session.
        grid = 1 if wanted > 10 else 10
        timeout = math.ceil(round(wanted * grid, 6)) / grid
        with self._gate:
            if self._closed:
                raise ConfigError("these locks are closed; connect again")
            found = self._sessions.get(timeout)
            if found is not None and found.over:
                found.close()
                found = None
            session = found or self._open(timeout)
        await session.ready()
        return session

    def _open(self, timeout: float) -> Session:
        session = Session(self._settings, timeout, self.driver)
        session.on_lost, session.on_connected = self._session_lost, self._session_connected
        session.on_beat = self._session_beat
        session.start()
        self._sessions[timeout] = session
        return session

    async def _grant(self, contender: Contender, since: float) -> Grant | None:
        """The grant for the first contender in the queue; None if it has to join the queue again."""
        base = await contender.base()
        if base.since > contender.zxid:  # the base was raised after this node was created: its number is too small
            await self.leave(contender.name, contender.holder)
            return None
        with self._granting:
            if not contender.ended:
                contender.token = base.token(contender.zxid)
                self._expiry.set(contender.holder, since + contender.ttl)
                return Grant(contender.token, contender.ttl, since)
        self._drop(contender)  # its event loop had stood still; drop it again, as it may have joined since
        return None

    def _held(self, name: str, holder: str, token: int) -> Contender | None:
        contender = self._contenders.get(holder)
        if (
            contender is None
            or contender.ended
            or contender.name != name
            or not contender.path
            or contender.token != token
        ):
            return None
        return contender if self._expiry.left(holder) is not None else None

    def _dropped(self, contender: Contender, gone: bool) -> None:
        if gone and self._contenders.get(contender.holder) is contender:
            del self._contenders[contender.holder]

    def _drop(self, contender: Contender) -> None:
        contender.drop(lambda gone: self._dropped(contender, gone))

    async def _expired(self, holders: list[str]) -> None:
        for holder in holders:
            if contender := self._contenders.get(holder):
                try:
                    self._drop(contender)
                except Exception:
                    _log.exception("a hold that was not renewed is left to its session")

    def _lost(self, contender: Contender, why: str) -> None:
        """End a hold that is lost for good, and report that to its holder at once."""
        contender.ended = True
        self._dropped(contender, True)
        self._expiry.cancel(contender.holder)
        self.report(contender.holder, why)

    def _session_lost(self, session: Session) -> None:
        for contender in list(self._contenders.values()):
            if contender.session is session:
                if self._expiry.left(contender.holder) is not None:
                    self._lost(contender, "its ZooKeeper session expired")
                elif contender.ended:
                    self._dropped(contender, True)
                else:
                    contender.rouse()

    def _session_beat(self, session: Session) -> None:
        """Drop the waiters whose event loop was closed, or stood still for their ttl: their session lives on."""
        for contender in list(self._contenders.values()):
            if contender.session is session and contender.abandoned:
                with self._granting:
                    waits = self._expiry.left(contender.holder) is None
                    contender.ended = contender.ended or waits
                if waits:
                    self._drop(contender)
                    contender.rouse()  # the waiter joins again if its event loop goes on

    def _session_connected(self, session: Session) -> None:
        for contender in list(self._contenders.values()):
            if contender.session is session and contender.ended:
                self._drop(contender)

    async def _found(self, name: str) -> list[tuple[Status, list[str]]]:
        """The lock as the leader sees it, and the paths of its holders' nodes; empty if it is not held."""
        queue = await contenders(await self._session(), self._folder(name))
        if not queue:
            return []
        nodes = [each.path.rpartition("/")[2] for each in queue]
        split = len(queue) - len(waiting(nodes, names.limit))
        holding, waiters = queue[:split], tuple(each.holder for each in queue[split:])
        sharers = tuple(each.holder for each in holding) if names.limit(nodes[0]) else ()
        remaining = max(each.ttl if (left := self._expiry.left(each.holder)) is None else left for each in holding)
        token = (await base(await self._session(), name, self._folder(name))).token(holding[-1].zxid)
        status = Status(name, holding[0].holder, token, remaining, waiters, sharers)
        return [(status, [each.path for each in holding])]
