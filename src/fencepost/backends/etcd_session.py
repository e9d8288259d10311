"""Sessions: the etcd leases that carry this process's keys, kept alive on one stream by one thread.

All contenders with one ttl share a session, so that taking a lock costs no lease of its own. What one
lease per lock would give for nothing is done here instead:

- A hold that nobody renewed ends at its own ttl although its session lives on: its key is deleted then.
  If this process cannot do that, it does not keep the session alive either, and the session expires.
- A put that failed without an answer may still reach the store, at any time later. Its session takes in
  nobody any more; stray keys of it are deleted, and it is revoked as soon as it carries nothing else. No
  put can come back to life under a revoked lease.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, inf

from fencepost.backends import etcd_keys as keys
from fencepost.backends.etcd_rpc import Rpc
from fencepost.backends.etcd_stream import Stream
from fencepost.backends.etcd_wire import GRANT, KEEP_ALIVE, REVOKE, TIME_TO_LIVE, TXN, LeaseGone, Outage, Sent
from fencepost.backends.proto import etcd_pb2 as pb
from fencepost.drive import Driver, Signal, run
from fencepost.errors import BackendError

# An idle session is kept for the next lock this long.
LINGER = 60.0
# Clean-ups that failed are tried again, and doubtful sessions looked through, this often.
_RETRY = 1.0
_SWEEP = 2.0


@dataclass(slots=True, eq=False)
class Session:
    """One etcd lease. ``since`` is a local instant from before the last request to keep it that was answered."""

    id: int
    asked: int
    ttl: float
    since: float
    due: float
    entries: dict[bytes, "Entry"] = field(default_factory=dict)
    unanswered: deque[float] = field(default_factory=deque)
    askers: list[Signal] = field(default_factory=list)
    idle: float = 0.0
    swept: float = 0.0
    doubtful: bool = False
    gone: str = ""


@dataclass(slots=True, eq=False)
class Entry:
    """One key of ours, from before it is put until it is known to be gone."""

    name: str
    holder: str
    session: Session
    key: bytes
    signal: Signal | None = None
    revision: int = 0
    deadline: float = inf
    """When it is to be deleted: where a hold's last renewal ends; never, while it waits."""
    held: bool = False
    sent: Sent = field(default_factory=Sent)


@dataclass(slots=True, eq=False)
class _Opening:
    signal: Signal
    error: BackendError | None = None


