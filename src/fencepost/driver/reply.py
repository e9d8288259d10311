"""The answer to one request on an asyncio connection."""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import Any

Wake = Callable[["Reply"], object]


class Reply:
    """A future that one task awaits, and that a protocol's ``data_received`` resolves.

    An asyncio.Future has the loop resume the task one turn later: one more handle, and on an idle loop one more
    poll of the selector, for each reply. This resumes the task from within the call that resolves it, as
    asyncio's protocol for foreign futures allows: no other task is running then.
    """

    # Class attributes, neither slots nor set in __init__: one Reply is made for every request, and few of them change.
    _asyncio_future_blocking = False
    _wakes: tuple[tuple[Wake, Context], ...] = ()
    _done = False
    _error: BaseException | None = None
    _value: Any = None

    def __init__(self, loop: asyncio.AbstractEventLoop, fits: Callable[[Any], bool] = lambda value: True) -> None:
        self._loop = loop
        self.fits = fits
        """Whether a value can be the answer to this request."""

    # What the protocol calls

    def bring(self, value: Any) -> None:
        """Resolve it, and run its task until the task waits for something else; do nothing if it was cancelled."""
        if not self._done:
            self._done = True
            self._value = value
            for wake, context in self._wakes:
                context.run(wake, self)

    def fail(self, error: BaseException) -> bool:
        """Fail with an error, which its task gets in the loop's next turn; False if it is done already."""
        if self._done:
            return False
        self._done = True
        self._error = error
        for wake, context in self._wakes:
            self._loop.call_soon(wake, self, context=context)
        return True

    # What a task calls, and asyncio.wait

    def __await__(self) -> Generator["Reply", None, Any]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Wake, *, context: Context | None = None) -> None:
        # Not "context or ...": an empty one is false.
        self._wakes += ((wake, copy_context() if context is None else context),)

    def remove_done_callback(self, wake: Wake) -> None:
        self._wakes = tuple(each for each in self._wakes if each[0] != wake)

    def cancel(self, msg: str | None = None) -> bool:
        return self.fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))

    def done(self) -> bool:
        return self._done

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value
