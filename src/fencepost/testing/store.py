"""A store that fails when a test wants it to, around any other one."""

import os
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from fencepost.backend import Backend, Finding, Hold, Renewal, Signal, Status, patience
from fencepost.driver import wait_until
from fencepost.errors import BackendError, ConfigError
from fencepost.lease import Grant

Failure = Literal["refused", "unknown", "hung"]
"""How a request fails: nothing was done; it was done, but the answer is lost; there is no answer."""
Request = Literal["acquire", "renew", "release", "status", "break_lock", "bump"]

_SILENCE = 5.0  # seconds after which a client gives up a store that does not answer

T = TypeVar("T")


def fresh_url() -> str:
    """A store in memory that nobody else uses."""
    return f"memory://testing-{os.urandom(8).hex()}"


class Fault:
    """A fault that a store has at present; ``count`` says how many requests it has met."""

    def __init__(self, failure: Failure, requests: frozenset[str]) -> None:
        self.failure = failure
        self.count = 0
        self._requests = requests
        self._over = False
        self._waiting: set[Signal] = set()

    def meets(self, request: str) -> bool:
        """Whether this request fails."""
        return request in self._requests

    async def hang(self, store: Backend) -> None:
        """Wait until the client's patience is over, or the fault is."""
        signal = store.driver.signal()
        self._waiting.add(signal)
        try:
            if not self._over:
                await wait_until(store.driver, signal, store.driver.now() + patience(_SILENCE))
        finally:
            self._waiting.discard(signal)

    def end(self) -> None:
        """Let every request through again, also those that hang."""
        self._over = True
        for signal in list(self._waiting):
            signal.set()


class FailingStore(Backend):
    """Passes requests on to another store, unless a fault meets them."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner.address, inner.driver)
        self.inner = inner
        self.promises = inner.promises
        vars(self)["scheme"] = inner.scheme  # the class has none of its own
        inner.report = lambda holder, why: self.report(holder, why)
        self._faults: list[Fault] = []

    @contextmanager
    def failing(self, failure: Failure, requests: Sequence[Request]) -> Iterator[Fault]:
        """Have these requests fail inside the block, or all."""
        for what, given, known in (("failure", [failure], get_args(Failure)), ("request", requests, get_args(Request))):
            if wrong := [each for each in given if each not in known]:
                raise ConfigError(f"{wrong[0]!r} is no {what}; there are {', '.join(known)}")
        fault = Fault(failure, frozenset(requests or get_args(Request)))
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)
            fault.end()

    async def _ask(self, request: Request, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        fault = next((each for each in reversed(self._faults) if each.meets(request)), None)
        if fault is None:
            return await ask()
        fault.count += 1
        if fault.failure == "refused":
            raise self._failure(f"the store refused to {request}, because the test has it fail", ambiguous=False)
        if fault.failure == "unknown":
            await ask()
            raise self._failure(f"the answer to {request} is lost, because the test has it fail", ambiguous=True)
        await fault.hang(self)
        raise self._failure(f"the store did not answer to {request}, because the test has it hang", ambiguous=True)

    def _failure(self, text: str, *, ambiguous: bool) -> BackendError:
        return BackendError(text, backend=self.scheme, ambiguous=ambiguous)

    # The contract

    async def take(
        self, name: str, holder: str, ttl: float, queue: int | None, limit: int | None = None
    ) -> Grant | None:
        return await self._ask("acquire", lambda: self.inner.take(name, holder, ttl, queue, limit))

    async def wait(
        self, name: str, holder: str, ttl: float, timeout: float | None, limit: int | None = None
    ) -> Grant | None:
        return await self._ask("acquire", lambda: self.inner.wait(name, holder, ttl, timeout, limit))

    async def leave(self, name: str, holder: str) -> str | None:
        return await self._ask("release", lambda: self.inner.leave(name, holder))

    async def renew(self, holds: Sequence[Hold]) -> Sequence[Renewal]:
        return await self._ask("renew", lambda: self.inner.renew(holds))

    async def release(self, name: str, holder: str, token: int) -> bool:
        return await self._ask("release", lambda: self.inner.release(name, holder, token))

    async def keep(self, name: str, holder: str, token: int, seconds: float) -> bool:
        return await self._ask("release", lambda: self.inner.keep(name, holder, token, seconds))

    async def status(self, name: str | None = None, *, prefix: str = "") -> list[Status]:
        return await self._ask("status", lambda: self.inner.status(name, prefix=prefix))

    async def changed(self, name: str, token: int | None) -> None:
        await self._ask("status", lambda: self.inner.changed(name, token))

    async def break_lock(self, name: str) -> Status | None:
        return await self._ask("break_lock", lambda: self.inner.break_lock(name))

    async def bump(self, name: str, above: int) -> None:
        await self._ask("bump", lambda: self.inner.bump(name, above))

    def home(self, name: str) -> Hashable:
        return self.inner.home(name)

    async def doctor(self) -> list[Finding]:
        return await self.inner.doctor()

    async def close(self) -> None:
        await self.inner.close()

    def forked(self) -> None:
        self.inner.forked()