class Sessions:
    """All sessions of one connection, and the keys they carry."""

    def __init__(self, rpc: Rpc, back: Rpc, driver: Driver, report: Callable[[str, str], None]) -> None:
        self._rpc = rpc
        self._back = back  # for the threads here: they block, whatever the driver
        self._driver = driver
        self._report = report
        self._gate = threading.RLock()
        self._sessions: dict[int, Session] = {}
        self._openings: dict[int, _Opening] = {}
        self._entries: dict[str, Entry] = {}
        self._stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] | None = None
        self._nudge = threading.Event()
        self._keeping = False
        self._cleaning = False
        self._closed = False

    def find(self, holder: str) -> Entry | None:
        return self._entries.get(holder)

    async def enter(self, name: str, holder: str, ttl: float) -> Entry:
        """A key to put for ``holder``, under a session of at least ``ttl``; opens one if need be."""
        asked = ceil(ttl)
        while True:
            with self._gate:
                now = self._driver.now()
                for session in self._sessions.values():
                    if session.asked == asked and not session.doubtful and now < session.since + session.ttl:
                        if now - session.since > session.ttl / 10:
                            self._ping(session)
                        return self._claim(session, name, holder)
                opening = self._openings.get(asked)
                mine = opening is None
                if opening is None:
                    opening = self._openings[asked] = _Opening(self._driver.signal())
            if mine:
                await self._open(asked, opening)
            else:
                await opening.signal.wait()
                if opening.error is not None:
                    raise opening.error

    async def _open(self, asked: int, opening: _Opening) -> None:
        since = self._driver.now()
        try:
            grant = await self._rpc.call(GRANT, pb.LeaseGrantRequest(TTL=asked))
            session = Session(grant.ID, asked, float(grant.TTL), since, since + grant.TTL / 3, idle=since)
            with self._gate:
                self._sessions[session.id] = session
                self._start()
        except BackendError as error:
            opening.error = error
            raise
        finally:
            with self._gate:
                del self._openings[asked]
            opening.signal.set()

    def _claim(self, session: Session, name: str, holder: str) -> Entry:
        key = keys.prefix(name) + b"%x" % session.id
        if key in session.entries:
            key += b"-" + holder.encode()
        entry = Entry(name, holder, session, key)
        session.entries[key] = self._entries[holder] = entry
        return entry

    def leave(self, entry: Entry) -> None:
        """The key is known not to be there, nor to come."""
        session = entry.session
        with self._gate:
            if session.entries.get(entry.key) is entry:
                del session.entries[entry.key]
                session.idle = self._driver.now()
            if self._entries.get(entry.holder) is entry:
                del self._entries[entry.holder]
        if session.doubtful:
            self._nudge.set()

    def distrust(self, session: Session) -> None:
        """Something that was put under it, and given up, may still take effect: nobody may use it any more."""
        session.doubtful = True
        self._nudge.set()

    def hold(self, entry: Entry, since: float) -> None:
        """The key's owner holds the lock until a ttl after ``since``, then the key is to go."""
        entry.held = True
        entry.deadline = since + entry.session.ttl

    def doom(self, entry: Entry) -> None:
        """Delete the key as soon as that can be done."""
        entry.deadline = self._driver.now()
        self._nudge.set()

    def lose(self, session: Session, why: str) -> None:
        """The store has forgotten a session: tell its holders, and have its waiters join again."""
        with self._gate:
            if session.gone:
                return
            session.gone = why
            self._sessions.pop(session.id, None)
            entries = list(session.entries.values())
            for entry in entries:
                if entry.held:
                    self.leave(entry)
            askers, session.askers = session.askers, []
        for entry in entries:
            if entry.held:
                self._report(entry.holder, why)
            if entry.signal is not None:
                entry.signal.set()
        for asker in askers:
            asker.set()

    async def confirm(self, session: Session, after: float, timeout: float) -> bool:
        """Whether the store kept the session alive at some time since ``after``; Outage if it does not say."""
        until = self._driver.now() + timeout
        signal = self._driver.signal()
        with self._gate:
            if session.since < after and not any(sent >= after for sent in session.unanswered):
                self._ping(session)
            session.askers.append(signal)
        try:
            while not session.gone and session.since < after:
                left = until - self._driver.now()
                if left <= 0:
                    raise Outage("etcd did not confirm the session in time", backend="etcd", ambiguous=True)
                signal.clear()
                if not session.gone and session.since < after:
                    await signal.wait(left)
            return not session.gone
        finally:
            with self._gate:
                if signal in session.askers:
                    session.askers.remove(signal)

    async def revoke(self, session: Session) -> None:
        """End a session; nothing that was put under it, or still will be, survives this."""
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

    # The rest runs on threads of its own, or under the gate

    def _ping(self, session: Session) -> None:
        now = self._driver.now()
        if self._closed or session.gone:
            return
        if self._stream is None:
            self._stream = Stream(self._back, KEEP_ALIVE, self._heard, self._over)
        session.unanswered.append(now)
        session.due = now + session.ttl / 3
        self._stream.send(pb.LeaseKeepAliveRequest(ID=session.id))
        self._nudge.set()

    def _heard(self, answer: pb.LeaseKeepAliveResponse) -> None:
        with self._gate:
            session = self._sessions.get(answer.ID)
            if session is None or not session.unanswered:
                return
            sent = session.unanswered.popleft()
            if answer.TTL > 0:
                session.since = max(session.since, sent)
                for asker in session.askers:
                    asker.set()
                return
        self.lose(session, "its session expired in etcd")

    def _over(self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], why: str) -> None:
        with self._gate:
            if stream is not self._stream:
                return
            self._stream = None
            for session in self._sessions.values():
                if session.unanswered:
                    session.unanswered.clear()
                    session.due = min(session.due, self._driver.now() + 0.2)
        self._nudge.set()

    def _start(self) -> None:
        if self._keeping:
            self._nudge.set()
        elif not self._closed:
            self._keeping = True
            threading.Thread(target=self._keep, name="fencepost-etcd-keeper", daemon=True).start()

    def _keep(self) -> None:
        """Keep sessions alive, notice silence, and hand out what is to be cleaned up; never waits for the store."""
        while True:
            self._nudge.clear()
            with self._gate:
                if self._closed or not self._sessions:
                    self._keeping = False
                    return
                now = self._driver.now()
                wake, silent, late, idle, stray = inf, False, list[Entry](), list[Session](), list[Session]()
                for session in self._sessions.values():
                    rest = 0.0 if session.doubtful else LINGER
                    if not session.entries and now >= session.idle + rest:
                        idle.append(session)
                        continue
                    if now >= session.due:
                        self._ping(session)
                    if session.doubtful and now >= session.swept + _SWEEP:
                        session.swept = now
                        stray.append(session)
                    if session.unanswered:
                        overdue = session.unanswered[0] + max(session.ttl / 4, 0.75)
                        silent = silent or now >= overdue
                        wake = min(wake, overdue)
                    late += [entry for entry in session.entries.values() if now >= entry.deadline]
                    ends = (entry.deadline for entry in session.entries.values() if entry.deadline > now)
                    wake = min(wake, session.due, min(ends, default=inf))
                    if session.doubtful:
                        wake = min(wake, session.swept + _SWEEP)
                if silent:
                    self._restart()
                    wake = now + 0.2
                if late or idle or stray:
                    wake = min(wake, now + _RETRY)
                    if not self._cleaning:
                        self._cleaning = True
                        work = threading.Thread(target=self._clean, args=(late, idle, stray), daemon=True)
                        work.start()
            self._nudge.wait(max(0.001, min(wake - self._driver.now(), LINGER)))

    def _restart(self) -> None:
        """Nobody answers here: hang up, and try the next member."""
        self._back.wires.turn(self._back.wires.place)
        self._back.wires.hang_up()
        if self._stream is not None:
            self._over(self._stream, "")

    def _clean(self, late: list[Entry], idle: list[Session], stray: list[Session]) -> None:
        try:
            for session in stray:
                self.sweep(session)
            for entry in late:
                self.remove(entry)
            for session in idle:
                with self._gate:
                    busy = session.entries or session.gone
                    if not busy:
                        session.gone = "it was let go"
                        self._sessions.pop(session.id, None)
                if not busy:
                    run(self._back.call(REVOKE, pb.LeaseRevokeRequest(ID=session.id), timeout=2.0))
        except BackendError:
            pass  # the keeper comes back to what is left; a session that is not revoked expires
        finally:
            self._cleaning = False
            self._nudge.set()

    def remove(self, entry: Entry) -> None:
        if not entry.session.gone:
            run(self._back.call(TXN, keys.remove(entry.key, entry.holder), timeout=2.0))
        self.leave(entry)

    def sweep(self, session: Session) -> None:
        """Delete what a put that was thought to have failed left in a session that others still use."""
        if not session.doubtful or session.gone:
            return
        found = run(self._back.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=session.id, keys=True), timeout=2.0))
        for key in found.keys:
            if key not in session.entries:
                run(self._back.call(TXN, keys.remove(key), timeout=2.0))

    async def close(self) -> None:
        """Give all sessions back."""
        with self._gate:
            self._closed = True
            sessions = list(self._sessions.values())
            stream = self._stream
        self._nudge.set()
        try:
            for session in sessions:
                await self.revoke(session)
        except BackendError:
            pass  # they expire
        if stream is not None:
            stream.close()
