"""Keeps the sessions of one connection alive, on one stream and one thread, and deletes their stale keys."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from fencepost.backends.etcd import keys
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.methods import KEEP_ALIVE, REVOKE, TIME_TO_LIVE, TXN, Outage, Sent
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.streams import Stream
from fencepost.driver import Driver, Signal, stood_still
from fencepost.driver import run as finish
from fencepost.driver.service import Run, Service
from fencepost.driver.threads import Blocking
from fencepost.errors import BackendError

# An idle session is kept for the next lock this long.
LINGER = 60.0
# Seconds until a failed clean-up is tried again; seconds between two searches for stale keys in a doubtful session.
_RETRY = 1.0
_SWEEP = 2.0


@dataclass(slots=True, eq=False)
class Session:
    """One etcd lease. ``since`` is when the last keep-alive that etcd answered was sent, on the local clock."""

    id: int
    asked: int
    ttl: float
    since: float
    due: float
    contenders: dict[bytes, "Contender"] = field(default_factory=dict)
    unanswered: deque[float] = field(default_factory=deque)
    askers: list[Signal] = field(default_factory=list)
    idle: float = 0.0
    swept: float = 0.0
    doubtful: bool = False
    gone: str = ""


@dataclass(slots=True, eq=False)
class Contender:
    """One key of ours, from before it is put until it is known to be gone."""

    name: str
    holder: str
    session: Session
    key: bytes
    value: bytes
    signal: Signal
    revision: int = 0
    """The revision at which its key was created."""
    before: tuple[bytes, int] | None = None
    """The key before it, if the answer to joining the queue contained it, and the revision to watch that key from."""
    token: int = 0
    """The token of its grant; 0 if it has none."""
    deadline: float = inf
    """When the keeper deletes the key: for a hold, when its last renewal runs out; for a waiter, never."""
    held: bool = False
    kept: bool = False
    """Its holder is done, but the lock must stay taken until the deadline."""
    sent: Sent = field(default_factory=Sent)

    @property
    def given_up(self) -> bool:
        """Whether the keeper will delete the key of a contender that never held the lock: a waiter must put another."""
        return self.deadline < inf and not self.held


def _stuck(session: Session, now: float) -> bool:
    """Whether a key should have been deleted a ttl ago, and was not.

    Its session is then no longer kept alive, even if it has other locks. Otherwise the key would stay forever.
    """
    return any(now >= each.deadline + session.ttl for each in session.contenders.values())


def _overdue(session: Session) -> float:
    """When the oldest keep-alive that was not answered yet counts as overdue."""
    return session.unanswered[0] + max(session.ttl / 4, 0.75)


class Keeper:
    """All sessions of one connection, and the keys they carry."""

    def __init__(self, back: Rpc, driver: Driver, report: Callable[[str, str], None]) -> None:
        self._back = back  # a blocking client for the threads here, also if the driver is asyncio's
        self._driver = driver
        self._report = report
        # On a thread, also if the driver is asyncio's: it goes on while the event loop is busy.
        self._service = Service(Blocking(driver.now), self._keep, "fencepost-etcd-keeper")
        self._gate = self._service.gate
        self._sessions: dict[int, Session] = {}
        self._contenders: dict[str, Contender] = {}
        self._stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] | None = None
        self._took = inf  # seconds that the last answer on the stream took; inf before the first one
        self._looks = 0.0  # when the keeper's loop wakes up next
        self._cleaning = False
        self._closed = False

    def leave(self, contender: Contender) -> None:
        """Forget a key that is certainly not in etcd, and will not arrive there later."""
        session = contender.session
        with self._gate:
            if session.contenders.get(contender.key) is contender:
                del session.contenders[contender.key]
                session.idle = self._driver.now()
            if self._contenders.get(contender.holder) is contender:
                del self._contenders[contender.holder]
        if session.doubtful:
            self._service.wake()

    def abandon(self, contender: Contender) -> None:
        """Let the keeper delete the key of a waiter that is gone and cannot clean up itself.

        This takes no lock, because the garbage collector may call it at any point.
        """
        if not contender.revision:
            contender.session.doubtful = True  # the put may still be in flight
        contender.deadline = self._driver.now()

    def lose(self, session: Session, why: str) -> None:
        """End a session that etcd no longer has: report it to its holders, and let its waiters join again."""
        with self._gate:
            if session.gone:
                return
            session.gone = why
            self._sessions.pop(session.id, None)
            contenders = list(session.contenders.values())
            for contender in contenders:
                if contender.held:
                    self.leave(contender)
            askers, session.askers = session.askers, []
        for contender in contenders:
            if contender.held:
                self._report(contender.holder, why)
            contender.signal.set()
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
        self._connect()
        if self._stream is None:
            session.due = now + _RETRY
            self._look_by(session.due)
            return
        self._stream.send(pb.LeaseKeepAliveRequest(ID=session.id))
        # Only after sending: each answer counts for the oldest entry, so a request that was never sent would make all
        # later answers look late.
        session.unanswered.append(now)
        session.due = now + session.ttl / 3
        self._service.ensure()  # start the thread again if it failed
        self._look_by(_overdue(session))

    def _look_by(self, instant: float) -> None:
        """Wake the keeper if it would wake up too late. Not at each renewal: it goes through all keys then."""
        if instant < self._looks:
            self._service.wake()

    def _connect(self, settled: Callable[[], None] = lambda: None) -> bool:
        """Open the stream of keep-alives if there is none; ``settled`` is called once it is open or has failed."""
        if self._stream is not None or self._closed:
            return False
        try:
            self._stream = Stream(self._back, KEEP_ALIVE, self._heard, self._over, settled)
        except (RuntimeError, MemoryError):  # no thread can be started just now
            return False
        return True

    def _heard(
        self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], answer: pb.LeaseKeepAliveResponse
    ) -> None:
        with self._gate:
            session = self._sessions.get(answer.ID)
            # An answer that an earlier stream still delivers belongs to a request that is no longer counted.
            if stream is not self._stream or session is None or not session.unanswered:
                return
            sent = session.unanswered.popleft()
            self._took = self._driver.now() - sent
            if answer.TTL > 0:
                # etcd renews for the whole ttl. If its grpc-proxy could not renew, it may answer with the time left.
                session.since = max(session.since, sent - max(session.ttl - answer.TTL, 0.0))
                for asker in session.askers:
                    asker.set()
                return
        self.lose(session, "its session expired in etcd")

    def _over(self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], why: str) -> None:
        with self._gate:
            if stream is not self._stream:
                return
            self._stream, self._took = None, inf
            for session in self._sessions.values():
                if session.unanswered:
                    session.unanswered.clear()
                    session.due = min(session.due, self._driver.now() + 0.2)
        self._service.wake()

    async def _keep(self, run: Run) -> None:
        """Keep sessions alive, notice silence, and pass clean-ups to another thread; never waits for the store."""
        while True:
            run.nudge.clear()
            with self._gate:
                if run.ends(lambda: not self._sessions):
                    return
                now = self._driver.now()
                wake, silent, late, idle, stray = inf, False, list[Contender](), list[Session](), list[Session]()
                over = [each for each in self._sessions.values() if _stuck(each, now - each.ttl)]
                for session in self._sessions.values():
                    rest = 0.0 if session.doubtful else LINGER
                    if not session.contenders and now >= session.idle + rest:
                        idle.append(session)
                        continue
                    if now >= session.due:
                        self._ping(session)
                    if session.doubtful and now >= session.swept + _SWEEP:
                        session.swept = now
                        stray.append(session)
                    if session.unanswered:
                        overdue = _overdue(session)
                        silent = silent or now >= overdue
                        wake = min(wake, overdue)
                    for contender in session.contenders.values():
                        # A waiter whose event loop stands still for a ttl loses its key, as a hold does that is not
                        # renewed. If the event loop goes on, the waiter joins again.
                        if contender.deadline == inf and stood_still(contender.signal, session.ttl):
                            self.abandon(contender)
                    late += [contender for contender in session.contenders.values() if now >= contender.deadline]
                    ends = (contender.deadline for contender in session.contenders.values() if contender.deadline > now)
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
                        except (RuntimeError, MemoryError):  # no thread can be started just now
                            self._cleaning = False
                self._looks = wake
            for session in over:
                self.lose(session, "etcd did not delete one of its keys, so it was left to expire")
            await run.nudge.wait(max(0.001, min(wake - self._driver.now(), LINGER)))

    def _reopen(self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] | None) -> None:
        """Close this stream of keep-alives, unless another one has replaced it; the keeper then opens a new one."""
        if stream is None or stream is not self._stream:
            return
        stream.close()
        self._over(stream, "")

    def _restart(self) -> None:
        """Close all connections to a member that does not answer, and try the next member."""
        self._back.channels.turn(self._back.channels.member)
        self._back.channels.hang_up()
        if self._stream is not None:
            self._over(self._stream, "")

    def _clean(self, late: list[Contender], idle: list[Session], stray: list[Session]) -> None:
        work: list[Callable[[], None]] = [partial(self._sweep, session) for session in stray]
        work += [partial(self._remove, contender) for contender in late]
        work += [partial(self._let_go, session) for session in idle]
        whole = True
        try:
            for each in work:
                try:
                    each()
                except Outage:
                    whole = False
                    break
                except BackendError:
                    whole = False  # etcd refused this one
            if whole:
                self._service.wake()
            # Otherwise the keeper tries the rest again later; a session that is not revoked expires.
        finally:
            self._cleaning = False

    def _let_go(self, session: Session) -> None:
        with self._gate:
            if session.contenders or session.gone:
                return
            session.gone = "it was let go"
            self._sessions.pop(session.id, None)
        finish(self._back.call(REVOKE, pb.LeaseRevokeRequest(ID=session.id), timeout=2.0))

    def _remove(self, contender: Contender) -> None:
        if self._driver.now() < contender.deadline:
            return
        if not contender.session.gone:
            finish(self._back.call(TXN, keys.remove(contender.key, contender.value), timeout=2.0))
        self.leave(contender)
        contender.signal.set()  # the waiter joins again if its event loop goes on

    def _sweep(self, session: Session) -> None:
        """Delete keys of a doubtful session that have no contender: a put that seemed to fail may have left them."""
        if not session.doubtful or session.gone:
            return
        found = finish(self._back.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=session.id, keys=True), timeout=2.0))
        refused: BackendError | None = None
        for key in found.keys:
            if key not in session.contenders:
                try:
                    finish(self._back.call(TXN, keys.remove(key), timeout=2.0))
                except Outage:
                    raise
                except BackendError as error:
                    refused = error
        if refused is not None:
            raise refused
