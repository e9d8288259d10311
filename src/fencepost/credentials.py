"""Credentials that change: the caller's function is called for them before each new connection.

The function is the caller's: it may be slow, hang, fail, or return nonsense. So it runs on a thread of its own, or as a
task on the event loop if it is a coroutine function, and an acquire waits for it no longer than its own timeout.
Connections that are opened at the same moment share one call. The result is not kept for later connections.
"""

import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from fencepost.driver import Driver, Signal
from fencepost.driver.scope import patience
from fencepost.driver.threads import Blocking, ThreadSignal
from fencepost.errors import BackendError, ConfigError

T = TypeVar("T")

LONGEST = 30.0
"""Seconds to wait for the caller's function, if the acquire waits that long. After that, it may be called again."""


class Secret(NamedTuple):
    """A password, or a token, and the user that it belongs to, if the function names one."""

    user: str | None
    password: str

    def __repr__(self) -> str:
        return "Secret(***)"


class Unusable(Exception):
    """What the function returned cannot be used. The message says why, and never repeats what was returned."""


def secret(answer: Any) -> Secret:
    """Parse what the caller's function returned: a password, or a user and a password."""
    match answer:
        case str() | bytes():
            user, password = None, answer
        case (password,):  # as redis-py's credential providers return it
            user = None
        case (user, password):
            pass
        case _:
            raise Unusable(f"returned {_kind(answer)}, and not a password, or a tuple of user and password")
    found = Secret(None if user is None else _text(user, "user") or None, _text(password, "password"))
    if not found.password:
        raise Unusable("returned an empty password")
    return found


def _text(word: Any, what: str) -> str:
    if isinstance(word, bytes):
        try:
            return word.decode()
        except UnicodeDecodeError:
            raise Unusable(f"returned a {what} that is not UTF-8") from None
    if not isinstance(word, str):
        raise Unusable(f"returned {_kind(word)} as the {what}")
    return word


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"


class _Asking(Generic[T]):
    """One call of the function, and the signals of those who wait for its result."""

    def __init__(self) -> None:
        self.until = monotonic() + LONGEST
        self.waiting: list[Signal] = []
        self.answer: list[T] = []
        self.error: BaseException | None = None
        self.over = False


class Source(Generic[T]):
    """The results of the caller's function ``ask``, parsed by ``read``; each ``get`` calls it again."""

    def __init__(
        self, ask: Callable[[], Any], read: Callable[[Any], T], driver: Driver, *, scheme: str, what: str
    ) -> None:
        if not callable(ask):
            raise ConfigError(f"{what} is a function that is asked for each new connection, not {_kind(ask)}")
        self._awaited = _is_async(ask)
        if self._awaited and driver.blocking:
            raise ConfigError(f"{what} is a coroutine function; give a plain one, or use fencepost.aio.connect")
        self._ask = ask
        self._read = read
        self._driver = driver
        self._scheme = scheme
        self._what = what
        self._loop: Any = None
        """The event loop that last called ``get``: it awaits what the function returns."""
        self._start()

    def _start(self) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._asking: _Asking[T] | None = None
        self._process = os.getpid()  # last: until then, other threads of a forked child do not use the parent's gate

    def __repr__(self) -> str:
        return f"<{self._what} of {self._scheme}://>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials cannot be pickled; connect again where they are needed")

    def note_loop(self) -> bool:
        """Remember the running event loop, for threads that call ``get`` later; return whether there is one."""
        if not self._driver.blocking:
            import asyncio

            loop = asyncio._get_running_loop()
            if loop is not None:
                self._loop = loop
                return True
        return False

    async def get(self, most: float = LONGEST) -> T:
        """What the function returns now; BackendError if it fails, or takes longer than ``most`` or the caller waits.

        A slow call goes on after that, and callers that come meanwhile share its result.
        """
        if self._process != os.getpid():  # a call in flight belongs to the parent
            self._start()
        in_task = self.note_loop()
        signal = self._driver.signal() if in_task else ThreadSignal()
        with self._gate:
            asking = self._asking
            first = asking is None or monotonic() > asking.until
            if asking is None or first:
                asking = self._asking = _Asking[T]()
            asking.waiting.append(signal)
        if first:
            self._call(asking)
        if asking.over:
            signal.set()  # it may have come too late for _done()
        limit = most if in_task else patience(most)  # a task is cancelled when its caller stops waiting
        await signal.wait(limit)
        if asking.answer:
            return asking.answer[0]
        error = asking.error
        if error is None:
            self.fail(f"gave no answer within {limit:.3g} s")
        # Leave the error's text to the traceback: it may contain a secret, and our messages are logged.
        said = str(error) if isinstance(error, Unusable) else f"raised {type(error).__name__}"
        raise self._failure(said) from (None if isinstance(error, Unusable) else error)

    def fail(self, why: str) -> NoReturn:
        """Raise the error of a connection that could not be opened because there are no credentials."""
        raise self._failure(why)

    def _failure(self, why: str) -> BackendError:
        return BackendError(f"{self._what} of {self._scheme}:// {why}", backend=self._scheme, ambiguous=False)

    # The call

    def _call(self, asking: _Asking[T]) -> None:
        if self._awaited:
            self._on_loop(asking, self._answer(asking))
            return
        job = self._answer(asking)
        try:
            Blocking().spawn(job, "fencepost-credentials")
        except (RuntimeError, MemoryError) as error:  # no thread can be started just now
            self._done(asking, error)

    def _on_loop(self, asking: _Asking[T], job: Coroutine[Any, Any, None]) -> bool:
        """Have the event loop run the job; False if the loop is closed."""
        import asyncio

        try:
            if self._loop is None:
                raise RuntimeError("no event loop has asked yet")
            if self._loop is asyncio._get_running_loop():
                self._driver.spawn(job, "fencepost-credentials")
            else:
                self._loop.call_soon_threadsafe(self._driver.spawn, job, "fencepost-credentials")
        except RuntimeError as error:  # its loop is closed
            job.close()
            self._done(asking, error)
            return False
        return True

    async def _answer(self, asking: _Asking[T]) -> None:
        try:
            answer = self._ask()
            if inspect.isawaitable(answer):
                if self._driver.blocking:
                    getattr(answer, "close", lambda: None)()
                    raise Unusable("returned something to await; blocking code needs a plain function")
                if not self._awaited:  # this is a thread: only the event loop can await it
                    if not self._on_loop(asking, self._await(asking, answer)):
                        getattr(answer, "close", lambda: None)()
                    return
                answer = await answer
            self._done(asking, self._read(answer))
        except BaseException as error:
            self._done(asking, error)
            if not isinstance(error, Exception):
                raise

    async def _await(self, asking: _Asking[T], answer: Any) -> None:
        try:
            self._done(asking, self._read(await answer))
        except BaseException as error:
            self._done(asking, error)
            if not isinstance(error, Exception):
                raise

    def _done(self, asking: _Asking[T], answer: T | BaseException) -> None:
        if isinstance(answer, BaseException):
            asking.error = answer
        else:
            asking.answer.append(answer)
        # Without the gate: a thread inside may have been interrupted by code that waits for this answer.
        asking.over = True
        if self._asking is asking:
            self._asking = None
        while asking.waiting:
            asking.waiting.pop().set()


def _is_async(ask: Callable[[], Any]) -> bool:
    return inspect.iscoroutinefunction(ask) or inspect.iscoroutinefunction(getattr(ask, "__call__", None))  # noqa: B004
