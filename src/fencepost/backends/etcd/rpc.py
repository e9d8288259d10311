"""Calls to an etcd cluster: if a member does not answer, the next one is asked."""

import asyncio
import threading
from typing import Any

from fencepost.address import Address
from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.channels import Channels
from fencepost.backends.etcd.http2 import Call, block, framed
from fencepost.backends.etcd.methods import AUTHENTICATE, Fault, LeaseGone, LoginRefused, Method, Outage, Q, R, Sent
from fencepost.backends.etcd.pool import Socket
from fencepost.backends.etcd.status import Failure, deadline_exceeded
from fencepost.credentials import Secret, Source
from fencepost.driver import Driver, Signal, inert, run
from fencepost.driver.backoff import Backoff
from fencepost.driver.scope import patience
from fencepost.errors import BackendError

# If a call got no answer within this many seconds, the connection may be dead, not only the server slow.
_SILENCE = 1.0
_ALWAYS = (
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"fencepost"),
    # With this header, a member that is cut off from the leader answers so at once, instead of staying silent.
    (b"hasleader", b"true"),
)


class _Notice:
    """Replaces the owner of a call whose caller was cancelled: sets a signal once the call is over."""

    def __init__(self, signal: Any) -> None:
        self._signal = signal

    def bring(self, call: Call) -> None:
        self._signal.set()

    def fail(self, error: BaseException) -> None:
        self._signal.set()


class _Entering:
    """A login in progress at a member. Others wait for it, because each login costs the server much time."""

    def __init__(self, member: int, signal: Signal) -> None:
        self.member = member
        self.signal = signal
        self.error: BackendError | Failure | None = None


