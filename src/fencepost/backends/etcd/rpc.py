"""Calls to an etcd cluster, to whichever member answers."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc

from fencepost.address import Address
from fencepost.backends.etcd.channels import Channels, forks
from fencepost.backends.etcd.methods import AUTHENTICATE, Fault, HungUp, LeaseGone, Method, Outage, Q, R, Sent, Unfit
from fencepost.backends.etcd.proto import etcd_pb2 as pb
from fencepost.driver import Driver, run
from fencepost.driver.backoff import Backoff
from fencepost.driver.scope import patience
from fencepost.errors import BackendError

# A call that had this long and got no answer speaks against its connection, not only against the server.
_SILENCE = 1.0


def _fitting(method: Method[Q, R], request: Q, came: Any) -> R:
    answer: R = came
    if not method.fits(request, answer):
        raise Unfit(method)
    return answer


class Rpc:
    """Single requests, blocking or awaited as the driver has it. ``twin`` shares the connections."""

    def __init__(self, address: Address, driver: Driver, channels: Channels | None = None) -> None:
        self.channels = channels or Channels(address)
        self.timeout = self.channels.timeout
        self._address = address
        self._driver = driver
        self._blocking = driver.blocking
        self._login: str | None = None
        self._anonymous = address.user is None

    def twin(self, driver: Driver) -> "Rpc":
        return Rpc(self._address, driver, self.channels)

    async def call(
        self, method: Method[Q, R], request: Q, *, timeout: float | None = None, sent: Sent | None = None
    ) -> R:
        """Ask until a member answers. Raises Outage, LeaseGone or BackendError.

        What is sent may arrive twice; ``sent`` says whether it may do so later.
        """
        channels = self.channels
        limit = patience(self.timeout if timeout is None else timeout)
        until = self._driver.now() + limit
        each = max(limit / len(channels.hosts), 0.3)
        pauses, logins, ambiguous = Backoff(0.02, 0.5), 0, False
        while True:
            member, dial = channels.member, channels.dial
            try:
                left = min(each, max(until - self._driver.now(), 0.05))
                return await self.once(method, request, member, left, sent)
            except grpc.RpcError as error:
                fault = Fault.of(error)
                if fault.silent and left >= _SILENCE:
                    channels.hang_up(dial)  # the connection may be dead, and nobody has told us
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
            if fault.login and self._address.user is not None and logins < 2:
                self.forget_login()
                logins += 1
                continue
            if not fault.passing or channels.closed or self._driver.now() + pauses.pause >= until:
                kind = Outage if fault.passing else LeaseGone if "lease not found" in fault.words else BackendError
                raise kind(f"etcd at {channels.hosts[member]}: {fault.words}", backend="etcd", ambiguous=ambiguous)
            channels.turn(member)
            await self._driver.sleep(pauses.next())

    async def once(self, method: Method[Q, R], request: Q, member: int, timeout: float, sent: Sent | None = None) -> R:
        """Ask one member, once; grpc.RpcError if it does not answer."""
        if not self._anonymous and self._login is None:
            await self._log_in(member)
        return await self._send(method, request, member, timeout, sent)

    async def settled(self, sent: Sent) -> None:
        """Return once it is known what became of the try whose caller was cancelled."""
        pending, arrived = sent.pending, self._driver.signal()
        if pending is None:
            return
        pending.add_done_callback(lambda _: arrived.set())
        await arrived.wait()
        if pending.code() is not grpc.StatusCode.OK and Fault.of(pending).ambiguous:
            sent.doubtful = True

    async def _send(self, method: Method[Q, R], request: Q, member: int, timeout: float, sent: Sent | None = None) -> R:
        visit = forks.begin()
        if self._blocking:
            try:
                call = self.channels.call(method, member)
                return _fitting(method, request, call(request, timeout=timeout, metadata=self._metadata()))
            except ValueError:  # as gRPC says that a channel is closed
                raise HungUp from None
            finally:
                forks.end(visit)
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def wake() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def over(_: object) -> None:
            forks.end(visit)
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        try:
            call = self.channels.call(method, member).future(request, timeout=timeout, metadata=self._metadata())
        except ValueError:
            forks.end(visit)
            raise HungUp from None
        except BaseException:
            forks.end(visit)
            raise
        call.add_done_callback(over)
        try:
            await arrived
        except asyncio.CancelledError:
            if sent is None:
                call.cancel()
            else:
                sent.pending = call
            raise
        if call.code() is not grpc.StatusCode.OK:
            raise call  # a future would tell of a closed channel with an error of its own
        return _fitting(method, request, call.result())

    async def _log_in(self, member: int) -> None:
        user, password = self._address.user or "", self._address.password or ""
        try:
            request = pb.AuthenticateRequest(name=user, password=password)
            self._login = (await self._send(AUTHENTICATE, request, member, self.timeout)).token
        except grpc.RpcError as error:
            words = error.details() or ""
            if "not enabled" in words:
                self._anonymous = True  # as etcd's own client does, until etcd asks for a login
                return
            if "invalid user" in words or "authentication failed" in words:
                hint = "etcd rejected the credentials; check user and password in the URL"
                raise BackendError(hint, backend="etcd", ambiguous=False) from None
            raise

    def forget_login(self) -> None:
        """Log in again before the next request, if the URL names a user."""
        self._login, self._anonymous = None, self._address.user is None

    def _metadata(self) -> list[tuple[str, str]]:
        # A member cut off from the leader says so at once, instead of staying silent.
        basic = [("hasleader", "true")]
        return [*basic, ("token", self._login)] if self._login else basic

    def stream(self, method: Method[Q, R], requests: Iterator[Q], member: int) -> Any:
        """Open a two-way stream, from the thread that is to read it."""
        if not self._anonymous and self._login is None:
            run(self._log_in(member))
        return self.channels.stream(method, requests, self._metadata())
