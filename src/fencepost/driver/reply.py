"""The answer to one request, as an asyncio connection brings it."""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import Any

Wake = Callable[["Reply"], object]


class Reply:
    """What one task waits for, and a protocol's ``data_received`` brings.

    An asyncio.Future has the loop resume the task one turn later: one more handle, and on an idle loop one more
    poll of the selector, for each reply. This resumes it from within the call that brings the reply, as
    asyncio's protocol for foreign futures allows: no other task is running then.
    """

    # Not in __init__, nor slots: one is made for every request, and few of these are ever changed.
    _asyncio_future_blocking = False
    _wakes: tuple[tuple[Wake, Context], ...] = ()
    _done = False
    _error: BaseException | None = None
    _value: Any = None

    def __init__(self, loop: asyncio.AbstractEventLoop, fits: Callable[[Any], bool] = lambda value: True) -> None:
        self._loop = loop
        self.fits = fits
        """Whether a value can be brought to it."""

    # What the protocol calls

    def bring(self, value: Any) -> None:
        """Resolve it, and run its task until that waits for something else; nothing if the task was cancelled."""
        if not self._done:
            self._done = True
            self._value = value
            for wake, context in self._wakes:
                context.run(wake, self)

    def fail(self, error: BaseException) -> bool:
        """End it with an error, which its task meets in the loop's next turn; False if it is done already."""
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
