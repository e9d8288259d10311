"""Sessions: the etcd leases of this process's keys, kept alive on one stream by one thread.

All contenders with the same ttl share a session, so that not every lock needs a lease of its own. With a
lease per lock, etcd itself would do what this module does instead:

- A hold that was not renewed ends at its own ttl, although its session lives on: the keeper deletes its key.
  If this process cannot do that, it does not keep the session alive either, and the session expires.
- A put that got no answer may still reach the store, at any later time. Its session accepts no more
  contenders. Stray keys of the session are deleted, and the session is revoked as soon as it has no other
  keys. A put cannot take effect under a revoked lease.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

from fencepost.backends.etcd import keys
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.keeper import Contender, Keeper, Session
from fencepost.backends.etcd.methods import GRANT, REVOKE, LeaseGone, LoginRefused, Outage
from fencepost.backends.etcd.rpc import Rpc
from fencepost.driver import Driver, Signal
from fencepost.driver.scope import patience
from fencepost.errors import BackendError

_PROMPT = 0.45  # after this many seconds, or more, ``confirm`` replaces a stream whose last answer came faster
_CONNECT = 1.0  # seconds that the first session waits for the connection that keeps it alive


@dataclass(slots=True, eq=False)
class _Opening:
    signal: Signal
    error: BackendError | None = None

    @property
    def slow(self) -> bool:
        """Whether etcd did not answer in time: a caller that has more time may try again."""
        return isinstance(self.error, Outage) and not isinstance(self.error, LoginRefused)


class Sessions(Keeper):
    """The sessions: the methods for taking, renewing and releasing locks."""

    def __init__(self, rpc: Rpc, back: Rpc, driver: Driver, report: Callable[[str, str], None]) -> None:
        super().__init__(back, driver, report)
        self._rpc = rpc
        self._openings: dict[int, _Opening] = {}

    def find(self, holder: str) -> Contender | None:
        return self._contenders.get(holder)

    async def register(self, name: str, holder: str, ttl: float, limit: int | None = None) -> Contender:
        """A new contender for ``holder``, under a session of at least ``ttl``; opens a session if need be."""
        asked = ceil(ttl)
        until = self._driver.now() + patience(self._rpc.timeout)
        while True:
            with self._gate:
                now = self._driver.now()
                for session in self._sessions.values():
                    if session.asked == asked and not session.doubtful and now < session.since + session.ttl:
                        self._freshen(session)
                        return self._claim(session, name, holder, limit)
                opening = self._openings.get(asked)
                mine = opening is None
                if opening is None:
                    opening = self._openings[asked] = _Opening(self._driver.signal())
            if mine:
                try:
                    await self._open(asked, opening, max(until - self._driver.now(), 0.0))
                finally:
                    self._opened(asked, opening)
                    opening.signal.set()
            elif not await opening.signal.wait(patience(2 * self._rpc.timeout)):
                if not patience(inf):
                    raise Outage("etcd opened no session in time", backend="etcd", ambiguous=False)
                self._opened(asked, opening)  # the event loop of the task that opens it was stopped
                until = self._driver.now() + patience(self._rpc.timeout)
            elif opening.error is not None and not (opening.slow and self._driver.now() < until):
                raise opening.error

    async def _open(self, asked: int, opening: _Opening, timeout: float) -> None:
        since = self._driver.now()
        try:
            grant = await self._rpc.call(GRANT, pb.LeaseGrantRequest(TTL=asked), timeout=timeout)
            session = Session(grant.ID, asked, float(grant.TTL), since, since + grant.TTL / 3, idle=since)
            settled = self._driver.signal()
            with self._gate:
                self._service.start()
                self._sessions[session.id] = session
                self._look_by(session.due)
                opens = self._connect(settled.set)
            if opens:
                # Otherwise a process that is out of descriptors would return a lease that it cannot keep alive.
                await settled.wait(_CONNECT)
        except BackendError as error:
            opening.error = error
            raise

    def _opened(self, asked: int, opening: _Opening) -> None:
        with self._gate:
            if self._openings.get(asked) is opening:
                del self._openings[asked]

    def _claim(self, session: Session, name: str, holder: str, limit: int | None) -> Contender:
        alone = keys.prefix(name) + b"%x" % session.id not in session.contenders
        key, value = keys.spell(name, session.id, holder, limit, alone=alone)
        contender = Contender(name, holder, session, key, value, self._driver.signal())
        session.contenders[key] = self._contenders[holder] = contender
        return contender

    def distrust(self, session: Session) -> None:
        """Let no new contender use a session: a put that was given up may still take effect under it."""
        session.doubtful = True
        self._service.wake()

    def hold(self, contender: Contender, since: float) -> bool:
        """Note that the contender holds until a ttl after ``since``, when its key is deleted; False if too late."""
        with self._gate:
            # Too late: its holder is done with it, or its last hold is over, or its key is being deleted.
            if contender.kept or self._driver.now() >= contender.deadline:
                return False
            contender.held = True
            contender.deadline = since + contender.session.ttl
            return True

    def keep(self, contender: Contender, until: float) -> bool:
        """Delete the key at ``until``, and not before, even if this is closed; False if its session is gone."""
        with self._gate:
            if contender.session.gone:
                return False
            contender.kept, contender.deadline = True, until
        self._service.wake()
        return True

    def doom(self, contender: Contender) -> None:
        """Let the keeper delete the key as soon as possible."""
        with self._gate:  # so that a renewal that ends at the same time does not undo this
            contender.deadline = self._driver.now()
        self._service.wake()

    async def confirm(self, session: Session, after: float, timeout: float) -> bool:
        """Whether the store kept the session alive at some time since ``after``; Outage if it does not answer."""
        until = self._driver.now() + timeout
        prompt = max(timeout * 0.3, _PROMPT)
        signal = self._driver.signal()
        with self._gate:
            if session.since < after and not any(sent >= after for sent in session.unanswered):
                self._ping(session)
            session.askers.append(signal)
            stream = self._stream
        try:
            while not session.gone and session.since < after:
                left = until - self._driver.now()
                if left <= 0:
                    raise Outage("etcd did not confirm the session in time", backend="etcd", ambiguous=True)
                signal.clear()
                if session.gone or session.since >= after:
                    continue
                # grpc-proxy answers the first request of a stream at once, but a later one only at its own renewal.
                early = left - timeout + prompt
                if early <= 0 and self._took < prompt < timeout / 2:
                    with self._gate:
                        self._reopen(stream)
                await signal.wait(early if early > 0 else left)
            return not session.gone
        finally:
            with self._gate:
                if signal in session.askers:
                    session.askers.remove(signal)

    async def revoke(self, session: Session) -> None:
        """End a session: etcd deletes its keys, and no put that arrives later can take effect under it."""
        with self._gate:
            session.gone = session.gone or "it was let go"
            self._sessions.pop(session.id, None)
        try:
            await self._rpc.call(REVOKE, pb.LeaseRevokeRequest(ID=session.id), timeout=2.0)
        except LeaseGone:
            pass

    def ping(self, session: Session) -> None:
        with self._gate:
            self._ping(session)

    def freshen(self, session: Session) -> None:
        """Ask etcd to keep the session alive, so that a hold granted next has most of its ttl left."""
        with self._gate:
            self._freshen(session)

    def _freshen(self, session: Session) -> None:
        if not session.unanswered and self._driver.now() - session.since > session.ttl / 10:
            self._ping(session)

    async def close(self) -> None:
        """Revoke all sessions except those of locks that must stay taken, which expire."""
        with self._gate:
            self._closed = True
            kept = {each.session.id for each in self._contenders.values() if each.kept}
            sessions = [session for session in self._sessions.values() if session.id not in kept]
            stream = self._stream
        self._service.close()
        try:
            for session in sessions:
                await self.revoke(session)
        except BackendError:
            pass  # they expire
        if stream is not None:
            stream.close()
