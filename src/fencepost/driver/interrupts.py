"""Ctrl-C in blocking code: raised where the code waits, never between two steps that belong together.

Python runs signal handlers between any two bytecodes of the main thread, so a KeyboardInterrupt could come after the
store granted a lock and before anybody remembers it. ``protected`` holds such handlers back while it calls;
``interruptible`` lets them run during one call that waits, and what is raised there is cleaned up after like a
cancelled ``await`` of asyncio code. All this concerns the main thread only: no handler ever runs in another one.
"""

import functools
import signal
import threading

# The C functions: the wrappers of the signal module turn every result into an enum, which costs more than the call.
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]  # typeshed leaves it out
from _signal import signal as _setsignal
from _thread import interrupt_main
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple

from fencepost.driver.fork import at_fork

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_NAMES = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGXCPU", "SIGTERM", "SIGBREAK", "SIGINT")
# Those whose handlers commonly raise. Others run as they come: looking at each one costs time on every call.
_SIGNALS = tuple(getattr(signal, name).value for name in _NAMES if hasattr(signal, name))
_ident = threading.get_ident
_main: int | None = threading.main_thread().ident
_depth = 0
_open = False
_masks = 0
_beginning = False  # handlers are being replaced, for a call that is still to come
_pending: dict[int, FrameType | None] = {}  # as Python does: a signal that comes twice before it is handled is one
_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
# The handlers that were found last, and the places of those that are functions: they change rarely.
_found: tuple[list[Any], tuple[int, ...]] = ([], ())


class _Raised(BaseException):
    """Carries an error of the program's own handler past code that would take it for one of the store's."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _handle(number: int, frame: FrameType | None) -> None:
    try:
        _handlers[number](number, frame)
    except Exception as error:  # such as the TimeoutError of a handler of SIGALRM
        raise _Raised(error) from None


def _defer(number: int, frame: FrameType | None) -> None:
    """Stands in for the program's own handlers while protected code runs."""
    if not _depth:
        _handlers[number](number, frame)
    elif _open:
        _handle(number, frame)
    else:
        _pending[number] = frame


def _deliver() -> None:
    while came := _next():
        try:
            _handle(*came)
        except BaseException:
            while came := _next():  # as Python does: the others are handled next
                interrupt_main(signal.Signals(came[0]))
            raise


def _next() -> tuple[int, FrameType | None] | None:
    """The first signal that is to be handled; a handler that runs meanwhile may take it too."""
    for number in list(_pending):
        try:
            return number, _pending.pop(number)
        except KeyError:
            pass
    return None


def protected(call: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """What ``call`` returns; a signal handler runs only where it waits, or after it.

    If a handler raises after ``call`` has returned something other than None, ``undo`` is given that first.
    """
    global _depth, _open
    if _ident() != _main:
        return call()
    if _depth and not _open:  # inside another one, which does the rest
        return _deeper(call)
    result: T | None = None
    try:
        if _depth:  # in a handler, which runs while another one waits
            try:
                result = _deeper(call)
            finally:
                if _pending and not _masks:
                    _deliver()
        else:
            replaced: list[int] = []
            try:
                result = _begin(call, replaced)
            finally:
                _depth, _open = 0, False  # not in a call, which may find no memory: no handler would run any more
                _end(replaced)
        return result
    except _Raised as raised:
        _undo(undo, result)
        raise raised.error from None
    except BaseException:
        _undo(undo, result)
        raise


def see_through(leave: Callable[[list[bool]], T]) -> T:
    """As ``protected``, to leave a block: also if an interrupt comes before that has begun; ``leave`` notes when it
    begins."""
    begun: list[bool] = []
    try:
        return protected(functools.partial(leave, begun))
    except BaseException:
        if not begun:
            protected(functools.partial(leave, begun))
        raise


def _undo(undo: Callable[[T], object] | None, result: T | None) -> None:
    if undo is not None and result is not None:
        undo(result)


def _deeper(call: Callable[[], T]) -> T:
    global _depth, _open
    depth, before = _depth, _open
    try:
        _depth, _open = depth + 1, False
        return call()
    finally:
        _depth, _open = depth, before


def _begin(call: Callable[[], T], replaced: list[int]) -> T:
    global _main, _depth, _beginning, _found
    before = _beginning
    try:
        _beginning = True
        handlers = [*map(_getsignal, _SIGNALS)]
        known, places = _found
        if handlers != known:
            places = tuple(place for place, handler in enumerate(handlers) if callable(handler))
            _found = handlers, places
        for place in places:
            number = _SIGNALS[place]
            handler = _getsignal(number)  # again: another one, that ran just now, may have changed it
            if callable(handler):
                if handler is not _defer:
                    _handlers[number] = handler
                    try:
                        _setsignal(number, _defer)
                    except ValueError:  # this is not Python's main interpreter, so no handler ever runs here
                        _main = None
                        break
                replaced.append(number)
        _depth = 1
    finally:
        _beginning = before
    return call()


def _end(replaced: list[int]) -> None:
    # Should a handler raise before all are back, _defer passes on what comes, until the next time.
    if not _beginning:  # else this is a handler that interrupted _begin, whose call needs them replaced
        for number in replaced:
            if _getsignal(number) is _defer:
                _setsignal(number, _handlers[number])
    if _pending:
        _deliver()


def interruptible(call: Callable[[*Ts], T], *args: *Ts) -> T:
    """What ``call`` returns: something that waits, during which signal handlers run as they come."""
    global _open
    if not _depth or _masks or _ident() != _main:
        return call(*args)
    before = _open
    try:
        _open = True
        if _pending:
            _deliver()
        return call(*args)
    finally:
        _open = before


def on_main_thread() -> bool:
    """Whether signal handlers can interrupt the calling thread."""
    return _ident() == _main


def check() -> None:
    """Let the handlers run whose signals came, for code that waits in short steps."""
    if _pending and not _masks and _ident() == _main:
        interruptible(_deliver)


class masked:
    """Inside, not even a wait can be interrupted: for a clean-up that must happen, and takes a bounded time."""

    _before = 0

    def __enter__(self) -> None:
        global _masks
        if _ident() == _main:
            self._before, _masks = _masks, _masks + 1

    def __exit__(self, *_: object) -> None:
        global _masks
        if _ident() == _main:
            _masks = self._before


class Again:
    """Raises an error once more, in the main thread, as soon as this object is gone.

    For what a signal handler raises in code that may be a finalizer's, where Python drops it: keep this in a local
    variable there, and it comes out of whatever ran the finalizer.
    """

    def __init__(self, error: BaseException) -> None:
        # Without the frames of the finalizer, which would keep this object.
        again = error.with_traceback(None)
        again.__context__ = None
        before = _getsignal(signal.SIGINT)

        def handle(*_: object) -> None:
            _setsignal(signal.SIGINT, before)
            raise again

        _setsignal(signal.SIGINT, handle)

    __del__ = staticmethod(interrupt_main)  # nothing of Python's own runs in it, so that the handler runs after it


def _after_fork() -> None:
    # The thread that forked is the child's main thread. Wherever it is, Ctrl-C must reach it, and what had come before
    # is the parent's.
    global _main, _depth, _open, _masks, _beginning
    _main, _depth, _open, _masks, _beginning = _ident(), 0, False, 0, False
    _pending.clear()


at_fork(after_in_child=_after_fork)