class Rpc:
    """Single requests, blocking or awaited, depending on the driver. ``twin`` shares the connections."""

    def __init__(self, address: Address, driver: Driver, channels: Channels | None = None) -> None:
        self.channels = channels or Channels.to(address)
        self.timeout = self.channels.timeout
        self._address = address
        self._driver = driver
        self._blocking = driver.blocking
        self._login: str | None = None
        self._named = address.user is not None or address.login is not None
        """Whether there are credentials to log in with."""
        self._anonymous = not self._named
        self._logins = 0  # how often ``forget_login`` was called
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._entering: _Entering | None = None
        self._heads: dict[tuple[str, int], bytes] = {}

    def twin(self, driver: Driver) -> "Rpc":
        return Rpc(self._address, driver, self.channels)

    async def call(
        self, method: Method[Q, R], request: Q, *, timeout: float | None = None, sent: Sent | None = None
    ) -> R:
        """Ask until a member answers. Raises Outage, LeaseGone or BackendError.

        A request may arrive twice. ``sent`` is marked as doubtful if it may still arrive after this has ended.
        """
        channels = self.channels
        limit = patience(self.timeout if timeout is None else timeout)
        until = self._driver.now() + limit
        each = self._share(limit)
        pauses: Backoff | None = None  # made only when it is needed, which is seldom
        logins, ambiguous, said = 0, False, ""
        while True:
            member, dial, known = channels.member, channels.dial, self._logins
            try:
                left = min(each, max(until - self._driver.now(), 0.05))
                if not self._anonymous and self._login is None:
                    await self._enter(member, left)
                    left = min(each, max(until - self._driver.now(), 0.05))
                return await self._send(method, request, member, left, sent)
            except Failure as error:
                fault = Fault.of(error)
                late = fault.silent or error.late
                if not said or not late or left > each * 0.9:  # else it had too little time: keep what was said
                    said = f"etcd at {channels.hosts[member]}: {fault.words}"
                if fault.silent and left >= _SILENCE:
                    channels.hang_up(dial)  # the connection may be dead without an error
                if fault.ambiguous:
                    ambiguous = True
                    if sent is not None:
                        sent.doubtful = True
            except BackendError:
                raise
            except BaseException:
                if sent is not None and sent.pending is None:
                    sent.doubtful = True
                raise
            if fault.login and self._named and logins < 2:
                if known == self._logins:  # else another thread or task has dropped the login of this attempt already
                    self.forget_login()
                logins += 1
                said = ""
                continue
            pauses = pauses or Backoff(0.02, 0.5)
            if not fault.passing or channels.closed or self._driver.now() + pauses.pause >= until:
                kind = Outage if fault.passing else LeaseGone if "lease not found" in fault.words else BackendError
                raise kind(said, backend="etcd", ambiguous=ambiguous or fault.done)
            channels.turn(member)
            await self._driver.sleep(pauses.next())

    def _share(self, limit: float) -> float:
        """How long one member may take, so that there is time to ask each of them."""
        return max(limit / len(self.channels.hosts), 0.3)

    async def once(self, method: Method[Q, R], request: Q, member: int, timeout: float) -> R:
        """Ask one member, once; Failure if it does not answer."""
        if not self._anonymous and self._login is None:
            await self._enter(member, timeout)
        return await self._send(method, request, member, timeout)

    async def settled(self, sent: Sent) -> None:
        """Return once the attempt whose caller was cancelled is over; mark it as doubtful if its outcome is unknown."""
        call = sent.pending
        if call is None:
            return
        arrived = self._driver.signal()
        call.owner = _Notice(arrived)
        if not call.over:
            # With a limit: the event loop of the call may have ended before the call's timeout.
            await arrived.wait(self.timeout + _SILENCE)
        if not call.over or (call.failure is not None and Fault.of(call.failure).ambiguous):
            sent.doubtful = True

    async def _send(self, method: Method[Q, R], request: Q, member: int, timeout: float, sent: Sent | None = None) -> R:
        head, body = self._head(method, member) + _deadline(timeout), framed(request.encode())
        channels = self.channels
        if self._blocking:
            return method.read(request, channels.call(member, head, body, timeout))
        link = channels.at_hand(member)
        if link is None:
            until = self._driver.now() + timeout
            link = await channels.ready(member, timeout)
            timeout = max(until - self._driver.now(), 0.05)
        call = link.call(head, body, timeout)
        try:
            await call.owner
        except asyncio.CancelledError:
            if sent is None:
                link.cancel(call)
            else:
                sent.pending = call
            raise
        return method.read(request, call.result())

    async def _enter(self, member: int, timeout: float) -> None:
        """Log in within ``timeout`` seconds, or wait until another thread or task has done so."""
        until = self._driver.now() + timeout
        while self._login is None and not self._anonymous:
            with self._gate:
                entering = self._entering
                mine = entering is None or entering.member != member or inert(entering.signal)
                if entering is None or mine:
                    entering = self._entering = _Entering(member, self._driver.signal())
            if not mine:
                # Wait longer than ``timeout``: the login may wait for the credentials, which is not the member's fault.
                if not await entering.signal.wait(patience(self.timeout)):
                    raise deadline_exceeded()
                left = until - self._driver.now()
                if isinstance(entering.error, Failure):
                    if Fault.of(entering.error).silent and left > 0:
                        timeout = left
                        continue  # that login had less time than this one still has
                    raise entering.error.again()
                if entering.error is not None:
                    raise entering.error
                continue
            try:
                await self._log_in(member, timeout)
            except (BackendError, Failure) as error:
                entering.error = error
                raise
            finally:
                with self._gate:
                    if self._entering is entering:
                        self._entering = None
                entering.signal.set()

    async def _log_in(self, member: int, timeout: float) -> None:
        user, password = await self._credentials()
        try:
            request = pb.AuthenticateRequest(name=user, password=password)
            self._login = (await self._send(AUTHENTICATE, request, member, patience(timeout))).token
            self._heads.clear()
        except Failure as error:
            words = error.words
            if "not enabled" in words:
                self._anonymous = True  # as etcd's own client does, until etcd asks for a login
                return
            if "invalid user" in words or "authentication failed" in words:
                hint = "etcd rejected the credentials; check user and password in "
                if self._address.login is None:
                    raise BackendError(f"{hint}the URL", backend="etcd", ambiguous=False) from None
                # Not a final error: a waiter tries again, since the password may just have been replaced.
                raise LoginRefused(
                    f"{hint}what credentials= returned for {user!r}", backend="etcd", ambiguous=False
                ) from None
            # The request that needed the login was not sent.
            raise Failure(error.code, words, unsent=True, late=error.late) from error

    async def _credentials(self) -> tuple[str, str]:
        login: Source[Secret] | None = self._address.login
        if login is None:
            return self._address.user or "", self._address.password or ""
        try:
            found = await login.get()
        except BackendError as error:
            raise LoginRefused(str(error), backend="etcd", ambiguous=False) from error.__cause__
        user = found.user or self._address.user
        if not user:
            login.fail("returned no user, and etcd has no default one; return (user, password), or name it in the URL")
        return user, found.password

    def forget_login(self) -> None:
        """Log in again before the next request, if there are credentials."""
        self._logins += 1
        self._login, self._anonymous = None, not self._named
        self._heads.clear()

    def _head(self, method: Method[Q, R], member: int) -> bytes:
        """The headers of every request for a method, encoded."""
        found = self._heads.get((method.path, member))
        if found is None:
            channels, login = self.channels, self._login
            found = block(
                (b":method", b"POST"),
                (b":scheme", b"https" if channels.secure else b"http"),
                (b":path", method.path.encode()),
                (b":authority", _ascii(channels.hosts[member])),
                *_ALWAYS,
            )
            if login:
                found += block((b"token", login.encode()), secret=True)
            if login is self._login:
                self._heads[method.path, member] = found
        return found

    def stream(self, method: Method[Q, R], member: int) -> tuple[Socket, Call]:
        """Open a two-way stream on its own connection; the caller must pass that to ``channels.drop`` in the end."""
        if not self._anonymous and self._login is None:
            run(self._enter(member, self._share(self.timeout)))
        socket = self.channels.socket(member)
        return socket, socket.connection.start(self._head(method, member), b"", ends=False)


def _ascii(host: str) -> bytes:
    return host.encode() if host.isascii() else host.encode("idna")


def _deadline(timeout: float) -> bytes:
    """The header that tells the server how long the client waits."""
    ms = b"%dm" % min(max(int(timeout * 1000), 1), 99_999_999)
    return b"\x00\x0cgrpc-timeout%c%b" % (len(ms), ms)
