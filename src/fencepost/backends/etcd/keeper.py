"""Keeps the sessions of one connection alive, on one stream and one thread, and cleans up behind them."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from fencepost.backends.etcd import keys
from fencepost.backends.etcd.methods import KEEP_ALIVE, REVOKE, TIME_TO_LIVE, TXN, Sent
from fencepost.backends.etcd.proto import etcd_pb2 as pb
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.streams import Stream
from fencepost.driver import Driver, Signal, abandoned, run
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
    value: bytes
    signal: Signal
    revision: int = 0
    """At which its key was made."""
    token: int = 0
    """What it was granted under."""
    deadline: float = inf
    """When it is to be deleted: where a hold's last renewal ends; never, while somebody waits for it."""
    held: bool = False
    sent: Sent = field(default_factory=Sent)


def _stuck(session: Session, now: float) -> bool:
    """Whether a key should have been deleted a ttl ago, and was not.

    Its session is then no longer kept alive, even if others hold locks under it. Otherwise the key would stay forever.
    """
    return any(now >= entry.deadline + session.ttl for entry in session.entries.values())


class Keeper:
    """All sessions of one connection, and the keys they carry."""

    def __init__(self, back: Rpc, driver: Driver, report: Callable[[str, str], None]) -> None:
        self._back = back  # for the threads here: they block, whatever the driver
        self._driver = driver
        self._report = report
        self._gate = threading.RLock()
        self._sessions: dict[int, Session] = {}
        self._entries: dict[str, Entry] = {}
        self._stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] | None = None
        self._nudge = threading.Event()
        self._keeping = False
        self._cleaning = False
        self._closed = False

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

    def abandon(self, entry: Entry) -> None:
        """Nobody waits for this key any more, and nobody can clean up: have the keeper delete it.

        This takes no lock, for the garbage collector may call it anywhere.
        """
        if not entry.revision:
            entry.session.doubtful = True  # the key may still be on its way
        entry.deadline = self._driver.now()

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
            entry.signal.set()
        for asker in askers:
            asker.set()

    def _ping(self, session: Session) -> None:
        now = self._driver.now()
        if self._closed or session.gone:
            return
        if _stuck(session, now):
            session.doubtful = True
            session.due = now + session.ttl / 3
            return
        if self._stream is None:
            try:
                self._stream = Stream(self._back, KEEP_ALIVE, self._heard, self._over)
            except RuntimeError:  # no thread can be started just now
                session.due = now + _RETRY
                self._nudge.set()
                return
        session.unanswered.append(now)
        session.due = now + session.ttl / 3
        self._stream.send(pb.LeaseKeepAliveRequest(ID=session.id))
        self._nudge.set()

    def _heard(
        self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], answer: pb.LeaseKeepAliveResponse
    ) -> None:
        with self._gate:
            session = self._sessions.get(answer.ID)
            # What an earlier stream still brings answers a request that is no longer counted.
            if stream is not self._stream or session is None or not session.unanswered:
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
            threading.Thread(target=self._keep, name="fencepost-etcd-keeper", daemon=True).start()
            self._keeping = True

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
                over = [each for each in self._sessions.values() if _stuck(each, now - each.ttl)]
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
                    for entry in session.entries.values():
                        if entry.deadline == inf and abandoned(entry.signal):
                            self.abandon(entry)
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
                        try:
                            work.start()
                        except RuntimeError:  # no thread can be started just now
                            self._cleaning = False
            for session in over:
                self.lose(session, "etcd did not delete one of its keys, so it was left to expire")
            self._nudge.wait(max(0.001, min(wake - self._driver.now(), LINGER)))

    def _restart(self) -> None:
        """Nobody answers here: hang up, and try the next member."""
        self._back.channels.turn(self._back.channels.place)
        self._back.channels.hang_up()
        if self._stream is not None:
            self._over(self._stream, "")

    def _clean(self, late: list[Entry], idle: list[Session], stray: list[Session]) -> None:
        try:
            for session in stray:
                self._sweep(session)
            for entry in late:
                if self._driver.now() >= entry.deadline:
                    self._remove(entry)
            for session in idle:
                with self._gate:
                    busy = session.entries or session.gone
                    if not busy:
                        session.gone = "it was let go"
                        self._sessions.pop(session.id, None)
                if not busy:
                    run(self._back.call(REVOKE, pb.LeaseRevokeRequest(ID=session.id), timeout=2.0))
            self._nudge.set()
        except BackendError:
            pass  # the keeper comes back to what is left; a session that is not revoked expires
        finally:
            self._cleaning = False

    def _remove(self, entry: Entry) -> None:
        if not entry.session.gone:
            run(self._back.call(TXN, keys.remove(entry.key, entry.value), timeout=2.0))
        self.leave(entry)

    def _sweep(self, session: Session) -> None:
        """Delete what a put that was thought to have failed left in a session that others still use."""
        if not session.doubtful or session.gone:
            return
        found = run(self._back.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=session.id, keys=True), timeout=2.0))
        for key in found.keys:
            if key not in session.entries:
                run(self._back.call(TXN, keys.remove(key), timeout=2.0))
